"""Writes a table of an analysis: for a terminal, as CSV, Markdown or LaTeX, and as a record.

CSV and records hold the values as they are; the others hold what people read. The name of a column
says its unit, and whether more of it is better.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.analysis import dataset, output
from hpcsweep.text import fitted, folded, shown

if TYPE_CHECKING:
    import pandas as pd

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
    **_TIMES,
    **_RATES,
    "_j": "J",
    "_bytes": "bytes",
    "_gib": "GiB",
    "_pct": "%",
    "_mhz": "MHz",
}
_UNITS: Final = {
    "input_size": "pixels", "input_width": "pixels", "batch_size": "images",
    "throughput": "images/s", "flops": "FLOP", "macs": "multiply-adds", "bytes_min": "bytes",
    "arith_intensity": "FLOP/byte",
}  # fmt: skip


def label(column: str) -> str:
    """Return a column's name for a reader, with its unit in brackets where it has one."""
    name = column
    unit = _UNITS.get(column)
    if column.startswith("pct_"):
        name = column.removeprefix("pct_")
        unit = "%"
    elif suffix := next((s for s in _SUFFIXES if not unit and column.endswith(s)), None):
        name = column.removesuffix(suffix)
        unit = _SUFFIXES[suffix]
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


def _tex(text: str) -> str:
    return shown(text.strip()).translate(_TEX)


@dataclass(frozen=True)
class View:
    """A table with the lines around it: its values, and the texts that people read instead.

    The first `left` columns of `texts` hold names, the others numbers.
    """

    title: str
    frame: pd.DataFrame
    texts: pd.DataFrame
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
            return output.csv_text([*map(str, self.frame)], self.rows()).rstrip("\n")
        return self._markdown() if form == "md" else self._latex()

    def to_json(self) -> dict[str, Any]:
        """Return the plain record; one with rows of its own keeps them."""
        return {"rows": self.rows(), "notes": list(self.notes), **self.record}

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat record per row."""
        return [
            {str(name): dataset.to_json(str(name), value) for name, value in row.items()}
            for row in self.frame.to_dict("records")
        ]

    def _latex(self) -> str:
        name = _NO_NAME.sub("-", self.title.partition("(")[0].lower()).strip("-")
        tabular = (
            self.texts.map(_tex)
            .rename(columns=_tex)
            .to_latex(
                index=False,
                escape=False,
                column_format="l" * self.left + "r" * (len(self.texts.columns) - self.left),
            )
        )
        notes = [rf"\par\smallskip\footnotesize {_tex(' '.join(note.split()))}"
                 for note in (*self.marks, *self.notes)]  # fmt: skip
        return "\n".join([
            r"\begin{table}", r"\centering", rf"\caption{{{_tex(self.title)}}}",
            rf"\label{{tab:{name}}}", tabular.rstrip(), *notes, r"\end{table}",
        ])  # fmt: skip

    def _lines(self) -> list[list[str]]:
        rows = [[*map(str, self.texts.columns)], *self.texts.to_numpy().tolist()]
        return [[*map(shown, row)] for row in rows]

    def _table(self, width: int | None, most: int | None) -> str:
        rows = self._lines()
        lines = fitted(rows[: most + 1] if most else rows, self.left, width)
        if most and len(rows) > most + 1:
            lines.append(f"... and {len(rows) - 1 - most:,} more (--all shows them)")
        around = [*self.marks, *(f"   {note}" for note in self.notes)]
        notes = folded(map(shown, around), width)
        return "\n".join([*folded([shown(self.title)], width), "", *lines, "", *notes]).rstrip()

    def _markdown(self) -> str:
        head, *rows = self._lines()
        rule = ["---" if place < self.left else "---:" for place in range(len(head))]
        plain = ([_MARKUP.sub(r"\\\g<0>", cell.strip()) for cell in row] for row in (head, *rows))
        first, *others = (f"| {' | '.join(line)} |" for line in plain)
        return "\n".join([first, f"| {' | '.join(rule)} |", *others])
