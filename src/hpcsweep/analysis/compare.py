"""Compares two sides row by row: which configurations became faster or slower, beyond the noise.

A side is what a person compares: a sweep, its runs, GPUs, or results folders of other machines.

Rows are joined on the axes that both sides share. An axis on which each side has one value, and
not the same one (`gpu`), is what is compared. `verdicts` judges.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from hpcsweep import messages
from hpcsweep.analysis import dataset, formats, verdicts
from hpcsweep.analysis.formats import View
from hpcsweep.catalog.columns import MUST_AGREE
from hpcsweep.errors import UsageError
from hpcsweep.sources import FACTORIES
from hpcsweep.store import folders, runs
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count, tally

Renewed = Callable[[SweepDir], SweepDir]

FASTER = "FASTER"
SLOWER = "SLOWER"
SAME = "SAME"
UNDECIDED = "UNDECIDED"
_WORDS: Final = (FASTER, SLOWER, SAME, UNDECIDED)
_COVERAGE: Final = "algorithm_coverage_pct"
# what must be equal on both sides, or be named: else a ratio means something else than it says
_NAMED: Final = ("dtype", "tf32", "amp", *MUST_AGREE)
_OWN_FILES: Final = "own_files"
_MADE_OF: Final = (*FACTORIES, "weights")  # the axes that own files belong to
_SHOWN: Final = 5
_ADDED: Final = frozenset({"first", "second", "ratio", "low", "high", "verdict"})
_FAR: Final = 1e6  # an interval with ends so far apart says nothing of a ratio
_ROW: Final = ("submission", "chunk", "attempt", "point_id", "started_at", "median_ms")
# a colon and two digits behind the run belong to its time
_SIDE: Final = re.compile(r"(.*?)(?:@([^:@/]*(?::\d\d)*))?(?::(.*))?", re.DOTALL)


@dataclass(frozen=True)
class Side:
    """The measured rows of one side; the column `_run` names the run that they belong to."""

    label: str
    rows: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def runs(self) -> int:
        return int(self.rows["_run"].nunique())


def read_side(
    results: Path,
    text: str,
    where: str = "",
    *,
    everything: bool = False,
    renewed: Renewed = SweepDir.itself,
) -> Side:
    """Return the rows of a side that are reliable, or only noisy, and have the values of `where`.

    A side is written ``SWEEP[@RUN][:column=value,...]``. SWEEP is a name or a folder. RUN is one of
    its runs (see `store.runs`); without it a side has the newest row of each point. Several, joined
    by ``+``, are repeated runs of one side.

    `renewed` returns the folder of a sweep whose tables hold all rows. `UsageError` where there is
    no such sweep, submission, column or value.
    """
    of_runs = []
    notes = list[str]()
    for part in [text] if _folder(text) else text.split("+"):
        name, at, match = _split(part)
        run = _run(results, name)
        for own in [run] if at is None else runs.named(run, at):
            data = dataset.read_dataset(renewed(own))
            rows, left_out = data.chosen(match, where, everything=everything, noise=True)
            of_runs.append(rows.assign(_run=f"{own.path.resolve()}@{own.at}"))
            which = [] if at is None else [", ".join(own.ages())]
            notes += [f"{part}: {note}" for note in (*which, *left_out)]
    return Side(text, pd.concat(of_runs, ignore_index=True), tuple(notes))


def _split(text: str) -> tuple[str, str | None, str]:
    """Return the name, the run, and the columns with their values."""
    if folder := _folder(text):
        return folder, text[len(folder) + 1 :] or None, ""
    match = _SIDE.fullmatch(text)
    assert match  # noqa: S101 - every text fits
    return match[1], match[2], match[3] or ""


def _folder(text: str) -> str:
    """Return the folder that a side names, with a run of it or alone; empty for a sweep's name."""
    before = text.rpartition("@")[0]
    return next((each for each in (text, before) if "/" in each and Path(each).is_dir()), "")


def sides_of_last_runs(results: Path, text: str) -> list[str]:
    """Return a side for each of the last two runs of the sweep that a side names, the older first.

    `UsageError` where it names one run already, or there is only one.
    """
    name, at, match = _split(text)
    if at is not None:
        raise UsageError(f"{text} is one run: name what to compare it with")
    run = _run(results, name)
    every = runs.runs_of(run)
    if len(every) < 2:
        has = f"{count(len(every), 'run')} ({', '.join(of.began for of in every)})"
        again = run.command("submit", "--again")
        raise UsageError(f"{run.name} has {has}; `{again}` measures it once more")
    rest = f":{match}" if match else ""
    return [f"{name}@{of.number}{rest}" for of in every[-2:]]


def _run(results: Path, name: str) -> SweepDir:
    """Return the results of a sweep, or of a folder: the sweep's folder itself, or one with one."""
    path = Path(name)
    if folders.is_name_at(results, name) or not path.is_dir():
        return folders.open_sweep(results, name)
    if (path / "overall.csv").is_file():
        return SweepDir(path)
    inside = folders.sweeps_at(path)
    if len(inside) != 1:
        names = ", ".join(str(run.path) for run in inside)
        has = f"one of {names}" if inside else "it has no overall.csv and no submissions"
        raise UsageError(f"{path}: which results folder? {has}")
    return inside[0]


@dataclass(frozen=True)
class Comparison:
    """The rows that two sides share, each with ratio, interval and verdict; and the whole."""

    first: Side
    second: Side
    metric: str
    table: pd.DataFrame
    keys: tuple[str, ...]
    mean: tuple[float, float, float] | None  # of the ratios, with its interval; None: unknown
    notes: tuple[str, ...]

    @property
    def verdicts(self) -> dict[str, int]:
        counts = self.table["verdict"].value_counts()
        return {word: int(counts[word]) for word in _WORDS if word in counts}

    def beyond(self, verdict: str, share: float) -> list[str]:
        """Return the rows with a verdict that differ by at least a share, as labels."""
        far = np.abs(np.log(self.table["ratio"])) >= math.log1p(share)
        rows = self.table[far & (self.table["verdict"] == verdict)]
        return [
            f"{dataset.labelled(row, self.keys)} ({row['ratio']:.3f})" for _, row in rows.iterrows()
        ]

    def view(self) -> View:
        """Return the rows as a table."""
        table = self.table
        texts = dataset.texts(self.table, self.keys)
        texts |= {name: [f"{ms:.5g}" for ms in table[name]] for name in ("first", "second")}
        texts["ratio"] = [
            f"{ratio:.3f}" + ("" if math.isnan(low) else f" ({_ends(low, high)})")
            for ratio, low, high in zip(table["ratio"], table["low"], table["high"], strict=True)
        ]
        texts["verdict"] = list(table["verdict"])
        if (table[["coverage_first", "coverage_second"]] < 100).any(axis=None):
            pairs = zip(table["coverage_first"], table["coverage_second"], strict=True)
            texts["coverage %"] = [f"{a:.0f}, {b:.0f}" for a, b in pairs]
        ends = ("ratio", "low", "high")
        mean = dict(zip(ends, self.mean, strict=True)) if self.mean else None
        return View(
            title=f"{self.second.label} against {self.first.label}: {formats.label(self.metric)}",
            frame=table, texts=pd.DataFrame(texts), left=len(self.keys),
            notes=[tally(self.verdicts, _WORDS), *self._about_noise(), *self.notes],
            record={
                "first": self.first.label, "second": self.second.label,
                "runs": [self.first.runs, self.second.runs], "metric": self.metric,
                "verdicts": self.verdicts, "geometric_mean": mean,
            },
        )  # fmt: skip

    def _about_noise(self) -> list[str]:
        """Return the geometric mean, and what the intervals come from."""
        runs = f"{self.first.runs} and {count(self.second.runs, 'run')}"
        if not self.mean:
            return [f"{runs}: the noise between runs is unknown; measure again and join by +"]
        ratio, low, high = self.mean
        lines = [f"geometric mean of the ratios {ratio:.3f} ({_ends(low, high)})"]
        if max(self.first.runs, self.second.runs) > 1:
            lines.append(f"{runs}: the noise between runs is known from repeated ones")
        elif {*self.first.rows["_run"]} != {*self.second.rows["_run"]}:
            lines.append("one run on each side: only what two visits rarely differ by counts")
            lines.append("several runs of a side, joined by +, tell more")
        by_chance = verdicts.WRONG * len(self.table)
        if by_chance >= 1:
            words = f"{FASTER} or {SLOWER} by chance alone"
            lines.append(
                f"each row is judged by itself: of equal ones about {by_chance:.0f} were {words}"
            )
        return lines


def _ends(low: float, high: float) -> str:
    return "unbounded" if high > _FAR * low else f"{low:.3f} to {high:.3f}"


def compare_sides(
    first: Side,
    second: Side,
    *,
    metric: str = "median_ms",
    across: Collection[str] = (),
    margin: float = 0.03,
) -> Comparison:
    """Compare two sides; less than `margin` apart is the same. `across` names what may differ."""
    sides = dataset.products_apart(*(_known_rows(side, metric) for side in (first, second)))
    differing = _differing(*sides)
    keys = [a for a in dataset.axes_in(sides[0]) if a in sides[1]]
    keys = [a for a in keys if a not in {*differing, *dataset.REPEATS}]
    numbered, lone = _numbered(sides, keys)
    kept = [rows[rows["_key"].isin(numbered["_key"])] for rows in sides]
    unknown = _refuse_mixes(kept, {*across, *keys})
    _warn_of_revisions(kept)
    named = {"model", *dataset.varying_axes(numbered)}
    shown = [a for a in keys if a in named and numbered[a].notna().any()]
    renamed = {name: f"{name}_" for name in _ADDED.intersection(keys)}  # axes of a command
    table, mean = _judged(kept, numbered.rename(columns=renamed), metric, margin)
    shown = [renamed.get(name, name) for name in shown]
    notes = _same_rows(*sides)
    if differing:
        notes.append(f"compared: {', '.join(differing.values())}")
    notes += _own_versions(kept)
    for side, text in zip((first, second), lone, strict=True):
        if text:
            notes.append(f"only in {side.label}: {text}")
    if unknown:
        notes.append(f"unknown on one side: {', '.join(unknown)}")
    notes += [*first.notes, *second.notes]
    return Comparison(first, second, metric, table, tuple(shown), mean, tuple(notes))


def _same_rows(first: pd.DataFrame, second: pd.DataFrame) -> list[str]:
    """Return a line on rows that are on both sides: no noise tells them apart."""
    names = [name for name in _ROW if name in first and name in second]
    own, other = (set(rows[names].itertuples(index=False, name=None)) for rows in (first, second))
    if own == other:
        return ["both sides are the same rows: nothing was measured twice, so nothing can differ"]
    shared = len(own & other)
    return [f"{count(shared, 'row')} of both sides are the same ones"] if shared else []


def _known_rows(side: Side, metric: str) -> pd.DataFrame:
    """Return the rows that have a positive number in the metric."""
    if not (formats.is_time(metric) or formats.is_rate(metric)):
        raise UsageError(f"{metric} is neither a time nor a rate: what would be faster?")
    if metric not in side.rows:
        raise UsageError(f"{side.label}: no column '{metric}'")
    values = pd.to_numeric(side.rows[metric], errors="coerce")
    if not (values > 0).any():
        raise UsageError(f"{side.label}: {metric} holds no numbers")
    return side.rows[values > 0]


def _differing(first: pd.DataFrame, second: pd.DataFrame) -> dict[str, str]:
    """Return the axes on which each side has one value, and not the same one, with both values."""
    differing = {}
    for axis in dataset.axes_in(first):
        if axis in dataset.REPEATS or axis not in second:
            continue
        own = dataset.ordered(first, axis)
        other = dataset.ordered(second, axis)
        if len(own) == len(other) == 1 and own != other:
            differing[axis] = f"{axis} {own[0]} and {other[0]}"
    return differing


def _numbered(sides: Sequence[pd.DataFrame], keys: Sequence[str]) -> tuple[pd.DataFrame, list[str]]:
    """Give each row its configuration's number; return those of both sides, and name the others."""
    both = pd.concat([rows.reindex(columns=[*keys, "own_axes"]) for rows in sides], keys=(0, 1))
    numbers = both.groupby(list(keys), dropna=False).ngroup()
    own = [numbers.loc[side] for side in (0, 1)]
    for place, rows in enumerate(sides):
        rows.insert(0, "_key", own[place])
    shared = set(own[0]) & set(own[1])
    every = both.assign(_key=numbers).drop_duplicates("_key")
    varying = dataset.varying_axes(every)
    lone = [_named(every[every["_key"].isin(set(of) - shared)], varying) for of in own]
    if not shared:
        raise UsageError(f"nothing is on both sides; {lone[0]} and {lone[1]}")
    return every[every["_key"].isin(shared)].sort_values("_key"), lone


def _named(rows: pd.DataFrame, axes: Sequence[str]) -> str:
    """Return how many configurations there are, and the first of them."""
    if rows.empty:
        return ""
    some = [dataset.labelled(row, axes) for _, row in rows.head(_SHOWN).iterrows()]
    more = ["..."] if len(rows) > _SHOWN else []
    return f"{count(len(rows), 'configuration')} ({', '.join([*some, *more])})"


def _refuse_mixes(sides: Sequence[pd.DataFrame], across: Collection[str]) -> list[str]:
    """Return what is unknown on one side; refuse to mix what differs and was not named."""
    mixed = {}
    unknown = []
    for name in _NAMED:
        first, second = (_texts_in(rows, name) for rows in sides)
        if bool(first) != bool(second):
            unknown.append(name)
        elif name not in across and len({*first, *second}) > 1:
            mixed[name] = f"{', '.join(first)} and {', '.join(second)}"
    if len([rows for rows in sides if _texts_in(rows, _OWN_FILES)]) == 1:
        unknown.append(_OWN_FILES)
    # two sides of one version each are what is compared
    networks = {*map(str, chain(*(_of_several_versions([rows]) for rows in sides)))}
    if networks and _OWN_FILES not in across:
        mixed[_OWN_FILES] = ", ".join(sorted(networks))
    if mixed:
        differences = "; ".join(f"{name}: {values}" for name, values in mixed.items())
        raise UsageError(
            f"the sides differ in {differences}; --across {','.join(mixed)} compares them all the "
            "same"
        )
    return unknown


def _texts_in(rows: pd.DataFrame, name: str) -> list[str]:
    """Return the values of a column as texts in their order; none where it is not there."""
    values = dataset.cells(rows, name, None).dropna().unique()
    return sorted(dataset.format_value(name, value) for value in values)


def _warn_of_revisions(sides: Sequence[pd.DataFrame]) -> None:
    """Warn where two revisions of one version measured the sides."""
    first, second = (_texts_in(rows, "hpcsweep_version") for rows in sides)
    numbers = {text.partition("+")[0] for text in (*first, *second)}
    if first and second and first != second and len(numbers) == 1:
        own, other = ", ".join(first), ", ".join(second)
        messages.warning(f"two revisions of hpcsweep measured the sides: {own} and {other}")


def _own_versions(sides: Sequence[pd.DataFrame]) -> list[str]:
    """Return a line on the networks of which each side has another version of the user's files."""
    names = ", ".join(sorted(map(str, _of_several_versions(sides))))
    return [f"compared: versions of the own files of {names}"] if names else []


def _of_several_versions(sides: Sequence[pd.DataFrame]) -> set[object]:
    rows = pd.concat([side.reindex(columns=[*_MADE_OF, _OWN_FILES]) for side in sides])
    versions = rows.dropna(subset=[_OWN_FILES])
    cells = versions.groupby(list(_MADE_OF), dropna=False)[_OWN_FILES].nunique()
    return set(cells[cells > 1].index.get_level_values("model"))


def _judged(
    sides: Sequence[pd.DataFrame], numbered: pd.DataFrame, metric: str, margin: float
) -> tuple[pd.DataFrame, tuple[float, float, float] | None]:
    """Return the rows with their verdicts, and the mean ratio where the noise is known."""
    sign = -1 if formats.is_rate(metric) else 1
    long = pd.concat([
        dataset.timed(rows, metric).assign(pair=rows["_key"], origin=rows["_run"], side=side)
        for side, rows in enumerate(sides)
    ])  # fmt: skip
    long["log"] *= sign
    judged = verdicts.judge(long).sort_index()
    table = numbered.drop(columns="_key").reset_index(drop=True)
    for rows, name in zip(sides, ("first", "second"), strict=True):
        of_keys = rows.reindex(columns=["_key", metric, _COVERAGE]).groupby("_key")
        table[name] = of_keys[metric].median().to_numpy()
        table[f"coverage_{name}"] = of_keys[_COVERAGE].min().to_numpy()
    most = math.log1p(margin)
    inside = (judged["low"] > -most) & (judged["high"] < most)
    direction = np.where(judged["gap"] > 0, SLOWER, FASTER)
    verdict = np.where(judged["differs"], direction, np.where(inside, SAME, UNDECIDED))
    ends = np.exp(sign * judged[["low", "high"][::sign]].to_numpy())
    table = table.assign(
        ratio=np.exp(sign * judged["gap"].to_numpy()), low=ends[:, 0], high=ends[:, 1],
        verdict=verdict,
    )  # fmt: skip
    if judged["low"].isna().any():
        return table, None
    mean, *around = verdicts.mean_ratio(long, judged)
    low, high = sorted(end**sign for end in around)
    return table, (mean**sign, low, high)
