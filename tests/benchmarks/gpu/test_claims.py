"""The verdicts: held, refuted or open, at the limits and where something is missing."""

from __future__ import annotations

import math
import re

import pytest

import proofs
from benchmarks.gpu import claims, facts
from benchmarks.gpu.claims import HELD, OPEN, REFUTED
from benchmarks.gpu.record import LATE
from proofs import KEY, timed

OF = {
    "graph": lambda records: claims.two_clocks(records, "graph"),
    "stream": lambda records: claims.two_clocks(records, "stream"),
    "same": claims.same_kernels,
    "error": claims.errors,
    "twice": claims.two_runs,
    "sweep": claims.sweep_time,
    "after": claims.after_profiler,
    "sacrifice": claims.sacrificed,
    "cold": claims.cold,
}
NEEDS = {
    "graph": ("layers",),
    "stream": ("layers",),
    "same": ("layers", "kernels"),
    "error": ("points",),
    "twice": ("points",),
    "sweep": ("sizes",),
    "after": ("sessions",),
    "sacrifice": ("sessions",),
    "cold": ("device",),
}


@pytest.fixture
def records():
    """Return records on which every claim holds."""
    return proofs.good()


def of_layer(records, name="gemm"):
    """Return a layer's batched times."""
    return records["layers"].found[KEY]["graph"][name]


def test_every_claim_can_pass_and_says_its_limit_and_its_numbers(records):
    """A page of figures that hold."""
    told = claims.of_times(records)
    assert {one.verdict for one in told} == {HELD}
    assert len(told) == len(OF)
    assert all(re.search(r"\d", one.found) and one.limit for one in told)
    assert sorted(one.claim[:3] for one in told) == [f"({c})" for c in "bfgijjkll"]


@pytest.mark.parametrize("name", OF)
def test_a_claim_without_its_files_is_unknown(records, name):
    """Nothing is claimed that nobody measured, and nothing breaks."""
    for step in NEEDS[name]:
        assert OF[name](records | {step: proofs.record(step, {})}).verdict == OPEN
        rest = {other: record for other, record in records.items() if other != step}
        assert OF[name](rest).verdict == OPEN
    assert OF[name]({}).verdict == OPEN


@pytest.mark.parametrize("name", ["graph", "stream", "same", "error", "twice", "sacrifice"])
def test_a_part_of_the_layers_or_points_is_not_all_of_them(records, name):
    """A step that was cut off leaves a claim open that its figures do not contradict."""
    for step in NEEDS[name]:
        records[step].planned.append("one more")
        records[step].state = LATE
    assert OF[name](records).verdict == OPEN


@pytest.mark.parametrize("how", ["graph", "stream"])
@pytest.mark.parametrize(
    ("bare_us", "ours_us", "verdict"),
    [
        (100.0, 103.0, HELD),
        (100.0, 103.01, REFUTED),
        (100.0, 96.99, REFUTED),
        (4.0, 4.5, HELD),  # 3 % of 4 us are less than what is allowed in any case
        (4.0, 4.51, REFUTED),
        (4.0, 3.49, REFUTED),
    ],
)
def test_two_clocks_agree_within_three_percent_or_half_a_microsecond(
    records, how, bare_us, ours_us, verdict
):
    """A graph with a graph, and a stream with a stream: neither tells about the other."""
    layer = records["layers"].found[KEY]
    layer[f"{how}_bare_us"]["fft"] = bare_us
    layer[how]["fft"] = timed(ours_us)
    other = {"graph": "stream", "stream": "graph"}[how]
    assert OF[how](records).verdict == verdict
    assert OF[other](records).verdict == HELD


def test_a_call_that_one_clock_did_not_time_leaves_the_claim_open(records):
    """It is counted, and no other call's agreement makes up for it."""
    del records["layers"].found[KEY]["stream_bare_us"]["fft"]
    told = OF["stream"](records)
    assert told.verdict == OPEN
    assert "3 of 3 agree" in told.found
    assert "1 without the other" in told.found


def test_cuptis_durations_are_a_fact_beside_the_claims(records):
    """A graph has gaps between its kernels, which are in no duration."""
    records["kernels"].found[KEY]["fft"]["us"] = 20.0
    records["kernels"].found[KEY]["gemm"] = {"kernels": [], "us": None, "lost": 0}
    assert claims.by_cupti(records) == [1.0, 0.5]
    assert {one.verdict for one in claims.of_times(records)} <= {HELD, OPEN}


def test_the_same_kernels_must_take_the_same_time(records):
    """Intervals that do not meet fail, unless the clock cannot tell them apart."""
    times = records["layers"].found[KEY]["graph"]
    times["gemm"] = timed(10.021)
    assert OF["same"](records).verdict == HELD  # a gap of 1 ns; the clock's step is 2
    times["gemm"] = timed(10.3)
    assert OF["same"](records).verdict == REFUTED
    records["kernels"].found[KEY]["gemm"]["kernels"] = ["another"]
    assert OF["same"](records).verdict == OPEN


def test_where_the_default_differs_from_itself_nothing_is_told_about_equality(records):
    """The control decides whether this machine can tell."""
    records["layers"].found[KEY]["graph"]["auto again"] = timed(11.0)
    records["layers"].found[KEY]["graph"]["gemm"] = timed(12.0)
    told = OF["same"](records)
    assert (told.verdict, told.found) == (
        OPEN,
        "1 of 1 apart; control 1 of 1: too noisy to tell",
    )


@pytest.mark.parametrize(
    ("error", "verdict"), [(9.9e-5, HELD), (1e-4, REFUTED), (math.nan, REFUTED), (None, OPEN)]
)
def test_an_error_of_one_point_decides(records, error, verdict):
    """Not a number is no small error, and an unknown one is not a small one."""
    records["points"].found["fft graph 0"]["call_rel_error"] = error
    assert OF["error"](records).verdict == verdict


@pytest.mark.parametrize(("again", "verdict"), [(2.02, HELD), (2.021, REFUTED), (1.979, REFUTED)])
def test_two_runs_of_a_point_differ_by_a_percent_at_most(records, again, verdict):
    """In both directions."""
    records["points"].found["auto graph 1"]["median_ms"] = again
    assert OF["twice"](records).verdict == verdict


@pytest.mark.parametrize(("seconds", "verdict"), [(1.79, HELD), (1.8, REFUTED)])
def test_a_hundred_sizes_take_under_three_minutes(records, seconds, verdict):
    """Of a sweep that was cut off, what the whole would take."""
    for size in records["sizes"].found.values():
        size["seconds"] = seconds
    assert OF["sweep"](records).verdict == verdict
    few = dict(list(records["sizes"].found.items())[:10])
    told = OF["sweep"]({"sizes": proofs.record("sizes", few, state=LATE)})
    assert told.verdict == verdict
    assert told.found.startswith("10 of 10 sizes in 18 s; 100 would take 1")


def test_a_point_after_the_profiler_is_held_against_its_own_repetition(records):
    """A change that is there without the profiler is not the profiler's."""
    found = records["sessions"].found
    found["after"] = {"eager_ms": 5.0, "graph_ms": 4.05}
    assert OF["after"](records).verdict == REFUTED
    found["second"] = {"eager_ms": 5.2, "graph_ms": 4.0}
    told = OF["after"](records)
    assert told.verdict == OPEN
    assert "without sessions in between 4.00 %" in told.found
    assert "with CUPTI left in the process +10.00 %" in told.found


def test_a_kernel_that_is_lost_after_the_sacrifice_fails_and_one_before_does_not(records):
    """The summary has both numbers."""
    assert OF["sacrifice"](records).found == "0 in 1 sessions; without them 7 in 1"
    records["sessions"].found["session 1"]["lost"] = 1
    assert OF["sacrifice"](records).verdict == REFUTED
    records["sessions"].found["session 1"] |= {"lost": 0, "calls": 0}
    assert OF["sacrifice"](records).verdict == OPEN


@pytest.mark.parametrize(("cold_us", "verdict"), [(8.8, HELD), (8.79, REFUTED)])
def test_a_cold_read_is_slower(records, cold_us, verdict):
    """Else the cache was not rewritten."""
    records["device"].found[facts.READ]["cold_us"] = cold_us
    assert OF["cold"](records).verdict == verdict
