"""One page out of the files of many steps: verdicts, facts, and what is missing.

Files of different devices or software are never put together: each has a part of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from benchmarks.gpu import claims
from benchmarks.gpu import verdicts as of_proofs
from benchmarks.gpu.record import COMPLETE, RUNNING, Record, read, standing
from hpcsweep import catalog
from hpcsweep.errors import HpcsweepError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.gpu.claims import Verdict

_CUT_OFF: Final = "killed before its end"


def load(paths: Iterable[Path]) -> tuple[list[Record], list[str]]:
    """Return the records of files and folders, oldest first, and what could not be read."""
    files = [file for path in paths for file in (path.rglob("*.json") if path.is_dir() else [path])]
    tried = [_try(file) for file in sorted(files, key=_age)]
    problems = [one for one in tried if isinstance(one, str)]
    return [one for one in tried if isinstance(one, Record)], problems


def _try(file: Path) -> Record | str:
    try:
        return read(file)
    except (HpcsweepError, TypeError) as error:
        return str(error)


def _age(file: Path) -> float:
    return file.stat().st_mtime if file.exists() else 0.0


def by_environment(records: Iterable[Record]) -> dict[tuple[str, ...], dict[str, Record]]:
    """Return the records by device and software, then by step; parts of a step are joined."""
    found: dict[tuple[str, ...], dict[str, Record]] = {}
    for record in records:
        steps = found.setdefault(record.identity, {})
        earlier = steps.get(record.step)
        steps[record.step] = record if earlier is None else join(earlier, record)
    return found


def join(earlier: Record, later: Record) -> Record:
    """Return what two files of a step have together; the later one counts where both have it."""
    planned = list(dict.fromkeys([*earlier.planned, *later.planned]))
    found = earlier.found | later.found
    failed = {k: why for k, why in (earlier.failed | later.failed).items() if k not in found}
    both = replace(later, planned=planned, found=found, failed=failed)
    if not both.missing and COMPLETE in {earlier.state, later.state}:
        return replace(both, state=COMPLETE, note="")
    return both


def page(records: Iterable[Record], problems: Sequence[str] = ()) -> tuple[str, list[Verdict]]:
    """Return the summary as Markdown, and all verdicts."""
    lines, verdicts = [], []
    for steps in by_environment(records).values():
        told = claims.all_claims(steps, of_proofs.all_verdicts(steps))
        verdicts += told
        lines += _part(steps, told)
    lines += [f"* not read: {problem}" for problem in problems]
    return "\n".join(lines or ["nothing was measured"]) + "\n", verdicts


def _part(steps: Mapping[str, Record], told: Sequence[Verdict]) -> list[str]:
    any_step = next(iter(steps.values()))
    environment = any_step.environment
    lines = [f"# {environment.get('name')}", "", _environment(environment), ""]
    lines += ["| claim | limit | found | verdict |", "| --- | --- | --- | --- |"]
    lines += [f"| {v.claim} | {v.limit} | {v.found} | {v.verdict} |" for v in told]
    lines += ["", *_facts(steps), *_support(steps), *_algorithms(steps), ""]
    lines += ["| step | how far |", "| --- | --- |"]
    lines += [f"| {name} | {_standing(record)} |" for name, record in steps.items()]
    lines += _troubles(steps)
    return [*lines, ""]


def _environment(environment: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in environment.items() if key != "name") + "."


def _standing(record: Record) -> str:
    state = _CUT_OFF if record.state == RUNNING else record.state
    return standing(replace(record, state=state))


def _facts(steps: Mapping[str, Record]) -> list[str]:
    """Return the facts that no claim is about."""
    lines = []
    floor = _of(steps, "floors", "nothing")
    if floor:
        step = floor.get("resolution_us")
        told = f"an event pair around nothing reads {floor['event_us']:.2f} us"
        told += f", in steps of {1000 * step:.0f} ns" if step else ""
        lines.append(f"* {told}; a pair adds {floor['two_events_add_us']:.2f} us to a pass")
    for kind in ("kernel", "event, kernel, event"):
        held = _of(steps, "queue", kind)
        if held:
            holds = held["holds"] or f"more than {held['tried']}"
            lines.append(f"* the driver queues {holds} entries of: {kind}")
    asked = (facts.get("hook_overhead_pct") for facts in _found(steps, "points").values())
    costs: list[float] = [cost for cost in asked if cost is not None]
    if costs:
        worst = max(costs, key=abs)
        lines.append(f"* layer pass over clean pass: worst {worst:+.2f} % of {len(costs)} points")
    return [*lines, ""] if lines else []


def _support(steps: Mapping[str, Record]) -> list[str]:
    """Return of how many distinct convolutions each algorithm runs, by type and direction."""
    found = _found(steps, "support")
    if not found:
        return []
    lines = ["| algorithm, type, layout | forward | data | filter |", "| --- | --- | --- | --- |"]
    for key, facts in found.items():
        cells = [f"{facts[w]['can']} of {facts[w]['of']}" for w in ("forward", "data", "filter")]
        lines.append(f"| {key} | {' | '.join(cells)} |")
    return [*lines, ""]


def _algorithms(steps: Mapping[str, Record]) -> list[str]:
    found = _found(steps, "points")
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
        error = known["max_rel_error"] if known else None
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


def _found(steps: Mapping[str, Record], step: str) -> Mapping[str, dict[str, Any]]:
    record = steps.get(step)
    return record.found if record else {}


def _of(steps: Mapping[str, Record], step: str, key: str) -> dict[str, Any] | None:
    return _found(steps, step).get(key)
