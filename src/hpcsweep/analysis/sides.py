"""What a person compares: sweeps, submissions, GPUs, or results folders of other machines.

A side is written ``SWEEP[@SUBMISSION][:column=value,...]``. SWEEP is a name or a folder. SUBMISSION
is the beginning of a submission's id, such as its date; its rows are read from the shards, since
the tables keep one row per point. Several, joined by ``+``, are repeated runs of one side.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hpcsweep import files
from hpcsweep.analysis import dataset
from hpcsweep.errors import UsageError
from hpcsweep.store import rundir, shards
from hpcsweep.store.rundir import RunDir
from hpcsweep.store.state import PointStatus
from hpcsweep.store.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Side:
    """The measured rows of one side; the column `run` numbers the runs that they belong to."""

    label: str
    rows: pd.DataFrame
    notes: tuple[str, ...]

    @property
    def runs(self) -> int:
        return int(self.rows["run"].nunique())


def read(
    results: Path,
    text: str,
    where: str = "",
    *,
    everything: bool = False,
    renewed: Callable[[RunDir], RunDir] = RunDir.itself,
) -> Side:
    """Return the rows of a side that are reliable, or only noisy, and have the values of `where`.

    `renewed` returns the folder of a sweep whose tables hold all rows.

    Raises:
        UsageError: there is no such sweep, submission, column or value.
    """
    found = [
        _part(results, part, where, everything=everything, renewed=renewed)
        for part in text.split("+")
    ]
    rows = pd.concat([side.rows for side in found], keys=range(len(found)), names=["part"])
    rows = rows.reset_index("part").reset_index(drop=True)
    if "submission" not in rows:
        rows["submission"] = ""
    numbers = rows.groupby(["part", "submission"], dropna=False, sort=False).ngroup()
    notes = tuple(f"{text}: {note}" for side in found for note in side.notes)
    return Side(text, rows.assign(run=numbers), notes)


def _part(
    results: Path, text: str, where: str, *, everything: bool, renewed: Callable[[RunDir], RunDir]
) -> Side:
    named, _, match = text.partition(":")
    name, at, submission = named.partition("@")
    run = _run(results, name)
    data = _submitted(run, submission) if at else dataset.read(renewed(run))
    rows, notes = data.chosen(match, where, everything=everything, noise=True)
    return Side(text, rows.copy(), tuple(notes))


def _run(results: Path, name: str) -> RunDir:
    """Return the results of a sweep, or of a folder: the sweep's folder itself, or one with one."""
    path = Path(name)
    own = files.may_name_a_sweep(name) and (results / name).is_dir()
    if own or not path.is_dir():
        return rundir.open_run(results, name)
    if (path / "overall.csv").is_file():
        return RunDir(path)
    inside = rundir.runs_at(path)
    if len(inside) != 1:
        names = ", ".join(str(run.path) for run in inside)
        has = f"one of {names}" if inside else "it has no overall.csv and no submissions"
        raise UsageError(f"{path}: which results folder? {has}")
    return inside[0]


def _submitted(run: RunDir, begins: str) -> dataset.Dataset:
    """Return the measured rows of the submissions whose ids begin like this."""
    begins = begins.replace("-", "", 2) if begins[4:5] == "-" else begins
    ids = [name for name in run.ages() if name.startswith(begins)]
    if not ids:
        there = ", ".join(run.ages()) or "none"
        raise UsageError(f"{run.path}: no submission begins with '{begins}' (there are: {there})")
    rows = pd.DataFrame([row for name in ids for row in _rows(run, name)])
    if rows.empty:
        raise UsageError(f"{run.path}: no measured point in {', '.join(ids)}")
    rows = dataset.typed_cells(rows).drop_duplicates(["submission", "point_id"], keep="last")
    return dataset.Dataset(run, rows, Tally(Counter({str(PointStatus.OK): len(rows)})), 0)


def _rows(run: RunDir, submission: str) -> Iterator[dict[str, str]]:
    for shard in run.shards_of(submission):
        for row in shards.read(shard).rows:
            if row["status"] == PointStatus.OK:
                yield {key: cell for key, cell in row.items() if not key.startswith("_")}
