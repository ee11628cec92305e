"""The paths of all files below `results/`; no other module makes them.

::

    results/<sweep>/
        sweep.yaml                     as last submitted
        layout.json                    the version of this layout
        submissions/<id>/              manifest.json  chunks.jsonl  jobs.jsonl  job.sbatch  logs/
                                       (with submitit no job.sbatch, but logs/submitit/)
        shards/<id>/                   <chunk>.<attempt>.{overall,layers,samples}.csv  .env.json
        own_files/<digest>/            the user's own files behind a network or data set
        nodes.json  until.json         nodes to avoid; rounds of `submit --until-error`
        overall.csv  details.csv       written by collect only
        layers.csv  samples.csv

Files that others may read while they are rewritten (manifest, tables) are written aside, synced and
renamed. Compute nodes import this module, so it needs nothing but the standard library.
"""

from __future__ import annotations

import os
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcsweep import files
from hpcsweep.errors import ResultsError, UsageError, suggest
from hpcsweep.store import chunk_file, manifest
from hpcsweep.text import count

if TYPE_CHECKING:
    from hpcsweep.store.jobs_file import Damaged, Entry
    from hpcsweep.store.manifest import Manifest

SubmissionOrder = tuple[int, str]  # round and id of a submission

_OF_COLLECT: Final = frozenset(
    ("overall.csv", "details.csv", "layers.csv", "samples.csv", ".collect.json", ".lock")
)
IMPORTING: Final = ".import-"  # how the folder begins of what an import has not moved yet
SUMS: Final = "SHA256SUMS"  # in a bundle: the checksums of its other files
# As the template `job.sbatch` names it, and as submitit does for each process of a job: by job and
# task, or by the job alone where its array has one task.
_OUTPUT: Final = re.compile(r"slurm-(\d+)_(\d+)\.out|(\d+)_(?:(\d+)_)?\d+_log\.(?:out|err)")
_SHARD: Final = re.compile(r"(\d+)\.(\d+)\.overall\.csv")


def _file(name: str) -> cached_property[Path]:
    """Declare the path of a file or folder of its owner.

    It is made once: a merge asks for the files of a shard once a row, and to join a path is slow.
    """
    return cached_property(lambda owner: owner.file(name))


@dataclass(frozen=True)
class SweepDir:
    """The results folder of one sweep, or (with `only`) some submissions in it."""

    path: Path
    tables: Path | None = None  # another folder for the merged tables; needed with `only`
    only: frozenset[str] | None = None  # ids of the submissions that count; None: all
    at: str = ""  # the name of these submissions, as a person writes it behind an @

    sweep_file = _file("sweep.yaml")  # as last submitted
    overall = _file("overall.csv")
    details = _file("details.csv")  # the columns that are not in overall.csv
    layers = _file("layers.csv")
    samples = _file("samples.csv")
    collect_index = _file(".collect.json")  # a cache: how far collect has read the shards
    bad_nodes = _file("nodes.json")
    until = _file("until.json")  # rounds of `submit --until-error`
    lock = _file(".lock")  # of submit and collect; jobs never touch it
    submissions_dir = _file("submissions")
    shards_dir = _file("shards")
    own_files = _file("own_files")  # a folder per digest of the column of this name

    @property
    def name(self) -> str:
        return f"{self.path.name}@{self.at}" if self.at else self.path.name

    def merged(self) -> tuple[Path, ...]:
        """Return the merged tables."""
        return self.overall, self.details, self.layers, self.samples

    def itself(self) -> SweepDir:
        """Return this folder, with its tables as they are."""
        return self

    def file(self, name: str) -> Path:
        """Return the path of something in this folder."""
        aside = self.tables if name in _OF_COLLECT else None
        if name in _OF_COLLECT and self.only is not None and not aside:
            raise ResultsError(f"{self.path}: the tables of {self.name} were not made")
        return (aside or self.path) / name

    def command(self, verb: str, *more: str) -> str:
        """Return a command about this sweep as a person types it."""
        root = str(self.path.parent)
        where = () if root == "results" else ("--results", root)
        return shlex.join(["hpcsweep", *where, verb, self.path.name, *more])

    def submission(self, submission_id: str) -> SubmissionDir:
        """Return the folder of a submission, which need not exist."""
        return SubmissionDir(self.submissions_dir / submission_id)

    def submissions(self) -> list[SubmissionDir]:
        """Return every recorded submission that this user may read, oldest first."""
        found = []
        for name in self.ages():
            submission = self.submission(name)
            # its manifest is written last: without one the submission was never sent
            if not _is_closed(submission.path) and submission.manifest.exists():
                found.append(submission)
        return found

    def manifests(self) -> list[Manifest]:
        """Return the readable manifests, oldest submission first; `NewerLayout` for a newer one."""
        manifests = [submission.manifest_or_none() for submission in self.submissions()]
        return [record for record in manifests if record]

    def damage(self) -> list[str]:
        """Return a message for each file of a submission that cannot be read in whole.

        A damaged submission must not hide the others: where it is safe, commands leave it out and
        print these messages in the end.
        """
        problems = self.closed()
        for submission in self.submissions():
            problems += submission.damage()
        return problems

    def closed(self) -> list[str]:
        """Return a message for each submission that this user may not read, such as another's."""
        problems = []
        for name in self.ages():
            for folder in (self.submissions_dir / name, self.shards_dir / name):
                if _is_closed(folder):
                    lost = "its rows and jobs are left out, and its points may be measured again"
                    remedy = "its owner opens submissions and shards: chmod -R a+rX"
                    problems.append(f"{folder}: this user may not read it, so {lost}; {remedy}")
                    break  # one message a submission
        return problems

    def see_anew(self) -> None:
        """Let NFS ask its server which submissions there are; its memory may be a minute old."""
        for folder in (self.submissions_dir, self.shards_dir):
            files.see_anew(folder)

    def names(self) -> list[str]:
        """Return the ids of all submissions, sorted."""
        every = {*_listdir(self.submissions_dir), *_listdir(self.shards_dir)}
        return sorted(every if self.only is None else every & self.only)

    def ages(self) -> dict[str, SubmissionOrder]:
        """Return the order of submissions, and so of their rows, by id; the oldest comes first.

        The round counts, not the time in the id, since clocks may go back. A submission without a
        readable manifest takes the round of the one before it by id.
        """
        ages: list[SubmissionOrder] = []
        last = 0
        # by id, so that one without a readable manifest follows the one that was sent before it
        for name in self.names():
            with suppress(ResultsError):
                last = self.submission(name).read_manifest().round
            ages.append((last, name))
        return {name: (number, name) for number, name in sorted(ages)}

    def next_round(self) -> int:
        """Return the round of the next submission."""
        rounds = [number for number, _id in self.ages().values()]
        return max(rounds, default=-1) + 1

    def shards(self) -> list[ShardPath]:
        """Return every shard, those of the oldest submission first."""
        shards = []
        for submission in self.ages():
            shards += self.shards_of(submission)
        return shards

    def shards_of(self, submission_id: str) -> list[ShardPath]:
        """Return the shards of one submission, by chunk and attempt."""
        return _shards(self.shards_dir / submission_id)


@dataclass(frozen=True)
class SubmissionDir:
    """The folder of one submission."""

    path: Path

    manifest = _file("manifest.json")  # its presence is the submission
    chunks = _file("chunks.jsonl")
    jobs = _file("jobs.jsonl")  # the journal
    script = _file("job.sbatch")
    then_script = _file("then.sbatch")
    then_code = _file("then.code")  # exit code of what runs after the last point
    logs = _file("logs")
    submitit = _file("logs/submitit")  # scripts, pickles and outputs of submitit

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def sweep_dir(self) -> SweepDir:
        return SweepDir(self.path.parent.parent)

    @property
    def shards(self) -> Path:
        """Return the folder that its attempts write to."""
        return self.sweep_dir.shards_dir / self.id

    def is_at(self, folder: str) -> bool:
        """Say whether a path names this folder; if the folder is gone, by the last three parts."""
        path = Path(folder)
        if path.name != self.id:
            return False
        try:
            return path.samefile(self.path)
        except OSError:
            # sweep, `submissions` and id: a file system may be mounted elsewhere where the job was
            # sent
            return path.parts[-3:] == self.path.absolute().parts[-3:]

    def file(self, name: str) -> Path:
        """Return the path of something in this folder."""
        return self.path / name

    def log(self, chunk: int, attempt: int) -> Path:
        """Return the log of one attempt."""
        return self.logs / f"{chunk}.{attempt}.log"

    def job_outputs(self) -> dict[tuple[int | None, int | None], list[Path]]:
        """Return what jobs printed by job and task, the only logs where no worker started."""
        found: dict[tuple[int | None, int | None], list[Path]] = {}
        for folder in (self.logs, self.submitit):
            for name in _listdir(folder):
                match = _OUTPUT.fullmatch(name)
                if match:
                    job, task = match[1] or match[3], match[2] or match[4] or 0
                    found.setdefault((int(job), int(task)), []).append(folder / name)
        return found

    def attempts(self, chunk: int) -> list[ShardPath]:
        """Return the shards of a chunk, the first attempt first."""
        return _shards(self.shards, f"{chunk}.")

    def read_manifest(self) -> Manifest:
        """Read the manifest; `ResultsError` where it cannot be read."""
        return manifest.read_manifest(self.manifest)

    def manifest_or_none(self) -> Manifest | None:
        """Read the manifest; None where it is damaged, `NewerLayout` from a newer version."""
        try:
            return self.read_manifest()
        except manifest.NewerLayout:
            raise
        except ResultsError:
            return None

    def write_manifest(self, record: Manifest) -> None:
        """Write the manifest; without it the submission does not exist."""
        manifest.write_manifest(self.manifest, record)

    def read_jobs(self) -> list[Entry | Damaged]:
        """Return the entries and damaged lines of the journal."""
        from hpcsweep.store import jobs_file  # noqa: PLC0415 - the measuring side has no journal

        return jobs_file.read_jobs(self.jobs)

    def damage(self) -> list[str]:
        """Return a message for each damaged file: manifest, chunk file, journal."""
        problems = []
        expected = 0
        try:
            expected = self.read_manifest().chunks
        except ResultsError as error:
            problems.append(str(error))
        try:
            there = sum(1 for _chunk in chunk_file.read_ids(self.chunks))
            if there < expected:
                lacks = f"has {there} of {count(expected, 'chunk')}"
                problems.append(f"{self.chunks}: {lacks}; was the submission copied whole?")
        except ResultsError as error:
            problems.append(str(error))
        return [*problems, *self.journal_damage()]

    def journal_damage(self) -> list[str]:
        """Return a message for each damaged line of the journal."""
        from hpcsweep.store.jobs_file import Damaged  # noqa: PLC0415 - no journal on nodes

        problems = []
        for entry in self.read_jobs():
            if isinstance(entry, Damaged):
                where = f"{self.jobs}:{entry.line}" if entry.line else f"{self.jobs}"
                problems.append(f"{where}: cannot be read ({entry.why}); its jobs may be unknown")
        return problems

    def append_job(self, entry: Entry) -> None:
        """Append an entry to the journal, synced before this returns."""
        from hpcsweep.store import jobs_file  # noqa: PLC0415 - no journal on nodes

        jobs_file.append(self.jobs, entry)


@dataclass(frozen=True, order=True)
class ShardPath:
    """The files of one attempt of one chunk."""

    folder: Path
    chunk: int
    attempt: int

    overall = _file("overall.csv")
    layers = _file("layers.csv")
    samples = _file("samples.csv")
    env = _file("env.json")  # provenance: `store.attempt`

    @property
    def submission(self) -> str:
        return self.folder.name

    def file(self, name: str) -> Path:
        """Return the path of one of its files."""
        return self.folder / f"{self.chunk}.{self.attempt}.{name}"

    def next_attempt(self) -> ShardPath:
        """Return the files of the attempt after this one."""
        return replace(self, attempt=self.attempt + 1)


def is_name_at(root: Path, text: str) -> bool:
    """Say whether a text names a sweep below `root`, and so no folder elsewhere."""
    return files.may_name_a_sweep(text) and (root / text).is_dir()


def open_sweep(root: Path, name: str) -> SweepDir:
    """Return the results folder of an existing sweep.

    `UsageError` with the nearest name where the sweep has no results, `NewerLayout` where a newer
    version wrote them.
    """
    if not files.may_name_a_sweep(name):
        needs = f"a name {files.SWEEP_NAMES}; name the sweep, or its folder"
        raise UsageError(f"no sweep can have the name '{name}': {needs}")
    sweep_dir = SweepDir(root / name)
    if not is_results(sweep_dir.path):
        names = [sweep_dir.name for sweep_dir in all_sweeps(root)]
        have = f"{root.absolute()} has {', '.join(names) or 'no results yet'}"
        hint = suggest(name, names)
        for folder in reversed(root.absolute().parent.parents):  # the nearest one comes last
            above = folder / root.name
            if is_results(above / name):
                hint = f"; {above} has it: --results {above}"
        makes = "`hpcsweep submit SPEC` makes some, and --results names another folder"
        raise UsageError(f"no results of a sweep '{name}'{hint} ({have}); {makes}")
    manifest.check_layout(sweep_dir.path)
    return sweep_dir


def all_sweeps(root: Path) -> list[SweepDir]:
    """Return every sweep that has results below `root`."""
    names = [name for name in sorted(_listdir(root)) if files.may_name_a_sweep(name)]
    return [SweepDir(root / name) for name in names if is_results(root / name)]


def sweeps_at(path: Path) -> list[SweepDir]:
    """Return the results folder at a path, else every results folder below it."""
    return [SweepDir(path)] if is_results(path) else all_sweeps(path)


def is_results(folder: Path) -> bool:
    """Say whether a folder has the results of a sweep."""
    return (folder / "submissions").is_dir()


def new_submission(sweep_dir: SweepDir, profile: str, now: datetime | None = None) -> SubmissionDir:
    """Create the folder of a new submission, `<UTC time>-<profile>[.N]`."""
    stamp = (now or datetime.now(timezone.utc)).strftime("%Y%m%d-%H%M%S")
    # two submissions of one second: of several profiles, or of scripts that run side by side
    for number in range(1, 100):
        suffix = f".{number}" if number > 1 else ""
        submission = sweep_dir.submission(f"{stamp}-{profile}{suffix}")
        try:
            submission.path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise files.cannot_write(sweep_dir.path, error) from error
        submission.logs.mkdir()
        submission.shards.mkdir(parents=True, exist_ok=True)
        return submission
    raise ResultsError(f"{sweep_dir.submissions_dir}: 99 submissions within a second; try again")


def _shards(folder: Path, prefix: str = "") -> list[ShardPath]:
    if _is_closed(folder):
        return []
    shards = []
    for name in _listdir(folder):
        match = _SHARD.fullmatch(name)
        if match and name.startswith(prefix):
            shards.append(ShardPath(folder, int(match[1]), int(match[2])))
    return sorted(shards)


def _listdir(path: Path) -> list[str]:
    try:
        names = os.listdir(path)  # noqa: PTH208 - names are wanted, not paths
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [name for name in names if not name.startswith(".")]  # of files that come and go


def _is_closed(folder: Path) -> bool:
    """Say whether this user lacks the right to read a folder; other errors may pass."""
    with suppress(FileNotFoundError, NotADirectoryError):
        try:
            os.stat(f"{folder}/.")  # noqa: PTH116 - needs the right to enter; a path drops the dot
            os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
        except PermissionError:
            return not os.access(folder, os.R_OK | os.X_OK)
    return False
