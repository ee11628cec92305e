"""Writes a table of an analysis: for a terminal, as CSV, Markdown or LaTeX, and as a record.

CSV and records hold the values as they are; the others hold what people read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcsweep.analysis import dataset
from hpcsweep.text import aligned

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import pandas as pd


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

    def written(self, form: str) -> str:
        """Return the text as `table`, `csv`, `md` or `latex`."""
        forms: dict[str, Callable[[], str]] = {
            "table": self._table,
            "csv": self._csv,
            "md": self._markdown,
            "latex": self._latex,
        }
        return forms[form]()

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        rows = [
            {str(name): dataset.plain(str(name), value) for name, value in row.items()}
            for row in self.frame.to_dict("records")
        ]
        return {**self.record, "rows": rows, "notes": list(self.notes)}

    def _csv(self) -> str:
        return str(self.frame.to_csv(index=False, lineterminator="\n")).rstrip("\n")

    def _latex(self) -> str:
        texts = self.texts.apply(lambda column: column.str.strip())
        columns = "l" * self.left + "r" * (len(texts.columns) - self.left)
        return str(texts.to_latex(index=False, escape=True, column_format=columns)).rstrip("\n")

    def _lines(self) -> list[list[str]]:
        return [[*map(str, self.texts.columns)], *self.texts.to_numpy().tolist()]

    def _table(self) -> str:
        lines = aligned(self._lines(), left=self.left)
        notes = [f"   {note}" for note in self.notes]
        return "\n".join([self.title, "", *lines, "", *notes]).rstrip()

    def _markdown(self) -> str:
        head, *rows = self._lines()
        rule = ["---" if place < self.left else "---:" for place in range(len(head))]
        escaped = (
            [cell.strip().replace("|", r"\|") for cell in line] for line in (head, rule, *rows)
        )
        return "\n".join(f"| {' | '.join(line)} |" for line in escaped)
