"""The report of a sweep of commands: what each said, and how long it ran.

A row is a configuration. Of several visits a number is their median, of anything else the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import dataset
from hpcsweep.analysis.formats import View, label
from hpcsweep.catalog.columns import FOREIGN

_TOLD: Final = "what the command said; only the time of the run was measured here"
_RUN: Final = "median_ms"


@dataclass(frozen=True)
class CommandReport:
    """The results of one sweep of commands; `keys` tell the rows apart."""

    data: dataset.Dataset
    keys: tuple[str, ...]
    table: pd.DataFrame

    def views(self) -> list[View]:
        """Return the table."""
        texts = dataset.texts(self.table, self.keys)
        for name in map(str, self.table.columns[len(self.keys) :]):
            texts[label(name)] = [*map(_text, self.table[name])]
        view = View(
            title=f"{self.data.sweep_dir.name}: what the command said ({self.data.counts()})",
            frame=self.table, texts=pd.DataFrame(texts), left=len(self.keys) + 1,
            notes=self.data.notes(), marks=[f"   {FOREIGN}: {_TOLD}"],
        )  # fmt: skip
        return [replace(view, record=self.data.record(view.rows()))]


def make(data: dataset.Dataset, metric: str = "") -> CommandReport:
    """Return the report, of one column if `metric` names it; `UsageError` if it has no numbers."""
    if metric:
        data.numbers(data.rows, metric)
    every = pd.concat([data.rows, data.failed])
    keys = tuple(a for a in dataset.varying_axes(every) if a != catalog.VISIT)
    grouped = every.assign(_all=0).groupby(["_all", *keys], dropna=False)
    names = [metric] if metric else [*dataset.own_results(data.rows), _RUN]
    values = {
        name: grouped[name].median() if dataset.is_quantity(name, every) else grouped[name].last()
        for name in names
    }
    table = pd.DataFrame({"status": grouped["status"].last(), **values}).reset_index()
    return CommandReport(data, keys, table[[*keys, "status", *names]])


def _text(value: Any) -> str:  # noqa: ANN401 - a cell
    return "-" if pd.isna(value) else f"{value:.5g}" if isinstance(value, float) else str(value)
