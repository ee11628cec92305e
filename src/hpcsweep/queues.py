"""Which chunks of a submission still wait or run, by one question to the scheduler's queue.

sbatch prints an id only when the job is in the queue, so what squeue does not list is over. When
squeue does not answer, everything counts as live: nothing is sent twice because of silence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcsweep import slurm

if TYPE_CHECKING:
    from hpcsweep.rundir import SubmissionDir


def live_chunks(submission: SubmissionDir, _manifest: dict[str, Any]) -> set[int]:
    """Return the chunks that may still write rows; chunks that never went in are not among them."""
    chunk_of: dict[tuple[int | None, int | None], int] = {}
    jobs = [entry for entry in submission.read_jobs() if "job_id" in entry]
    for entry in jobs:
        job = slurm.parse_id(entry["job_id"]).job
        for task in range(entry["tasks"]):
            chunk_of[job, task] = entry["first_chunk"] + task
    if not jobs:
        return set()
    listed = slurm.queue([entry["job_id"] for entry in jobs])
    if isinstance(listed, slurm.CouldNotAsk):
        return set(chunk_of.values())
    alive = (state.id.key for state in listed if not state.state.over)
    return {chunk_of[key] for key in alive if key in chunk_of}
