"""The same function timed by hpcsweep, torch.utils.benchmark and pyperf, in turns.

In each of several processes (as pyperf has it) every tool times the function, round by round, each
round in another order. hpcsweep comes twice: the second time is the control. Each has about half a
second for a value:

    hpcsweep   a host clock around each pass, until half a second is over, after a steady warm-up
    blocked    torch: `Timer.blocked_autorange`, blocks of passes, so that the timer costs little
    adaptive   torch: `Timer.adaptive_autorange`, until IQR / median is below 0.1
    pyperf     a worker's five values of at least 0.1 s, after one for warming up
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import statistics
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch.utils.benchmark import Timer

from benchmarks.markdown import print_head, print_row
from benchmarks.measurement.printing import need, ratio
from hpcsweep.measure import models
from hpcsweep.measure.timing import loop, stats
from hpcsweep.measure.timing.clocks import HostClock

if TYPE_CHECKING:
    from collections.abc import Callable

    Run = Callable[[], object]
    Value = dict[str, float]

PYPERF: Final = "pyperf==2.10.0"
_PROCESSES = 3
_ROUNDS = 4
_SECONDS: Final = 0.5
_OURS = "hpcsweep"
_AGAIN = "hpcsweep again"
_TELLS: Final = {
    _OURS: "median, minimum, quartiles, 95 % interval of single passes",
    _AGAIN: "the same (A/A control)",
    "blocked": "median and IQR of means of blocks",
    "adaptive": "median and IQR of means of blocks",
    "pyperf": "mean and standard deviation of means of loops",
}


def main() -> bool:
    """Print a table per function."""
    need(PYPERF)
    found = [json.loads(line) for process in range(_PROCESSES) for line in _in_a_process(process)]
    print(f"{_PROCESSES} processes of {_ROUNDS} rounds, one thread, torch {torch.__version__}, "
          f"{PYPERF}")  # fmt: skip
    for function in _functions():
        _print_table(function, [one[function] for one in found])
    return True


def _print_table(function: str, rounds: list[dict[str, Value]]) -> None:
    typical = statistics.median(one[_OURS]["value"] for one in rounds)
    print(f"\n{function}: {typical * 1e6:.1f} us by hpcsweep's median\n")
    print_head(
        "tool | tells | over hpcsweep's median | minimum over hpcsweep's | spread it tells | passes"
    )
    for tool, tells in _TELLS.items():
        first = [one[_OURS] for one in rounds]
        own = [one[tool] for one in rounds]
        same = tool == _OURS
        print_row(
            tool,
            tells,
            "1" if same else _over(first, own, "value"),
            "1" if same else _over(first, own, "least"),
            f"{statistics.median(one['spread'] for one in own):.1%}",
            f"{statistics.median(one['passes'] for one in own):.0f}",
        )


def _over(first: list[Value], own: list[Value], name: str) -> str:
    return ratio([one[name] for one in first], [one[name] for one in own])


def _in_a_process(seed: int) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.measurement.timers", str(seed)],
        check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return done.stdout.splitlines()


def _rounds(seed: int) -> None:
    """Print a line per round: what each tool says of each function."""
    need(PYPERF)
    torch.set_num_threads(1)
    order = random.Random(seed)
    worker = _pyperf_worker()
    tools: dict[str, Callable[[Run], Value]] = {
        _OURS: _hpcsweep,
        _AGAIN: _hpcsweep,
        "blocked": partial(_torch, "blocked_autorange", min_run_time=_SECONDS),
        "adaptive": partial(_torch, "adaptive_autorange", max_run_time=_SECONDS),
        "pyperf": partial(_pyperf, worker),
    }
    with torch.inference_mode():
        functions = {name: make() for name, make in _functions().items()}
        for _ in range(_ROUNDS):
            said: dict[str, dict[str, Value]] = {}
            for name, run in functions.items():
                turn = order.sample(list(tools), len(tools))
                said[name] = {tool: tools[tool](run) for tool in turn}
            print(json.dumps(said), flush=True)


def _functions() -> dict[str, Callable[[], Run]]:
    """Return what is timed by name: functions that make it, since two of them cost seconds."""
    return {
        "3x3 convolution, 64 to 64 channels, 56 x 56": _convolution,
        "ResNet-18 at 112": _network,
        "relu of 16 numbers": lambda: partial(torch.relu, torch.randn(16)),
    }


def _convolution() -> Run:
    return partial(F.conv2d, torch.randn(1, 64, 56, 56), torch.randn(64, 64, 3, 3), padding=1)


def _network() -> Run:
    return partial(models.build_float32("resnet18"), torch.randn(1, 3, 112, 112))


def _hpcsweep(run: Run) -> Value:
    lane = loop.Lane(run, HostClock())
    loop.collect([lane], loop.Steady(10, most_seconds=_SECONDS))
    rule = loop.Adaptive(10, target=0.0, most_seconds=_SECONDS)
    found = stats.summarise(loop.collect([lane], rule).times[0])
    milli = 1e-3
    return _value(found.median * milli, found.min * milli, found.iqr_rel or 0.0, found.n)


def _torch(method: str, run: Run, **seconds: float) -> Value:
    timer = Timer("run()", globals={"run": run}, num_threads=1)
    found = getattr(timer, method)(**seconds)
    passes = len(found.raw_times) * found.number_per_run
    return _value(found.median, min(found.times), found.iqr / found.median, passes)


def _pyperf_worker() -> Any:  # noqa: ANN401 - a pyperf.Runner
    """Return pyperf's runner as its worker processes have it."""
    import pyperf  # noqa: PLC0415 - may have been installed just now

    runner = pyperf.Runner(program_args=("-m", __name__))
    runner.parse_args(["--worker", "--loops", "1", "--warmups", "1", "--values", "5", "--quiet"])
    return runner


def _pyperf(worker: Any, run: Run) -> Value:  # noqa: ANN401
    worker.args.loops = _loops(run)
    with contextlib.redirect_stdout(io.StringIO()):
        found = worker.bench_func(f"{time.monotonic_ns()}", run)
    values = found.get_values()
    passes = len(values) * worker.args.loops
    return _value(found.mean(), min(values), found.stdev() / found.mean(), passes)


def _loops(run: Run) -> int:
    """Return how many passes take 0.1 s: pyperf's calibration, which doubles them until then."""
    loops = 1
    while True:
        begin = time.perf_counter()
        for _ in range(loops):
            run()
        if time.perf_counter() - begin >= 0.1:
            return loops
        loops *= 2


def _value(value: float, least: float, spread: float, passes: int) -> Value:
    return {"value": value, "least": least, "spread": spread, "passes": passes}


if __name__ == "__main__":
    _rounds(int(sys.argv[1]))
