"""The guard names what became slower, and counts of fixed runs stay within their budgets."""

from __future__ import annotations

import random

import pytest

from benchmarks.guard import counts
from benchmarks.guard.__main__ import KINDS, Costs


def costs(times: float, noise: float, rounds: int = 5) -> Costs:
    """Return rounds in which this revision takes so many times the other's seconds."""
    source = random.Random(1)

    def cost(seconds: float) -> dict[str, float]:
        return {kind: seconds * source.lognormvariate(0, noise) for kind in KINDS}

    return Costs([{"other": cost(1), "this": cost(times), "again": cost(1)} for _ in range(rounds)])


@pytest.mark.parametrize(
    ("times", "noise", "slower"),
    [
        (1.0, 0.02, False),
        (1.05, 0.02, False),
        (1.25, 0.02, True),
        (4.0, 0.3, True),
        (1.0, 0.3, False),
    ],
)
def test_what_takes_a_tenth_more_is_slower(times, noise, slower):
    """Beyond the noise of the rounds."""
    assert costs(times, noise).is_slower() is slower


def test_a_machine_that_drifts_between_the_arms_is_no_slower_program():
    """The control is slower, too, then."""
    rounds = [{"other": {"wall_s": 1, "cpu_s": 1, "mib": 90}} for _ in range(5)]
    for number, one in enumerate(rounds):
        seconds = 1.3 + number / 100
        one["this"] = one["again"] = {"wall_s": seconds, "cpu_s": seconds, "mib": 91}
    assert not Costs(rounds).is_slower()


def test_a_tenth_more_memory_is_told_and_what_is_faster_is_kept():
    """However long it takes; a figure on record is replaced by a better one alone."""
    same = {"wall_s": 1, "cpu_s": 1, "mib": 90}
    larger = [{"other": same, "this": {**same, "mib": 100}, "again": same} for _ in range(3)]
    assert Costs(larger).is_slower()
    assert costs(0.8, 0.02).is_faster()
    assert not costs(1.05, 0.02).is_faster()


def test_fixed_runs_stay_within_their_budgets():
    """Modules, calls, files and bytes: change benchmarks/guard/budgets.json in the same commit."""
    known = counts.budgets()
    if known["python"] != counts.python():
        pytest.skip(f"the budgets are of Python {known['python']}")
    assert counts.above(counts.counted(), known["runs"]) == []
