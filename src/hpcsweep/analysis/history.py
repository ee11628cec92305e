"""Shows each configuration over the runs of a sweep, and where its time took a step.

Steps are found by the least-squares segmentation of the logarithms of the times (PELT: Killick,
Fearnhead and Eckley 2012), from the package ruptures. A level holds for three runs or more, so that
one odd run is no step. The penalty of a step is the variance within levels, times the number of
runs, times 7 + 1.5 log(rows): one in the middle must be some eight times the scatter. That is far
more than independent noise asks for. It keeps tables without a step at 5 % where noise remembers
the runs before (autocorrelation 0.9), and was chosen by simulation of such noise, of independent
and of heavy-tailed noise, and of a run that is off as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import compare, dataset, formats, verdicts
from hpcsweep.analysis.compare import Renewed
from hpcsweep.analysis.formats import View
from hpcsweep.catalog.columns import MUST_AGREE
from hpcsweep.records import dataclass
from hpcsweep.text import count

FEWEST: Final = 3  # runs
_HOLDS: Final = 3  # runs of a level
_SHOWN: Final = 6  # runs in the table
_TWO_STEPS: Final = 12  # runs from which the variance is that around two steps


@dataclass(frozen=True)
class RunHistory:
    """A row per configuration and run: its time, the level that it is on, and the steps."""

    sweep: str
    metric: str
    keys: tuple[str, ...]
    rows: pd.DataFrame
    axes: pd.DataFrame  # of each configuration, by the column `key` of the rows
    runs: tuple[str, ...]
    changes: tuple[str, ...]  # of versions, from one run to the next
    notes: tuple[str, ...]

    def view(self) -> View:
        """Return a row per configuration, with the newest runs and all steps."""
        table = self.rows.pivot_table(index="key", columns="run", values=self.metric)
        first = self.rows.drop_duplicates("key").set_index("key")
        texts = dataset.texts(first.loc[table.index], self.keys)
        for run in [*table][-_SHOWN:]:
            texts[f"run {run}"] = ["" if np.isnan(ms) else f"{ms:.5g}" for ms in table[run]]
        steps: dict[Any, list[str]] = {key: [] for key in table.index}
        for row in self.rows.dropna(subset="step_pct").itertuples():
            steps[row.key].append(f"run {row.run}: {row.step_pct:+.1f} %")
        texts["steps"] = [", ".join(of_key) or "-" for of_key in steps.values()]
        return View(
            title=f"{self.sweep}: {formats.label(self.metric)} over {count(len(self.runs), 'run')}",
            frame=self.rows.drop(columns="key"), texts=pd.DataFrame(texts), left=len(self.keys),
            notes=[self.summary(), *self.runs, *self.changes, *self.notes],
            record={"sweep": self.sweep, "metric": self.metric, "runs": list(self.runs)},
        )  # fmt: skip

    def summary(self) -> str:
        """Say how many configurations took a step, or how many runs are lacking to tell."""
        if len(self.runs) < 2 * _HOLDS:
            more = count(2 * _HOLDS - len(self.runs), "run")
            return f"steps are looked for from {2 * _HOLDS} runs on: {more} more"
        stepped = self.rows.dropna(subset="step_pct")["key"].nunique()
        of = count(len(self.axes), "configuration")
        return f"steps in {stepped:,} of {of}; each level holds for {_HOLDS} runs or more"


def read_history(  # noqa: PLR0913 - what a side is read with
    results: Path, text: str, metric: str, where: str, renewed: Renewed, *, everything: bool = False
) -> RunHistory:
    """Read every run of the sweep that a side names; `UsageError` if there are fewer than three."""
    names = compare.sides_of_runs(results, text, FEWEST)
    sides = [
        compare.read_side(results, name, where, everything=everything, renewed=renewed)
        for name in names.values()
    ]
    return make(text, sides, [*names], metric)


def make(name: str, sides: Sequence[compare.Side], began: Sequence[str], metric: str) -> RunHistory:
    """Return the history of what the runs of a sweep have in common; visits count as their mean."""
    runs = [compare.known_rows(side, metric).drop(columns="run", errors="ignore") for side in sides]
    rows = pd.concat(runs, keys=range(1, len(runs) + 1), names=["run"]).reset_index("run")
    axes = [axis for axis in catalog.AXES if axis in rows and axis not in dataset.REPEATS]
    rows["key"] = rows.groupby(axes, dropna=False, sort=True).ngroup()
    rows["log"] = np.log(rows[metric].astype(float))
    table = rows.groupby(["key", "run"], as_index=False)["log"].mean()
    table[metric] = np.exp(table["log"])
    wide = table.pivot_table(index="key", columns="run", values="log")
    places = table["key"].map(wide.index.get_loc), table["run"].map(wide.columns.get_loc)
    level = _levels(wide.to_numpy())[places]
    table["level"] = np.exp(level)
    before = pd.Series(level).groupby(table["key"]).shift()
    change = np.expm1(level - before)
    table["step_pct"] = np.where((change != 0) & change.notna(), 100 * change, np.nan)
    table["began"] = table["run"].map(dict(enumerate(began, 1)))
    own = rows.drop_duplicates("key").set_index("key")[axes]
    shown = tuple(a for a in axes if a == "model" or a in dataset.varying_axes(own))
    table = table.join(own[list(shown)], on="key")
    notes = tuple(note for side in sides for note in side.notes if "left out" in note)
    front = [*shown, "run", "began", metric, "level", "step_pct", "key"]
    changes = _changes(runs, began)
    return RunHistory(name, metric, shown, table[front], own, tuple(began), changes, notes)


def _changes(runs: Sequence[pd.DataFrame], began: Sequence[str]) -> tuple[str, ...]:
    """Return a line for each run that was measured with other versions than the run before it."""
    lines = []
    for before, rows, run in zip(runs, runs[1:], began[1:], strict=False):
        changes = [
            f"{name} {now} instead of {then}"
            for name in ("device_name", *MUST_AGREE, "hpcsweep_version", compare.OWN_FILES)
            if (then := _versions(before, name)) != (now := _versions(rows, name))
        ]
        lines += [f"{run} has {', '.join(changes)}: a step there may be theirs"] if changes else []
    return tuple(lines)


def _versions(rows: pd.DataFrame, name: str) -> str:
    values = sorted(map(str, rows[name].dropna().unique())) if name in rows else []
    return ", ".join(values) or "unknown"


def _levels(logs: verdicts.Floats) -> verdicts.Floats:
    """Return the level of each row (configurations) in each run (columns); NaN where missing."""
    levels = np.full(logs.shape, np.nan)
    runs = [np.flatnonzero(~np.isnan(row)) for row in logs]
    fits = {row: _Fit(logs[row, of]) for row, of in enumerate(runs) if len(of) >= 2 * _HOLDS}
    noise = np.array([(fit.variance, float(fit.df)) for fit in fits.values()]).reshape(-1, 2)
    variances, _ = verdicts.moderated(*noise.T)
    factor = 7 + 1.5 * np.log(max(len(fits), 1))
    penalties = dict(zip(fits, factor * variances, strict=True))
    for row, of in enumerate(runs):
        ends = fits[row].ends(penalties[row]) if row in fits else []
        for part in np.split(of, ends):
            levels[row, part] = logs[row, part].mean() if len(part) else np.nan
    return levels


class _Fit:
    """The best segmentations of one row, and its variance within levels."""

    def __init__(self, logs: verdicts.Floats) -> None:
        from ruptures import KernelCPD  # noqa: PLC0415 - it takes a second, only for a history

        self._logs = logs
        self._search = KernelCPD(kernel="linear", min_size=_HOLDS).fit(logs[:, None])
        steps = 1 if len(logs) < _TWO_STEPS else 2
        self.df = len(logs) - 1 - 2 * steps  # a step takes a level and a place
        parts = np.split(logs, self._search.predict(n_bkps=steps)[:-1])
        self.variance = sum(float(((of - of.mean()) ** 2).sum()) for of in parts) / self.df

    def ends(self, penalty: float) -> list[int]:
        """Return where a new level begins, with a penalty per step and run."""
        ends: list[Any] = self._search.predict(pen=penalty * len(self._logs))
        return [int(end) for end in ends[:-1]]
