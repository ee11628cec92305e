"""The time limit of jobs: shorter than the profile's where measured points say so, and safe."""

from __future__ import annotations

from dataclasses import replace

import pytest

import resultsfolder
import timedrows
from hpcsweep.cluster.slurm import job_script, via_submitit
from hpcsweep.spec import profile, sweep_file
from hpcsweep.submit import cost, prepare, request, time_limit
from timedrows import Law

SWEEP = resultsfolder.SWEEP
SITE = 'gpu: v100\npartition: gpu\ntime: "24:00:00"\nsignal_lead: 100\nkill_wait: 20\n'
ENDS = 300 + 100 + 60 + 20  # a start; and the end of a job


class Site:
    """A sweep, a profile, and what was measured."""

    def __init__(self, path, site=SITE, text=SWEEP):
        self.path = path
        folder = resultsfolder.make(path, text)
        points = resultsfolder.points_of(path, text, "v100")
        self.folder = replace(folder, points=points)
        self.text, self.site = text, site

    def asked(self, site=""):
        """Return the request."""
        file = self.path / "v100.yaml"
        file.write_text(self.site + site)
        return request.make(sweep_file.load(self.path / "demo.yaml"), profile.load(file))

    def measure(self, sizes=(64, 224), law=None):
        """Measure some sizes."""
        chosen = [point for point in self.folder.points if point.axes["input_size"] in sizes]
        submission = self.folder.submit("20260101-000000-v100", chosen, gpu="v100")
        timedrows.measure(self.folder, submission.id, chosen, law or Law())

    def ready(self, site=""):
        """Write a submission; return what it says, its manifest, and the profile of its jobs."""
        asked = self.asked(site)
        ready = prepare.prepare(self.folder.sweep_dir, asked)
        manifest = ready.submission.read_manifest()
        assert manifest.time_limit == ready.time_limit
        return ready, time_limit.applied(asked.profile, manifest)


def test_without_measured_points_jobs_ask_for_the_profiles_time(tmp_path):
    """Peaks alone, or other algorithms, are too weak a ground."""
    site = Site(tmp_path)
    assert cost.cost_of(tmp_path / "results", site.asked()).ready.time_limit == ""
    ready, used = site.ready()
    assert (ready.time_limit, used.time) == ("", "24:00:00")


def test_with_measured_points_jobs_ask_for_what_they_need(tmp_path):
    """At least the longest time of one point, 10 min here, a slow start, and the end of a job."""
    site = Site(tmp_path)
    site.measure()
    assert cost.cost_of(tmp_path / "results", site.asked()).ready.time_limit == "00:18:00"
    ready, used = site.ready()
    assert (ready.time_limit, used.time) == ("00:18:00", "00:18:00")
    assert used.time_seconds >= 600 + ENDS
    assert used.time_seconds < 600 + ENDS + 60
    text = job_script.render(used, ready.submission)
    assert "#SBATCH --time=00:18:00\n" in text
    assert f"+ {18 * 60} ))" in text  # the deadline that the supervisor keeps
    assert via_submitit._parameters(ready.submission, used, 1)["timeout_min"] == 18


def test_a_long_chunk_gets_its_estimate_with_a_margin(tmp_path):
    """What holds nine times in ten, and half as much again."""
    site = Site(tmp_path)
    site.measure(law=Law(image={"gemm": 3.0, "winograd": 20.0}))
    ready, used = site.ready()
    assert ready.seconds > 600
    width = 1.5  # two sizes cannot tell how far estimates are off
    assert used.time_seconds == pytest.approx(1.5 * width * ready.seconds + ENDS, abs=60)


@pytest.mark.parametrize(
    ("site", "why"),
    [
        ("shorten_time: false\n", "the user switched it off"),
        ("wrapper: nsys\n", "a profiler makes everything slower"),
        ('time: "00:15:00"\n', "the profile's is shorter still"),
        ("time: UNLIMITED\n", "the profile has none"),
        ("time: null\n", "the partition's holds"),
    ],
)
def test_the_profiles_time_holds(tmp_path, site, why):
    """Never more, and not less where it would be no help."""
    own = SITE.replace('time: "24:00:00"\n', "") if site.startswith("time") else SITE
    place = Site(tmp_path, own)
    place.measure()
    ready, used = place.ready(site)
    assert ready.time_limit == "", why
    assert used.time == place.asked(site).profile.time


def test_what_a_job_of_a_shorter_limit_left_goes_with_the_profiles(tmp_path):
    """So nothing is lost for ever, whatever the estimate said."""
    site = Site(tmp_path)
    site.measure()
    first, _ = site.ready()
    assert first.time_limit
    again, used = site.ready()
    assert (again.points, again.time_limit, used.time) == (first.points, "", "24:00:00")
    assert cost.cost_of(tmp_path / "results", site.asked()).ready.time_limit == ""


def test_other_points_still_get_the_shorter_limit(tmp_path):
    """The sweep grew; its new points were never cut off."""
    site = Site(tmp_path)
    site.measure()
    first, _ = site.ready()
    shard = site.folder.shard(first.submission.id)
    left = [p for p in site.folder.points if p.axes["input_size"] in {96, 128}]
    shard.folder.mkdir(parents=True, exist_ok=True)
    timedrows.measure(site.folder, first.submission.id, left, Law())
    (tmp_path / "demo.yaml").write_text(SWEEP.replace("224]", "224, 256]"))
    grown, _ = site.ready()
    assert (grown.points, grown.time_limit) == (2, "00:18:00")


def test_a_long_training_gets_time_for_all_its_epochs(tmp_path):
    """`point_timeout` is for each epoch."""
    text = SWEEP.replace("inference", "training") + "  epochs: [1, 8]\nmeasure: {layers: false}\n"
    site = Site(tmp_path, text=text)
    chosen = [point for point in site.folder.points if point.axes["epochs"] == 1]
    submission = site.folder.submit("20260101-000000-v100", chosen, gpu="v100")
    shard = site.folder.shard(submission.id)
    cells = {"workload": "training", "wall_s": 30.0, "steps": 20, "phase_steps": 20}
    site.folder.measure(shard, chosen, **cells)
    ready, used = site.ready()
    assert used.time_seconds >= 8 * 600 + ENDS
    assert ready.time_limit
