"""One column of a collected sweep over another: one line per combination of what else varies.

A value is the median of the measured rows that the line and the place on the x axis leave: repeats
with other seeds, and the axes that `by` leaves out. A line is doubtful where any of its rows is.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import columns, dataset, speedup
from hpcsweep.errors import UsageError
from hpcsweep.text import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from hpcsweep.analysis.dataset import Dataset
    from hpcsweep.store.rundir import RunDir

MOST_LINES: Final = 12  # that a reader can tell apart in one picture
_REPEATS: Final = "seed"  # an axis whose values are repetitions of one thing
_WIDEST: Final = 140
# axes whose values say what they are
_SPEAKING: Final = frozenset(
    {"model", "algorithm", "dtype", "gpu", "memory_format", "launch", "cache_state", "workload"}
)


@dataclass(frozen=True)
class Dot:
    """One value: a median of `n` rows; with a baseline, how it compares, and whether in doubt."""

    x: Any
    y: float
    n: int
    doubtful: bool
    speedup: float | None = None
    unsure: bool = False


@dataclass(frozen=True)
class Line:
    """One combination of the columns `by`, and its values in the order of x."""

    label: str
    by: dict[str, Any]
    dots: tuple[Dot, ...]


@dataclass(frozen=True)
class Plot:
    """Lines of y over x; `numeric` tells whether x has distances."""

    data: Dataset
    x: str
    y: str
    by: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    against: str = ""
    where: str = ""

    @property
    def numeric(self) -> bool:
        """Tell whether x is a quantity, rather than names."""
        return all(isinstance(dot.x, int | float) for line in self.lines for dot in line.dots)

    @property
    def places(self) -> list[Any]:
        """Return the values of x in order."""
        return _ordered(self.x, {dot.x for line in self.lines for dot in line.dots})

    @property
    def compared(self) -> str:
        """Return what a comparison with the baseline is called."""
        known = columns.is_time(self.y) or columns.is_rate(self.y)
        return f"{'speed-up over' if known else 'ratio to'} {self.against}"

    def check_lines(self) -> None:
        """Complain about more lines than a picture can hold; `UsageError` names the remedy."""
        if len(self.lines) > MOST_LINES:
            raise UsageError(
                f"{len(self.lines)} lines ({' x '.join(self.by)}) are too many for a picture, "
                f"which holds {MOST_LINES}: choose what tells lines apart with --by, or what to "
                f"show with --where {self.by[0]}=..."
            )

    def records(self) -> list[dict[str, Any]]:
        """Return one flat record per value."""
        return [
            {
                **line.by,
                self.x: dot.x,
                self.y: dot.y,
                "n": dot.n,
                "doubtful": dot.doubtful,
                **({"baseline": self.against, "speedup": dot.speedup} if self.against else {}),
            }
            for line in self.lines
            for dot in line.dots
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        return {
            "sweep": self.data.run.name,
            "x": self.x,
            "y": self.y,
            "by": list(self.by),
            "baseline": self.against or None,
            "rows": self.records(),
            "notes": list(self.notes),
        }

    def write_summary(self, path: Path) -> None:
        """Write the records as CSV; `UsageError` where the file cannot be written."""
        rows = self.records()
        try:
            with path.open("w", newline="", encoding="utf-8") as file:
                table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                table.writeheader()
                table.writerows(
                    {k: str(v).lower() if isinstance(v, bool) else v for k, v in row.items()}
                    for row in rows
                )
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from error

    def text(self) -> str:
        """Return the values, and the comparison with the baseline, for a terminal."""
        heading = f"{self.data.run.name}: {columns.label(self.y)} over {columns.label(self.x)}"
        where = f", where {self.where}" if self.where else ""
        parts = [f"{heading}{where} ({self.data.counts()})", "", *self._table(_value)]
        if len(parts[2]) > _WIDEST:
            parts[2:] = self._list()
        elif self.against:
            parts += ["", self.compared, "", *self._table(_ratio)]
        notes = [f"   {note}" for note in self.notes]
        if any(dot.doubtful or dot.unsure for line in self.lines for dot in line.dots):
            notes.insert(0, "?  doubtful: the column `flags` says why")
        return "\n".join([*parts, "", *notes]).rstrip()

    def _table(self, shown: Callable[[Dot], str]) -> list[str]:
        """Return a column per line."""
        cells = [{dot.x: shown(dot) for dot in line.dots} for line in self.lines]
        head = [self.x, *(f"{line.label or self.y} " for line in self.lines)]
        body = [[_plain(x), *(column.get(x, "- ") for column in cells)] for x in self.places]
        return aligned([head, *body], left=0 if self.numeric else 1)

    def _list(self) -> list[str]:
        """Return a row per value, for what would be too wide otherwise."""
        head = [*self.by, self.x, f"{self.y} ", *([f"{self.compared} "] if self.against else [])]
        rows = [
            [
                *(_plain(value) for value in line.by.values()),
                _plain(dot.x),
                _value(dot),
                *([_ratio(dot)] if self.against else []),
            ]
            for line in self.lines
            for dot in line.dots
        ]
        return aligned([head, *rows], left=len(self.by))


def read(  # noqa: PLR0913 - one argument per option
    run: RunDir,
    x: str | None = None,
    y: str = "median_ms",
    *,
    by: Sequence[str] = (),
    where: str = "",
    baseline: str = "",
) -> Plot:
    """Read a collected sweep as lines of y over x.

    Without `x` it is the numeric axis that varies; without `by` every axis that varies tells
    lines apart. `where` and `baseline` are `column=value`, several joined by commas.

    Raises:
        UsageError: a column or a value is not there, or y has no numbers.

    """
    data = dataset.read(run)
    match = data.pairs(baseline)
    named = [name for name in (x, y, *by) if name]
    for name in named:
        data.column(name)
    needed = {*catalog.AXES, *named, *match, "flags"}
    chosen = data.where(where)
    chosen = chosen[[name for name in chosen if name in needed]]
    rows = _numbers(data, chosen, y)
    x = x or _only_axis(rows)
    rows = rows[rows[x].notna()]
    if rows.empty:
        raise UsageError(f"{run.overall}: no measured point has both {x} and {y}")
    telling = tuple(name for name in dict.fromkeys(by) if name != x) or _telling(rows, x, y)
    notes = [*_left_out(chosen, rows, x, y), *_medians(rows, x, telling)]
    rows = rows.assign(doubtful_=dataset.doubtful(rows), speedup_=None, unsure_=False)
    if match:
        ratios, unsure, told = speedup.ratios(rows, y, match, ignore={_REPEATS, y} - {*by})
        rows, notes = rows.assign(speedup_=ratios, unsure_=unsure), [*notes, *told]
    lines = _lines(rows, x, y, telling)
    return Plot(data, x, y, telling, lines, tuple(notes), baseline, where)


def _numbers(data: Dataset, rows: pd.DataFrame, y: str) -> pd.DataFrame:
    """Return the rows that have a number in y."""
    values = pd.to_numeric(rows[y], errors="coerce")
    known = rows.assign(**{y: values})[values.notna()]
    if known.empty:
        raise UsageError(f"{data.run.overall}: {y} holds no numbers")
    return known


def _only_axis(rows: pd.DataFrame) -> str:
    """Return the numeric axis that varies; `UsageError` where there is none, or several."""
    varying = dataset.varying_axes(rows)
    numeric = [a for a in varying if catalog.AXES[a].kind in {"int", "float"} and a != _REPEATS]
    found = numeric or [axis for axis in varying if axis != _REPEATS]
    if len(found) == 1:
        return found[0]
    known = (
        f"one of {', '.join(found)}" if found else "no axis to draw over varies; try --x input_size"
    )
    raise UsageError(f"which column is x? give --x ({known})")


def _telling(rows: pd.DataFrame, x: str, y: str) -> tuple[str, ...]:
    """Return the axes that tell lines apart: those that vary, but repeats and what x stands for.

    A column that is no axis (`flops`) follows from the sizes, so these tell nothing more.
    """
    varying = [a for a in dataset.varying_axes(rows) if a not in {x, y, _REPEATS}]
    if x in catalog.AXES:
        return tuple(varying)
    return tuple(axis for axis in varying if catalog.AXES[axis].kind not in {"int", "float"})


def _left_out(chosen: pd.DataFrame, rows: pd.DataFrame, x: str, y: str) -> list[str]:
    rest = len(chosen) - len(rows)
    return [f"{rest} points without {x} or {y} left out"] if rest else []


def _medians(rows: pd.DataFrame, x: str, by: Sequence[str]) -> list[str]:
    """Return a note where values are medians of several rows, and over what."""
    most = int(rows.groupby([*by, x], dropna=False).size().max())
    if most < 2:
        return []
    over = [axis for axis in dataset.varying_axes(rows) if axis not in {x, *by}]
    what = f" over {', '.join(over)}" if over else ""
    return [f"values are medians{what}, of up to {most} points each"]


def _lines(rows: pd.DataFrame, x: str, y: str, by: Sequence[str]) -> tuple[Line, ...]:
    groups = rows.groupby(list(by), dropna=False, sort=False) if by else [((), rows)]
    found = {key: _dots(group, x, y) for key, group in groups}
    keys = sorted(found, key=lambda key: [_rank(name, v) for name, v in zip(by, key, strict=True)])
    return tuple(
        Line(_label(by, key), {n: _python(v) for n, v in zip(by, key, strict=True)}, found[key])
        for key in keys
    )


def _dots(group: pd.DataFrame, x: str, y: str) -> tuple[Dot, ...]:
    places = {_python(place): cell for place, cell in group.groupby(x)}
    return tuple(
        Dot(
            place,
            float(places[place][y].median()),
            len(places[place]),
            bool(places[place]["doubtful_"].any()),
            _median(places[place]["speedup_"]),
            bool((places[place]["doubtful_"] | places[place]["unsure_"]).any()),
        )
        for place in _ordered(x, places)
    )


def _median(ratios: pd.Series) -> float | None:
    known = ratios.dropna().astype(float)
    return None if known.empty else float(known.median())


def _ordered(column: str, values: Iterable[Any]) -> list[Any]:
    return sorted(values, key=lambda value: _rank(column, value))


def _rank(column: str, value: Any) -> tuple[int, Any]:  # noqa: ANN401 - a cell
    """Return where a value stands: numbers by size, algorithms and choices as catalogued."""
    if pd.isna(value):
        return (0, 0)
    if isinstance(value, str):
        axis = catalog.AXES.get(column)
        known = (
            list(catalog.ALGORITHMS)
            if column == "algorithm"
            else list(axis.choices if axis else ())
        )
        return (1, known.index(value)) if value in known else (2, value)
    return (1, value)


def _label(by: Sequence[str], key: Sequence[Any]) -> str:
    return ", ".join(
        _plain(value) if name in _SPEAKING else f"{name} {_plain(value)}"
        for name, value in zip(by, key, strict=True)
    )


def _plain(value: Any) -> str:  # noqa: ANN401 - a cell
    if pd.isna(value):
        return "unset"
    return f"{value:.10g}" if isinstance(value, float | int) else str(value)


def _python(value: Any) -> Any:  # noqa: ANN401 - numpy scalars to Python's own
    if pd.isna(value):
        return None
    plain = value.item() if hasattr(value, "item") else value
    return int(plain) if isinstance(plain, float) and plain.is_integer() else plain


def _value(dot: Dot) -> str:
    return f"{dot.y:.5g}{'?' if dot.doubtful else ' '}"


def _ratio(dot: Dot) -> str:
    return "- " if dot.speedup is None else f"{dot.speedup:.3g}x{'?' if dot.unsure else ' '}"
