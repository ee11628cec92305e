"""Where everything lies below `results/`: the only module that knows the paths.

::

    results/<sweep>/
        sweep.yaml                     as last submitted
        submissions/<id>/              manifest.json  chunks.jsonl  jobs.jsonl  job.sbatch  logs/
                                       (with submitit no job.sbatch, but logs/submitit/)
        shards/<id>/                   <chunk>.<attempt>.{overall,layers,samples}.csv  .env.json
        overall.csv  layers.csv        written by collect only

Files that are read by others while they may be rewritten (manifest, tables) are written aside,
synced and renamed. Nothing here needs more than the standard library: compute nodes use it.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from hpcsweep import files
from hpcsweep.errors import ResultsError, UsageError, suggest
from hpcsweep.store import jobs_file, manifest

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.store.jobs_file import Entry
    from hpcsweep.store.manifest import Manifest

# what a shard is made of, and what is being written; the rest of a folder are artifacts
_OWN: Final = re.compile(r"\d+\.\d+\.(overall|layers|samples)\.csv|\d+\.\d+\.env\.json|\..*")
_SHARD: Final = re.compile(r"(\d+)\.(\d+)\.overall\.csv")


@dataclass(frozen=True)
class RunDir:
    """The results folder of one sweep."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    def command(self, verb: str, *more: str) -> str:
        """Return a command about this sweep as a person types it."""
        root = str(self.path.parent)
        where = () if root == "results" else ("--results", root)
        return shlex.join(["hpcsweep", *where, verb, self.name, *more])

    @property
    def sweep_file(self) -> Path:
        """Return the sweep as it was last submitted."""
        return self.path / "sweep.yaml"

    @property
    def overall(self) -> Path:
        """Return the merged table of points."""
        return self.path / "overall.csv"

    @property
    def layers(self) -> Path:
        """Return the merged table of layer calls."""
        return self.path / "layers.csv"

    @property
    def samples(self) -> Path:
        """Return the merged raw times."""
        return self.path / "samples.csv"

    @property
    def collect_index(self) -> Path:
        """Return what collect remembers, so that it reads only what grew; may be deleted."""
        return self.path / ".collect.json"

    @property
    def bad_nodes(self) -> Path:
        """Return what submit remembers of broken nodes."""
        return self.path / "nodes.json"

    @property
    def lock(self) -> Path:
        """Return the lock of submit and collect; jobs never touch it."""
        return self.path / ".lock"

    @property
    def submissions_dir(self) -> Path:
        """Return the folder of all submissions."""
        return self.path / "submissions"

    @property
    def shards_dir(self) -> Path:
        """Return the folder of all shards."""
        return self.path / "shards"

    def submission(self, submission_id: str) -> SubmissionDir:
        """Return one submission's folder, which need not exist."""
        return SubmissionDir(self.submissions_dir / submission_id)

    def submissions(self) -> list[SubmissionDir]:
        """Return every submission that was recorded, oldest first."""
        return [
            SubmissionDir(path.parent)
            for path in sorted(self.submissions_dir.glob("*/manifest.json"))
        ]

    def shards(self) -> list[ShardPath]:
        """Return every shard in a stable order, by listing (a stat may lie on NFS)."""
        folders = sorted(_listdir(self.shards_dir))
        return [shard for folder in folders for shard in self.shards_of(folder)]

    def shards_of(self, submission_id: str) -> list[ShardPath]:
        """Return the shards of one submission, by chunk and attempt."""
        folder = self.shards_dir / submission_id
        matches = filter(None, map(_SHARD.fullmatch, _listdir(folder)))
        return sorted(ShardPath(folder, int(match[1]), int(match[2])) for match in matches)

    def artifacts(self) -> list[Path]:
        """Return what profilers and trainings left beside the shards: files, and folders."""
        return [
            self.shards_dir / folder / name
            for folder in sorted(_listdir(self.shards_dir))
            for name in sorted(_listdir(self.shards_dir / folder))
            if not _OWN.fullmatch(name)
        ]


@dataclass(frozen=True)
class SubmissionDir:
    """The folder of one submission."""

    path: Path

    @property
    def id(self) -> str:
        """Return the submission's id."""
        return self.path.name

    @property
    def run(self) -> RunDir:
        """Return the results folder that it belongs to."""
        return RunDir(self.path.parent.parent)

    @property
    def manifest(self) -> Path:
        """Return the file that says what was submitted; its presence is the submission."""
        return self.path / "manifest.json"

    @property
    def chunks(self) -> Path:
        """Return the chunk file."""
        return self.path / "chunks.jsonl"

    @property
    def jobs(self) -> Path:
        """Return the journal of what the launcher started, one JSON object a line."""
        return self.path / "jobs.jsonl"

    @property
    def script(self) -> Path:
        """Return the rendered job script."""
        return self.path / "job.sbatch"

    @property
    def logs(self) -> Path:
        """Return the folder of logs."""
        return self.path / "logs"

    @property
    def submitit(self) -> Path:
        """Return the folder of submitit's scripts, pickles and outputs."""
        return self.logs / "submitit"

    @property
    def shards(self) -> Path:
        """Return the folder that this submission's attempts write to."""
        return self.run.shards_dir / self.id

    def log(self, chunk: int, attempt: int) -> Path:
        """Return the log of one attempt."""
        return self.logs / f"{chunk}.{attempt}.log"

    def job_output(self, job: int, task: int) -> Path:
        """Return what a job of Slurm printed: all that there is where no worker started."""
        own = self.logs / f"slurm-{job}_{task}.out"
        return own if own.exists() else self.submitit / f"{job}_{task}_0_log.out"

    def attempts(self, chunk: int) -> list[ShardPath]:
        """Return the shards of a chunk, first attempt first."""
        prefix = f"{chunk}."
        numbers = sorted(
            int(match[2])
            for name in _listdir(self.shards)
            if name.startswith(prefix) and (match := _SHARD.fullmatch(name))
        )
        return [ShardPath(self.shards, chunk, number) for number in numbers]

    def read_manifest(self) -> Manifest:
        """Return what was submitted; `ResultsError` where that cannot be read."""
        return manifest.read(self.manifest)

    def write_manifest(self, record: Manifest) -> None:
        """Record the submission: from now on it counts."""
        manifest.write(self.manifest, record)

    def read_jobs(self) -> list[Entry]:
        """Return the entries of the journal."""
        return jobs_file.read(self.jobs)

    def append_job(self, entry: Entry) -> None:
        """Add an entry to the journal, synced before this returns."""
        jobs_file.append(self.jobs, entry)


@dataclass(frozen=True, order=True)
class ShardPath:
    """The files of one attempt of one chunk."""

    folder: Path
    chunk: int
    attempt: int

    def next_attempt(self) -> ShardPath:
        """Return the files of the attempt after this one."""
        return replace(self, attempt=self.attempt + 1)

    def _file(self, suffix: str) -> Path:
        return self.folder / f"{self.chunk}.{self.attempt}.{suffix}"

    @property
    def submission(self) -> str:
        """Return the submission's id."""
        return self.folder.name

    @property
    def overall(self) -> Path:
        """Return the rows of points."""
        return self._file("overall.csv")

    @property
    def layers(self) -> Path:
        """Return the rows of layer calls."""
        return self._file("layers.csv")

    @property
    def samples(self) -> Path:
        """Return the raw times."""
        return self._file("samples.csv")

    @property
    def env(self) -> Path:
        """Return the attempt's provenance."""
        return self._file("env.json")


def open_run(root: Path, name: str) -> RunDir:
    """Return the results folder of an existing sweep; `UsageError` names the nearest one."""
    if not files.may_name_a_sweep(name):
        raise UsageError(f"no sweep can have the name '{name}': a name {files.SWEEP_NAMES}")
    run = RunDir(root / name)
    if not run.submissions_dir.is_dir():
        known = [found.name for found in all_runs(root)]
        have = f"{root} has: {', '.join(known)}" if known else f"{root} has no results yet"
        raise UsageError(f"no results of a sweep '{name}'{suggest(name, known)} ({have})")
    return run


def all_runs(root: Path) -> list[RunDir]:
    """Return every sweep that has results below `root`."""
    return [
        RunDir(root / name)
        for name in sorted(_listdir(root))
        if files.may_name_a_sweep(name) and (root / name / "submissions").is_dir()
    ]


def new_submission(run: RunDir, profile: str, now: datetime | None = None) -> SubmissionDir:
    """Create the folder of a new submission, `<UTC time>-<profile>`, never one that exists."""
    stamp = (now or datetime.now(timezone.utc)).strftime("%Y%m%d-%H%M%S")
    for suffix in ("", *(f".{n}" for n in range(2, 100))):
        submission = run.submission(f"{stamp}-{profile}{suffix}")
        try:
            submission.path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise files.cannot_write(run.path, error) from error
        submission.logs.mkdir()
        submission.shards.mkdir(parents=True, exist_ok=True)
        return submission
    raise ResultsError(f"{run.submissions_dir}: 99 submissions within a second; try again")


def _listdir(path: Path) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 - names are wanted, not paths
    except (FileNotFoundError, NotADirectoryError):
        return []
