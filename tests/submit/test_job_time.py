"""The time that jobs ask for: shorter than the profile's where rows tell it, and safe."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import resultsfolder
import timedrows
from drafts import written
from hpcsweep.cluster.slurm import job_script, journal
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import attempt
from hpcsweep.store.attempt import AttemptRecord
from hpcsweep.store.jobs_file import Over, Queued
from hpcsweep.store.state import AttemptState
from hpcsweep.submit import request
from hpcsweep.submit.comparison import Submit
from hpcsweep.submit.cost import cost_of
from resultsfolder import Folder
from timedrows import Law

if TYPE_CHECKING:
    from pathlib import Path

SITE = 'gpu: v100\npartition: gpu\ntime: "24:00:00"\nsignal_lead: 100\nkill_wait: 20\n'
AROUND = 300 + 100 + 60  # a slow start, and the end of a job
SHORT = "00:18:00"  # for a point of 10 min, and that


@dataclass
class Site:
    """A sweep, a profile, and what was measured."""

    folder: Folder
    path: Path

    def asked(self, more: str = "", site: str = SITE) -> request.Request:
        """Return the request for what is left."""
        file = self.path / "v100.yaml"
        file.write_text(site + more)
        return request.make(sweep_file.load(self.path / "demo.yaml"), profile.load(file))

    def measure(self, *sizes: int, law: Law = Law(), submission: str = "20260101-000000-v100"):  # noqa: B008
        """Measure some sizes."""
        chosen = [point for point in self.folder.points if point.axes["input_size"] in sizes]
        if not self.folder.sweep_dir.submission(submission).path.exists():
            self.folder.submit(submission, chosen, gpu="v100", launcher="sbatch")
        timedrows.measure(self.folder, submission, chosen, law)

    def sent(self, more: str = "", site: str = SITE) -> Submit:
        """Write a submission of what is left."""
        return written(self.folder.sweep_dir, self.asked(more, site))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """Give a sweep of four sizes, none measured."""
    folder = resultsfolder.make(tmp_path)
    return Site(replace(folder, points=resultsfolder.points_of(tmp_path, gpu="v100")), tmp_path)


def test_without_rows_of_the_same_kind_jobs_ask_for_the_profiles_time(site):
    """The table of peaks is too weak a ground, and so are rows of one of two networks."""
    assert site.sent().time.limit == ""
    spec = site.path / "demo.yaml"
    spec.write_text(resultsfolder.SWEEP.replace("[resnet18]", "[resnet18, resnet34]"))
    site.measure(64)
    sent = site.sent()
    assert (sent.time.limit, sent.profile.time) == ("", "24:00:00")


def test_with_rows_of_the_same_kind_jobs_ask_for_what_they_need(site):
    """The deadline in the script and what is recorded follow."""
    site.measure(64, 224)
    cost = cost_of(site.path / "results", site.asked())
    told = f"jobs ask for {SHORT}: "
    assert told in cost.text()
    assert cost.to_json()["time_limit"] == SHORT
    sent = site.sent()
    assert sent.profile.time_seconds == 18 * 60
    text = job_script.render(sent.profile, sent.submission, tasks=1)
    assert f"#SBATCH --time={SHORT}\n" in text
    assert f"+ {18 * 60} ))" in text
    record = sent.submission.read_manifest()
    assert (record.profile_fields["time"], record.run.shortened) == (SHORT, True)
    assert journal.read_journal(sent.submission).time_limit == timedelta(minutes=18)


def test_a_long_chunk_gets_its_estimate_so_many_times(site):
    """By the profile's factor; the line says all parts of it."""
    site.measure(64, 224, law=Law(image={"gemm": 3.0, "winograd": 20.0}))
    for more, factor in (("", 3), ("time_factor: 2\n", 2)):
        asked = site.sent(more).time
        sent = site.sent(more)
        assert sent.time == asked
        assert sent.seconds > 600
        work = factor * sent.seconds
        assert sent.profile.time_seconds == pytest.approx(work + AROUND, abs=60)
        assert f"of work by measured rows, times {factor}, and 8 min to start" in asked.why
        assert asked.why.endswith("; the profile allows 24:00:00")


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("time_factor: null\n", "the user switched it off"),
        ("wrapper: nsys\n", "a profiler makes everything slower"),
        ("sbatch_options: [--time=10:00:00]\n", "it is an explicit wish"),
        ("sbatch_options: ['-t 600']\n", "it is an explicit wish"),
        ('time: "00:15:00"\n', "the profile's is shorter still"),
        ("time: null\n", "the partition's holds"),
        ("launcher: local\n", "nothing limits it"),
    ],
)
def test_the_profiles_time_holds(site, lines, why):
    """Never more, and not less where it is not the program's to choose."""
    own = SITE.replace('time: "24:00:00"\n', "") if lines.startswith("time:") else SITE
    site.measure(64, 224)
    sent = site.sent(lines, own)
    assert sent.time.limit == sent.time.why == "", why
    assert sent.profile.time == site.asked(lines, own).profile.time


def test_less_than_no_limit_is_asked_for(site):
    """A profile of `UNLIMITED` allows any time."""
    site.measure(64, 224)
    sent = site.sent("time: UNLIMITED\n", SITE.replace('time: "24:00:00"\n', ""))
    assert sent.time.limit == SHORT


@pytest.mark.parametrize(
    ("state", "reason", "ended", "is_cut"),
    [
        (AttemptState.REFUSED, f"x: needs about 9 s; {attempt.TOO_SHORT}", "FAILED", True),
        (AttemptState.STOPPED, "SIGUSR1", "COMPLETED", True),
        (AttemptState.STOPPED, "5 s left, the next point needs 9", "CANCELLED", True),
        (AttemptState.RUNNING, "", "LOST", True),
        (AttemptState.STOPPED, "SIGTERM", "CANCELLED", False),
        (AttemptState.STOPPED, "SIGTERM", "TIMEOUT", True),
        (AttemptState.REFUSED, "no GPU", "FAILED", False),
        (None, "", "TIMEOUT", True),
        (None, "", "FAILED", True),
        (None, "", "CANCELLED", False),
    ],
)
def test_what_a_shorter_limit_cut_goes_with_the_profiles(site, state, reason, ended, is_cut):
    """What a person cancelled is short again, and what the machine refused."""
    site.measure(64, 224)
    first = site.sent().submission
    first.append_job(
        Queued(job_id="7", first_chunk=0, tasks=1, submitted_at="2026-01-01T00:00:00Z")
    )
    first.append_job(Over(over={ended: "0"}, at="2026-01-01T01:00:00Z"))
    if state:
        shard = site.folder.shard(first.id)
        shard.folder.mkdir(parents=True, exist_ok=True)
        shard.overall.touch()
        attempt.write_record(shard, AttemptRecord(state=state, reason=reason), {})
        shard.next_attempt().overall.touch()  # the next submission fences it off
    sent = site.sent()
    assert sent.points == 4
    assert (sent.time.limit == "") is is_cut
    assert ("jobs ask for all of the profile's time, 24:00:00: 4 points" in sent.time.why) is is_cut
    assert sent.submission.read_manifest().run.shortened is not is_cut


def test_other_points_than_those_that_were_cut_are_short_again(site):
    """The sweep grew; what the cut chunk had has its rows by now."""
    site.measure(64, 224)
    first = site.sent().submission
    site.measure(96, 128, submission=first.id)
    shard = site.folder.shard(first.id)
    record = AttemptRecord(state=AttemptState.STOPPED, reason="SIGUSR1")
    attempt.write_record(shard, record, {})
    spec = site.path / "demo.yaml"
    spec.write_text(resultsfolder.SWEEP.replace("224]", "224, 256]"))
    grown = site.sent()
    assert (grown.points, grown.time.limit) == (2, SHORT)


def test_a_point_that_timed_out_gets_the_profiles_time(site):
    """Its estimate was wrong before."""
    site.measure(64, 224)
    late = [point for point in site.folder.points if point.axes["input_size"] == 96]
    folder = site.folder
    before = folder.submit("20260102-000000-v100", late, gpu="v100", launcher="sbatch")
    folder.measure(folder.shard(before.id), late, status="timeout", mean_ms=None)
    asked = replace(site.asked(), again=frozenset({"timeout"}))
    assert written(folder.sweep_dir, asked).time.limit == ""
    assert site.sent().time.limit == SHORT
