"""Sweeps on a real Slurm through submitit: the same chunks, rows and journal as through sbatch."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gate import Gate
from labtools import arrays, job_numbers, queue, wait_for_the_end
from localruns import Desk

if TYPE_CHECKING:
    from hpcsweep.store.folders import SubmissionDir
    from lab import Lab

SIX = "name: s\nworkload: noop\naxes: {model: [resnet18], input_size: [64, 65, 66, 67, 68, 69]}\n"
SLOW = """\
name: s
workload: noop
axes: {model: [resnet18], input_size: {start: 1, stop: 20, num: 20}}
measure: {sleep_ms: 100}
"""  # two seconds
SITE = f"""\
launcher: submitit
gpu: {{gpu}}
partition: gpu
constraint: {{feature}}
gres: 'gpu:1'
python: {sys.executable}
max_points_per_chunk: 1
cpus_per_task: 2
kill_wait: 1
signal_lead: 20
time: 30
"""
# Where submitit unpickled something, its modules are written down when it ends.
WITNESS = """\
import atexit, json, os, sys
def note():
    if "hpcsweep.cluster.slurm.via_submitit" in sys.modules:
        with open(f"{os.environ['WITNESS']}/{os.getpid()}.json", "w") as file:
            json.dump(sorted(sys.modules), file)
atexit.register(note)
"""


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a folder with a sweep and two profiles; its name is hostile."""
    folder = tmp_path / 'it\'s a "desk"'
    desk = Desk(folder)
    (folder / "cluster_profiles").mkdir(parents=True)
    for gpu, feature in (("v100", "gpu2v100"), ("l40", "gpul40s")):
        profile(desk, gpu, SITE.format(gpu=gpu, feature=feature))
    desk.spec(SIX, "s.yaml")
    return desk


def profile(desk: Desk, name: str, text: str) -> None:
    """Write a profile; one that says little extends v100."""
    text = text if "gpu:" in text else f"extends: v100\n{text}"
    (desk.folder / f"cluster_profiles/{name}.yaml").write_text(text)


def submit(desk: Desk, gpu: str = "v100", *more: str) -> SubmissionDir:
    """Submit the sweep; return the newest submission."""
    done = desk.run("submit", "s.yaml", "--cluster", gpu, *more)
    assert done.returncode == 0, done.stderr
    return desk.sweep("s").submissions()[-1]


def tries(desk: Desk) -> Counter[str]:
    """Return how many rows each point has."""
    return Counter(row["point_id"] for row in desk.rows("s"))


def test_a_cluster_without_accounting_is_enough(bare_cluster: Lab, desk: Desk, tmp_path: Path):
    """And on the node submitit loads its launcher, but nothing of the submitting side.

    Six chunks at five tasks an array; the one that is left is listed as a task, too.
    """
    (tmp_path / "sitecustomize.py").write_text(WITNESS)
    profile(desk, "seen", f"env: {{PYTHONPATH: {tmp_path}, WITNESS: {tmp_path}}}\n")
    first, second = arrays(submit(desk, "seen"))
    assert [(job.first_chunk, job.tasks) for job in (first, second)] == [(0, 5), (5, 1)]
    assert [job.id.key for job in queue([second.job_id])] == [(int(second.job_id), 0)]
    wait_for_the_end(bare_cluster)
    assert sorted(tries(desk).values()) == [1] * 6
    notes = list(tmp_path.glob("*.json"))
    assert len(notes) == 6
    for note in notes:
        loaded = set(json.loads(note.read_text()))
        assert "submitit" in loaded
        heavy = {
            "pandas",
            "pydantic",
            "jinja2",
            "yaml",
            "torch",
            "hpcsweep.cluster.slurm.job_script",
            "hpcsweep.spec.profile",
        }
        assert not loaded & heavy


@pytest.mark.no_second_try
def test_a_preempted_chunk_goes_on_in_its_next_attempt(cluster: Lab, desk: Desk):
    """On submitit's signal the point ends and the job is requeued; no point is lost."""
    gate = Gate(desk)
    gate.sweep(points=8, passes=3, name="s")
    profile(desk, "one", "max_points_per_chunk: 20\n")
    submission = submit(desk, "one")
    (sent,) = arrays(submission)
    cluster.wait_for("point at the gate", gate.waiting)
    cluster.run("scancel", "--signal=USR2", sent.job_id)
    # the point at the gate is dropped after `kill_wait`
    cluster.wait_for(
        "second attempt", lambda: submission.attempts(0), enough=lambda found: len(found) == 2
    )
    gate.open()
    wait_for_the_end(cluster)
    assert sorted(tries(desk).values()) == [1] * 8
    first, second = submission.attempts(0)
    assert json.loads(first.env.read_text())["reason"] == "SIGUSR2"
    assert json.loads(second.env.read_text())["state"] == "done"


@pytest.mark.no_second_try
def test_a_chunk_that_its_time_does_not_hold_goes_on_in_its_next_attempt(cluster: Lab, desk: Desk):
    """The supervisor stops by itself before the deadline; that asks for a checkpoint, too."""
    desk.spec(SLOW, "s.yaml")
    soon = 'test -n "$SLURM_RESTART_COUNT" || HPCSWEEP_DEADLINE=$(( $(date +%s) + 3 ))'
    profile(desk, "one", f"max_points_per_chunk: 20\nsetup: [{json.dumps(soon)}]\n")
    submission = submit(desk, "one")
    wait_for_the_end(cluster)
    assert sorted(tries(desk).values()) == [1] * 20
    assert len(submission.attempts(0)) == 2


@pytest.mark.no_second_try
def test_a_cancelled_chunk_stays_cancelled_until_it_is_submitted_again(cluster: Lab, desk: Desk):
    """What was measured stays; the same command sends the rest."""
    gate = Gate(desk)
    gate.sweep(points=8, passes=3, name="s")
    profile(desk, "one", "max_points_per_chunk: 20\n")
    (sent,) = arrays(submit(desk, "one"))
    cluster.wait_for("point at the gate", gate.waiting)
    cluster.run("scancel", sent.job_id)
    cluster.wait_for("SIGTERM", gate.was_told)
    gate.open()
    wait_for_the_end(cluster)
    states = {job.state.name for job in queue([sent.job_id])}
    assert states == {"CANCELLED"}
    assert 3 <= len(tries(desk)) <= 4  # the fourth has a second to end
    submit(desk, "one")
    wait_for_the_end(cluster)
    assert sorted(tries(desk).values()) == [1] * 8


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_setup_line_that_fails_is_named_and_ends_the_job(cluster: Lab, desk: Desk, chunks: int):
    """With exit code 5, before any Python starts; `logs` shows it, of whichever chunk."""
    profile(desk, "bad", f"max_points_per_chunk: {6 // chunks}\nsetup: ['no_such_tool --x']\n")
    (sent,) = arrays(submit(desk, "bad"))
    wait_for_the_end(cluster)
    for chunk in (None, chunks - 1):
        shown = desk.run("logs", "s", *([] if chunk is None else [str(chunk)]))
        assert "this setup line failed: no_such_tool --x" in shown.stdout, shown.stderr
    shown = cluster.run("scontrol", "show", "job", f"{sent.job_id}_0")
    assert "ExitCode=5:0" in shown.stdout


@pytest.mark.parametrize("chunks", [1, 2])
def test_what_a_requeued_job_prints_before_its_worker_is_shown(
    cluster: Lab, desk: Desk, chunks: int
):
    """Behind the log of the attempt before."""
    gate = Gate(desk)
    gate.sweep(points=6, passes=1, name="s")
    once = 'test -z "$SLURM_RESTART_COUNT" || { echo no node; false; }'
    size = f"max_points_per_chunk: {6 // chunks}\n"
    profile(desk, "once", f"{size}setup: [{json.dumps(once)}]\n")
    (sent,) = arrays(submit(desk, "once"))
    cluster.wait_for("point at the gate", gate.waiting)
    cluster.run("scancel", "--signal=USR2", f"{sent.job_id}_0")
    shown = cluster.wait_for(
        "words of the second start",
        lambda: desk.run("logs", "s", "0").stdout,
        enough=lambda said: "this setup line failed" in said,
    )
    assert "no node" in shown
    assert "/0.0.log <==" in shown


def test_a_dry_run_shows_what_is_sent(cluster: Lab, desk: Desk):
    """The script of the first array, word for word but for the submission's name."""
    more = "['--comment=\"two words\"', --nice=7, --no-kill]"
    profile(desk, "full", f"qos: normal\nmem: 512M\narray_throttle: 3\nsbatch_options: {more}\n")
    before = job_numbers()
    done = desk.run("submit", "s.yaml", "--cluster", "full", "--dry-run", TMPDIR=str(desk.folder))
    assert done.returncode == 0, done.stderr
    assert "Slurm would accept this job: partition gpu, nodes v100n1" in done.stdout
    assert job_numbers() <= before
    submission = submit(desk, "full")
    (script,) = submission.submitit.glob("*_submission.sh")
    text = script.read_text()
    draft = Path(re.search(r"submit would send the files in (.*)", done.stdout)[1])
    assert text.replace(submission.id, draft.name).strip() in done.stdout
    for option in ("array=0-5%3", "mem=512M", "qos=normal", "comment='two words'", "nice=7"):
        assert f"#SBATCH --{option}\n" in text
    assert "#SBATCH --no-kill\n" in text
    assert "#SBATCH --signal=USR2@20\n" in text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("time: null\n", "`time` is missing"),
        ("sbatch_options: ['--comment=a\\']\n", "No escaped character"),
        ("wrapper: nsys\n", "needs launcher: sbatch"),
    ],
)
def test_what_submitit_cannot_take_is_refused(cluster: Lab, desk: Desk, text: str, told: str):
    """With the file's name, exit code 2, and nothing left behind."""
    profile(desk, "odd", text)
    done = desk.run("submit", "s.yaml", "--cluster", "odd")
    assert done.returncode == 2
    assert told in done.stderr
    assert desk.sweep("s").submissions() == []


def test_a_folder_whose_name_slurm_would_expand_is_refused(cluster: Lab, desk: Desk):
    """A per cent sign stands for a job's number, to Slurm and to submitit."""
    done = desk.run("--results", "100%j", "submit", "s.yaml", "--cluster", "v100")
    assert done.returncode == 2
    assert "'%'" in done.stderr


def test_a_refusal_of_slurm_is_told_in_its_words(cluster: Lab, desk: Desk):
    """The profile's key is named, and nothing is left behind."""
    profile(desk, "typo", "partition: gpuu\n")
    done = desk.run("submit", "s.yaml", "--cluster", "typo", "--no-doctor")
    assert (done.returncode, "`partition`" in done.stderr) == (7, True)
    assert desk.sweep("s").submissions() == []
