"""Each state of a chunk, and whether its task may still write rows, whatever Slurm says."""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from hpcsweep.cluster import queue, slurm
from hpcsweep.cluster.slurm import journal
from hpcsweep.errors import SchedulerError
from hpcsweep.store import attempt
from hpcsweep.store.attempt import AttemptRecord
from hpcsweep.store.folders import ShardPath, SweepDir
from hpcsweep.store.jobs_file import Cancelled, Queued, Sending
from hpcsweep.store.manifest import Manifest
from hpcsweep.store.state import AttemptState, ChunkState

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.store.folders import SubmissionDir

ME = slurm.user_name()
MINE = {"cluster": "a", "controller": "ctl:6817", "user": ME}
CONF = "ClusterName = a\nSlurmctldHost[0] = ctl(10.0.0.1)\nSlurmctldPort = 6817\n"
INVALID = "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"
DISABLED = "echo 'Slurm accounting storage is disabled' >&2; exit 1"


@dataclass(frozen=True)
class Site:
    """A submission whose job is 7, and programs that say of it what a test wants."""

    submission: SubmissionDir
    bin: Path

    def program(self, name: str, text: str) -> None:
        """Write an executable."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def row(self, state: str = "RUNNING", folder: str = "", job: str = "7_0") -> str:
        """Return a line as squeue and, with an exit code, sacct print it; as printf takes it."""
        return self._line([job, state, "None", "n1", "N/A", "N/A", "N/A"], folder)

    def account(self, state: str = "RUNNING", folder: str = "", job: str = "7_0") -> str:
        """Return a line of sacct."""
        return self._line([job, state, "None", "n1", "N/A", "N/A", "N/A", "0:0"], folder)

    def _line(self, fields: list[str], folder: str) -> str:
        return r"\037".join([*fields, folder or str(self.submission.path)]) + r"\n"

    def sent(self, ago: float = 60.0, **origin: str) -> None:
        """Note that the job went in so many seconds ago."""
        at = (datetime.now(timezone.utc) - timedelta(seconds=ago)).isoformat()
        self.submission.append_job(Queued(job_id="7", tasks=1, submitted_at=at, **origin))

    def attempt(self, ago: float, state: str = "running", reason: str = "") -> ShardPath:
        """Let an attempt have given its last sign of life so many seconds ago."""
        shard = ShardPath(self.submission.shards, 0, 0)
        shard.overall.write_text("point_id\n")
        shard.samples.touch()
        record = AttemptRecord(state=AttemptState(state), reason=reason)
        attempt.write_record(shard, record, {})
        for path in (shard.overall, shard.samples):
            os.utime(path, (time.time() - ago,) * 2)
        return shard

    def chunk(self, number: int = 0) -> journal.ChunkStatus:
        """Return the state of a chunk, as Slurm is asked now."""
        answer = journal.ask_slurm([self.submission])
        known = journal.read_journal(self.submission)
        return journal.state_of(number, known, answer, known.newest.get(number))

    def live(self) -> bool:
        """Say whether the job's chunk counts as live, as everybody who asks is told."""
        answer = journal.ask_slurm([self.submission])
        live = bool(answer.live_chunks_of(self.submission))
        shown = self.chunk()
        assert shown.state.live is live, shown
        queue.fence_off_lost_attempts(self.submission.sweep_dir, answer)
        shard = ShardPath(self.submission.shards, 0, 0)
        assert not (live and shard.next_attempt().overall.exists())
        return live


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Give a submission of one chunk whose jobs may take 30 minutes; no program answers yet."""
    made = SweepDir(tmp_path / "results/s").submission("20261121-073323-l40")
    for folder in (made.path, made.shards, tmp_path / "bin"):
        folder.mkdir(parents=True)
    manifest = Manifest(id=made.id, launcher="sbatch", chunks=1, profile_fields={"time": "30"})
    made.write_manifest(manifest)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    found = Site(made, tmp_path / "bin")
    found.program("scontrol", f"printf '%s' {shlex.quote(CONF)}")
    found.program("squeue", INVALID)
    found.program("sacct", "")
    return found


HOUR, DAY = 3600.0, 86_400.0


@pytest.mark.parametrize("state", slurm.STATES, ids=lambda state: state.name)
def test_every_state_has_an_answer(site: Site, state: slurm.State):
    """Live if and only if Slurm's state is not over; one that stands still does not run."""
    site.sent(3 * HOUR, **MINE)
    site.program("squeue", f"printf '{site.row(state.name)}'")
    assert site.live() is not state.over
    if state.name in {"SUSPENDED", "STOPPED"}:
        assert site.chunk().state is ChunkState.SUSPENDED


@pytest.mark.parametrize(
    ("state", "had"), [("TIMEOUT", "--time 30"), ("OUT_OF_MEMORY", "--mem 4G")]
)
def test_what_was_too_little_is_told_with_what_it_was(site: Site, state: str, had: str):
    """As the submission asked for it; other ends have nothing to do with it."""
    fields = {"time": "30", "mem": "4G"}
    record = site.submission.read_manifest()
    site.submission.write_manifest(replace(record, profile_fields=fields))
    site.sent(3 * HOUR, **MINE)
    site.program("sacct", f"printf '{site.account(state)}'")
    assert site.chunk().why.endswith(f" (it had {had})")
    site.program("sacct", f"printf '{site.account('NODE_FAIL')}'")
    assert "it had" not in site.chunk().why


def test_what_nobody_lists_is_lost_only_after_a_grace_time(site: Site):
    """The last sign of life counts: an attempt that wrote a moment ago."""
    site.sent(3 * HOUR, **MINE)
    assert site.chunk().state == "lost"
    site.attempt(10)
    assert site.chunk().state == "lost?"
    site.attempt(DAY, "refused", "wrong device")
    assert site.chunk() == journal.ChunkStatus(ChunkState.FAILED, "wrong device")
    assert site.chunk(1).state == "unsent"


def test_a_chunk_that_found_its_points_sent_elsewhere_has_not_failed(site: Site):
    """Its job ends well without a row; without that reason, rows are missing."""
    site.sent(**MINE)
    site.program("squeue", f"printf '{site.row('COMPLETED')}'")
    for reason, state in (("", "failed"), (attempt.LEFT_TO_OTHERS, "done")):
        site.attempt(10, "done", reason)
        assert site.chunk().state == state


def test_a_journal_that_knows_all_is_asked_instead_of_slurm(site: Site):
    """Ends are kept once the queue has forgotten the job; then no program is run any more."""
    site.sent(3 * HOUR, **MINE)
    site.program("sacct", f"printf '{site.account('NODE_FAIL')}{site.account('FAILED')}'")
    answer = journal.ask_slurm([site.submission])
    assert [job.state.name for job in answer.attempts] == ["NODE_FAIL", "FAILED"]
    queue.record_ends(site.submission, answer)
    assert journal.read_journal(site.submission).over == {0: "FAILED"}
    for name in ("squeue", "sacct"):
        site.program(name, "echo nonsense")
    assert journal.ask_slurm([site.submission]) == journal.SlurmAnswer()
    assert site.chunk().state == "failed"


RUNS, ROWS = "printf '{account}'", "printf '{row}'"

# What squeue does wrong while the job runs, sent a minute ago; the accounts know it, or none are.
LIES = {
    "greeting and noise": "echo 'Welcome to a!'; echo 'maintenance on Monday'",
    "error text, exit 0": "echo 'squeue: error: cannot load jobs' >&2",
    "cut in the first row": r"printf '7_0\037RUNN'",
    "empty": "",
    "its heading alone": "echo 'JOBID STATE REASON'",
    "rows of others": r"printf '8_0\037RUNNING\037None\037n1\037N/A\037N/A\037N/A\037/x\n'",
    "an unknown id, as for hidden jobs": INVALID,
    "another format": "echo '7_0|RUNNING|None|n1|N/A|N/A|N/A|/x'",
    "binary": r"printf '\000\001\377'",
    "killed": "kill -9 $$",
    "no permission": "echo 'squeue: error: Access denied' >&2; exit 1",
    "a heading of another cluster": "echo 'CLUSTER: far'",
    "the same number, another folder": "printf '{foreign}'",
    "other tasks of the array": r"printf '7_[1-9]\037PENDING\037\037\037N/A\037N/A\037N/A\n'",
    "a torn row that ends in time": r"printf '7_0\037COMPLETED\037None'",
}


def _say(site: Site, name: str, text: str) -> None:
    words = {
        "{row}": site.row(), "{account}": site.account(),
        "{foreign}": site.row(folder="/elsewhere/of/another/job"),
    }  # fmt: skip
    for word, stands_for in words.items():
        text = text.replace(word, stands_for)
    site.program(name, text)


@pytest.mark.parametrize(
    ("lie", "accounts"),
    [
        *((lie, "") for lie in LIES.values()),
        *((INVALID, says) for says in (RUNS, DISABLED, "exit 1")),
    ],
)
def test_a_job_lives_on_whatever_squeue_says(site: Site, lie: str, accounts: str) -> None:
    """It was sent a minute ago; submit leaves it alone, status calls it live, nobody fences it."""
    site.sent(**MINE)
    _say(site, "squeue", lie)
    _say(site, "sacct", accounts)
    assert site.live()


@pytest.mark.parametrize(
    ("sent", "beat", "squeue", "sacct", "live"),
    [
        (DAY, 10, "", "", True),  # its attempt beats
        (DAY, 10, INVALID, RUNS, True),
        (DAY, 1200, "", RUNS, False),  # the accounts lag
        (DAY, 1200, INVALID, "", False),
        (DAY, 1200, "echo noise >&2", "", True),  # no answer
        (DAY, None, "", RUNS, False),
        (1200, None, "", "", False),  # cancelled while it waited: Slurm keeps no trace
        (1, None, "", "", True),
        (DAY, 10, "", "printf '{account_over}'", False),  # the accounts know how it ended
        (DAY, DAY, ROWS, "printf '{account_over}'", True),  # requeued: the queue is newer
        (DAY, 10, "printf '{row_over}'", RUNS, False),
        (DAY, DAY, "printf '{row}'; echo warning >&2", "", True),
        (DAY, 1200, "printf '{revoked}'", "", True),  # of a federation: it runs elsewhere
    ],
)
def test_what_squeue_does_not_list_lives_for_two_minutes(  # noqa: PLR0917
    site: Site,
    sent: float,
    beat: float | None,
    squeue: str,
    sacct: str,
    live: bool,  # noqa: FBT001
) -> None:
    """Since it was sent, or since its attempt gave a sign of life."""
    site.sent(sent, **MINE)
    if beat is not None:
        site.attempt(beat)
    words = {
        "{account_over}": site.account("TIMEOUT"), "{row_over}": site.row("TIMEOUT"),
        "{revoked}": site.row("REVOKED"),
    }  # fmt: skip
    for name, text in (("squeue", squeue), ("sacct", sacct)):
        for word, stands_for in words.items():
            text = text.replace(word, stands_for)  # noqa: PLW2901
        _say(site, name, text)
    assert site.live() is live


OTHERS = {
    "another cluster": {**MINE, "cluster": "b"},
    "of the same name": {**MINE, "controller": "other:6817"},
    "on another port": {**MINE, "controller": "ctl:6818"},
    "another user": {**MINE, "user": "somebody"},
    "an old journal": {},
}


@pytest.mark.parametrize("origin", OTHERS.values(), ids=OTHERS)
def test_what_may_be_hidden_lives_for_its_time_limit(site: Site, origin: dict[str, str]) -> None:
    """Since it was sent, or since its attempt beat; two answers of here do not end it."""
    site.sent(1800, **origin)
    assert site.live()
    site.submission.jobs.unlink()
    site.sent(3 * HOUR, **origin)
    shard = site.attempt(1800)
    assert site.live()
    os.utime(shard.overall, (time.time() - HOUR,) * 2)
    os.utime(shard.samples, (time.time() - HOUR,) * 2)
    assert not site.live()
    assert shard.next_attempt().overall.exists()  # it may only be suspended


@pytest.mark.parametrize("state", ["done", "refused"])
def test_an_attempt_that_says_that_its_job_ended_is_believed(site: Site, state: str) -> None:
    """Wherever it ran; one that was stopped may be requeued."""
    site.sent(**OTHERS["another cluster"])
    site.attempt(10, state)
    assert not site.live()
    site.attempt(10, "stopped")
    assert site.live()


@pytest.mark.parametrize(
    ("origin", "state"), [("another cluster", "RUNNING"), ("on another port", "COMPLETED")]
)
def test_another_clusters_number_is_never_looked_up_here(
    site: Site, origin: str, state: str
) -> None:
    """A job here has the same one: it is not cancelled, and its end is not the other's."""
    site.sent(**OTHERS[origin])
    site.program("squeue", f"printf '{site.row(state, '/of/another/job')}'")
    site.program("sacct", f"printf '{site.account(state, '/of/another/job')}'")
    site.program("scancel", f'echo "$@" >> {shlex.quote(str(site.bin / "cancelled"))}')
    assert site.live()
    answer = journal.ask_slurm([site.submission])
    queue.record_ends(site.submission, answer)
    assert journal.read_journal(site.submission).over == {}
    lines = queue.cancel(site.submission.sweep_dir, [])
    with pytest.raises(SchedulerError, match=r"did not cancel chunks 0 \(jobs 7_\[0\]\): on clust"):
        list(lines)
    assert not (site.bin / "cancelled").exists()
    name = OTHERS[origin]["cluster"]
    shown = journal.state_of(0, journal.read_journal(site.submission), answer, None)
    assert shown.why.startswith(f"queued on cluster {name}")
    assert shown.why.endswith(": ask there")


def test_a_foreign_job_of_the_same_number_is_not_cancelled(site: Site) -> None:
    """Slurm forgot ours and gave its number away; ours goes to scancel by its number else."""
    site.sent(**MINE)
    site.program("scancel", f'echo "$@" >> {shlex.quote(str(site.bin / "cancelled"))}')
    site.program("squeue", f"printf '{site.row(folder='/elsewhere/of/another/job')}'")
    with pytest.raises(SchedulerError, match="7_0 is another job here, in /elsewhere"):
        list(queue.cancel(site.submission.sweep_dir, []))
    assert not (site.bin / "cancelled").exists()
    site.program("squeue", f"printf '{site.row()}'")
    (line,) = queue.cancel(site.submission.sweep_dir, [])
    assert "cancelled chunks 0" in line
    assert (site.bin / "cancelled").read_text() == "7_[0]\n"


@pytest.mark.parametrize("name", ["another cluster", "another user"])
def test_a_lost_answer_of_sbatch_is_looked_for_where_it_was_asked(site: Site, name: str) -> None:
    """Another cluster's queue, or another user's, says nothing of it."""
    site.submission.append_job(Sending(sending=0, tasks=1, at=journal.now(), **OTHERS[name]))
    site.program("squeue", "")
    assert list(queue.settle([site.submission])) == []
    assert journal.ask_slurm([site.submission]).live_chunks_of(site.submission) == {0}


@pytest.mark.parametrize(
    ("squeue", "told"),
    [
        ("", "did not go in"),
        ("printf '{elsewhere}'", "did not go in"),
        ("printf '{own}'", "went in as 9"),
        ("echo hello", ""),
        ("echo 'slurm_load_jobs error: down' >&2; exit 1", ""),
    ],
)
def test_an_array_did_not_go_in_where_squeue_says_so(site: Site, squeue: str, told: str) -> None:
    """Else it counts as live, and submit asks again."""
    site.submission.append_job(Sending(sending=0, tasks=1, at=journal.now(), **MINE))
    rows = {"{own}": site.row(job="9_0"), "{elsewhere}": site.row(folder="/x", job="9_0")}
    for word, row in rows.items():
        squeue = squeue.replace(word, row)
    site.program("squeue", squeue)
    assert [told in line for line in queue.settle([site.submission])] == [True] * bool(told)
    live = journal.ask_slurm([site.submission]).live_chunks_of(site.submission)
    assert live == (set() if told == "did not go in" else {0})


@pytest.mark.parametrize("state", ["", "RUNNING"])
def test_what_was_cancelled_and_is_not_listed_is_over(site: Site, state: str) -> None:
    """The accounts keep no trace of it, or are late; where it is, its own journal says."""
    site.sent(**MINE)
    site.program("sacct", f"printf '{site.account(state)}'" if state else "")
    site.submission.append_job(Cancelled(cancelled="0", at=journal.now()))
    assert not site.live()
    assert site.chunk().state == "cancelled"


def test_a_gpu_that_was_refused_is_told_while_the_others_of_its_job_measure(site: Site):
    """The job goes on for hours, and tries that GPU again when it is requeued."""
    site.sent(per_task=2)
    site.program("squeue", f"printf '{site.row()}'")
    site.attempt(1.0, "running")
    assert (site.chunk().state, site.chunk().why) == (ChunkState.RUNNING, "")
    site.attempt(1.0, "refused", "the GPU fails")
    assert (site.chunk().state, site.chunk().why) == (ChunkState.RUNNING, "the GPU fails")


def test_chunks_that_share_a_task_are_found_again_and_cancelled_by_it(site: Site):
    """Also where sbatch's answer was lost; an entry of an earlier version has a task a chunk."""
    site.submission.append_job(Sending(sending=0, tasks=5, per_task=4))
    site.program("squeue", f"printf '{site.row(job='7_[0-1]', state='PENDING')}'")
    assert [*queue.settle([site.submission])] == [
        f"{site.submission.id}: sbatch's answer was lost; 5 chunks went in as 7"
    ]
    site.submission.append_job(Queued(job_id="8", first_chunk=5, tasks=2))
    known = journal.read_journal(site.submission)
    assert known.task_of == {
        0: (7, 0), 1: (7, 0), 2: (7, 0), 3: (7, 0), 4: (7, 1), 5: (8, 0), 6: (8, 1),
    }  # fmt: skip
    assert known.targets([1, 2, 4, 6]) == ["7_[0-1]", "8_[1]"]
