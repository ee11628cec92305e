"""The fixed runs of the guard. What they need is made by the revision that reads it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import pretendgpu

RUN: Final = ("-c", "from hpcsweep.cli import run; run()")
NOOP: Final = "workload: noop\naxes: {model: [a, b], input_size: {start: 1, stop: %d, step: 1}}\n"
EXPAND: Final = """
import sys
from hpcsweep.spec import expansion, sweep_file
assert sum(1 for _ in expansion.expand(sweep_file.load(sys.argv[1]))) == 1_000_000
"""
MILLION: Final = """
workload: inference
axes:
  model: [resnet50, resnet152]
  input_size: {start: 224, stop: 723, step: 1}
  batch_size: {start: 1, stop: 100, step: 1}
  algorithm: [auto, autotune, implicit_gemm, implicit_precomp_gemm, gemm, direct, fft, fft_tiling,
    winograd, winograd_nonfused]
  gpu: [l40]
"""
STATUS: Final = """
import sys
from pathlib import Path
from benchmarks import status
status._make(Path(sys.argv[1]), Path(sys.argv[1]) / "results", 100_000, 2_000)
"""
LAYERS: Final = """
import sys
from pathlib import Path
from benchmarks import collect
from hpcsweep.store.folders import SweepDir
collect.make(SweepDir(Path(sys.argv[1]) / "results" / "many"), 100, 2_151, 465)
"""
MEASURED: Final = """
workload: inference
axes: {model: [%s], input_size: [%s], algorithm: [%s], num_threads: [1]}
measure: {warmup: 2, iterations: 5}
"""
CHECKED: Final = """
workload: inference
axes: {model: [resnet18, mobilenet_v3_small], input_size: [128], algorithm: [%s], num_threads: [1]}
"""
# energy takes a second and a half of each point, whatever the program does
ON_A_GPU: Final = """
workload: inference
axes: {model: [resnet18], input_size: [64], algorithm: [auto, gemm, implicit_gemm]}
measure: {energy: false}
"""
SIDES: Final = ("measured:algorithm=auto", "measured:algorithm=gemm")
NETWORKS: Final = (
    "alexnet",
    "resnet18",
    "squeezenet1_1",
    "mobilenet_v3_small",
    "shufflenet_v2_x0_5",
)
COMMANDS: Final = ("submit", "status", "collect", "report", "expand", "show", "compare", "predict")


class Skipped(Exception):
    """The other revision cannot do it."""


Run = Callable[[int], float]  # returns the MiB of its largest process


@dataclass(frozen=True)
class Case:
    """A run by name; `make` prepares a folder and returns what is timed, given the round."""

    name: str
    make: Callable[[Program], Run]

    def prepare(self, tree: Path, folder: Path) -> Run:
        """Return the timed run of the program in a tree, in a folder of its own."""
        own = folder / self.name.replace(" ", "-").replace("/", "-")
        own.mkdir(parents=True)
        shutil.copytree(tree / "cluster_profiles", own / "cluster_profiles")
        return self.make(Program(tree, own))


@dataclass(frozen=True)
class Program:
    """The program of one revision, run in a folder."""

    tree: Path
    folder: Path
    variables: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def python(self, *arguments: str) -> float:
        """Run Python on this revision's source; return its MiB. `Skipped` where it fails."""
        path = os.pathsep.join((str(self.tree / "src"), str(self.tree)))
        environment = {**self.variables, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        with tempfile.TemporaryFile("w+") as said:
            command = [sys.executable, *arguments]
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=subprocess.DEVNULL, stderr=said
            )
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            said.seek(0)
            if process.returncode:
                raise Skipped((said.read().strip().splitlines() or ["no reason"])[-1])
        return usage.ru_maxrss / 1024

    def command(self, *arguments: str) -> float:
        """Run a command."""
        return self.python(*RUN, *arguments)

    def results_of(self, script: str) -> Path:
        """Return the results that a script of this revision makes, once for all cases."""
        made = self.folder.parent / f"made-{zlib.crc32(script.encode())}"
        if not made.exists():
            made.mkdir()
            self.python("-c", script, str(made))
        return made / "results"

    def write(self, name: str, text: str) -> str:
        """Write a file and return its name."""
        (self.folder / name).write_text(text)
        return name


def _start(program: Program) -> Run:
    return lambda _: max(program.command(name, "--help") for name in COMMANDS)


def _points(number: int) -> Callable[[Program], Run]:
    def make(program: Program) -> Run:
        file = program.write("noop.yaml", NOOP % (number // 2))
        submit = ("submit", file, "--cluster", "local", "--workers", "2", "--collect")
        return lambda round_: program.command("--results", f"results-{round_}", *submit)

    return make


def _expansion(program: Program) -> Run:
    file = program.write("million.yaml", MILLION)
    return lambda _: program.python("-c", EXPAND, file)


def _made(script: str, *arguments: str, forget: str = "") -> Callable[[Program], Run]:
    """Time a command on a folder that a script of the same revision makes."""

    def make(program: Program) -> Run:
        results = program.results_of(script)

        def run(_: int = 0) -> float:
            for path in results.glob(forget) if forget else ():
                path.unlink()
            return program.command("--results", str(results), *arguments)

        run()  # else a revision that cannot do it would be found in the rounds
        return run

    return make


def _measured(*arguments: str) -> Callable[[Program], Run]:
    """Time a command on a sweep that is measured once."""

    def make(program: Program) -> Run:
        values = (", ".join(NETWORKS[:2]), "64, 96, 128", "auto, gemm")
        file = program.write("measured.yaml", MEASURED % values)
        program.command("submit", file, "--cluster", "local", "--collect")
        program.command(*arguments)
        return lambda _: program.command(*arguments)

    return make


def _checked(algorithm: str) -> Callable[[Program], Run]:
    """Time a sweep of real points with every check and the default settings."""

    def make(program: Program) -> Run:
        file = program.write("checked.yaml", CHECKED % algorithm)
        submit = ("submit", file, "--cluster", "local", "--collect")
        return lambda round_: program.command("--results", f"results-{round_}", *submit)

    return make


def _on_a_gpu(program: Program) -> Run:
    """Time a sweep on a GPU, mostly the pretend one of this revision, whose kernels take 1 us."""
    on_gpu = replace(program, variables=pretendgpu.host_alone())
    file = on_gpu.write("gpu.yaml", ON_A_GPU)
    submit = ("submit", file, "--cluster", "local", "--collect")
    return lambda round_: on_gpu.command("--results", f"results-{round_}", *submit)


def _networks(program: Program) -> Run:
    """Time a sweep of one point of each network, from its file to its table."""
    file = program.write("networks.yaml", MEASURED % (", ".join(NETWORKS), "224", "auto"))
    submit = ("submit", file, "--cluster", "local", "--collect")
    return lambda round_: program.command("--results", f"results-{round_}", *submit)


CASES: Final = (
    Case(f"--help of {len(COMMANDS)} commands", _start),
    Case("200 points that do nothing", _points(200)),
    Case("20,000 points that do nothing", _points(20_000)),
    Case("a million points expanded", _expansion),
    Case("status of 100,000 points", _made(STATUS, "status", "--json")),
    Case("collect of 100,000 points", _made(STATUS, "collect", "large", forget="large/.collect*")),
    Case("report of 100,000 points", _made(STATUS, "report", "large", "--json")),
    Case(
        "collect of a million layer rows", _made(LAYERS, "collect", "many", forget="many/.collect*")
    ),
    Case("page of 12 points", _measured("report", "measured", "--html", "page.html")),
    Case("forecast", _measured("predict", "measured", "--check")),
    Case("report of 12 points", _measured("report", "measured", "--json")),
    Case("layers of 12 points", _measured("layers", "measured", "--unreliable")),
    Case("compare of 12 points", _measured("compare", *SIDES, "--unreliable")),
    Case("a point of five networks", _networks),
    Case("checked points, gemm", _checked("gemm")),
    Case("checked points, implicit_gemm", _checked("implicit_gemm")),
    Case("points of a GPU that computes nothing", _on_a_gpu),
)
