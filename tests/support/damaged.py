"""Results of four points, whose files tests damage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import resultsfolder
from hpcsweep import processes
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import bad_nodes, journal
from hpcsweep.store import attempt, rounds
from hpcsweep.store.collect.collector import collect
from hpcsweep.store.jobs_file import Cancelled, Ended, Queued, Sending, Started
from hpcsweep.store.state import AttemptState

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.store.folders import SweepDir

LOCAL = "20260101-100000-local"
QUEUED = "20260102-100000-l40"
_STATE = slurm.state_of("RUNNING")
_RUNNING = slurm.JobState(id=slurm.parse_id("4242_0"), state=_STATE, source="squeue")
_ANSWER = journal.SlurmAnswer({(4242, 0): _RUNNING})  # of Slurm, not asked thousands of times


@dataclass(frozen=True)
class Folder:
    """Results of four points: three measured here, one of them again on Slurm, one that waits."""

    sweep_dir: SweepDir
    waits: str  # a point of a chunk that is in the queue

    def queue(self, submission: Any) -> set[int]:
        """Say what lives, as `submit` asks Slurm."""
        return _ANSWER.live_chunks_of(submission)


def make(path: Path) -> Folder:
    """Write such a folder."""
    made = resultsfolder.make(path)
    run = made.sweep_dir
    points = made.points
    for number, (name, some) in enumerate(((LOCAL, points[:3]), (QUEUED, points[2:4]))):
        fields = {"launcher": ("local", "sbatch")[number], "profile": name[16:]}
        submission = made.submit(name, some, round=number, **fields)
        with resultsfolder.shards.ShardWriter(made.shard(name)) as writer:
            for place, point in enumerate(points[:3] if not number else points[2:3]):
                cells = {"status": ("ok", "oom", "ok")[place], "mean_ms": 1.5 + place + 10 * number}
                resultsfolder.commit(writer, point, made.shard(name), **cells)
        attempt.write_record(
            made.shard(name), attempt.AttemptRecord(state=AttemptState.STOPPED, pid=7), {}
        )
        now = "2026-01-01T10:00:00+00:00"
        for entry in (
            (Started(process=processes.identity()), Ended(ended=2.0))
            if not number
            else (
                Sending(sending=0, tasks=1, at=now),
                Queued(job_id="4242", tasks=1, submitted_at=now),
                Cancelled(cancelled="", at=now),
            )
        ):
            submission.append_job(entry)
    first = rounds.Round(points=(points[0].point_id,), error=0.1, held_out=2)
    rounds.write_rounds(
        run, {}, rounds.AdaptiveRun(device="cpu", target=0.03, of=8, rounds=(first,))
    )
    node = bad_nodes.BadNode("n1", "NODE_FAIL", "2026-01-01T00:00:00+00:00")
    run.bad_nodes.write_text(f'{{"nodes": [{str(vars(node)).replace(chr(39), chr(34))}]}}')
    collect(run)
    return Folder(run, points[3].point_id)
