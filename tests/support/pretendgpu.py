"""A GPU that is not there: torch's own CUDA code runs on the host's memory, as on one H100.

torch takes CUDA from shared libraries. `native/pretend/` has libraries of the same names and
functions, which are loaded before the real ones: the runtime (cudart), cuDNN with cuBLAS, CUPTI,
NVML, and an empty driver. torch's allocator, streams, events, captured graphs, errors and profiler
are its own. The heads of the C files say what the libraries do, and which variables change it.

A process has the pretend GPU from its start or not at all, since the libraries have to be there
before torch. So a test runs a program with `PretendGpu.environment`.

`python tests/support/pretendgpu.py FOLDER` builds it for a person, and prints FOLDER/run, which
runs any program on it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import filelock

SOURCES = Path(__file__).parent / "native" / "pretend"
NAME = "NVIDIA H100 80GB HBM3"
# in the order in which they are loaded: each may call those before it
_LOADED_FIRST = ("libpretend_cupti.so", "libpretend_cudart.so", "libcudnn.so.9")
# names in torch's libraries that look like functions of the driver, and are those of others
_NOT_THE_DRIVER = re.compile(r"cu(da|blas|fft|solver|sparse|dnn|pti|rand|File)")
# as the runtime's cudaGetDeviceCount has it; CUDA_ERROR_NO_DEVICE where the GPU is hidden
_FIRST_DEVICE = f"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags)
{{
    const char *seen = getenv("CUDA_VISIBLE_DEVICES");
    return !seen || seen[0] == '0' || seen[0] == '1' || !strncmp(seen, "GPU-", 4) ? 0 : 100;
}}
int cuDeviceGet(int *device, int number) {{ *device = number; return number ? 101 : 0; }}
int cuDeviceGetName(char *text, int size, int device)
{{
    return snprintf(text, size, "{NAME}") < 0;
}}
"""


@dataclass(frozen=True)
class PretendGpu:
    """The built libraries."""

    folder: Path

    def environment(self, **more: str) -> dict[str, str]:
        """Return this process's environment with the GPU in it; `more` are variables, too."""
        return {
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


def missing() -> str:
    """Return why the GPU cannot be built here; empty if it can."""
    lacking = [program for program in ("gcc", "nm", "strings") if shutil.which(program) is None]
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
    libraries = sorted((_torch() / "lib").glob("lib*.so"))
    _compile(_with_rest("cudart.c", libraries, "(?:__)?cuda"), folder / "libpretend_cudart.so")
    _compile(_with_rest("cudnn.c", libraries, "cudnn", "cublas"), folder / "libcudnn.so.9")
    _compile(_with_rest("nvml.c", []), folder / "libnvidia-ml.so.1")
    _compile(_with_rest("cupti.c", libraries, "cupti"), folder / "libpretend_cupti.so")
    _compile(_driver(libraries), folder / "libcuda.so.1")
    _write_program(folder / "nvidia-smi", f'echo "{NAME}"\n')
    _write_program(folder / "run", _run_script(folder.resolve()))


def _run_script(folder: Path) -> str:
    told = PretendGpu(folder).environment()
    names = sorted(name for name, value in told.items() if os.environ.get(name) != value)
    words = " ".join(f"{name}='{told[name]}'" for name in names if name != "PATH")
    return f'exec env {words} PATH="{folder}:$PATH" "$@"\n'


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


def _with_rest(source: str, libraries: list[Path], *prefixes: str) -> str:
    """Return a C file's text, with a function that says "success" for each that it lacks.

    Lacking is what torch's libraries want of a prefix.
    """
    text = (SOURCES / source).read_text()
    command = ["gcc", "-E", "-P", *_includes(), "-x", "c", "-"]
    expanded = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    has = set(re.findall(r"\b(\w+)\s*\([^;{}]*\)\s*\{", expanded.stdout))
    wanted = set[str]()
    for library in libraries if prefixes else []:
        table = subprocess.run(
            ["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True
        )
        for prefix in prefixes:
            wanted |= set(re.findall(rf"\b({prefix}[A-Z]\w*)", table.stdout))
    return text + "".join(f"\nint {name}(void) {{ return 0; }}" for name in sorted(wanted - has))


def _driver(libraries: list[Path]) -> str:
    """Return a driver of which each function that torch looks up by name says "success"."""
    names = {"cuInit"}
    for library in libraries:
        found = subprocess.run(
            ["strings", "-n", "6", library], capture_output=True, text=True, check=True
        )
        names |= set(re.findall(r"^(cu[A-Z][a-z]\w{3,})$", found.stdout, re.MULTILINE))
    names = {name for name in names if not _NOT_THE_DRIVER.match(name)}
    told = {"cuDriverGetVersion": 13020, "cuDeviceGetCount": 1}
    own = ("cuInit", "cuDeviceGet", "cuDeviceGetName")
    text = "".join(f"int {n}(int *v) {{ *v = {value}; return 0; }}\n" for n, value in told.items())
    return (
        _FIRST_DEVICE
        + text
        + "".join(f"int {n}(void) {{ return 0; }}\n" for n in sorted(names - {*told, *own}))
    )


def _includes() -> list[str]:
    return [f"-I{path}" for path in _headers()]


def _compile(text: str, path: Path) -> None:
    command = ["gcc", "-shared", "-fPIC", "-O1", "-w", *_includes(), f"-Wl,-soname,{path.name}"]
    command += ["-x", "c", "-", "-o", str(path), "-lpthread", "-ldl", "-lm"]
    subprocess.run(command, input=text, text=True, check=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
    print(Path(sys.argv[1], "run"))
