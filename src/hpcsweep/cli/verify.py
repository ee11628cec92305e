"""Proves which algorithms the convolutions of a sweep's points run on this machine.

Each point is measured by the sweep's code, with few passes and all checks: swapped layers, wanted
and used algorithm of each call, the profiler's records, the error of outputs and calls against
float64. The framework's default is measured for the same network and input, to compare time and
error.

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

from hpcsweep import catalog
from hpcsweep.catalog import columns
from hpcsweep.catalog.sharing import process_key
from hpcsweep.conv.backend import FRAMEWORK
from hpcsweep.conv.proof.evidence import Evidence, Proof, Source, cell
from hpcsweep.errors import HpcsweepError, first_line
from hpcsweep.measure.bench_api import CannotMeasure, OutOfMemory
from hpcsweep.point import NO_MAPS, algorithm_name, canonical_json
from hpcsweep.spec import space
from hpcsweep.text import aligned, count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hpcsweep.catalog.columns import Row
    from hpcsweep.measure.bench_api import Bench
    from hpcsweep.point import Point

# Few passes: the times show an order of magnitude, a sweep measures them.
CHECKS: Final[Mapping[str, Any]] = {
    "warmup": 2,
    "iterations": 5,
    "stop": "fixed",
    "layers": True,
    "evidence": True,
    "numerics": "layers",
}
_SHOWN: Final = 3
_LAYER_HEADINGS: Final = ("layer", "ran", "MiB", "error", "of bound", "ms", "to auto", "seen")
_MIB: Final = 1 << 20
_HEADINGS: Final = ("algorithm", "ran", "FLOPs", "seen", "error", "of auto", "ms", "to auto")


@dataclass(frozen=True)
class Verification:
    """The rows of one point and of the framework's default, or why the point cannot run.

    `proof` has the evidence of the convolutions among the layer rows, in their order.
    """

    point: Point
    row: Row = field(default_factory=dict)
    layers: Sequence[Row] = ()
    proof: Proof = field(default_factory=Proof)
    default: Row = field(default_factory=dict)
    default_layers: Sequence[Row] = ()
    refusal: str | None = None
    untimed: bool = False

    @property
    def convolutions(self) -> list[Row]:
        """The layer rows of convolution calls."""
        return [layer for layer in self.layers if layer.get("algorithm_used")]

    @property
    def evidence(self) -> Sequence[Evidence]:
        """The evidence of each convolution call; empty for a call that was not profiled."""
        rows = self.convolutions
        calls = self.proof.calls
        return [*calls[: len(rows)], *(Evidence(row["layer"]) for row in rows[len(calls) :])]

    @property
    def explicit(self) -> list[tuple[Row, Evidence]]:
        """The calls that an explicit algorithm ran, with their evidence."""
        pairs = zip(self.convolutions, self.evidence, strict=True)
        return [(c, e) for c, e in pairs if c.get("backend") != FRAMEWORK]

    @property
    def reasons(self) -> Counter[str]:
        """The reasons of fallbacks, with counts."""
        return Counter(c["fallback_reason"] for c in self.convolutions if c["fallback_reason"])

    @property
    def seen(self) -> int:
        """Number of calls that the profiler saw."""
        return sum(call.seen is not None for call in self.evidence)

    @property
    def problems(self) -> list[str]:
        """What contradicts the claim; empty means proven."""
        if self.refusal is not None:
            return []
        wrong = [call for call in self.evidence if call.problem is not None]
        problems = [f"{call.layer}: {cell(call)}" for call in wrong[:_SHOWN]]
        if len(wrong) > _SHOWN:
            problems.append(f"and {len(wrong) - _SHOWN} more calls that contradict the algorithm")
        unseen = len(self.evidence) - self.seen
        if unseen:
            problems.append(f"{unseen} calls that the profiler did not see")
        named = sum(call.source is Source.API for _, call in self.explicit)
        if named:
            calls = count(named, "call")
            problems.append(f"{calls} of the library of which no kernel was seen")
        if self.row.get("algorithm_uncovered"):
            problems.append(f"no back-end can run all of it: {self.row['algorithm_uncovered']}")
        flags = self.row["flags"].split(";")
        if "algorithm_absent" in flags:
            problems.append("no convolution ran the algorithm")
        if self.row["max_rel_error"] is None or {"unverified", "inaccurate"} & {*flags}:
            how = "not as" if "inaccurate" in flags else "not compared with"
            problems.append(f"{how} float64: {self.row.get('numerics_reason') or 'no output'}")
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


def verify(points: Iterable[Point], bench: Bench) -> Iterator[Verification]:
    """Yield a verification for each point, grouped by network and input.

    A point that cannot run has one, too.
    """
    groups: dict[str, list[Point]] = {}
    for point in points:
        checked = replace(point, measure={**point.measure, **CHECKS})
        groups.setdefault(_input_key(checked), []).append(checked)
    for group in groups.values():
        yield from _verify_group(group, bench)


def text(
    findings: Sequence[Verification], maps: Mapping[str, str] = NO_MAPS, *, layers: bool = False
) -> str:
    """Return verifications as text; `layers` adds every convolution call.

    `maps` has the names of all maps of algorithms.

    Columns: calls that ran the wanted algorithm, and their share of the operations; calls that the
    profiler saw; error against float64, and the default's error; median time in ms, and its ratio
    to the default's.
    """
    groups: dict[str, list[Verification]] = {}
    for finding in findings:
        groups.setdefault(_input_key(finding.point), []).append(finding)
    lines = [line for group in groups.values() for line in _group_lines(group, maps, layers=layers)]
    return "\n".join([*lines, *space.legend(maps), _verdict(findings)])


def _verify_group(points: Sequence[Point], bench: Bench) -> Iterator[Verification]:
    """Verify points that differ only in the algorithm, after the framework's default."""
    twin = replace(points[0], axes={**points[0].axes, "algorithm": catalog.AUTO})
    default = _measure(twin, bench)
    for point in points:
        verified = default if point.axes["algorithm"] == catalog.AUTO else _measure(point, bench)
        if process_key(point) and bench.tunes:
            verified = _untimed(verified)
        yield replace(verified, point=point, default=default.row, default_layers=default.layers)


def _untimed(verified: Verification) -> Verification:
    """Remove the times of a point, which torch ran in this process by the plans of the default."""
    rows = [
        {n: None if n in columns.CLOCKED else value for n, value in row.items()}
        for row in (verified.row, *verified.layers)
    ]
    return replace(verified, row=rows[0], layers=rows[1:], untimed=verified.refusal is None)


def _measure(point: Point, bench: Bench) -> Verification:
    try:
        measured = bench.measure(point)
    except (CannotMeasure, OutOfMemory, HpcsweepError, RuntimeError) as error:
        kind = {CannotMeasure: "unsupported", OutOfMemory: "oom"}.get(type(error), "error")
        return Verification(point, refusal=f"{kind}: {first_line(error)}")
    return Verification(point, measured.row, measured.layers, measured.proof or Proof())


def _input_key(point: Point) -> str:
    return canonical_json({**point.axes, "algorithm": None})


def _group_lines(
    group: Sequence[Verification], maps: Mapping[str, str], *, layers: bool
) -> list[str]:
    head, *rows = aligned([_HEADINGS, *(_cells(finding, maps) for finding in group)])
    lines = [_heading(group[0]), f"  {head}"]
    for finding, row in zip(group, rows, strict=True):
        lines += [f"  {row}", *(f"      {note}" for note in _notes(finding))]
        lines += _layer_table(finding) if layers else []
    return [*lines, ""]


def _heading(finding: Verification) -> str:
    axes = finding.point.axes
    size = f"{axes['input_size']}x{axes.get('input_width') or axes['input_size']}"
    size += f", batch {axes['batch_size']}"
    rest = f"{axes['dtype']}, {axes['memory_format']}, on {axes['gpu']}"
    return f"{axes['model']}, {size}, {rest}"


def _cells(finding: Verification, maps: Mapping[str, str]) -> tuple[str, ...]:
    """Return the cells of a point's line, in the order of `_HEADINGS`."""
    name = algorithm_name(finding.point.axes["algorithm"], maps)
    if finding.refusal is not None:
        return (name, *[""] * (len(_HEADINGS) - 1))
    calls = finding.row["conv_calls"]
    covered = finding.row["algorithm_coverage_pct"]
    return (
        name,
        f"{calls - finding.row['conv_fallbacks']} of {calls}",
        "" if covered is None else f"{covered:.0f} %",
        f"{finding.seen} of {len(finding.convolutions)}",
        _number(finding.row["max_rel_error"], ".1e"),
        _number(finding.default.get("max_rel_error"), ".1e"),
        _number(finding.row["median_ms"], ".4g"),
        _ratio(finding.row["median_ms"], finding.default.get("median_ms")),
    )


def _notes(finding: Verification) -> list[str]:
    """Return further lines about a point, the most important first."""
    if finding.refusal is not None:
        return [finding.refusal]
    notes = [f"NOT PROVEN: {problem}" for problem in finding.problems]
    explicit = finding.explicit
    if explicit:
        swapped = {row["layer"] for row, _ in explicit}
        kinds = ", ".join(sorted({row["backend"] for row, _ in explicit}))
        ran = Counter(c["algorithm_used"] for c in finding.convolutions)
        tally = ", ".join(f"{n} {name}" for name, n in ran.most_common())
        notes.append(f"layers swapped: {len(swapped)} ({kinds}); calls ran: {tally}")
        row, evidence = explicit[0]
        notes.append(f"{row['layer']}: {cell(evidence)}")
    if finding.reasons:
        reasons = [f"{n}x {why}" for why, n in finding.reasons.most_common(_SHOWN)]
        rest = len(finding.reasons) - _SHOWN
        notes.append(f"auto because: {'; '.join(reasons)}{f'; {rest} more' if rest > 0 else ''}")
    if finding.untimed:
        notes.append("no times: in this process torch has the plans of auto; a sweep has its own")
    compared = (("its own", finding.row), ("the default's", finding.default))
    noise = [f"{whose} {flag}" for whose, row in compared for flag in _doubts(row)]
    if noise:
        notes.append(f"times are in doubt: {', '.join(noise)}")
    return notes


def _doubts(row: Row) -> list[str]:
    """Return the flags that put a time in doubt."""
    about = {"algorithm_mismatch", "algorithm_absent", "unproven", "inaccurate", "unverified"}
    timing = columns.DOUBTFUL - about
    return [flag for flag in row.get("flags", "").split(";") if flag in timing]


def _layer_table(finding: Verification) -> list[str]:
    """Return one line per convolution call; times are of the layer pass."""
    defaults = [row for row in finding.default_layers if row.get("algorithm_used")]
    rows = [_LAYER_HEADINGS]
    calls = zip(finding.convolutions, finding.evidence, strict=True)
    for index, (row, evidence) in enumerate(calls):
        default = defaults[index]["median_ms"] if index < len(defaults) else None
        why = f" ({row['fallback_reason']})" if row["fallback_reason"] else ""
        workspace = row.get("workspace_bytes")
        rows.append(
            (
                row["layer"],
                f"{row['algorithm_used']}{why}",
                "" if workspace is None else f"{workspace / _MIB:.1f}",
                _number(row.get("max_rel_error"), ".1e"),
                _number(row.get("error_over_bound"), ".1e"),
                _number(row["median_ms"], ".4g"),
                _ratio(row["median_ms"], default),
                cell(evidence),
            )
        )
    return [f"    {line}" for line in aligned(rows)]


def _verdict(findings: Sequence[Verification]) -> str:
    proven = sum(finding.proven for finding in findings)
    refused = sum(finding.refusal is not None for finding in findings)
    text = f"proven: {proven} of {len(findings)} points"
    return f"{text}, {refused} could not run" if refused else text


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _ratio(value: float | None, reference: float | None) -> str:
    return f"{value / reference:.2f}x" if value is not None and reference else ""
