"""What a point costs beside its timed passes: ``python benchmarks/point_cost.py [--against SRC]``.

Measures points as a worker does, one after the other in one process: networks one by one, each at
all sizes and with each algorithm, with the settings that a sweep has by default. Wall seconds of a
point are spread over stages, each without the stages inside it. The share is that of the timed
passes; the first point of a network holds its building. The start of a worker is in none.

With `--cpu`, seconds are those of the processor with one thread. Neighbours change them little, so
use it on a machine that is not yours alone.

`--device cuda` measures on a GPU. Where there is none it takes the pretend GPU of the tests, whose
kernels compute nothing and take 1 us: then nearly all seconds are the host's.

`--against` takes the `src` of another version; both take turns, in processes of their own, and the
table has the medians of the rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import pretendgpu
from hpcsweep import catalog
from hpcsweep.measure import measure_point as pipeline
from hpcsweep.measure import model_builder
from hpcsweep.measure.checks import algorithm as proving
from hpcsweep.measure.checks import control, numerics
from hpcsweep.measure.measure_point import torch_bench
from hpcsweep.measure.timing import clocks, lanes
from hpcsweep.measure.workloads import inference
from hpcsweep.node import worker
from hpcsweep.node.protocol import MeasureRequest
from hpcsweep.point import Point
from hpcsweep.store.state import PointStatus
from hpcsweep.text import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from hpcsweep.measure.bench_api import Bench

Record = dict[str, Any]

MODELS = ("resnet18", "alexnet", "mobilenet_v3_small", "squeezenet1_1", "resnet152")
SIZES = (64, 128, 224)
ALGORITHMS = ("auto", "gemm", "implicit_gemm", "winograd")  # the proof of `auto` has little to do
TIMED = "timed"
LOOP = "loop"
WARM_UP = "warm-up"
REST = "rest"
STAGES = (
    *("network", "shapes", "algorithm", WARM_UP, LOOP, "evidence", "float64", "control"),
    *("garbage", REST),
)
OWN = Path(__file__).parents[1] / "src"


class Stages:
    """Seconds by stage, each without the stages inside it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._now = now
        self._open = [REST]
        self._since = now()

    def watch(self, owner: object, name: str, stage: str) -> None:
        """Count what a function of a class or module takes."""
        inner = getattr(owner, name)

        def watched(*args: object, **kwargs: object) -> object:
            self._switch(opened=self._named(stage))
            try:
                return inner(*args, **kwargs)
            finally:
                self._switch()

        setattr(owner, name, watched)

    def take(self) -> dict[str, float]:
        """Return the seconds since the last time, and begin anew."""
        self._count()
        found = self.seconds
        self.seconds = defaultdict(float)
        return found

    def _named(self, stage: str) -> str:
        """Return the stage of a block of passes: timed in the loop, else what runs it."""
        inside = self._open[-1]
        return stage if stage != TIMED or inside == LOOP else inside

    def _switch(self, opened: str | None = None) -> None:
        self._count()
        if opened is None:
            self._open.pop()
        else:
            self._open.append(opened)

    def _count(self) -> None:
        now = self._now()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now


def main() -> None:
    """Measure in turns, and print a table for each version."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES)
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--measure", type=json.loads, default={}, help="settings, as JSON")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="processor time of one thread")
    parser.add_argument("--against", type=Path, help="`src` of another version")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        measure(chosen)
        return
    trees = [tree for tree in (chosen.against, OWN) if tree]
    found: dict[Path, list[list[Record]]] = {tree: [] for tree in trees}
    for _ in range(chosen.rounds):
        for tree in trees:
            found[tree].append(run_child(tree, chosen))
        trees.reverse()
    for tree, rounds in found.items():
        report(tree, rounds)


def run_child(tree: Path, chosen: argparse.Namespace) -> list[Record]:
    """Measure all points in a process that imports this tree."""
    environ = pretendgpu.host_alone() if chosen.device == "cuda" else dict(os.environ)
    environ["PYTHONPATH"] = str(tree.absolute())
    if (
        chosen.cpu
    ):  # the control, too: two threads that wait for each other burn time on a busy machine
        environ["OMP_NUM_THREADS"] = "1"
    words = [sys.executable, __file__, "--child", *sys.argv[1:]]
    done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def measure(chosen: argparse.Namespace) -> None:
    """Measure the points in the order of a sweep; print a line of JSON for each."""
    model_builder.torchvision_models()  # as the template has, before it makes a worker
    model_builder.settle()
    stages = Stages(time.process_time if chosen.cpu else time.perf_counter)
    # a GPU has a name of its own, under which the catalogue promises nothing
    gpu = "cpu" if chosen.device == "cpu" else "any"
    bench = watched_bench(stages, gpu)
    threads = 1 if chosen.cpu else None
    defaults = catalog.axis_defaults("inference") | {"gpu": gpu, "num_threads": threads}
    settings = catalog.setting_defaults("inference") | chosen.measure
    for model in chosen.models:
        for size in chosen.sizes:
            for algorithm in chosen.algorithms:
                axes = {"model": model, "input_size": size, "algorithm": algorithm}
                point = Point("inference", defaults | axes, settings, "0" * 16)
                stages.take()
                (outcome,) = worker.outcomes(bench, MeasureRequest(points=(point,)), json.dumps)
                seconds = stages.take()
                if outcome.status is not PointStatus.OK:
                    raise SystemExit(f"{axes}: {outcome.status} {outcome.reason}")
                told = {**axes, "median_ms": outcome.row["median_ms"], "seconds": seconds}
                print(json.dumps(told), flush=True)


# owner, name of its function, stage
WATCHED: Final = (
    (model_builder.ModelCache, "get", "network"),
    (inference, "shape_pass", "shapes"),
    (pipeline, "choose", "algorithm"),
    (inference.InferencePasses, "warm_up", WARM_UP),
    (lanes.Lanes, "warm_up", WARM_UP),
    (pipeline, "time_passes", LOOP),
    (clocks.HostClock, "block", TIMED),
    (clocks.DeviceClock, "block", TIMED),
    (proving.AlgorithmCheck, "_prove", "evidence"),
    (numerics.NumericsCheck, "after", "float64"),
    (control.ControlCheck, "after", "control"),
    (gc, "collect", "garbage"),
)


def watched_bench(stages: Stages, gpu: str) -> Bench:
    """Return the bench of a worker whose profile has this `gpu`; its stages are watched."""
    for watched in WATCHED:
        stages.watch(*watched)
    return torch_bench("inference", {"gpu": gpu})


def report(tree: Path, rounds: Sequence[Sequence[Record]]) -> None:
    """Print wall seconds, share and stages of each point, and of all points of a network."""
    print(f"\n{tree}: medians of {len(rounds)} rounds, ms; load {os.getloadavg()[0]:.1f}")
    heads = ["model", "size", "algorithm", "pass", "wall s", "share", TIMED, *STAGES]
    rows: list[list[str]] = []
    for same in zip(*rounds, strict=True):
        one_pass = statistics.median(one["median_ms"] for one in same)
        names = [str(same[0][name]) for name in ("model", "input_size", "algorithm")]
        rows.append([*names, f"{one_pass:.1f}", *cells([one["seconds"] for one in same])])
    for model in dict.fromkeys(one["model"] for one in rounds[0]):
        sums = [total(points, model) for points in rounds]
        rows.append([model, "all", "", "", *cells(sums)])
    print("\n".join(aligned([heads, *rows], left=3)))


def cells(rounds: Sequence[dict[str, float]]) -> list[str]:
    """Return wall seconds, the share, and the milliseconds of each stage: medians."""
    wall = statistics.median(sum(one.values()) for one in rounds)
    share = statistics.median(one.get(TIMED, 0.0) / sum(one.values()) for one in rounds)
    stages = (statistics.median(one.get(name, 0.0) for one in rounds) for name in (TIMED, *STAGES))
    return [f"{wall:.2f}", f"{share:.2f}", *(f"{1000 * seconds:.0f}" for seconds in stages)]


def total(points: Iterable[Record], model: str) -> dict[str, float]:
    """Return the sums by stage of the points of a network."""
    sums: dict[str, float] = defaultdict(float)
    for one in points:
        for stage, seconds in one["seconds"].items() if one["model"] == model else ():
            sums[stage] += seconds
    return sums


if __name__ == "__main__":
    main()
