"""The runs of a sweep: their numbers, dates and submissions, and the names that people give them.

A run is a submission with those that resumed it and its retries; `submit --again` starts the next
run. Its name is the date of its first submission, with the time if needed, or its number, or
`previous` for the run before the last.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.errors import HpcsweepError, ResultsError, SpecError, UsageError
from hpcsweep.files import regular_bytes
from hpcsweep.spec import lookup
from hpcsweep.store import chunk_file, folders, ledger, outcomes
from hpcsweep.store.row_reader import read_rows
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from hpcsweep.store.folders import SweepDir

_STAMP: Final = re.compile(r"(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d)(\d\d)")
_A_TIME: Final = re.compile(r"[-:T \d]*\d[-:T ]*")
_A_YEAR: Final = 4  # digits; a shorter text is rather a number of a run
_A_DAY: Final = 8  # digits; a year or a month may name all its runs


@dataclass(frozen=True)
class Run:
    """One run: its number, from 1, and the folder of the sweep with its submissions alone."""

    number: int
    dir: SweepDir

    @property
    def began(self) -> str:
        """Time of its first submission in UTC; the submission's id if that has no time."""
        first = next(iter(self.dir.ages()))
        match = _STAMP.match(first)
        return "{}-{}-{} {}:{}:{}".format(*match.groups()) if match else first

    def __str__(self) -> str:
        return f"run {self.number} ({self.began})"

    def planned(self) -> set[str]:
        """Return the ids of its planned points, from the readable chunk files."""
        planned: set[str] = set()
        for submission in self.dir.submissions():
            with suppress(ResultsError):
                for _chunk, ids in chunk_file.read_ids(submission.chunks):
                    planned.update(ids)
        return planned


@dataclass(frozen=True)
class Listed:
    """A run as `status` and `show` list it.

    `look` returns the planned points, and the statuses and doubts of the points with a row. It is
    called only when the run is printed, since it reads files. A run has the points of its time,
    of which the sweep may have lost some since.
    """

    run: Run
    look: Callable[[], tuple[set[str], Mapping[str, PointStatus], Mapping[str, str]]]

    @cached_property
    def counts(self) -> dict[str, int]:
        """Number of its points, of those that are measured, and of those that are valid."""
        planned, statuses, doubts = self.look()
        measured = 0
        valid = 0
        for point, status in statuses.items():
            if status is PointStatus.OK:
                measured += 1
                valid += doubts.get(point, outcomes.VALID) == outcomes.VALID
        points = len(planned | statuses.keys())
        return {"points": points, "measured": measured, "valid": valid}

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        own = {"number": self.run.number, "began": self.run.began}
        return {**own, **self.counts, "submissions": [*self.run.dir.ages()]}

    def __str__(self) -> str:
        counts = self.counts
        points = count(counts["points"], "point")
        return f"{self.run}: {points}, {counts['measured']:,} measured, {counts['valid']:,} valid"


def runs_of(sweep_dir: SweepDir) -> list[Run]:
    """Return the runs of a sweep in their order, without profiled submissions.

    A submission with an unreadable manifest belongs to the run of the submission before it.
    """
    names_by_number: dict[int, list[str]] = {}
    number = 0
    for name in sweep_dir.ages():
        manifest = sweep_dir.submission(name).manifest_or_none()
        # its rows have no times, so it is part of no run
        if manifest and manifest.is_profiled:
            continue
        number = manifest.again if manifest else number
        names_by_number.setdefault(number, []).append(name)
    runs = []
    for number, names in sorted(names_by_number.items()):
        only_these = replace(sweep_dir, only=frozenset(names), at=str(number + 1))
        runs.append(Run(number + 1, only_these))
    return runs


def of_sweeps(results: Path, names: Sequence[str]) -> list[SweepDir]:
    """Return the results of the named sweeps; without names, of all sweeps."""
    if names:
        return [_opened(results, name) for name in names]
    if sweeps := folders.all_sweeps(results):
        return sweeps
    raise UsageError(f"{results.absolute()}: no results yet; `hpcsweep submit SPEC` makes some")


def _opened(results: Path, text: str) -> SweepDir:
    """Return the results of a sweep by its name or file, or those of a folder, wherever it lies."""
    folder = Path(text).absolute()
    if not folders.is_name_at(results, text) and (folder / "submissions").is_dir():
        return folders.open_sweep(folder.parent, folder.name)
    return folders.open_sweep(results, _sweep_name(text))


def of_sweep(results: Path, name: str | None) -> SweepDir:
    """Return the results of a sweep; without a name, of the only one, or `UsageError`."""
    sweeps = of_sweeps(results, (name,) if name else ())
    if len(sweeps) > 1:
        raise UsageError(f"which sweep? {results} has: {', '.join(sweep.name for sweep in sweeps)}")
    return sweeps[0]


def of_run(results: Path, text: str | None) -> SweepDir:
    """Return the results of ``SWEEP``, or of one of its runs: ``SWEEP@RUN``."""
    name, at, run = (text or "").rpartition("@")
    if not at or Path(text or "").exists():
        return of_sweep(results, text)
    runs = named(of_sweep(results, name), run)
    if len(runs) > 1:
        raise UsageError(f"{text} is {len(runs)} runs: {', '.join(item.name for item in runs)}")
    return runs[0]


def _sweep_name(text: str) -> str:
    """Return the name of a sweep, given its name or its file."""
    path = Path(text)
    if path.suffix not in lookup.SUFFIXES:
        return text
    if not path.is_file():
        return path.stem
    from hpcsweep.spec import sweep_file  # noqa: PLC0415 - pydantic, for files only

    try:
        return sweep_file.load(path).name
    except SpecError:  # the file may be half edited
        return path.stem


def named(sweep_dir: SweepDir, text: str) -> list[SweepDir]:
    """Return the runs of a sweep with a name; a year or month may name several.

    `UsageError` where there is no run of that name, or a day has several.
    """
    every = runs_of(sweep_dir)
    if text == "previous":
        if len(every) > 1:
            return [replace(every[-2].dir, at=text)]
        again = sweep_dir.command("submit", "--again")
        raise UsageError(f"{sweep_dir.path}: has no run before its last; `{again}` begins the next")
    for run in every:
        if str(run.number) == text:
            return [replace(run.dir, at=text)]
    digits = re.sub(r"\D", "", text) if _A_TIME.fullmatch(text) else ""
    chosen = []
    if len(digits) >= _A_YEAR:
        chosen = [run for run in every if re.sub(r"\D", "", run.began).startswith(digits)]
    if not chosen:
        there = ", ".join(map(str, every)) or "none"
        raise UsageError(f"{sweep_dir.path}: no run '{text}' (there are: {there})")
    if len(chosen) == 1:
        return [replace(chosen[0].dir, at=text)]
    if len(digits) >= _A_DAY:
        which = f"{sweep_dir.name}@{text} is {' or '.join(map(str, chosen))}"
        raise UsageError(f"{which}; add the time, or name it by its number: {sweep_dir.name}@1")
    return [run.dir for run in chosen]


def points_of_file(sweep_dir: SweepDir) -> Iterator[str]:
    """Yield the ids of the points of the sweep file; `SpecError` if it has a mistake."""
    from hpcsweep.spec import expansion, sweep_file  # noqa: PLC0415 - a quarter of a second

    sweep = sweep_file.load(sweep_dir.sweep_file, name=sweep_dir.name)
    nodes = nodes_of(sweep_dir)
    devices = {(manifest.gpu, manifest.rehearsal) for manifest in sweep_dir.manifests()}
    for device, rehearsal in sorted(devices):
        gpu, rehearse = (None, device) if rehearsal else (device, None)
        for point in expansion.expand(sweep, gpu=gpu, rehearse=rehearse).on_nodes(nodes):
            yield point.point_id


def nodes_of(sweep_dir: SweepDir) -> list[str]:
    """Return the nodes that points of a sweep were sent to; the first, empty one is any."""
    named = set[str]().union(*[manifest.nodes for manifest in sweep_dir.manifests()])
    return ["", *sorted(named - {""})]


def sha_of_file(sweep_dir: SweepDir) -> str:
    """Return the checksum of the sweep file, as in manifests; empty where there is no file."""
    try:
        return hashlib.sha256(regular_bytes(sweep_dir.sweep_file)).hexdigest()
    except OSError:
        return ""


def orphans(sweep_dir: SweepDir, sent: Iterable[tuple[str, Iterable[str]]]) -> set[str]:
    """Return which points the sweep, as last submitted, no longer has.

    `sent` has the points in question, with the checksum of the sweep file that sent them. The file
    is read only where points were sent with another one: to expand it takes a while.
    `HpcsweepError` where it cannot be read.
    """
    latest = sha_of_file(sweep_dir)
    current = set[str]()
    earlier = set[str]()
    for sha, ids in sent:
        age = current if sha == latest else earlier
        age.update(ids)
    # what was sent with the file as it is now cannot have left it
    doubtful = earlier - current
    return doubtful.difference(points_of_file(sweep_dir)) if doubtful else set()


def known_orphans(sweep_dir: SweepDir, sent: Iterable[tuple[str, Iterable[str]]]) -> set[str]:
    """Return `orphans`; none where the sweep file cannot be read."""
    try:
        return orphans(sweep_dir, sent)
    except HpcsweepError:
        return set()


def statuses(sweep_dir: SweepDir) -> dict[str, PointStatus]:
    """Return the status of every point with a row, in the newest run that has one."""
    newest: dict[str, PointStatus] = {}
    for run in runs_of(sweep_dir):
        newest |= ledger.statuses(run.dir)
    return newest


def listed(sweep_dir: SweepDir) -> list[Listed]:
    """Return the runs of a sweep, with functions that read their points' statuses."""

    def look(item: Run) -> tuple[set[str], Mapping[str, PointStatus], Mapping[str, str]]:
        doubts = outcomes.doubts_in(read_rows(item.dir.shards(), outcomes.DOUBTS))
        return item.planned(), ledger.statuses(item.dir), doubts

    return [Listed(item, partial(look, item)) for item in runs_of(sweep_dir)]


def lines(runs: Sequence[Listed]) -> list[str]:
    """Return a line for each run; none for a single run."""
    return [str(run) for run in runs] if len(runs) > 1 else []
