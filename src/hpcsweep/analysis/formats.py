"""Writes cells and tables: for a terminal, as CSV, Markdown or LaTeX, and as a record.

CSV and records hold the values as they are; the others hold what people read. The name of a column
says its unit, and whether more of it is better. What the values mean is said elsewhere.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union

from hpcsweep.analysis.plain_rows import KINDS, is_empty
from hpcsweep.store import named_file
from hpcsweep.text import fitted, folded, in_sheet, shown

if TYPE_CHECKING:
    import pandas as pd

Columns: TypeAlias = Union[Mapping[str, Sequence[Any]], "pd.DataFrame"]  # cells by column

_MARKUP: Final = re.compile(r"[\\`*<>&\[\]|~$]|\b_|_\b")  # of Markdown; within words _ means itself
_NO_NAME: Final = re.compile(r"[^a-z0-9]+")  # of a label
_TEX: Final = str.maketrans({
    **{letter: f"\\{letter}" for letter in "&%$#_{}"}, "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}",
    ">": r"\textgreater{}", "|": r"\textbar{}",
})  # fmt: skip
_TIMES: Final = {"_ms": "ms", "_s": "s"}
_RATES: Final = {"_gbs": "GB/s", "_tflops": "TFLOP/s", "_ips": "images/s", "_sps": "samples/s"}
_SUFFIXES: Final = {
    **_TIMES, **_RATES, "_j": "J", "_bytes": "bytes", "_gib": "GiB", "_pct": "%", "_mhz": "MHz",
}  # fmt: skip
_UNITS: Final = {
    "input_size": "pixels", "input_width": "pixels", "batch_size": "images",
    "throughput": "images/s", "flops": "FLOP", "macs": "multiply-adds", "bytes_min": "bytes",
    "arith_intensity": "FLOP/byte",
}  # fmt: skip
_PERCENT: Final = "pct_"  # begins the name of a share
# axes whose values need no name beside them
_SPEAKING: Final = frozenset(
    {"model", "algorithm", "dtype", "gpu", "memory_format", "launch", "cache_state", "workload"}
)
COVERAGE: Final = "share of the convolution FLOPs that ran the algorithm; auto did the rest"


def to_json(name: str, value: Any) -> Any:  # noqa: ANN401 - numpy scalars to Python's own
    """Return a cell of a column as JSON takes it; None where it is empty."""
    if is_empty(value):
        return None
    if KINDS.get(name) == "int":
        return int(value)  # a float where other rows have none
    return value.item() if hasattr(value, "item") else value


def records(rows: Columns) -> list[dict[str, Any]]:
    """Return one flat record per row, as JSON takes it."""
    names = [*map(str, rows)]
    found = []
    for cells in zip(*(rows[name] for name in names), strict=True):
        plain = {}
        for name, value in zip(names, cells, strict=True):
            plain[name] = to_json(name, value)
        found.append(plain)
    return found


def format_value(name: str, value: object) -> str:
    """Return a cell of a column for people."""
    plain = to_json(name, value)
    if plain is None:
        return "unset"
    # ten digits: all that a cell has (seven), and no noise of binary fractions behind them
    return f"{plain:.10g}" if isinstance(plain, float) else shown(str(plain))


def format_labelled(name: str, value: object) -> str:
    """Return a value of an axis for people, with the axis' name unless the value says it."""
    text = format_value(name, value)
    return text if name in _SPEAKING else f"{name} {text}"


def labelled(row: Any, axes: Iterable[str]) -> str:  # noqa: ANN401 - a row
    """Return the values of axes for people, on one line."""
    return " ".join(format_labelled(axis, row[axis]) for axis in axes)


def each_labelled(rows: pd.DataFrame, axes: Sequence[str]) -> list[str]:
    """Return the values of axes for people, a line per row."""
    return [labelled(row, axes) for _, row in rows.iterrows()]


def texts(rows: Any, names: Iterable[str]) -> dict[str, list[str]]:  # noqa: ANN401 - a table
    """Return the cells of columns for people."""
    return {name: [format_value(name, value) for value in rows[name]] for name in names}


def span(values: Sequence[float], form: str) -> str:
    """Return the lowest and the highest value; one of them where both read the same."""
    ends = format(min(values), form), format(max(values), form)
    return " to ".join(dict.fromkeys(ends))


def share(coverage: float | None) -> str:
    """Return a coverage in percent, always as wide; blank where it is all or unknown.

    What would be rounded to nothing or to all is written as less or more than that.
    """
    if coverage is None or coverage >= 100:
        # as wide as the text of others, below
        return " " * 6
    number = f"{coverage:.0f}"
    # beyond these ends the rounded number would be 100 or 0
    if coverage >= 99.5:
        number = ">99"
    elif 0 < coverage < 0.5:
        number = "<1"
    return f"{number:>4} %"


def label(column: str) -> str:
    """Return a column's name for a reader, with its unit in brackets where it has one."""
    name = column
    unit = _UNITS.get(column, "")
    if column.startswith(_PERCENT):
        name = column.removeprefix(_PERCENT)
        unit = "%"
    elif not unit:
        for suffix in _SUFFIXES:
            if column.endswith(suffix):
                name = column.removesuffix(suffix)
                unit = _SUFFIXES[suffix]
                break
    words = name.replace("_", " ")
    return f"{words} ({unit})" if unit else words


def is_time(column: str) -> bool:
    """Tell whether a column is a time: less is faster."""
    return column.endswith(tuple(_TIMES))


def is_rate(column: str) -> bool:
    """Tell whether a column is a rate: more is faster."""
    return column.endswith(tuple(_RATES)) or column.startswith("throughput")


def written(
    views: Sequence[View], form: str, width: int | None = None, most: int | None = None
) -> str:
    """Return tables one below the other; CSV of each that has values of its own."""
    if form == "csv":
        views = [views[0], *(view for view in views if view.frame is not views[0].frame)]
    return "\n\n".join(view.written(form, width, most) for view in views)


@dataclass(frozen=True)
class View:
    """A table with the lines around it: its values, and the texts that people read instead.

    The first `left` columns of `texts` hold names, the others numbers.
    """

    title: str
    frame: Columns
    texts: Columns
    left: int
    notes: Sequence[str] = ()
    record: Mapping[str, Any] = field(default_factory=dict)  # for JSON, beside the rows
    marks: Sequence[str] = ()  # lines that begin with a mark and say what it means

    def written(self, form: str, width: int | None = None, most: int | None = None) -> str:
        """Return the text as `table`, `csv`, `md` or `latex`.

        A table fits the `width` and has at most so many rows, where these are given.
        """
        if form == "table":
            return self._table(width, most)
        if form == "csv":
            return csv_text([*map(str, self.frame)], self.rows()).rstrip("\n")
        return self._markdown() if form == "md" else self._latex()

    def to_json(self) -> dict[str, Any]:
        """Return the plain record; one with rows of its own keeps them."""
        return {"rows": self.rows(), "notes": list(self.notes), **self.record}

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat record per row."""
        return records(self.frame)

    def _latex(self) -> str:
        name = _NO_NAME.sub("-", self.title.partition("(")[0].lower()).strip("-")
        import pandas as pd  # noqa: PLC0415 - for this form of a table alone

        texts = pd.DataFrame(self.texts)
        columns = "l" * self.left + "r" * (len(texts.columns) - self.left)
        escaped = texts.map(_tex).rename(columns=_tex)
        tabular = escaped.to_latex(index=False, escape=False, column_format=columns)
        lines = [r"\begin{table}", r"\centering"]
        lines += [rf"\caption{{{_tex(self.title)}}}", rf"\label{{tab:{name}}}", tabular.rstrip()]
        for note in (*self.marks, *self.notes):
            lines.append(rf"\par\smallskip\footnotesize {_tex(' '.join(note.split()))}")
        return "\n".join([*lines, r"\end{table}"])

    def _lines(self) -> list[list[str]]:
        heads = [*map(str, self.texts)]
        rows = zip(*(self.texts[name] for name in heads), strict=True)
        return [[*map(shown, row)] for row in (heads, *rows)]

    def _table(self, width: int | None, most: int | None) -> str:
        rows = self._lines()
        more = len(rows) - 1 - most if most else 0
        lines = fitted(rows[: most + 1] if most else rows, self.left, width)
        if more > 0:
            lines.append(f"... and {more:,} more (--all shows them)")
        around = [*self.marks, *(f"   {note}" for note in self.notes)]
        notes = folded(map(shown, around), width)
        return "\n".join([*folded([shown(self.title)], width), "", *lines, "", *notes]).rstrip()

    def _markdown(self) -> str:
        lines = []
        for row in self._lines():
            cells = [_MARKUP.sub(r"\\\g<0>", cell.strip()) for cell in row]
            lines.append(f"| {' | '.join(cells)} |")
        rule = ["---"] * self.left + ["---:"] * (len([*self.texts]) - self.left)
        lines.insert(1, f"| {' | '.join(rule)} |")
        return "\n".join(lines)


def _tex(text: str) -> str:
    return shown(text.strip()).translate(_TEX)


def csv_text(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV for people, who may open it as a spreadsheet."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(map(in_sheet, names))
    for row in rows:
        table.writerow([_in_csv(row.get(name)) for name in names])
    return text.getvalue()


def _in_csv(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return in_sheet(value) if isinstance(value, str) else value


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows that have the same keys; `UsageError` where the file cannot be written.

    An earlier file is replaced if it has the same header.
    """
    text = csv_text(list(rows[0]), rows).encode()
    header = text[: text.index(b"\n") + 1]
    with named_file.writing(path, lambda before: before.startswith(header)) as file:
        file.write(text)
