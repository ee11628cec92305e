"""What layer timers cost on this CPU: ``python benchmarks/hook_overhead.py [MODEL] [SIZE]``.

Three variants of the same pass take turns in rounds, each round in another order: plain, plain
again (the A/A control) and with layer timers. Differences are paired within a round, so drift
falls out; what is left of the control says what this machine can tell. Processor time of the one
thread that works is compared besides wall time, since it does not see the neighbours' share.

The budget is 3 microseconds per layer call.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import TYPE_CHECKING

import torch

from hpcsweep.measure import models
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing.layer_timer import LayerTimer
from hpcsweep.measure.timing.loop import quiet_collector
from hpcsweep.measure.timing.stamps import HostStamps

if TYPE_CHECKING:
    from collections.abc import Callable

BUDGET_US = 3.0
VARIANTS = ("plain", "again", "hooked")


def main() -> None:
    """Measure and print one line per comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="resnet50")
    parser.add_argument("size", nargs="?", type=int, default=224)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--passes", type=int, default=3, help="per variant and round")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    model = models.build_float32(chosen.model)
    image = torch.randn(1, 3, chosen.size, chosen.size)
    found = shape_pass(model, image).calls
    timer, calls = LayerTimer(model, found, HostStamps()), len(found)
    print(
        f"{chosen.model} at {chosen.size}, {calls} layer calls, 1 thread, torch {torch.__version__}"
    )
    with torch.inference_mode():
        for _ in range(5):
            model(image)
        for name, now in (("wall", time.perf_counter_ns), ("cpu", time.process_time_ns)):
            report(
                name, rounds(chosen.rounds, chosen.passes, lambda: model(image), timer, now), calls
            )


def rounds(
    count: int,
    passes: int,
    run: Callable[[], object],
    timer: LayerTimer,
    now: Callable[[], int],
) -> list[dict[str, float]]:
    """Return the median milliseconds of each variant, per round."""
    order = random.Random(0)
    found = []
    with quiet_collector():
        for _ in range(count):
            medians = {}
            for variant in order.sample(VARIANTS, len(VARIANTS)):
                if variant == "hooked":
                    with timer.attached(passes):
                        medians[variant] = block(run, passes, now)
                else:
                    medians[variant] = block(run, passes, now)
            found.append(medians)
    return found


def block(run: Callable[[], object], passes: int, now: Callable[[], int]) -> float:
    """Return the median milliseconds of a few passes."""
    times = []
    for _ in range(passes):
        begin = now()
        run()
        times.append((now() - begin) / 1e6)
    return statistics.median(times)


def report(name: str, found: list[dict[str, float]], calls: int) -> None:
    """Print paired ratios, with the interval that holds the median with 95 %."""
    plain = statistics.median(r["plain"] for r in found)
    print(f"{name}: plain median {plain:.2f} ms over {len(found)} rounds")
    for variant, label in (("again", "A/A control"), ("hooked", "layer timers")):
        ratios = sorted(r[variant] / r["plain"] for r in found)
        extra = statistics.median(r[variant] - r["plain"] for r in found) * 1000 / calls
        rank = max(1, round(len(ratios) / 2 - 0.98 * len(ratios) ** 0.5))
        low, middle, high = ratios[rank - 1], statistics.median(ratios), ratios[-rank]
        line = f"  {label:13} ratio {middle:.4f} [{low:.4f}, {high:.4f}]  {extra:+.2f} us per call"
        print(line + (f" (budget {BUDGET_US:g})" if variant == "hooked" else ""))
    print(f"  noise: {spread(found):.1%} between rounds")


def spread(found: list[dict[str, float]]) -> float:
    """Return the relative interquartile range of the plain passes."""
    quartiles = statistics.quantiles((r["plain"] for r in found), n=4)
    return (quartiles[2] - quartiles[0]) / quartiles[1]


if __name__ == "__main__":
    main()
