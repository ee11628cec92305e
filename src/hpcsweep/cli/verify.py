"""Proves which algorithms the convolutions of a sweep's points run on this machine.

Each point is measured by the sweep's code, with few passes and all checks: swapped layers, wanted
and used algorithm of each call, the profiler's records, the error of outputs and calls against
float64.

A point is *proven* if the profiler saw every convolution call (and a kernel, where a library was
called by the name of an algorithm), no record contradicts the claimed algorithm, every convolution
is one that back-ends can run, and each output and call is as exact as rounding allows. A fallback
is no contradiction: it is counted, with its reason. But a point is not proven if all of its
convolutions fell back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.conv.backend import FRAMEWORK
from hpcsweep.errors import HpcsweepError, first_line
from hpcsweep.measure.bench_api import CannotMeasure, OutOfMemory
from hpcsweep.point import NO_MAPS, varying
from hpcsweep.spec import space
from hpcsweep.text import aligned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hpcsweep.catalog.columns import Row
    from hpcsweep.measure.bench_api import Bench
    from hpcsweep.point import Point

# One timed pass: nothing here reads its time, `submit` measures the times of a sweep.
CHECKS: Final[Mapping[str, Any]] = {
    "warmup": 1,
    "iterations": 1,
    "stop": "fixed",
    "layers": True,
    "evidence": True,
    "numerics": "layers",
}
_SHOWN: Final = 3  # problems or reasons of a point; the others are counted
_LAYER_HEADINGS: Final = ("layer", "ran", "MiB", "error", "of bound", "seen")
_MIB: Final = 1 << 20  # bytes
_HEADINGS: Final = ("point", "ran", "FLOPs", "seen", "error")
_SEEN: Final = "profiler"  # how the evidence of a call begins that nothing contradicts


@dataclass(frozen=True)
class Verification:
    """The rows of one point, or why it cannot run."""

    point: Point
    row: Row = field(default_factory=dict)
    layers: Sequence[Row] = ()
    refusal: str | None = None

    @property
    def convolutions(self) -> list[Row]:
        """The layer rows of convolution calls."""
        return [layer for layer in self.layers if layer.get("algorithm_used")]

    @property
    def unseen(self) -> list[str]:
        """The evidence of each call of which the profiler does not show what it claims."""
        unseen = []
        for row in self.convolutions:
            evidence = row["algorithm_evidence"]
            if not evidence.startswith(_SEEN):
                unseen.append(f"{row['layer']}: {evidence}")
        return unseen

    @property
    def problems(self) -> list[str]:
        """What contradicts the claim; empty means proven."""
        if self.refusal is not None:
            return []
        problems = self.unseen
        more = len(problems) - _SHOWN
        if more > 0:
            # a network has hundreds of calls, which mostly share one reason
            problems[_SHOWN:] = [f"and {more} more such calls"]
        if self.row.get("algorithm_uncovered"):
            problems.append(f"no back-end can run all of it: {self.row['algorithm_uncovered']}")
        flags = {*self.row["flags"].split(";")}
        if "algorithm_absent" in flags:
            problems.append("no convolution ran the algorithm")
        if "inaccurate" in flags:
            problems.append(f"wrong results: {self.row['numerics_reason']}")
        elif self.convolutions and self.row["error_over_bound"] is None:
            why = self.row["numerics_reason"] or "no call is of a plain nn.Conv2d"
            problems.append(f"results not compared: {why}")
        return problems

    @property
    def proven(self) -> bool:
        """Whether the point ran as it claims."""
        return self.refusal is None and not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        return {
            "point_id": self.point.point_id,
            "label": self.point.label(),
            "proven": self.proven,
            "refusal": self.refusal,
            "problems": self.problems,
            "row": self.row,
            "layers": [*self.layers],
        }


def verify_points(points: Iterable[Point], bench: Bench) -> Iterator[Verification]:
    """Yield a verification for each point; one that cannot run has one, too."""
    for asked in points:
        point = replace(asked, measure={**asked.measure, **CHECKS})
        try:
            measured = bench.measure(point)
        except (CannotMeasure, OutOfMemory, HpcsweepError, RuntimeError) as error:
            kind = {CannotMeasure: "unsupported", OutOfMemory: "oom"}.get(type(error), "error")
            yield Verification(point, refusal=f"{kind}: {first_line(error)}")
        else:
            yield Verification(point, measured.row, measured.layers)


def verification_text(
    findings: Sequence[Verification], maps: Mapping[str, str] = NO_MAPS, *, layers: bool = False
) -> str:
    """Return verifications as text; `layers` adds every convolution call.

    `maps` has the names of all maps of algorithms.

    Columns: calls that ran the wanted algorithm, and their share of the operations; calls that the
    profiler saw; error against float64.
    """
    telling = varying(finding.point for finding in findings)
    cells = [(each.point.label(maps, telling), *_cells(each)) for each in findings]
    head, *rows = aligned([_HEADINGS, *cells])
    lines = [head]
    proven = 0
    refused = 0
    for finding, row in zip(findings, rows, strict=True):
        proven += finding.proven
        refused += finding.refusal is not None
        lines.append(row)
        lines += [f"    {note}" for note in _notes(finding)]
        if layers:
            lines += _layer_table(finding)
    verdict = f"proven: {proven} of {len(findings)} points"
    if refused:
        verdict += f", {refused} could not run"
    return "\n".join([*lines, "", *space.legend(maps), verdict])


def _cells(finding: Verification) -> tuple[str, ...]:
    """Return the cells of a point's line after its name, in the order of `_HEADINGS`."""
    if finding.refusal is not None:
        return ("", "", "", "")
    calls = finding.row["conv_calls"]
    covered = finding.row["algorithm_coverage_pct"]
    every = len(finding.convolutions)
    return (
        f"{calls - finding.row['conv_fallbacks']} of {calls}",
        "" if covered is None else f"{covered:.0f} %",
        f"{every - len(finding.unseen)} of {every}",
        _number(finding.row["call_rel_error"]),
    )


def _notes(finding: Verification) -> list[str]:
    """Return further lines about a point, the most important first."""
    if finding.refusal is not None:
        return [finding.refusal]
    notes = [f"NOT PROVEN: {problem}" for problem in finding.problems]
    backends = set[str]()
    swapped: dict[str, str] = {}  # layers, with the evidence of their first calls
    for row in finding.convolutions:
        if row.get("backend") != FRAMEWORK:
            backends.add(row["backend"])
            swapped.setdefault(row["layer"], row["algorithm_evidence"])
    if swapped:
        kinds = ", ".join(sorted(backends))
        tally = ", ".join(_tally(finding, "algorithm_used", ""))
        notes.append(f"layers swapped: {len(swapped)} ({kinds}); calls ran: {tally}")
        layer, evidence = next(iter(swapped.items()))
        notes.append(f"{layer}: {evidence}")
    reasons = _tally(finding, "fallback_reason", "x")
    if len(reasons) > _SHOWN:
        reasons = [*reasons[:_SHOWN], "..."]
    if reasons:
        notes.append(f"auto because: {'; '.join(reasons)}")
    return notes


def _tally(finding: Verification, column: str, times: str) -> list[str]:
    """Return how many convolution calls have each text in a column, the commonest first."""
    counts = Counter(row[column] for row in finding.convolutions if row[column])
    return [f"{number}{times} {text}" for text, number in counts.most_common()]


def _layer_table(finding: Verification) -> list[str]:
    """Return one line per convolution call."""
    rows = [_LAYER_HEADINGS]
    for row in finding.convolutions:
        why = f" ({row['fallback_reason']})" if row["fallback_reason"] else ""
        workspace = row.get("workspace_bytes")
        space_mib = "" if workspace is None else f"{workspace / _MIB:.1f}"
        ran = f"{row['algorithm_used']}{why}"
        error = _number(row.get("max_rel_error"))
        of_bound = _number(row.get("error_over_bound"))
        rows.append((row["layer"], ran, space_mib, error, of_bound, row["algorithm_evidence"]))
    return [f"    {line}" for line in aligned(rows)]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"
