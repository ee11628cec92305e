"""A GPU that is not there: torch's own CUDA code runs on the host's memory, as on one H100.

torch takes CUDA from shared libraries. `native/pretend/` has libraries of the same names and
functions, which are loaded before the real ones: the runtime (device.c, queue.c, launches.c), cuDNN
(cudnn.c, convolutions.h), cuBLAS, CUPTI, NVML, and a driver. torch's allocator, streams, events,
captured graphs, errors and profiler are its own. The heads of the C files say what the libraries
do, and which variables change it.

A process has the pretend GPU from its start or not at all, since the libraries have to be there
before torch. So a test runs a program with `PretendGpu.environment`.

`python tests/support/pretendgpu.py FOLDER` builds it for a person, and prints FOLDER/run, which
runs any program on it.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

SOURCES = Path(__file__).parent / "native" / "pretend"
NAME = "NVIDIA H100 80GB HBM3"
# what nvidia-smi prints for its options here, as of an H100: names as CSV, or the list of GPUs
_SMI = f"""\
name="${{PRETEND_GPU_NAME:-{NAME}}}"
case "$*" in
    "--query-gpu=name --format=csv,noheader") echo "$name" ;;
    -L) echo "GPU 0: $name (UUID: GPU-00000000-0000-0000-0000-000000000000)" ;;
    *) echo "the pretend nvidia-smi does not know: $*" >&2; exit 6 ;;
esac
"""
# in the order in which they are loaded: each may call those before it
_LOADED_FIRST = (
    "libpretend_cupti.so",
    "libpretend_cudart.so",
    "libcudnn.so.9",
    "libpretend_cublas.so",
)
_RUNTIME = ("device.c", "queue.c", "launches.c")  # one text: each uses what stands before it
# loops over rows become vectors; sums may be added up in any order, as a GPU does
_QUICK = ("-O3", "-march=native", "-fassociative-math", "-fno-signed-zeros", "-fno-trapping-math")
# names in torch's libraries that look like functions of the driver, and are those of others
_NOT_THE_DRIVER = re.compile(r"cu(da|blas|fft|solver|sparse|dnn|pti|rand|File)")


@dataclass(frozen=True)
class PretendGpu:
    """The built libraries."""

    folder: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Return this process's environment with the GPU in it; `more` are variables, too.

        Nothing is computed unless they ask for it: one point's control takes the host 5 seconds.
        """
        return {
            "PRETEND_COMPUTE": "0",
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder),
            "LD_PRELOAD": ":".join(str(self.folder / name) for name in _LOADED_FIRST),
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "HPCSWEEP_CUDNN": str(self.folder / "libcudnn.so.9"),
            # torch's own convolutions go through cuDNN's legacy calls, which the pretend one has
            "TORCH_CUDNN_V8_API_DISABLED": "1",
            **more,
        }

    def run(
        self, *command: str | Path, cwd: Path | None = None, timeout: float = 120, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a program on the GPU to its end."""
        return subprocess.run(
            [*map(str, command)],
            cwd=cwd,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


# One process runs many programs, each a line of JSON, and answers each by one: torch takes seconds
# to be imported, and the libraries read their variables at each call.
_SERVANT = """
import contextlib, io, json, os, sys, torch
for line in sys.stdin:
    program, variables = json.loads(line)
    os.environ.update(variables)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, {"torch": torch})
    for name in variables:
        del os.environ[name]
    print(json.dumps(printed.getvalue()), flush=True)
"""


@contextmanager
def servant(gpu: PretendGpu) -> Iterator[Callable[..., list[Any]]]:
    """Give a function that runs a program on the GPU, and returns the Python values it printed."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", _SERVANT],
        env=gpu.environment(PRETEND_COMPUTE="1"),
        stdin=pipe,
        stdout=pipe,
        text=True,
    ) as process:

        def run(program: str, **variables: str) -> list[Any]:
            assert process.stdin and process.stdout  # noqa: PT018 - for the type checker
            process.stdin.write(json.dumps([program, variables]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, "the program failed: its traceback is above"
            return [ast.literal_eval(line) for line in json.loads(answer).splitlines()]

        yield run
        assert process.stdin
        process.stdin.close()


def is_pretended() -> bool:
    """Say whether this process has it, so that a GPU that torch finds here is not a real one."""
    return _LOADED_FIRST[1] in os.environ.get("LD_PRELOAD", "")


def is_real_one_here() -> bool:
    """Say whether this machine has a GPU of its own: of NVIDIA (nvidiactl) or AMD (kfd)."""
    return any(Path("/dev", name).exists() for name in ("nvidiactl", "kfd"))


def host_alone() -> dict[str, str]:
    """Return variables with which nearly all seconds of a program on a GPU are the host's.

    They are of the pretend GPU, with kernels of 1 us, but where the machine has a GPU of its own.

    Raises:
        SystemExit: there is none, and none can be built.
    """
    if is_real_one_here():
        return dict(os.environ)
    if why := missing():
        raise SystemExit(f"no GPU, and no pretend one: {why}")
    return built().environment(PRETEND_KERNEL_US="1")


@functools.cache
def missing() -> str:
    """Return why the GPU cannot be built here; empty if it can."""
    lacking = [program for program in ("gcc", "nm", "readelf") if shutil.which(program) is None]
    if lacking:
        return f"no {' and no '.join(lacking)}"
    if importlib.util.find_spec("triton") is None or not _headers():
        return "this torch was built without CUDA"
    return ""


def built() -> PretendGpu:
    """Return the GPU for the torch of this Python; build it unless that was done before.

    Processes that ask at the same time share one.
    """
    digest = hashlib.sha256(str(_torch()).encode())
    for source in (Path(__file__), *sorted(SOURCES.iterdir())):
        digest.update(source.read_bytes())
    folder = Path(tempfile.gettempdir()) / f"hpcsweep-pretend-gpu-{digest.hexdigest()[:16]}"
    with filelock.FileLock(f"{folder}.lock"):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
                build(Path(aside) / "gpu")
                Path(aside, "gpu").rename(folder)
    return PretendGpu(folder)


def build(folder: Path) -> None:
    """Compile the libraries into a folder, with a `nvidia-smi` and `run`, which runs a program."""
    folder.mkdir(parents=True, exist_ok=True)
    libraries = {
        "libpretend_cudart.so": (_text(*_RUNTIME), _functions("(?:__)?cuda")),
        "libcudnn.so.9": (_text("cudnn.c"), _functions("cudnn")),
        "libpretend_cublas.so": (_text("cublas.c"), _functions("cublas")),
        "libpretend_cupti.so": (_text("cupti.c"), _functions("cupti")),
        "libnvidia-ml.so.1": (_text("nvml.c"), set[str]()),
        "libcuda.so.1": (_text("driver.c"), _functions_of_the_driver()),
    }
    for name, (text, wanted) in libraries.items():
        _compile(_with_rest(text, wanted), folder / name)
    _write_program(folder / "nvidia-smi", _SMI)
    _write_program(folder / "run", _run_script())


def _run_script() -> str:
    here = Path("$here")  # the folder of the script, wherever it was moved to
    told = PretendGpu(here).environment()
    del told["PRETEND_COMPUTE"]  # who runs it decides
    names = sorted(name for name, value in told.items() if os.environ.get(name) != value)
    words = " ".join(f'{name}="{told[name]}"' for name in names if name != "PATH")
    return f'here=$(cd "$(dirname "$0")" && pwd)\nexec env {words} PATH="$here:$PATH" "$@"\n'


def _write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


def _torch() -> Path:
    """Return the folder of torch, without importing it."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _headers() -> list[Path]:
    """Return the folders of NVIDIA's public headers, which come with torch."""
    site = _torch().parent
    return [*sorted(site.glob("nvidia/c*/include")), site / "triton/backends/nvidia/include"]


def _text(*sources: str) -> str:
    """Return the text of C files."""
    return "".join((SOURCES / source).read_text() for source in sources)


def _with_rest(text: str, wanted: set[str]) -> str:
    """Return a library's text with a function for each that is wanted and that it lacks.

    Such a function says "success", or fails on request.
    """
    command = ["gcc", "-E", "-P", *_includes(), "-x", "c", "-"]
    expanded = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    has = set(re.findall(r"\b(\w+)\s*\([^;{}]*\)\s*\{", expanded.stdout))
    return text + "".join(
        f'\nint {name}(void) {{ return pretend_status("{name}"); }}'
        for name in sorted(wanted - has)
    )


@functools.cache
def _names(*program: str) -> str:
    """Return what a program prints of all of torch's own libraries."""
    libraries = sorted((_torch() / "lib").glob("lib*.so"))
    command = [*program, *map(str, libraries)]
    done = subprocess.run(command, capture_output=True, errors="replace", check=True)
    return done.stdout


def _functions(prefix: str) -> set[str]:
    """Return the functions of a library that torch links to, by their prefix."""
    table = _names("nm", "-D", "--undefined-only")
    return set(re.findall(rf"\b({prefix}[A-Z]\w*)", table))


def _functions_of_the_driver() -> set[str]:
    """Return the functions of the driver: torch links to some, and looks up others by name."""
    texts = _names("readelf", "--wide", "--string-dump=.rodata")
    looked_up = re.findall(r"^ *\[ *\w+\] +(cu[A-Z][a-z]\w{3,})$", texts, re.MULTILINE)
    found = {*looked_up, *_functions("cu")}
    return {name for name in found if not _NOT_THE_DRIVER.match(name)}


def _includes() -> list[str]:
    return [f"-I{path}" for path in (SOURCES, *_headers())]


def _compile(text: str, path: Path) -> None:
    command = ["gcc", "-shared", "-fPIC", "-w", *_QUICK, *_includes(), f"-Wl,-soname,{path.name}"]
    command += ["-x", "c", "-", "-o", str(path), "-lpthread", "-ldl", "-lm"]
    subprocess.run(command, input=text, text=True, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
    print(Path(sys.argv[1], "run"))
