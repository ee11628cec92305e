"""What a person compares: sweeps, submissions, GPUs, or results folders of other machines.

A side is written ``SWEEP[@RUN][:column=value,...]``. SWEEP is a name or a folder. RUN is one of its
runs (see `store.runs`); without it a side has the newest row of each point. Several, joined by
``+``, are repeated runs of one side.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pandas as pd

from hpcsweep import files
from hpcsweep.analysis import dataset
from hpcsweep.errors import UsageError
from hpcsweep.records import dataclass
from hpcsweep.store import rundir, runs
from hpcsweep.store.rundir import RunDir
from hpcsweep.text import count

# a colon and two digits behind the run belong to its time
_SIDE: Final = re.compile(r"(.*?)(?:@([^:@/]*(?::\d\d)*))?(?::(.*))?", re.DOTALL)


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

    `renewed` returns the folder of a sweep whose tables hold all rows. `UsageError` where there is
    no such sweep, submission, column or value.
    """
    found = [
        side
        for part in text.split("+")
        for side in _parts(results, part, where, everything=everything, renewed=renewed)
    ]
    rows = pd.concat([side.rows for side in found], keys=range(len(found)), names=["run"])
    notes = tuple(f"{side.label}: {note}" for side in found for note in side.notes)
    return Side(text, rows.reset_index("run").reset_index(drop=True), notes)


def _parts(
    results: Path, text: str, where: str, *, everything: bool, renewed: Callable[[RunDir], RunDir]
) -> Iterator[Side]:
    name, at, match = _split(text)
    run = _run(results, name)
    for one in [run] if at is None else runs.named(run, at):
        rows, notes = dataset.read(renewed(one)).chosen(match, where, everything=everything,
                                                        noise=True)  # fmt: skip
        which = [] if at is None else [", ".join(one.ages())]
        yield Side(text, rows.copy(), (*which, *notes))


def _split(text: str) -> tuple[str, str | None, str]:
    """Return the name, the run, and the columns with their values."""
    found = _SIDE.fullmatch(text)
    assert found  # noqa: S101 - every text fits
    return found[1], found[2], found[3] or ""


def of_runs(results: Path, text: str, fewest: int) -> dict[str, str]:
    """Return a side for each run of the sweep that a side names, by when it began, oldest first.

    `UsageError` where it names one run already, or there are not as many as `fewest`.
    """
    name, at, match = _split(text)
    if at is not None:
        raise UsageError(f"{text} is one run: name what to compare it with")
    run = _run(results, name)
    every = runs.of(run)
    if len(every) < fewest:
        has = f"{count(len(every), 'run')} ({', '.join(one.began for one in every)})"
        again = run.command("submit", "--again")
        raise UsageError(f"{run.name} has {has}; `{again}` measures it once more")
    rest = f":{match}" if match else ""
    return {str(one): f"{name}@{one.number}{rest}" for one in every}


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
