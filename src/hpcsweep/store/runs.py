"""The runs of a sweep: how often it was measured, when, and how a person names one.

A run is what was measured at one time: a submission, those that resumed it, and its retries.
`submit --again` starts the next one. A run is named by the date of its first submission, with the
time if need be, by its number, or as `previous`, the one before the last.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.errors import ResultsError, SpecError, UsageError
from hpcsweep.spec import lookup
from hpcsweep.store import chunk_file, ledger, outcomes, rundir
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hpcsweep.store.rundir import RunDir

_STAMP: Final = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)")
_A_TIME: Final = re.compile(r"[-:T \d]*\d[-:T ]*")
_A_DAY: Final = 8  # digits


@dataclass(frozen=True)
class Run:
    """One run: its number, from 1, and the folder of the sweep with its submissions alone."""

    number: int
    dir: RunDir

    @property
    def began(self) -> str:
        """Return when its first submission began, in UTC; the submission where its id has none."""
        first = next(iter(self.dir.ages()))
        found = _STAMP.match(first)
        return "{}-{}-{} {}:{}:{}".format(*found.groups()) if found else first

    def __str__(self) -> str:
        return f"run {self.number} ({self.began})"

    def planned(self) -> set[str]:
        """Return the ids of the points that it is to measure, as far as they can be read."""
        found: set[str] = set()
        for submission in self.dir.submissions():
            with suppress(ResultsError):
                found.update(*(ids for _chunk, ids in chunk_file.read_ids(submission.chunks)))
        return found


@dataclass(frozen=True)
class Listed:
    """A run as `status` and `show` list it.

    `look` returns the points that are planned, and the statuses and doubts of those with a row. It
    is called where the run is printed: of a single run nothing is.
    """

    run: Run
    look: Callable[[], tuple[set[str], Mapping[str, PointStatus], Mapping[str, str]]]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Return how many points it has, how many are measured, and how many of these valid."""
        planned, statuses, doubts = self.look()
        ok = [point for point, status in statuses.items() if status is PointStatus.OK]
        valid = sum(doubts.get(point, outcomes.VALID) == outcomes.VALID for point in ok)
        points = len(planned | statuses.keys())
        return {"points": points, "measured": len(ok), "valid": valid}

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        own = {"number": self.run.number, "began": self.run.began}
        return {**own, **self.counts, "submissions": [*self.run.dir.ages()]}

    def __str__(self) -> str:
        points, *rest = self.counts.items()
        told = ", ".join(f"{number:,} {name}" for name, number in rest)
        return f"{self.run}: {count(points[1], 'point')}, {told}"


def of(run: RunDir) -> list[Run]:
    """Return the runs of a sweep, by number; what runs under a profiler is in none of them.

    A submission whose manifest cannot be read belongs to the run of the one before.
    """
    found: dict[int, list[str]] = {}
    number = 0
    for name in run.ages():
        submission = run.submission(name)
        manifest = submission.manifest_or_none() if submission.manifest.exists() else None
        if manifest and manifest.is_profiled:
            continue
        number = manifest.again if manifest else number
        found.setdefault(number, []).append(name)
    every = sorted(found.items())
    return [
        Run(number + 1, replace(run, only=frozenset(names), at=str(number + 1)))
        for number, names in every
    ]


def of_sweeps(results: Path, names: Sequence[str]) -> list[RunDir]:
    """Return the results of these sweeps; without names, of all sweeps."""
    if names:
        return [rundir.open_run(results, sweep_name(name)) for name in names]
    if found := rundir.all_runs(results):
        return found
    raise UsageError(f"{results.absolute()}: no results yet; `hpcsweep submit SPEC` makes some")


def of_sweep(results: Path, name: str | None) -> RunDir:
    """Return the results of a sweep, or of the only one; `UsageError` where there are several."""
    found = of_sweeps(results, (name,) if name else ())
    if len(found) > 1:
        raise UsageError(f"which sweep? {results} has: {', '.join(one.name for one in found)}")
    return found[0]


def of_run(results: Path, text: str | None) -> RunDir:
    """Return the results of a sweep, or those of one of its runs alone: ``SWEEP[@RUN]``."""
    name, at, run = (text or "").rpartition("@")
    if not at or Path(text or "").exists():
        return of_sweep(results, text)
    found = named(of_sweep(results, name), run)
    if len(found) > 1:
        raise UsageError(f"{text} is {len(found)} runs: {', '.join(one.name for one in found)}")
    return found[0]


def sweep_name(text: str) -> str:
    """Return the name of a sweep that is given by its name, its file or its results folder."""
    path = Path(text)
    if path.suffix not in lookup.SUFFIXES:
        return path.name if path.is_dir() and (path / "submissions").is_dir() else text
    if not path.is_file():
        return path.stem
    from hpcsweep.spec import sweep_file  # noqa: PLC0415 - pydantic, for files only

    try:
        return sweep_file.load(path).name
    except SpecError:  # the file may be half edited
        return path.stem


def named(run: RunDir, text: str) -> list[RunDir]:
    """Return the folder of a sweep with the rows of a run alone; a year or month may name several.

    What begins no run may begin the id of a submission: its rows are taken. `UsageError` where
    there is none, or a day has several.
    """
    every = of(run)
    if text == "previous" and len(every) > 1:
        return [replace(every[-2].dir, at=text)]
    chosen = [one for one in every if str(one.number) == text]
    digits = re.sub(r"\D", "", text) if _A_TIME.fullmatch(text) else ""
    if digits and not chosen:
        chosen = [one for one in every if re.sub(r"\D", "", one.began).startswith(digits)]
        if len(chosen) > 1 and len(digits) >= _A_DAY:
            which = f"{run.name}@{text} is {' or '.join(map(str, chosen))}"
            raise UsageError(f"{which}; add the time, or name it by its number: {run.name}@1")
    if chosen:
        return [replace(one.dir, at=text if len(chosen) == 1 else one.dir.at) for one in chosen]
    stamp = f"{digits[:_A_DAY]}-{digits[_A_DAY:]}".rstrip("-")
    begins = (text, stamp) if digits else (text,)
    if ids := [name for name in run.ages() if text and name.startswith(begins)]:
        return [replace(run, only=frozenset(ids), at=text)]
    there = ", ".join(map(str, every)) or "none"
    raise UsageError(f"{run.path}: no run or submission '{text}' (there are: {there})")


def points_of_file(run: RunDir) -> Iterator[str]:
    """Yield the ids of the points that the sweep file has now; `SpecError` if it has a mistake."""
    from hpcsweep.spec import expansion, sweep_file  # noqa: PLC0415 - a quarter of a second

    sweep = sweep_file.load(run.sweep_file, name=run.name)
    devices = {(manifest.gpu, manifest.rehearsal) for manifest in run.manifests()}
    for device, rehearsal in sorted(devices):
        gpu, rehearse = (None, device) if rehearsal else (device, None)
        yield from (p.point_id for p in expansion.expand(sweep, gpu=gpu, rehearse=rehearse))


def statuses(run: RunDir) -> dict[str, PointStatus]:
    """Return the status of every point with a row, in the newest run that has one."""
    found: dict[str, PointStatus] = {}
    for one in of(run):
        found.update(ledger.statuses(one.dir))
    return found


def listed(run: RunDir) -> list[Listed]:
    """Return the runs of a sweep with what their files say of their points."""

    def look(one: Run) -> tuple[set[str], Mapping[str, PointStatus], Mapping[str, str]]:
        return one.planned(), ledger.statuses(one.dir), outcomes.doubts_in(one.dir.shards())

    return [Listed(one, partial(look, one)) for one in of(run)]


def lines(found: Sequence[Listed]) -> list[str]:
    """Return a line for each run, where there are several."""
    return [str(one) for one in found] if len(found) > 1 else []
