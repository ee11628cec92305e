"""The verdicts about what `proofs` found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from benchmarks.gpu import claims
from benchmarks.gpu.claims import HELD, OPEN, REFUTED, Verdict
from benchmarks.gpu.convolutions import EXPLICIT
from benchmarks.gpu.facts import COLD
from benchmarks.gpu.product import TELEMETRY
from benchmarks.gpu.resources import FREE, FULL
from hpcsweep.catalog import gpus
from hpcsweep.catalog.checks import control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from benchmarks.gpu.record import Record

    Records = Mapping[str, Record]

_STAR: Final = 0.01
_ENERGY: Final = 0.10
_FASTER: Final = 1.05  # than memory: what a clock may be wrong by


def all_verdicts(records: Records) -> list[Verdict]:
    """Return the verdict of every claim about the proofs."""
    return [
        false_claims(records),
        own_claims(records),
        plan_errors(records),
        notes(records),
        support(records),
        tuned(records),
        replays(records),
        types(records),
        stars(records),
        energy(records),
        cold_read(records),
        whole_rows(records),
        flags(records),
        layered_graphs(records),
        second_points(records),
        sweep(records),
        out_of_memory(records),
        gpu_tests(records),
    ]


def false_claims(records: Records) -> Verdict:
    """Judge (a): no claim of another algorithm than the one that ran is accepted."""
    found = [facts["controls"] for facts in _facts(records, "kernels")]
    accepted = [pair for facts in found for pair in facts["accepted"]]
    number = sum(f["claims"] for f in found)
    shared = sum(len(f["shared"]) for f in found)
    text = f"{len(accepted)} of {number} accepted{_first(accepted)}; {shared} share their kernels"
    claim = "(a) an algorithm under another's name is a mismatch, all pairs"
    return _verdict(records, "kernels", claim, "none accepted", text, number, not accepted)


def own_claims(records: Records) -> Verdict:
    """Judge (b): no algorithm is contradicted by its own kernels."""
    found = [facts["controls"] for facts in _facts(records, "kernels")]
    wrong = [pair for facts in found for pair in facts["own_refused"]]
    text = f"{len(wrong)} contradicted{_first(wrong)}"
    claim = "(b) the kernels of an algorithm are recognised as its own"
    number = sum(f["claims"] for f in found)
    return _verdict(records, "kernels", claim, "none contradicted", text, number, not wrong)


def plan_errors(records: Records) -> Verdict:
    """Judge (c): every plan that ran is as exact as rounding allows."""
    ran = [(key, plan) for key, plan in _plans(records) if "refused" not in plan]
    wrong = [key for key, plan in ran if not _within(plan.get("excess"))]
    text = f"{len(ran)} plans ran, {len(wrong)} wrong{_first(wrong)}"
    claim = "(c) every plan computes a convolution or is refused in words"
    return _verdict(records, "plans", claim, "what rounding explains", text, len(ran), not wrong)


def notes(records: Records) -> Verdict:
    """Judge (c): a plan has a Winograd or FFT note just where its kernels are of these."""
    ran = [(k, p) for k, p in _plans(records) if p.get("notes") and p["kernels"] != "unknown"]
    wrong = [
        key
        for key, plan in ran
        for word in ("winograd", "fft")
        if (word in plan["kernels"]) != (word.upper() in plan["notes"])
    ]
    text = f"{len(ran)} plans with notes and known kernels, {len(wrong)} disagree{_first(wrong)}"
    claim = "(c) the library's notes agree with the kernels"
    return _verdict(records, "plans", claim, "all", text, len(ran), not wrong)


def support(records: Records) -> Verdict:
    """Judge (c): no engine runs that was not told for the device before."""
    found = claims.items_of(records, "plans")
    told = {key: set(facts["told"]) for key, facts in found.items() if facts.get("told")}
    off = {
        f"{plan['plan']} of {shape}"
        for shape, engines in told.items()
        for key, plan in _plans(records)
        if key.startswith(f"{shape} ") and "plan" in plan
        if plan["plan"].partition("_")[0] not in engines
    }
    claim = "(c) support told without the device is support found"
    text = f"{len(told)} convolutions, {len(off)} plans ran that were not told{_first(sorted(off))}"
    return _verdict(
        records, "plans", claim, "no engine that was not told", text, len(told), not off
    )


def tuned(records: Records) -> Verdict:
    """Judge (d): `autotune` alone in a process is no slower than after `auto` in one."""
    found = _facts(records, "tuning")
    text = "; ".join(
        f"auto {f['auto_ms']:.3f}, after it {f['after_auto_ms']:.3f}, alone {f['alone_ms']:.3f} ms"
        for f in found
    )
    slower = [f for f in found if f["alone_ms"] > 1.02 * f["after_auto_ms"]]
    claim = "(d) autotune in a process of its own is no slower than after auto"
    return _verdict(records, "tuning", claim, "2 %", text, len(found), not slower)


def replays(records: Records) -> Verdict:
    """Judge (e): what a graph replays is what eager calls compute."""
    known = {
        f"{name} {key}": same
        for key, facts in claims.items_of(records, "replayed").items()
        for name, same in facts.items()
    }
    wrong = [name for name, same in known.items() if not same]
    text = f"{len(known)} graphs, {len(wrong)} differ{_first(wrong)}"
    claim = "(e) a replayed graph's output is the eager one"
    return _verdict(records, "replayed", claim, "rounding", text, len(known), not wrong)


def types(records: Records) -> Verdict:
    """Judge (f): errors are explained by rounding in every type."""
    found = {k: f for k, f in claims.items_of(records, "precision").items() if f["ran"]}
    wrong = [key for key, facts in found.items() if not _within(facts["excess"])]
    text = f"{len(found)} algorithms and types, {len(wrong)} wrong{_first(wrong)}"
    claim = "(f) errors in float32, TF32 and half types"
    return _verdict(
        records, "precision", claim, "what rounding explains", text, len(found), not wrong
    )


def stars(records: Records) -> Verdict:
    """Judge (g): where nothing differs, no process sees a difference in one direction."""
    found = _facts(records, "stars")
    gaps = [f["one_ms"] / f["other_ms"] - 1 for f in found]
    same_way = len(gaps) > 1 and len({gap > 0 for gap in gaps}) == 1
    star = same_way and min(map(abs, gaps)) > _STAR
    text = f"{len(gaps)} processes, {', '.join(f'{100 * gap:+.2f} %' for gap in gaps)}"
    claim = "(g) one call under two names gets no star between processes"
    return _verdict(records, "stars", claim, "1 %, all one way", text, len(gaps), not star)


def energy(records: Records) -> Verdict:
    """Judge (h): the counter's joules are those of power over time."""
    found = [f for f in _facts(records, "resources") if f.get("energy_j")]
    off = [abs(f["energy_j"] / f["integrated_j"] - 1) for f in found]
    text = "; ".join(
        f"{f['energy_j']:.2f} J by counter, {f['integrated_j']:.2f} integrated, "
        f"throttled by {f['reasons'] or 'nothing'}"
        for f in found
    )
    claim = "(h) energy by the counter against integrated power, heavy batch"
    holds = all(one <= _ENERGY for one in off)
    return _verdict(records, "resources", claim, "10 %", text, len(found), holds)


def cold_read(records: Records) -> Verdict:
    """Judge (i): a cold read of a whole cache is not faster than memory."""
    record = records.get("device")
    cold = record.found.get(COLD) if record else None
    device = gpus.by_device_name(str(record.environment.get("name", ""))) if record else None
    claim = "(i) a cold read of the whole L2 is no faster than memory"
    if not cold or not device:
        return Verdict(claim, "the memory's bandwidth", "not measured", OPEN)
    text = f"{cold['gbs']:.0f} GB/s, memory has {device.bandwidth_gbs:.0f}"
    holds = cold["gbs"] <= _FASTER * device.bandwidth_gbs
    return Verdict(claim, f"{device.bandwidth_gbs:.0f} GB/s", text, HELD if holds else REFUTED)


def whole_rows(records: Records) -> Verdict:
    """Judge (m): on a GPU of one's own every row of the network is valid."""
    found = claims.items_of(records, "points")
    wrong = [f"{key}: {facts['flags']}" for key, facts in found.items() if not facts["valid"]]
    text = f"{len(found)} rows, {len(wrong)} not valid{_first(wrong)}"
    claim = "(m) the rows of an undisturbed GPU are valid"
    return _verdict(records, "points", claim, "all", text, len(found), not wrong)


def flags(records: Records) -> Verdict:
    """Judge (m): a flag is raised only where the cell that it rests on says so."""
    raised = [
        (key, flag, RESTS[flag](facts))
        for key, facts in claims.items_of(records, "points").items()
        for flag in (facts["flags"] or "").split(";")
        if flag in RESTS
    ]
    wrong = [f"{flag} of {key}" for key, flag, rests in raised if not rests]
    number = len(claims.items_of(records, "points"))
    text = f"{len(raised)} flags of {number} rows, {len(wrong)} rest on nothing{_first(wrong)}"
    claim = "(m) flags rest on what was read"
    return _verdict(records, "points", claim, "each", text, number, not wrong)


# what each flag rests on, in a row
RESTS: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    "throttled": lambda row: bool(row["throttle_reasons"]),
    "power_capped": lambda row: "power" in (row["throttle_reasons"] or ""),
    "contended": lambda row: (
        row["waited_pct"] > control.WAITED_PCT or row["stolen_pct"] > control.STOLEN_PCT
    ),
    "machine_shift": lambda row: abs(row["control_shift_pct"] or 0) > control.SHIFT_PCT,
}


def layered_graphs(records: Records) -> Verdict:
    """Judge (n): a graph with layers proves an explicit algorithm as an eager pass does."""
    found = claims.items_of(records, "points")
    wrong = []
    number = 0
    for key, facts in found.items():
        eager = found.get(key.replace(" graph ", " eager "))
        if " graph " not in key or eager is None or key.split()[0] not in EXPLICIT:
            continue
        number += 1
        same = facts["algorithm_coverage_pct"] == eager["algorithm_coverage_pct"]
        if not same or "algorithm_mismatch" in (facts["flags"] or ""):
            wrong.append(f"{key}: {facts['algorithm_coverage_pct']} % covered, {facts['flags']}")
    text = f"{number} algorithms, {len(wrong)} differ{_first(wrong)}"
    claim = "(n) a graph with layers covers an explicit algorithm as the eager pass does"
    return _verdict(records, "points", claim, "equal, no mismatch", text, number, not wrong)


def second_points(records: Records) -> Verdict:
    """Judge (g): a worker's later point has the time of its earlier one."""
    gaps: list[float] = []
    for facts in _facts(records, "supervised"):
        first: dict[tuple[str, str], float] = {}
        for row in (one for one in facts["rows"] if one.get("median_ms")):
            ms = float(row["median_ms"])
            key = (row["algorithm"], row["launch"])
            if key in first:
                gaps.append(abs(ms / first[key] - 1))
            else:
                first[key] = ms
    text = f"{len(gaps)} pairs, worst {100 * max(gaps, default=0):.2f} %"
    claim = "(g) a worker measures a point again as it did before"
    holds = max(gaps, default=0) <= _STAR
    return _verdict(records, "supervised", claim, "1 %", text, len(gaps), holds)


def sweep(records: Records) -> Verdict:
    """Judge (o): submit, worker, telemetry and collect leave whole rows."""
    rows = [row for facts in _facts(records, "supervised") for row in facts["rows"]]
    wrong = []
    for row in rows:
        lacks = [name for name in (*TELEMETRY, "algorithm_evidence") if not row.get(name)]
        if row["status"] != "ok" or lacks:
            wrong.append(f"{row['algorithm']} {row['launch']} {row['status']}, lacks {lacks}")
    text = f"{len(rows)} rows, {len(wrong)} are not{_first(wrong)}"
    claim = "(o) rows of submit, worker and collect are ok, with telemetry and evidence"
    return _verdict(records, "supervised", claim, "all", text, len(rows), not wrong)


def out_of_memory(records: Records) -> Verdict:
    """Judge (p): what does not fit is told, and the same bench measures on."""
    facts = claims.items_of(records, "resources")
    found = {key: facts[key]["outcome"] for key in (FULL, FREE) if key in facts}
    claim = "(p) a point that does not fit is out of memory, the next one is measured"
    if len(found) < 2:
        return Verdict(claim, "both", claims.why_open(records.get("resources")), OPEN)
    text = ", ".join(f"{key}: {outcome}" for key, outcome in found.items())
    holds = found == {FULL: "out of memory", FREE: "measured"}
    return Verdict(claim, "both", text, HELD if holds else REFUTED)


def gpu_tests(records: Records) -> Verdict:
    """Judge (q): the tests marked gpu pass."""
    record = records.get("tests")
    found = claims.items_of(records, "tests")
    wrong = [f"{key}: {f['why']}" for key, f in found.items() if f["outcome"] == "failed"]
    wrong += [f"{key}: {why}" for key, why in (record.failed.items() if record else ())]
    passed = sum(facts["outcome"] == "passed" for facts in found.values())
    text = f"{passed} passed of {len(found)}, {len(wrong)} failed{_first(wrong)}"
    claim = "(q) the tests that need a GPU pass"
    return _verdict(records, "tests", claim, "all", text, passed + len(wrong), not wrong)


def _verdict(  # noqa: PLR0913, PLR0917 - a line of the table
    records: Records,
    step: str,
    claim: str,
    limit: str,
    text: str,
    number: int,
    holds: bool,  # noqa: FBT001
) -> Verdict:
    if not number:
        return Verdict(claim, limit, claims.why_open(records.get(step)), OPEN)
    complete = claims.is_whole(records.get(step))
    return Verdict(claim, limit, text, REFUTED if not holds else HELD if complete else OPEN)


def _facts(records: Records, step: str) -> list[dict[str, Any]]:
    return list(claims.items_of(records, step).values())


def _plans(records: Records) -> list[tuple[str, dict[str, Any]]]:
    """Return what became of plans, by shape and name; the other items list the plans of a shape."""
    return [(key, f) for key, f in claims.items_of(records, "plans").items() if "names" not in f]


def _within(excess: float | None) -> bool:
    return excess is not None and not math.isnan(excess) and excess <= 1


def _first(wrong: Iterable[object]) -> str:
    return next((f" (first {one})" for one in wrong), "")
