"""What layer timers cost: passes without, without again (the control) and with, in turns.

    python -m benchmarks.hooks

Each round has another order. Ratios are paired within a round, so a drift falls out; what the
control is off by says what this machine can tell. Processor time of the one thread that works is
compared besides wall time, since it does not see the neighbours' share. The budget is 3
microseconds per layer call.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING, Final

import torch
from torch import nn

from benchmarks.markdown import print_head, print_row
from hpcsweep.catalog.models import MODELS
from hpcsweep.measure import model_builder
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing import stats
from hpcsweep.measure.timing.clocks import HostStamps
from hpcsweep.measure.timing.layer_timer import LayerTimer
from hpcsweep.measure.timing.loop import quiet_collector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Round = dict[str, float]

_BUDGET_US: Final = 3.0
_ROUNDS: Final = 30
_PASSES: Final = 3  # of each variant in a round
_VARIANTS: Final = {"plain": "", "again": "plain again (A/A control)", "hooked": "layer timers"}
_POINTS: Final = (("resnet50", 224), ("resnet18", 64), ("empty", 8))
_EMPTY: Final = 200  # layers that do next to nothing: what is left is the timers


def main() -> None:
    """Print a table per network, with a row per clock and comparison."""
    torch.set_num_threads(1)
    print(f"{_ROUNDS} rounds of {_PASSES} passes of each, one thread; a timer's budget is "
          f"{_BUDGET_US:g} us per layer call\n")  # fmt: skip
    print_head("network | clock | compared with plain passes | ratio | us per layer call")
    for name, size in _POINTS:
        model = _network(name)
        image = torch.randn(1, 3, size, size)
        calls = shape_pass(model, image).calls
        timer = LayerTimer(model, calls, HostStamps())
        with torch.inference_mode():
            for _ in range(5):
                model(image)
            for clock, now in (("wall", time.perf_counter_ns), ("CPU", time.process_time_ns)):
                found = _rounds(lambda: model(image), timer, now)  # noqa: B023 - called here
                _print_rows(f"{name} at {size}, {len(calls)} layer calls", clock, found, len(calls))


def _network(name: str) -> nn.Module:
    if name in MODELS:
        return model_builder.build_float32(name)
    return nn.Sequential(*(nn.ReLU(inplace=True) for _ in range(_EMPTY)))


def _rounds(run: Callable[[], object], timer: LayerTimer, now: Callable[[], int]) -> list[Round]:
    """Return the median milliseconds of each variant, per round."""
    order = random.Random(0)
    found = []
    with quiet_collector():
        for _ in range(_ROUNDS):
            medians = {}
            for variant in order.sample(list(_VARIANTS), len(_VARIANTS)):
                if variant == "hooked":
                    with timer.attached(_PASSES):
                        medians[variant] = _block(run, now)
                else:
                    medians[variant] = _block(run, now)
            found.append(medians)
    return found


def _block(run: Callable[[], object], now: Callable[[], int]) -> float:
    times = []
    for _ in range(_PASSES):
        begin = now()
        run()
        times.append((now() - begin) / 1e6)
    return stats.median(times)


def _print_rows(network: str, clock: str, found: list[Round], calls: int) -> None:
    plain = [one["plain"] for one in found]
    for variant in ("again", "hooked"):
        own = [one[variant] for one in found]
        more = statistics.median(b - a for a, b in zip(plain, own, strict=True)) * 1000 / calls
        print_row(network, clock, _VARIANTS[variant], _ratio(plain, own), f"{more:+.2f}")


def _ratio(firsts: Sequence[float], seconds: Sequence[float]) -> str:
    """Return the median of `seconds` over `firsts`, pair by pair, and its 95 % interval."""
    found = stats.summarise([b / a for a, b in zip(firsts, seconds, strict=True)])
    low, high = found.ci95 or (float("nan"), float("nan"))
    return f"{found.median:.3f} [{low:.3f}, {high:.3f}]"


if __name__ == "__main__":
    main()
