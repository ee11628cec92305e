"""A folder with everything that the targets need: results, tables, exports, Slurm's answers."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import resultsfolder
from hpcsweep import cli, processes
from hpcsweep.errors import HpcsweepError
from hpcsweep.store import attempt, chunk_file, rounds
from hpcsweep.store.collect import collector as collecting
from hpcsweep.store.folders import SubmissionDir, SweepDir
from hpcsweep.store.jobs_file import Cancelled, Ended, NotSent, Over, Queued, Sending, Started
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.state import AttemptState

if TYPE_CHECKING:
    from collections.abc import Callable

LOCAL = "demo"
QUEUED = "queued"
PROGRAMS = ("squeue", "sacct", "sinfo", "scontrol", "sacctmgr", "sbatch")
_LONGEST = 4000  # characters of a message


class UnexpectedError(Exception):
    """The program refused in words that no person wants to read."""


@dataclass
class Place:
    """Where targets write their input; `refused` says whether the last one was refused."""

    folder: Path
    refused: bool = field(default=False)

    @property
    def local(self) -> SweepDir:
        """Return the results of a sweep that ran here."""
        return SweepDir(self.folder / "results" / LOCAL)

    @property
    def queued(self) -> SweepDir:
        """Return the results of a sweep that waits in Slurm's queue."""
        return SweepDir(self.folder / "results" / QUEUED)

    def submission(self) -> SubmissionDir:
        """Return the submission that waits in Slurm's queue."""
        return self.queued.submissions()[0]

    def command(self, *words: str | Path, lines: int = 2) -> None:
        """Run a command of hpcsweep in this process."""
        sys.argv = ["hpcsweep", "--results", str(self.folder / "results"), *map(str, words)]
        written = io.BytesIO()
        out = io.TextIOWrapper(written, encoding="utf-8", write_through=True)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            self.call(cli.run, lines=lines)
        said = written.getvalue().decode("utf-8", "replace")
        if "Traceback" in said:
            raise UnexpectedError(said[-_LONGEST:])

    def call(self, work: Callable[..., Any], *arguments: Any, lines: int = 2) -> None:  # noqa: ANN401
        """Call a function, which may refuse in a line or two."""
        try:
            work(*arguments)
        except SystemExit as end:
            self.refused |= bool(end.code)
        except click.ClickException:
            self.refused = True
        except HpcsweepError as error:
            self.refused = True
            text = str(error)
            if text.count("\n") >= lines or len(text) > _LONGEST * lines:
                raise UnexpectedError(f"{text.count(chr(10)) + 1} lines: {text[:500]}") from error


def enter(folder: Path) -> Place:
    """Fill a folder, and make it the working directory, with Slurm's programs on the path."""
    place = Place(folder)
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for name in PROGRAMS:
        answer(place, name, b"")
    for name in [one for one in os.environ if one.startswith(("HPCSWEEP_", "SLURM_", "SBATCH_"))]:
        del os.environ[name]
    os.environ |= {
        "PATH": f"{bin_folder}:/usr/bin:/bin",
        "XDG_CONFIG_HOME": str(folder / "config"),
        "HPCSWEEP_DEBUG": "1",  # so that errors come through `cli.run` as they are
    }
    os.chdir(folder)
    (folder / "noop.yaml").write_text("workload: noop\naxes: {model: [a], input_size: [64]}\n")
    _results(folder)
    return place


def answer(place: Place, program: str, text: bytes, code: int = 0) -> None:
    """Let one of Slurm's programs print a text, on both streams where it fails."""
    (place.folder / "bin" / f"{program}.out").write_bytes(text)
    path = place.folder / "bin" / program
    shown = f"cat {path}.out"
    path.write_text(
        f"#!/bin/sh\n{shown} >&2\n{shown}\nexit {code}\n" if code else f"#!/bin/sh\nexec {shown}\n"
    )
    path.chmod(0o755)


def _results(folder: Path) -> None:
    made = resultsfolder.make(folder)
    points = made.points
    made.submit("20260101-100000-local", points[:4], profile="local", sweep=LOCAL)
    made.sweep_dir.submissions()[0].log(0, 0).write_text("a point\n")
    shard = made.shard("20260101-100000-local")
    with resultsfolder.shards.ShardWriter(shard) as writer:
        for number, point in enumerate(points[:4]):
            status = ("ok", "oom", "ok", "error")[number]
            more = {} if status == "ok" else {"status_reason": f"line {number} of 7 went wrong"}
            resultsfolder.commit(
                writer, point, shard, status=status, median_ms=1.5 + number, **more
            )
    attempt.write_record(shard, attempt.AttemptRecord(state=AttemptState.STOPPED, pid=7), {})
    journal = made.sweep_dir.submissions()[0]
    journal.append_job(Started(process=processes.identity(), at=1.0))
    journal.append_job(Ended(ended=2.0))
    first = rounds.Round(points=(points[0].point_id,), error=0.1, held_out=2)
    rounds.write_rounds(
        made.sweep_dir, {}, rounds.AdaptiveRun(device="cpu", target=0.03, of=8, rounds=(first,))
    )
    (made.sweep_dir.bad_nodes).write_text(
        '{"nodes": [{"name": "n1", "why": "NODE_FAIL: its node failed", '
        '"at": "2026-01-01T00:00:00+00:00"}], "allowed": {"n2": "2026-01-02T00:00:00+00:00"}}'
    )
    collecting.collect(made.sweep_dir)
    shutil.copytree(made.sweep_dir.path, folder / "results" / QUEUED)
    _queue(SweepDir(folder / "results" / QUEUED), points)


def _queue(run: SweepDir, points: list[Any]) -> None:
    """Turn a copy of the results into a sweep of which three chunks wait in Slurm's queue."""
    old = run.submissions()[0]
    for path in (old.shards / "0.0.overall.csv", *run.merged()):
        path.unlink()
    chunks = [chunk_file.Chunk(n, tuple(points[2 * n : 2 * n + 2]), 60.0) for n in range(4)]
    chunk_file.write_chunks(old.chunks, chunks)
    fields = {"path": "l40.yaml", "launcher": "sbatch", "wrapper": "none", "time": "01:00:00"}
    old.write_manifest(
        Manifest(
            id=old.id, sweep=QUEUED, workload="inference", profile="l40", launcher="sbatch",
            gpu="l40", chunks=4, points=8, seconds=240.0, profile_fields=fields,
        )
    )  # fmt: skip
    old.jobs.unlink()
    now = "2026-01-01T10:00:00+00:00"
    for entry in (
        Sending(sending=0, tasks=3, at=now),
        Queued(job_id="4242", first_chunk=0, tasks=3, submitted_at=now),
        Over(over={"NODE_FAIL": "2"}, at=now),
        Cancelled(cancelled="1", at=now),
        Sending(sending=3, tasks=1, at=now),
        NotSent(not_sent=3, at=now),
    ):
        old.append_job(entry)
