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
from pathlib import Path
from typing import Final

import numpy as np
import pandas as pd

from hpcsweep import messages
from hpcsweep.analysis import dataset, formats, verdicts
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.plain_rows import cells
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
_MADE_OF: Final = [*FACTORIES, "weights"]  # the axes that own files belong to
_SHOWN: Final = 5  # configurations that a note names
_ADDED: Final = frozenset({"first", "second", "ratio", "low", "high", "verdict"})
_MARGIN: Final = 0.03  # less than this apart is the same: it changes nobody's decision
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
    results: Path, text: str, where: str = "", *, unreliable: bool = False,
    renewed: Renewed = SweepDir.itself,
) -> Side:  # fmt: skip
    """Return the rows of a side that are reliable, or only noisy, and have the values of `where`.

    A side is written ``SWEEP[@RUN][:column=value,...]``. SWEEP is a name or a folder. RUN is one of
    its runs (see `store.runs`); without it a side has the newest row of each point. Several, joined
    by ``+``, are repeated runs of one side.

    `renewed` returns the folder of a sweep whose tables hold all rows. `UsageError` where there is
    no such sweep, submission, column or value.
    """
    tables = []
    notes = list[str]()
    for part in [text] if _folder(text) else text.split("+"):
        name, at, match = _split(part)
        sweep_dir = _sweep_dir(results, name)
        named = [sweep_dir] if at is None else runs.named(sweep_dir, at)
        for run in named:
            data = dataset.read_dataset(renewed(run))
            rows, left_out = data.chosen(match, where, unreliable=unreliable, noise=True)
            tables.append(rows.assign(_run=f"{run.path.resolve()}@{run.at}"))
            if at is not None:
                left_out = [", ".join(run.ages()), *left_out]
            notes += [f"{part}: {note}" for note in left_out]
    return Side(text, pd.concat(tables, ignore_index=True), tuple(notes))


def _split(text: str) -> tuple[str, str | None, str]:
    """Return the name, the run, and the columns with their values."""
    folder = _folder(text)
    if folder:
        return folder, text[len(folder) + 1 :] or None, ""
    match = _SIDE.fullmatch(text)
    assert match  # noqa: S101 - every text fits
    return match[1], match[2], match[3] or ""


def _folder(text: str) -> str:
    """Return the folder that a side names, with a run of it or alone; empty for a sweep's name."""
    for name in (text, text.rpartition("@")[0]):
        if "/" in name and Path(name).is_dir():
            return name
    return ""


def sides_of_last_runs(results: Path, text: str) -> list[str]:
    """Return a side for each of the last two runs of the sweep that a side names, the older first.

    `UsageError` where it names one run already, or there is only one.
    """
    name, at, match = _split(text)
    if at is not None:
        raise UsageError(f"{text} is one run: name what to compare it with")
    sweep_dir = _sweep_dir(results, name)
    every = runs.runs_of(sweep_dir)
    if len(every) < 2:
        began = ", ".join(run.began for run in every)
        again = sweep_dir.command("submit", "--again")
        has = f"{sweep_dir.name} has {count(len(every), 'run')} ({began})"
        raise UsageError(f"{has}; `{again}` measures it once more")
    columns = f":{match}" if match else ""
    return [f"{name}@{run.number}{columns}" for run in every[-2:]]


def _sweep_dir(results: Path, name: str) -> SweepDir:
    """Return the results of a sweep, or of a folder: the sweep's folder itself, or one with one."""
    path = Path(name)
    if folders.is_name_at(results, name) or not path.is_dir():
        return folders.open_sweep(results, name)
    if (path / "overall.csv").is_file():
        return SweepDir(path)
    inside = folders.sweeps_at(path)
    if len(inside) == 1:
        return inside[0]
    has = "it has no overall.csv and no submissions"
    if inside:
        has = f"one of {', '.join(str(run.path) for run in inside)}"
    raise UsageError(f"{path}: which results folder? {has}")


@dataclass(frozen=True)
class Comparison:
    """The rows that two sides share, each with ratio, interval and verdict; and the whole."""

    first: Side
    second: Side
    metric: str
    table: pd.DataFrame
    keys: tuple[str, ...]
    mean: dict[str, float]  # of the ratios, with its interval; empty where that is unknown
    notes: tuple[str, ...]

    @property
    def verdicts(self) -> dict[str, int]:
        counts = self.table["verdict"].value_counts()
        return {word: int(counts[word]) for word in _WORDS if word in counts}

    def beyond(self, verdict: str, share: float) -> list[str]:
        """Return the rows with a verdict that differ by at least a share, as labels."""
        far = np.abs(np.log(self.table["ratio"])) >= math.log1p(share)
        rows = self.table[far & (self.table["verdict"] == verdict)]
        labels = formats.each_labelled(rows, self.keys)
        return [*map("{} ({:.3f})".format, labels, rows["ratio"])]

    def view(self) -> View:
        """Return the rows as a table."""
        return View(
            title=f"{self.second.label} against {self.first.label}: {formats.label(self.metric)}",
            frame=self.table, texts=self._texts(), left=len(self.keys),
            notes=[tally(self.verdicts, _WORDS), *self._about_noise(), *self.notes],
            record={
                "first": self.first.label, "second": self.second.label,
                "runs": [self.first.runs, self.second.runs], "metric": self.metric,
                "verdicts": self.verdicts, "geometric_mean": self.mean or None,
            },
        )  # fmt: skip

    def _texts(self) -> pd.DataFrame:
        table = self.table
        texts = pd.DataFrame(formats.texts(table, self.keys), table.index)
        for name in ("first", "second"):
            texts[name] = table[name].map("{:.5g}".format)
        ratios = []
        for ratio, low, high in zip(table["ratio"], table["low"], table["high"], strict=True):
            interval = "" if math.isnan(low) else f" ({_ends(low, high)})"
            ratios.append(f"{ratio:.3f}{interval}")
        texts["ratio"] = ratios
        texts["verdict"] = table["verdict"]
        shares = table[["coverage_first", "coverage_second"]]
        if (shares < 100).any(axis=None):
            shares = shares.map("{:.0f}".format)
            texts["coverage %"] = shares["coverage_first"] + ", " + shares["coverage_second"]
        return texts

    def _about_noise(self) -> list[str]:
        """Return the geometric mean, and what the intervals come from."""
        runs = f"{self.first.runs} and {count(self.second.runs, 'run')}"
        if not self.mean:
            return [f"{runs}: the noise between runs is unknown; measure again and join by +"]
        ratio, low, high = self.mean.values()
        lines = [f"geometric mean of the ratios {ratio:.3f} ({_ends(low, high)})"]
        if max(self.first.runs, self.second.runs) > 1:
            lines.append(f"{runs}: the noise between runs is known from repeated ones")
        elif set(self.first.rows["_run"]) != set(self.second.rows["_run"]):
            lines.append("one run on each side: only what two visits rarely differ by counts")
            lines.append("several runs of a side, joined by +, tell more")
        by_chance = verdicts.WRONG * len(self.table)
        if by_chance >= 1:  # of fewer rows none is to be expected
            words = f"about {by_chance:.0f} were {FASTER} or {SLOWER} by chance alone"
            lines.append(f"each row is judged by itself: of equal ones {words}")
        return lines


def _ends(low: float, high: float) -> str:
    return "unbounded" if high > _FAR * low else f"{low:.3f} to {high:.3f}"


def compare_sides(
    first: Side, second: Side, *, metric: str = "median_ms", across: Collection[str] = ()
) -> Comparison:
    """Compare two sides; `across` names what may differ. `UsageError` where they cannot be."""
    sides = dataset.products_apart(_known_rows(first, metric), _known_rows(second, metric))
    differing = _differing(*sides)
    apart = {*differing, *dataset.REPEATS}
    shared = [axis for axis in dataset.axes_in(sides[0]) if axis in sides[1]]
    keys = [axis for axis in shared if axis not in apart]
    numbered, lone = _numbered(sides, keys)
    kept = [rows[rows["_key"].isin(numbered["_key"])] for rows in sides]
    unknown = _refuse_mixes(kept, {*across, *keys})
    _warn_of_revisions(kept)
    named = {"model", *dataset.varying_axes(numbered)}
    shown = [axis for axis in keys if axis in named and numbered[axis].notna().any()]
    renamed = {name: f"{name}_" for name in _ADDED.intersection(keys)}  # axes of a command
    table, mean = _judged(kept, numbered.rename(columns=renamed), metric)
    shown = [renamed.get(name, name) for name in shown]
    notes = _same_rows(*sides)
    if differing:
        notes.append(f"compared: {', '.join(differing.values())}")
    own = ", ".join(sorted(_of_several_versions(kept)))
    if own:
        notes.append(f"compared: versions of the own files of {own}")
    for side, text in zip((first, second), lone, strict=True):
        if text:
            notes.append(f"only in {side.label}: {text}")
    if unknown:
        notes.append(f"unknown on one side: {', '.join(unknown)}")
    notes += [*first.notes, *second.notes]
    return Comparison(first, second, metric, table, tuple(shown), mean, tuple(notes))


def _same_rows(first: pd.DataFrame, second: pd.DataFrame) -> list[str]:
    """Return a line on rows that are on both sides: no noise tells them apart."""
    names = [*first.filter(_ROW).filter(second.columns)]
    own = set(first[names].itertuples(index=False, name=None))
    other = set(second[names].itertuples(index=False, name=None))
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
    is_known = pd.to_numeric(side.rows[metric], errors="coerce") > 0
    if not is_known.any():
        raise UsageError(f"{side.label}: {metric} holds no numbers")
    return side.rows[is_known]


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
    told = [rows.reindex(columns=[*keys, "own_axes"]) for rows in sides]
    both = pd.concat(told, keys=(0, 1))
    both["_key"] = both.groupby(list(keys), dropna=False).ngroup()
    numbers = []
    for place, rows in enumerate(sides):
        own = both["_key"].loc[place]
        rows.insert(0, "_key", own)
        numbers.append(set(own))
    shared = numbers[0] & numbers[1]
    every = both.drop_duplicates("_key")
    varying = dataset.varying_axes(every)
    lone = [_named(every[every["_key"].isin(own - shared)], varying) for own in numbers]
    if not shared:
        raise UsageError(f"nothing is on both sides; {lone[0]} and {lone[1]}")
    return every[every["_key"].isin(shared)].sort_values("_key"), lone


def _named(rows: pd.DataFrame, axes: Sequence[str]) -> str:
    """Return how many configurations there are, and the first of them."""
    if rows.empty:
        return ""
    first = ", ".join(formats.each_labelled(rows.head(_SHOWN), axes))
    more = ", ..." if len(rows) > _SHOWN else ""
    return f"{count(len(rows), 'configuration')} ({first}{more})"


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
    first, second = (_texts_in(rows, _OWN_FILES) for rows in sides)
    if bool(first) != bool(second):
        unknown.append(_OWN_FILES)
    # two sides of one version each are what is compared
    networks = {*_of_several_versions(sides[:1]), *_of_several_versions(sides[1:])}
    if networks and _OWN_FILES not in across:
        mixed[_OWN_FILES] = ", ".join(sorted(networks))
    if mixed:
        differences = "; ".join(f"{name}: {values}" for name, values in mixed.items())
        across_them = f"--across {','.join(mixed)} compares them all the same"
        raise UsageError(f"the sides differ in {differences}; {across_them}")
    return unknown


def _texts_in(rows: pd.DataFrame, name: str) -> list[str]:
    """Return the values of a column as texts in their order; none where it is not there."""
    values = cells(rows, name, None).dropna().unique()
    return sorted(formats.format_value(name, value) for value in values)


def _warn_of_revisions(sides: Sequence[pd.DataFrame]) -> None:
    """Warn where two revisions of one version measured the sides."""
    first, second = (_texts_in(rows, "hpcsweep_version") for rows in sides)
    numbers = {text.partition("+")[0] for text in (*first, *second)}
    if first and second and first != second and len(numbers) == 1:
        both = f"{', '.join(first)} and {', '.join(second)}"
        messages.warning(f"two revisions of hpcsweep measured the sides: {both}")


def _of_several_versions(sides: Sequence[pd.DataFrame]) -> set[str]:
    """Return the networks of which these rows have several versions of the user's own files."""
    rows = pd.concat([side.reindex(columns=[*_MADE_OF, _OWN_FILES]) for side in sides])
    known = rows.dropna(subset=[_OWN_FILES])
    versions = known.groupby(_MADE_OF, dropna=False)[_OWN_FILES].nunique()
    several = versions[versions > 1]
    return {*map(str, several.index.get_level_values("model"))}


def _judged(
    sides: Sequence[pd.DataFrame], numbered: pd.DataFrame, metric: str
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Return the rows with their verdicts, and the mean ratio where the noise is known."""
    sign = -1 if formats.is_rate(metric) else 1  # so that a larger logarithm is always slower
    tables = []
    for side, rows in enumerate(sides):
        times = pd.DataFrame(verdicts.timed(rows, metric, [*rows["_run"]]), rows.index)
        tables.append(times.assign(pair=rows["_key"], side=side))
    long = pd.concat(tables)
    long["log"] *= sign
    judged = verdicts.judge(long).sort_index()
    table = numbered.drop(columns="_key").reset_index(drop=True)
    for rows, name in zip(sides, ("first", "second"), strict=True):
        by_key = rows.reindex(columns=["_key", metric, _COVERAGE]).groupby("_key")
        table[name] = by_key[metric].median().to_numpy()
        table[f"coverage_{name}"] = by_key[_COVERAGE].min().to_numpy()
    most = math.log1p(_MARGIN)
    inside = (judged["low"] > -most) & (judged["high"] < most)
    direction = np.where(judged["gap"] > 0, SLOWER, FASTER)
    verdict = np.where(judged["differs"], direction, np.where(inside, SAME, UNDECIDED))
    low, high = ("low", "high") if sign == 1 else ("high", "low")
    table["ratio"] = np.exp(sign * judged["gap"].to_numpy())
    table["low"] = np.exp(sign * judged[low].to_numpy())
    table["high"] = np.exp(sign * judged[high].to_numpy())
    table["verdict"] = verdict
    if judged["low"].isna().any():
        return table, {}
    mean, *ends = verdicts.mean_ratio(long, judged)
    low_end, high_end = sorted(end**sign for end in ends)
    return table, {"ratio": mean**sign, "low": low_end, "high": high_end}
