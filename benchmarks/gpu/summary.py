"""One page out of the files of all steps: which claims hold, facts, and what is missing."""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.gpu import claims, runner
from benchmarks.gpu import verdicts as of_proofs
from benchmarks.gpu.environment import PRETENDED
from benchmarks.gpu.facts import NOTHING, QUEUES
from benchmarks.gpu.record import Record, read, standing
from hpcsweep import catalog
from hpcsweep.errors import HpcsweepError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.gpu.claims import Verdict


def load(folder: Path) -> tuple[dict[str, Record], list[str]]:
    """Return the steps' records, those of the device of the newest file, and what was left out."""
    records: dict[str, Record] = {}
    problems: list[str] = []
    for file in sorted(folder.glob("*.json"), key=lambda one: -one.stat().st_mtime):
        try:
            record = read(file)
        except (HpcsweepError, TypeError) as error:
            problems.append(f"not read: {error}")
            continue
        known = [one for one in records.values() if one.environment]
        if record.environment and known and record.identity != known[0].identity:
            problems.append(f"{file.name} is of another device or software: left out")
        else:
            records[record.step] = record
    return {name: records[name] for name in runner.STEPS if name in records}, problems


def page(folder: Path) -> tuple[str, list[Verdict]]:
    """Return the summary as Markdown, and all verdicts."""
    steps, problems = load(folder)
    told = [*claims.of_times(steps), *of_proofs.all_verdicts(steps)]
    told.sort(key=lambda one: one.claim[:3])
    if any(one.environment.get("kind") == PRETENDED for one in steps.values()):
        told = [replace(one, verdict=_pretended(one.verdict)) for one in told]
    lines = [*_part(steps, told), *(f"* {problem}" for problem in problems)]
    return "\n".join(lines) + "\n", told


def _pretended(verdict: str) -> str:
    """Return a verdict on figures of a GPU that is not there, which is none."""
    return verdict if verdict == claims.OPEN else f"{PRETENDED}: {verdict}"


def _part(steps: Mapping[str, Record], told: Sequence[Verdict]) -> list[str]:
    environment = next((one.environment for one in steps.values() if one.environment), {})
    lines = [f"# {environment.get('name', 'Nothing was measured')}", ""]
    if environment.get("kind") == PRETENDED:
        lines[0] += ", pretended"
        lines += ["**There is no GPU: it is pretended, and nothing on this page is evidence.**", ""]
    lines += [_environment(environment), ""] if environment else []
    lines += ["| claim | limit | found | |", "| --- | --- | --- | --- |"]
    lines += [f"| {v.claim} | {v.limit} | {v.found} | {v.verdict} |" for v in told]
    number = [v.verdict for v in told]
    words = [claims.HELD, claims.REFUTED, claims.OPEN]
    words += sorted({*number} - {*words})  # the pretended ones
    lines += ["", ", ".join(f"{number.count(word)} {word}" for word in words)]
    lines += ["", *_facts(steps), *_algorithms(steps), *_costs(steps), ""]
    lines += ["| step | how far |", "| --- | --- |"]
    lines += [
        f"| {name} | {standing(record)}, {record.seconds:.0f} s |" for name, record in steps.items()
    ]
    lines += _troubles(steps)
    return [*lines, ""]


def _environment(environment: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in environment.items() if key != "name") + "."


def _facts(steps: Mapping[str, Record]) -> list[str]:
    """Return the facts that no claim is about."""
    lines = []
    floor = claims.items_of(steps, "device").get(NOTHING)
    if floor:
        step = floor.get("resolution_us")
        told = f"an event pair around nothing reads {floor['event_us']:.2f} us"
        told += f", in steps of {1000 * step:.0f} ns" if step else ""
        lines.append(f"* {told}; a pair adds {floor['two_events_add_us']:.2f} us to a pass")
    for kind in QUEUES:
        held = claims.items_of(steps, "device").get(kind)
        if held:
            holds = held["holds"] or f"more than {held['tried']}"
            lines.append(f"* {kind}: the driver holds {holds} entries")
    asked = (facts.get("hook_overhead_pct") for facts in claims.items_of(steps, "points").values())
    costs: list[float] = [cost for cost in asked if cost is not None]
    if costs:
        worst = max(costs, key=abs)
        lines.append(f"* layer pass over clean pass: worst {worst:+.2f} % of {len(costs)} points")
    ratios = claims.by_cupti(steps)
    if ratios:
        told = f"median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
        lines.append(f"* CUPTI's durations over a graph's time of {len(ratios)} calls: {told}")
    return [*lines, ""] if lines else []


def _costs(steps: Mapping[str, Record]) -> list[str]:
    """Return the parts of a point's cost: the median of all points, and of a worker's first."""
    found = [facts["cost_s"] for facts in claims.items_of(steps, "points").values()]
    if not found:
        return []
    names = sorted({name for one in found for name in one})
    lines = ["", "| part of a point | first, s | median, s |", "| --- | --- | --- |"]
    for name in names:
        each = sorted(one.get(name, 0.0) for one in found)
        lines.append(f"| {name} | {found[0].get(name, 0.0):.2f} | {each[len(each) // 2]:.2f} |")
    whole = sorted(sum(one.values()) for one in found)
    lines.append(f"| all | {sum(found[0].values()):.2f} | {whole[len(whole) // 2]:.2f} |")
    return lines


def _algorithms(steps: Mapping[str, Record]) -> list[str]:
    found = claims.items_of(steps, "points")
    if not found:
        return []
    launches = list(dict.fromkeys(key.split()[1] for key in found))
    head = f"| algorithm | {' | '.join(f'{launch} ms' for launch in launches)} | covers % | error |"
    lines = [head, "| --- " * (3 + len(launches)) + "|"]
    for name in catalog.ALGORITHMS:
        ways = [found.get(f"{name} {launch} 0") for launch in launches]
        known = next((way for way in ways if way), None)
        times = [f"{way['median_ms']:.3f}" if way else "-" for way in ways]
        covers = f"{known['algorithm_coverage_pct'] or 0:.0f}" if known else "-"
        error = known["call_rel_error"] if known else None
        told = "-" if error is None else f"{error:.1e}"
        lines.append(f"| {name} | {' | '.join(times)} | {covers} | {told} |")
    return lines


def _troubles(steps: Mapping[str, Record]) -> list[str]:
    """Return what failed and what is missing, a line each."""
    lines = []
    for name, record in steps.items():
        lines += [f"* {name}: {key}: {why}" for key, why in record.failed.items()]
        if record.missing:
            few = ", ".join(record.missing[:3])
            lines.append(f"* {name}: {len(record.missing)} items missing: {few}, ...")
    return ["", *lines] if lines else []
