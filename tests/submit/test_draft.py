"""What a submission records, and which points it leaves to those before it."""

from __future__ import annotations

import subprocess
from collections import Counter
from datetime import timedelta

from drafts import written
from hpcsweep.cluster.slurm import job_script, journal
from hpcsweep.errors import ResultsError
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import folders, manifest
from hpcsweep.submit import comparison, request
from hpcsweep.submit.check_inputs import check_inputs
from localruns import TEN


def test_samples_are_reused_by_larger_ones(desk):
    """One size, then three, then all of them measure ten points in all."""
    desk.spec(TEN)
    for more in (("--sample", "1"), ("--sample", "3"), ()):
        assert desk.submit(*more).returncode == 0
    points = [row["point_id"] for row in desk.rows()]
    assert len(points) == len(set(points)) == 10


def test_a_sweep_of_included_points_alone_is_submitted(desk):
    """As `best` writes one: no axis has values, so none names a network of one's own."""
    path = desk.spec("workload: inference\ninclude: [{model: squeezenet1_1, input_size: 64}]\n")
    asked = request.make(sweep_file.load(path), profile.load("local"))
    check_inputs([comparison.in_results(desk.results, asked)])
    assert written(desk.sweep(), asked).points == 1


def test_an_edited_sweep_measures_only_what_is_new(measured):
    """Points are known by what they are, not by their place in the file."""
    measured.spec(TEN.replace("[a, b]", "[c, b, a]"))
    assert measured.submit().returncode == 0
    assert Counter(row["model"] for row in measured.rows()) == {"a": 5, "b": 5, "c": 5}


def test_a_damaged_manifest_is_told_with_what_to_do(measured):
    """And that helps: the rows stay, nothing is measured twice."""
    (submission,) = measured.sweep().submissions()
    submission.manifest.write_text('{"x"')
    for command in (("submit", "sweep.yaml"), ("collect", "sweep")):
        done = measured.run(*command)
        assert done.returncode == ResultsError.exit_code
        assert f"{submission.id}/manifest.json: cannot be read" in done.stderr
        assert "restore it, or remove the file" in done.stderr
    submission.manifest.unlink()
    assert "nothing to measure (10 ok)" in measured.submit().stdout
    assert "10 points (10 ok)" in measured.run("collect", "sweep").stdout


def test_the_commit_of_the_sweep_file_is_kept(desk):
    """With a mark where tracked files have changed; outside of a repository there is none."""

    def git(*arguments: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b")
        command = ["git", *who, *arguments]
        done = subprocess.run(command, cwd=desk.folder, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    spec = desk.spec(TEN)
    desk.submit("--sample", "1")
    git("init")
    git("add", spec.name)
    git("commit", "-m", "one")
    git("tag", "-am", "one", "v1")
    desk.submit("--sample", "2")
    spec.write_text(TEN.replace("[a, b]", "[a, b, c]"))
    desk.submit()
    found = [entry.read_manifest() for entry in desk.sweep().submissions()]
    sha = git("rev-parse", "HEAD")
    told = [(one.git_sha, one.git_dirty) for one in found]
    assert told == [(None, None), (sha, False), (sha, True)]


def test_a_point_that_may_outlast_its_job_is_told(desk):
    """A command that did not run yet counts a minute; on this machine, nothing ends it."""
    file = desk.spec("workload: command\naxes: {x: [1, 2]}\nrun: echo {x}\n")
    (desk.folder / "cluster_profiles").mkdir()
    for name, time in (("short", "time: 1\nsignal_lead: 30"), ("long", "time: 60")):
        (desk.folder / f"cluster_profiles/{name}.yaml").write_text(f"gpu: l40\n{time}\n")
    told = desk.run("estimate", file, "--cluster", "short").stderr
    assert "2 points may take longer than a job of profile short has, by the estimate: 60 s" in told
    assert "give the profile more `time`" in told
    for name in ("long", "local"):
        assert "may take longer" not in desk.run("estimate", file, "--cluster", name).stderr


def test_the_time_limit_that_is_kept_is_that_of_the_jobs(desk):
    """For so long a job may live that Slurm does not show here."""
    path = desk.folder / "long.yaml"
    path.write_text("gpu: l40\ntime: 30\nsbatch_options: [--time=600]\n")
    asked = request.make(sweep_file.load(desk.spec(TEN)), profile.load(path))
    submission = written(desk.sweep(), asked).submission
    assert journal.read_journal(submission).time_limit == timedelta(hours=10)


SECRETS = """\
extends: local
env:
  API_TOKEN: tok-5f3a
  OMP_NUM_THREADS: 1
  HPCSWEEP_DATA: https://me:hunter-22@host/data
wrapper_options: []
sbatch_options: ["--export=ALL,KEY=opt-77", "--exclusive", "-Csecret-5"]
"""
HIDDEN = ("tok-5f3a", "hunter-22", "opt-77", "secret-5", "jwt-e0", "comment-c3")


def test_no_secret_of_profile_or_job_is_written(desk, monkeypatch, tmp_path):
    """Variables that are known for what they say stay readable; no file has another one's value."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    desk.spec(SECRETS, "mine.yaml")
    desk.spec(TEN)
    of_job = {"SLURM_JWT": "jwt-e0", "SLURM_JOB_COMMENT": "comment-c3", "SLURM_CLUSTER_NAME": "red"}
    done = desk.run("submit", "sweep.yaml", "--cluster", "./mine.yaml", **of_job)
    assert done.returncode == 0, done.stderr
    written = {path: path.read_text() for path in desk.results.rglob("*") if path.is_file()}
    assert not [path for path, text in written.items() if any(one in text for one in HIDDEN)]
    (submission,) = desk.sweep().submissions()
    fields = submission.read_manifest().profile_fields
    record = submission.read_manifest()
    assert not fields.keys() & {"gpu", *vars(record.run)}  # what the job needs stands there once
    assert (record.gpu, record.run.kill_wait) == ("cpu", 30.0)
    assert fields["env"]["OMP_NUM_THREADS"] == "1"
    assert "--exclusive" in fields["sbatch_options"]
    assert any('"SLURM_CLUSTER_NAME": "red"' in text for text in written.values())


def test_what_an_earlier_version_or_another_machine_wrote_is_masked_too():
    """Lines of the shell and digests; only what is known for what it says stays."""
    assert "x9" not in str(manifest.masked({"setup": ["export A=x9", "a --b x9"]}))
    assert manifest.masked({"env": {"A": "masked:0123456789abcdef", "B": ""}}) == {
        "env": {"A": "masked", "B": ""}
    }


def test_a_job_script_is_for_its_owner(desk, tmp_path):
    """It holds the values as they are."""
    (tmp_path / "red.yaml").write_text(
        "launcher: sbatch\ngpu: l40\ntime: 60\nenv: {API_TOKEN: tok-5f3a}\n"
    )
    submission = folders.new_submission(desk.sweep(), "red")
    job_script.write(submission, profile.load(tmp_path / "red.yaml"), 1)
    assert "tok-5f3a" in submission.script.read_text()
    assert submission.script.stat().st_mode & 0o777 == 0o600
