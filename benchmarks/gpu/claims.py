"""The claims, and what the files of the steps say to each: held, refuted or open.

A claim is refuted if anything that was measured contradicts it. It is held if everything that was
planned was measured and nothing contradicts it; else it is open.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from benchmarks.gpu.convolutions import AGAIN, EXPLICIT
from benchmarks.gpu.facts import READ
from benchmarks.gpu.kernels import ATTACHED
from benchmarks.gpu.record import COMPLETE
from hpcsweep import catalog
from hpcsweep.conv.proof.profiler_events import SACRIFICE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.gpu.record import Record

    Records = Mapping[str, Record]

HELD: Final = "held"
REFUTED: Final = "refuted"
OPEN: Final = "open"
WITHIN: Final = 0.03
WITHIN_US: Final = 0.5
APART: Final = 0.05  # of pairs of equal calls may have intervals that do not meet
ERROR: Final = 1e-4
TWICE: Final = 0.01
SWEEP_SECONDS: Final = 180.0
COLD: Final = 1.1  # times hot
_NOT_MEASURED: Final = "not measured"


@dataclass(frozen=True)
class Verdict:
    """A claim with its limit, what was found, and HELD, REFUTED or OPEN."""

    claim: str
    limit: str
    found: str
    verdict: str


@dataclass(frozen=True)
class Pair:
    """Two times of the same thing, in microseconds; None: one of them is missing."""

    what: str
    ours: float | None
    theirs: float | None

    @property
    def known(self) -> bool:
        """Say whether both are there."""
        return self.ours is not None and self.theirs is not None

    @property
    def excess(self) -> float:
        """Return the difference over what is allowed: above 1 is too much."""
        ours = self.ours or math.nan
        theirs = self.theirs or math.nan
        return abs(ours - theirs) / max(WITHIN * theirs, WITHIN_US)


def of_times(records: Records) -> list[Verdict]:
    """Return the verdict of every claim about times, errors and sessions."""
    return [
        *(two_clocks(records, how) for how in ("graph", "stream")),
        same_kernels(records),
        errors(records),
        two_runs(records),
        sweep_time(records),
        after_profiler(records),
        sacrificed(records),
        cold(records),
    ]


def two_clocks(records: Records, how: str) -> Verdict:
    """Return claim (j) of a `graph`, or of a `stream`."""
    claim = f"(j) a {how}'s time by the product's clock and by two bare events, every layer"
    pairs = [
        Pair(f"{name} {key}", times["us"], facts[f"{how}_bare_us"].get(name))
        for key, facts in items_of(records, "layers").items()
        for name, times in facts[how].items()
    ]
    return _agreement(claim, pairs, whole=_whole(records, "layers"))


def by_cupti(records: Records) -> list[float]:
    """Return CUPTI's durations over a graph's time of the same call, of all that have both.

    A graph has gaps between its kernels that no duration holds: a fact, and no claim.
    """
    profiled = items_of(records, "kernels")
    ratios = []
    for key, facts in items_of(records, "layers").items():
        for name, times in facts["graph"].items():
            us = profiled.get(key, {}).get(name, {}).get("us")
            if us:
                ratios.append(us / times["us"])
    return ratios


def _agreement(claim: str, pairs: Sequence[Pair], *, whole: bool) -> Verdict:
    limit = f"max({WITHIN:.0%}, {WITHIN_US} us)".replace("%", " %")
    known = [pair for pair in pairs if pair.known]
    if not known:
        return Verdict(claim, limit, _NOT_MEASURED, OPEN)
    agree = [pair for pair in known if pair.excess <= 1]
    worst = max(known, key=lambda pair: pair.excess)
    found = f"{len(agree)} of {len(known)} agree, worst {worst.ours:.2f} against "
    found += f"{worst.theirs:.2f} us ({worst.what})"
    found += f"; {len(pairs) - len(known)} without the other" * (len(known) < len(pairs))
    holds = len(agree) == len(known)
    complete = whole and len(known) == len(pairs)
    return Verdict(claim, limit, found, _verdict(holds=holds, complete=complete))


def same_kernels(records: Records) -> Verdict:
    """Return claim (b) where an algorithm runs the default's kernels."""
    claim = "(b) the default's kernels, the default's time: intervals meet"
    limit = f"{APART:.0%} of pairs apart; the default against itself, too".replace("%", " %")
    profiled = items_of(records, "kernels")
    equal = []
    control = []
    for key, facts in items_of(records, "layers").items():
        times = facts["graph"]
        slack = facts["resolution_us"]
        default = times.get(catalog.AUTO)
        own = profiled.get(key, {}).get(catalog.AUTO, {}).get("kernels")
        if default is None:
            continue
        if AGAIN in times:
            control.append(meet(default, times[AGAIN], slack))
        equal += [
            meet(default, times[name], slack)
            for name in EXPLICIT
            if own and name in times and profiled[key].get(name, {}).get("kernels") == own
        ]
    if not equal or not control:
        return Verdict(claim, limit, f"{len(equal)} pairs, {len(control)} controls", OPEN)
    apart = equal.count(False) / len(equal)
    by_chance = control.count(False) / len(control)
    found = f"{equal.count(False)} of {len(equal)} apart; control {control.count(False)} of "
    found += f"{len(control)}"
    if by_chance > APART:
        return Verdict(claim, limit, f"{found}: too noisy to tell", OPEN)
    complete = _whole(records, "layers", "kernels")
    return Verdict(claim, limit, found, _verdict(holds=apart <= APART, complete=complete))


def meet(one: Mapping[str, float], other: Mapping[str, float], slack: float = 0.0) -> bool:
    """Say whether two intervals have a time in common; `slack` is the clock's resolution."""
    low = max(one["low_us"], other["low_us"])
    high = min(one["high_us"], other["high_us"])
    return low <= high + slack


def errors(records: Records) -> Verdict:
    """Return claim (f)."""
    claim = "(f) error against float64, in float32 without TF32"
    limit = f"under {ERROR:.0e}"
    found = items_of(records, "points")
    known = {key: facts["call_rel_error"] for key, facts in found.items()}
    known = {key: error for key, error in known.items() if error is not None}
    if not known:
        return Verdict(claim, limit, _NOT_MEASURED, OPEN)
    worst = max(known, key=lambda key: math.inf if math.isnan(known[key]) else known[key])
    holds = all(error < ERROR for error in known.values())  # not a number fails, too
    complete = _whole(records, "points") and len(known) == len(found)
    text = f"{len(known)} points, largest {known[worst]:.1e} ({worst})"
    return Verdict(claim, limit, text, _verdict(holds=holds, complete=complete))


def two_runs(records: Records) -> Verdict:
    """Return claim (g)."""
    found = items_of(records, "points")
    firsts = {key: f"{key.rpartition(' ')[0]} 0" for key in found if key.endswith(" 1")}
    pairs = [
        (found[first]["median_ms"], found[key]["median_ms"])
        for key, first in firsts.items()
        if first in found
    ]
    claim = "(g) medians of two runs of the same point"
    return _repeated(claim, pairs, complete=_whole(records, "points"))


def after_profiler(records: Records) -> Verdict:
    """Return claim (l)."""
    found = items_of(records, "sessions")
    names = ("eager_ms", "graph_ms")
    one, again, after = (found.get(key) for key in ("first", "second", "after"))
    claim = "(l) the first point, measured again after profiler sessions"
    if one is None or after is None:
        return Verdict(claim, f"{TWICE:.0%}".replace("%", " %"), _NOT_MEASURED, OPEN)
    pairs = [(one[name], after[name]) for name in names]
    verdict = _repeated(claim, pairs, complete=again is not None)
    if again is None:
        return verdict
    control = max(abs(again[name] / one[name] - 1) for name in names)
    text = f"{verdict.found}; without sessions in between {100 * control:.2f} %"
    if attached := found.get(ATTACHED):
        slower = max(attached[name] / one[name] - 1 for name in names)
        text += f"; with CUPTI left in the process {100 * slower:+.2f} %"
    noisy = verdict.verdict == REFUTED and control > TWICE
    return Verdict(claim, verdict.limit, text, OPEN if noisy else verdict.verdict)


def _repeated(claim: str, pairs: Sequence[tuple[float, float]], *, complete: bool) -> Verdict:
    limit = f"{TWICE:.0%}".replace("%", " %")
    # rounded, so that exactly the limit is within it
    apart = [round(abs(second / first - 1), 9) for first, second in pairs]
    if not apart:
        return Verdict(claim, limit, _NOT_MEASURED, OPEN)
    found = f"{len(apart)} pairs, worst {100 * max(apart):.2f} %"
    return Verdict(claim, limit, found, _verdict(holds=max(apart) <= TWICE, complete=complete))


def sweep_time(records: Records) -> Verdict:
    """Return claim (k); of a sweep that was cut off, what the whole would take."""
    record = records.get("sizes")
    count = len(record.planned) if record else 0
    claim = "(k) a sweep of 100 sizes, layers included"
    limit = f"under {SWEEP_SECONDS:.0f} s"
    seconds = [facts["seconds"] for facts in items_of(records, "sizes").values()]
    if not seconds:
        return Verdict(claim, limit, _NOT_MEASURED, OPEN)
    total = 100 * statistics.mean(seconds)
    text = f"{len(seconds)} of {count} sizes in {sum(seconds):.0f} s"
    text += f"; 100 would take {total:.0f} s, {1000 * statistics.median(seconds):.0f} ms each"
    holds = total < SWEEP_SECONDS
    return Verdict(claim, limit, text, _verdict(holds=holds, complete=len(seconds) > 1))


def sacrificed(records: Records) -> Verdict:
    """Return claim (l)."""
    claim = f"(l) profiler sessions lose no kernel after {SACRIFICE} launches for nothing"
    found = [f for key, f in items_of(records, "sessions").items() if key.startswith("session")]
    after, without = ([f["lost"] for f in found if bool(f["sacrificed"]) == s] for s in (1, 0))
    if not after:
        return Verdict(claim, "none", _NOT_MEASURED, OPEN)
    text = f"{sum(after)} in {len(after)} sessions; without them {sum(without)} in {len(without)}"
    # a session that saw no convolution at all has shown nothing
    complete = _whole(records, "sessions") and all(f["calls"] for f in found)
    return Verdict(claim, "none", text, _verdict(holds=not any(after), complete=complete))


def cold(records: Records) -> Verdict:
    """Return claim (i)."""
    claim = "(i) a read that fits the cache is slower with a rewritten cache"
    limit = f"at least {COLD} times hot"
    found = items_of(records, "device").get(READ)
    if not found:
        return Verdict(claim, limit, _NOT_MEASURED, OPEN)
    ratio = found["cold_us"] / found["hot_us"]
    text = f"{found['hot_us']:.1f} us hot, {found['cold_us']:.1f} cold: {ratio:.2f} times"
    return Verdict(claim, limit, text, HELD if ratio >= COLD else REFUTED)


def _verdict(*, holds: bool, complete: bool) -> str:
    if not holds:
        return REFUTED
    return HELD if complete else OPEN


def items_of(records: Records, step: str) -> Mapping[str, dict[str, Any]]:
    """Return what a step found."""
    record = records.get(step)
    return record.found if record else {}


def _whole(records: Records, *steps: str) -> bool:
    """Say whether everything that steps planned was found."""
    return all(is_whole(records.get(step)) for step in steps)


def is_whole(record: Record | None) -> bool:
    """Say whether a step found everything that it planned."""
    return record is not None and record.state == COMPLETE and not record.failed


def why_open(record: Record | None) -> str:
    """Return why nothing was measured, as far as the step's file says it."""
    return f"{_NOT_MEASURED}: {record.note}" if record and record.note else _NOT_MEASURED
