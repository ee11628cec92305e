"""The verdicts about what `proofs` found."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from benchmarks.gpu import claims
from benchmarks.gpu.claims import FAIL, PASS, UNKNOWN, Verdict
from hpcsweep.catalog import gpus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    ]


def false_claims(records: Records) -> Verdict:
    """Judge (a): no claim of another algorithm than the one that ran is accepted."""
    found = _facts(records, "controls")
    accepted = [pair for facts in found for pair in facts["accepted"]]
    number, equal = sum(f["claims"] for f in found), sum(len(f["equal"]) for f in found)
    text = f"{len(accepted)} of {number} accepted{_first(accepted)}; {equal} ran the same kernels"
    claim = "(a) an algorithm under another's name is a mismatch, all pairs"
    return _verdict(records, "controls", claim, "none accepted", text, number, not accepted)


def own_claims(records: Records) -> Verdict:
    """Judge (b): no algorithm is contradicted by its own kernels."""
    found = _facts(records, "controls")
    wrong = [pair for facts in found for pair in facts["own_refused"]]
    text = f"{len(wrong)} contradicted{_first(wrong)}"
    claim = "(b) the kernels of an algorithm are recognised as its own"
    number = sum(f["claims"] for f in found)
    return _verdict(records, "controls", claim, "none contradicted", text, number, not wrong)


def plan_errors(records: Records) -> Verdict:
    """Judge (c): every plan that ran is as exact as rounding allows."""
    ran = {f"{key} {n}": p for key, n, p in _plans(records) if "refused" not in p}
    wrong = [name for name, plan in ran.items() if not _within(plan["excess"])]
    text = f"{len(ran)} plans ran, {len(wrong)} wrong{_first(wrong)}"
    claim = "(c) every plan computes a convolution, errors against float64"
    return _verdict(records, "plans", claim, "what rounding explains", text, len(ran), not wrong)


def notes(records: Records) -> Verdict:
    """Judge (c): a plan has a Winograd or FFT note just where its kernels are of these."""
    ran = [(n, p) for _, n, p in _plans(records) if p.get("notes") and p["kernels"] != "unknown"]
    wrong = [
        name
        for name, plan in ran
        for word in ("winograd", "fft")
        if (word in plan["kernels"]) != (word.upper() in plan["notes"])
    ]
    text = f"{len(ran)} plans with notes and known kernels, {len(wrong)} disagree{_first(wrong)}"
    claim = "(c) the library's notes agree with the kernels"
    return _verdict(records, "plans", claim, "all", text, len(ran), not wrong)


def support(records: Records) -> Verdict:
    """Judge (c): no engine runs that was not told for the device before."""
    record = records.get("plans")
    pairs = [f for f in (record.found.values() if record else ()) if "told" in f]
    off = 0
    for facts in pairs:
        ran = {p["plan"].partition("_")[0] for p in facts["plans"].values() if "plan" in p}
        off += len(ran - set(facts["told"]))
    claim = "(c) support told without the device is support found"
    text = f"{len(pairs)} convolutions, {off} engines ran that were not told"
    return _verdict(
        records, "plans", claim, "no engine that was not told", text, len(pairs), not off
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
    record = records.get("replayed")
    known = {
        f"{n} {key}": same
        for key, facts in (record.found.items() if record else ())
        for n, same in facts.items()
    }
    wrong = [name for name, same in known.items() if not same]
    text = f"{len(known)} graphs, {len(wrong)} differ{_first(wrong)}"
    claim = "(e) a replayed graph's output is the eager one"
    return _verdict(records, "replayed", claim, "rounding", text, len(known), not wrong)


def types(records: Records) -> Verdict:
    """Judge (f): errors are explained by rounding in every type."""
    record = records.get("precision")
    found = {k: f for k, f in (record.found.items() if record else ()) if f["ran"]}
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
    found = [f for f in _facts(records, "energy") if f.get("energy_j")]
    off = [abs(f["energy_j"] / f["integrated_j"] - 1) for f in found]
    text = "; ".join(
        f"{f['energy_j']:.2f} J by counter, {f['integrated_j']:.2f} integrated, {f['reasons']}"
        for f in found
    )
    claim = "(h) energy by the counter against integrated power, heavy batch"
    holds = all(one <= _ENERGY for one in off)
    return _verdict(records, "energy", claim, "10 %", text, len(found), holds)


def cold_read(records: Records) -> Verdict:
    """Judge (i): a cold read of a whole cache is not faster than memory."""
    record = records.get("bandwidth")
    cold = record.found.get("cold") if record else None
    device = gpus.by_device_name(str(record.environment.get("name", ""))) if record else None
    claim = "(i) a cold read of the whole L2 is no faster than memory"
    if not cold or not device:
        return Verdict(claim, "the memory's bandwidth", "not measured", UNKNOWN)
    text = f"{cold['gbs']:.0f} GB/s, memory has {device.bandwidth_gbs:.0f}"
    holds = cold["gbs"] <= _FASTER * device.bandwidth_gbs
    return Verdict(claim, f"{device.bandwidth_gbs:.0f} GB/s", text, PASS if holds else FAIL)


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
        return Verdict(claim, limit, "not measured", UNKNOWN)
    complete = claims.is_whole(records.get(step))
    return Verdict(claim, limit, text, FAIL if not holds else PASS if complete else UNKNOWN)


def _facts(records: Records, step: str) -> list[dict[str, Any]]:
    record = records.get(step)
    return list(record.found.values()) if record else []


def _plans(records: Records) -> list[tuple[str, str, dict[str, Any]]]:
    record = records.get("plans")
    found = record.found.items() if record else ()
    return [(key, n, plan) for key, facts in found for n, plan in facts["plans"].items()]


def _within(excess: float | None) -> bool:
    return excess is not None and not math.isnan(excess) and excess <= 1


def _first(wrong: Iterable[object]) -> str:
    return next((f" (first {one})" for one in wrong), "")
