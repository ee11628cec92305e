"""Proves what the convolutions of a sweep's points run on this machine.

Each point is measured by the very code that measures it in the sweep, with few passes and with
every check on: which layers were swapped, what each call was asked to run and ran, what the
profiler saw in it, how far the output is from float64. Beside it stands the framework's own
default for the same network and input, for its time and its error.

A point is *proven* when the profiler saw every convolution call, none of them contradicts the
algorithm that it claims, and the output is as exact as its type allows. What fell back is not
wrong: it is counted, with the reason.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from hpcsweep import catalog
from hpcsweep.catalog import columns
from hpcsweep.conv import choice
from hpcsweep.errors import HpcsweepError
from hpcsweep.measure.bench_api import OutOfMemory, Unsupported
from hpcsweep.point import canonical_json
from hpcsweep.text import aligned

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hpcsweep.catalog.columns import Row
    from hpcsweep.measure.bench_api import Measured
    from hpcsweep.point import Point

# Enough to see the order of a time; who wants to quote it runs the sweep.
CHECKS: Final[Mapping[str, Any]] = {
    "warmup": 2,
    "iterations": 5,
    "stop": "fixed",
    "layers": True,
    "evidence": True,
    "numerics": "layers",
}
_NOT_SEEN: Final = "none"
_MISMATCH: Final = "mismatch "
_SHOWN: Final = 3
_LAYER_HEADINGS: Final = ("layer", "ran", "MiB", "error", "ms", "to auto", "seen")
_MIB: Final = 1 << 20
_HEADINGS: Final = ("algorithm", "ran", "FLOPs", "seen", "error", "of auto", "ms", "to auto")


class Bench(Protocol):
    """What measures a point."""

    def measure(self, point: Point, tries: int = 0) -> Measured:
        """Measure one point; raise `Unsupported`, `OutOfMemory` or an error."""
        ...


@dataclass(frozen=True)
class Finding:
    """What one point did: its rows, those of the framework's default, or why there are none."""

    point: Point
    row: Row = field(default_factory=dict)
    layers: Sequence[Row] = ()
    default: Row = field(default_factory=dict)
    default_layers: Sequence[Row] = ()
    refusal: str | None = None

    @property
    def convolutions(self) -> list[Row]:
        """Return the layer rows of convolution calls."""
        return [layer for layer in self.layers if layer.get("algorithm_used")]

    @property
    def explicit(self) -> list[Row]:
        """Return those that an explicit algorithm ran."""
        return [c for c in self.convolutions if c["algorithm_used"] not in choice.FRAMEWORK_CHOICES]

    @property
    def reasons(self) -> Counter[str]:
        """Return why calls ran something else than asked, with counts."""
        return Counter(c["fallback_reason"] for c in self.convolutions if c["fallback_reason"])

    @property
    def problems(self) -> list[str]:
        """Return what stands against the claim; empty means proven."""
        if self.refusal is not None:
            return []
        unseen = [c for c in self.convolutions if c["algorithm_evidence"] == _NOT_SEEN]
        wrong = [c for c in self.convolutions if c["algorithm_evidence"].startswith(_MISMATCH)]
        found = [f"{c['layer']}: {c['algorithm_evidence']}" for c in wrong[:_SHOWN]]
        if len(wrong) > _SHOWN:
            found.append(f"and {len(wrong) - _SHOWN} more calls that contradict the algorithm")
        if unseen:
            found.append(f"{len(unseen)} calls that the profiler did not see")
        if "inaccurate" in self.row["flags"].split(";"):
            found.append(f"output is {_short(self.row['max_rel_error'])} from float64")
        return found

    @property
    def idle_patterns(self) -> list[str]:
        """Return the patterns of a map of algorithms that no convolution matches."""
        calls = ((c["layer"], c["unique_key"]) for c in self.convolutions)
        return choice.idle_patterns(self.point.axes["algorithm"], calls) if self.layers else []

    @property
    def proven(self) -> bool:
        """Say whether the point ran, and as it claims."""
        return self.refusal is None and not self.problems


def verify(points: Iterable[Point], bench: Bench) -> Iterator[Finding]:
    """Yield one finding per point; points of one network and input come one after the other.

    A point that cannot run is a finding too, and the next one is looked at.
    """
    groups: dict[str, list[Point]] = {}
    for point in points:
        checked = replace(point, measure={**point.measure, **CHECKS})
        groups.setdefault(_input_key(checked), []).append(checked)
    for group in groups.values():
        yield from _verify_group(group, bench)


def text(findings: Sequence[Finding], *, layers: bool = False) -> str:
    """Return findings as one screen; `layers` adds every convolution call.

    Columns: calls that ran as asked and their share of the operations; calls that the profiler saw;
    error against float64, and that of the framework's default; median time, and over the default's.
    """
    groups: dict[str, list[Finding]] = {}
    for finding in findings:
        groups.setdefault(_input_key(finding.point), []).append(finding)
    lines = [line for group in groups.values() for line in _group_lines(group, layers=layers)]
    return "\n".join([*lines, _verdict(findings)])


def _verify_group(points: Sequence[Point], bench: Bench) -> Iterator[Finding]:
    """Look at points that differ in the algorithm alone; the framework's default comes first."""
    twin = replace(points[0], axes={**points[0].axes, "algorithm": catalog.AUTO})
    default = _look(twin, bench)
    for point in points:
        found = default if point.axes["algorithm"] == catalog.AUTO else _look(point, bench)
        yield replace(found, point=point, default=default.row, default_layers=default.layers)


def _look(point: Point, bench: Bench) -> Finding:
    try:
        measured = bench.measure(point)
    except (Unsupported, OutOfMemory, HpcsweepError, RuntimeError) as error:
        return Finding(point, refusal=f"{_kind(error)}: {str(error).splitlines()[0]}")
    return Finding(point, measured.row, measured.layers)


def _kind(error: Exception) -> str:
    return {Unsupported: "unsupported", OutOfMemory: "oom"}.get(type(error), "error")


def _input_key(point: Point) -> str:
    return canonical_json({**point.axes, "algorithm": None})


def _group_lines(group: Sequence[Finding], *, layers: bool) -> list[str]:
    lines = [_heading(group[0]), _columns(_HEADINGS)]
    for finding in group:
        lines += [_columns(_cells(finding)), *(f"      {note}" for note in _notes(finding))]
        lines += _layer_table(finding) if layers else []
    return [*lines, ""]


def _heading(finding: Finding) -> str:
    axes = finding.point.axes
    size = f"{axes['input_size']}x{axes['input_size']}, batch {axes['batch_size']}"
    rest = f"{axes['dtype']}, {axes['memory_format']}, on {axes['gpu']}"
    return f"{axes['model']}, {size}, {rest}"


def _cells(finding: Finding) -> tuple[str, ...]:
    """Return the cells of a point's line, in the order of `_HEADINGS`."""
    name = _label(finding.point.axes["algorithm"])
    if finding.refusal is not None:
        return (name, finding.refusal)
    calls = finding.convolutions
    fallbacks = finding.row["conv_fallbacks"]
    seen = sum(c["algorithm_evidence"] != _NOT_SEEN for c in calls)
    covered = finding.row["algorithm_coverage_pct"]
    return (
        name,
        f"{len(calls) - fallbacks} of {len(calls)}",
        "" if covered is None else f"{covered:.0f} %",
        f"{seen} of {len(calls)}",
        _short(finding.row["max_rel_error"]),
        _short(finding.default.get("max_rel_error")),
        f"{finding.row['median_ms']:.4g}",
        _ratio(finding.row["median_ms"], finding.default.get("median_ms")),
    )


def _notes(finding: Finding) -> list[str]:
    """Return what else a reader must know of a point, most important first."""
    notes = [f"NOT PROVEN: {problem}" for problem in finding.problems]
    swapped = {c["layer"] for c in finding.explicit}
    if swapped:
        kinds = ", ".join(sorted({c["backend"] for c in finding.explicit}))
        ran = Counter(c["algorithm_used"] for c in finding.convolutions)
        tally = ", ".join(f"{n} {name}" for name, n in ran.most_common())
        notes.append(f"layers swapped: {len(swapped)} ({kinds}); calls ran: {tally}")
        notes.append(f"{finding.explicit[0]['layer']}: {finding.explicit[0]['algorithm_evidence']}")
    if finding.reasons:
        reasons = [f"{n}x {why}" for why, n in finding.reasons.most_common(_SHOWN)]
        rest = len(finding.reasons) - _SHOWN
        notes.append(f"auto because: {'; '.join(reasons)}{f'; {rest} more' if rest > 0 else ''}")
    noise = [f"{whose} {flag}" for whose, row in _compared(finding) for flag in _doubts(row)]
    if noise:
        notes.append(f"times are in doubt: {', '.join(noise)}")
    if finding.idle_patterns:
        notes.append(f"patterns that match no convolution: {', '.join(finding.idle_patterns)}")
    return notes


def _compared(finding: Finding) -> tuple[tuple[str, Row], tuple[str, Row]]:
    return ("its own", finding.row), ("the default's", finding.default)


def _doubts(row: Row) -> list[str]:
    """Return the flags that put a time in doubt."""
    timing = columns.DOUBTFUL - {"algorithm_mismatch", "inaccurate"}
    return [flag for flag in row.get("flags", "").split(";") if flag in timing]


def _layer_table(finding: Finding) -> list[str]:
    """Return one line per convolution call; times are of the layer pass."""
    defaults = [row for row in finding.default_layers if row.get("algorithm_used")]
    rows = [_LAYER_HEADINGS]
    for index, row in enumerate(finding.convolutions):
        default = defaults[index]["median_ms"] if index < len(defaults) else None
        why = f" ({row['fallback_reason']})" if row["fallback_reason"] else ""
        workspace = row.get("workspace_bytes")
        rows.append(
            (
                row["layer"],
                f"{row['algorithm_used']}{why}",
                "" if workspace is None else f"{workspace / _MIB:.1f}",
                _short(row.get("max_rel_error")),
                f"{row['median_ms']:.4g}",
                _ratio(row["median_ms"], default),
                row["algorithm_evidence"],
            )
        )
    return [f"    {line}" for line in aligned(rows)]


def _verdict(findings: Sequence[Finding]) -> str:
    proven = sum(finding.proven for finding in findings)
    refused = sum(finding.refusal is not None for finding in findings)
    text = f"proven: {proven} of {len(findings)} points"
    return f"{text}, {refused} could not run" if refused else text


def _columns(cells: Sequence[str]) -> str:
    widths = (24, 10, 7, 11, 9, 9, 9, 0)
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=False))
    return f"  {' '.join(padded)}".rstrip()


def _label(algorithm: str | Mapping[str, str]) -> str:
    return algorithm if isinstance(algorithm, str) else f"map of {len(algorithm)}"


def _short(error: float | None) -> str:
    return "" if error is None else f"{error:.1e}"


def _ratio(value: float, reference: float | None) -> str:
    return f"{value / reference:.2f}x" if reference else ""
