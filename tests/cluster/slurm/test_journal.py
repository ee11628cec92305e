"""The journal knows what Slurm has forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcsweep.cluster import chunk_state
from hpcsweep.cluster.slurm import journal, liveness, settling
from hpcsweep.cluster.slurm.liveness import SlurmAnswer
from hpcsweep.store.jobs_file import Cancelled

if TYPE_CHECKING:
    from hpcsweep.store.folders import SubmissionDir


# As sacct 22.05 printed a task whose node was set down, and its second attempt.
ACCOUNTS = """\
7_0|NODE_FAIL|None|l40sn1|gpu|root|2026-11-21T07:33:23|2026-11-21T07:33:23|2026-11-21T07:33:26|3|0:0|s
7_0|COMPLETED|None|v100n1|gpu|root|2026-11-21T07:33:31|2026-11-21T07:33:39|2026-11-21T07:33:47|8|0:0|s
"""


def _of(submission: SubmissionDir, chunk: int = 0, newest: Any = None) -> chunk_state.ChunkStatus:
    answer = liveness.ask_slurm([submission])
    return chunk_state.of_chunk(chunk, journal.read_journal(submission), answer, newest)


def test_a_journal_that_knows_all_is_asked_instead_of_slurm(submission, say):
    """Ends are kept once the queue has forgotten the job; then no program is run any more."""
    say(sacct=ACCOUNTS.replace("COMPLETED", "FAILED"))
    answer = liveness.ask_slurm([submission])
    assert [job.state.name for job in answer.attempts] == ["NODE_FAIL", "FAILED"]
    settling.record_ends(submission, answer)
    assert journal.read_journal(submission).over == {0: "FAILED"}
    say("nonsense", "nonsense")
    assert liveness.ask_slurm([submission]) == SlurmAnswer()
    assert _of(submission).state == "failed"


def test_cancelled_tasks_leave_a_trace(submission, say):
    """Slurm 22.05 keeps none of those that were cancelled while they waited."""
    say()
    submission.append_job(Cancelled(cancelled="0", at=journal.now()))
    assert _of(submission).state == "cancelled"
    assert journal.read_journal(submission).targets([0]) == ["7_[0]"]
