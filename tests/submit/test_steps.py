"""Submit, again, sampled, twice at once: what a person meets."""

from __future__ import annotations

import csv
import json
import os
import weakref
from collections import Counter

import pytest

import askinghere
import drafts
from gate import Gate
from hpcsweep import messages
from hpcsweep.errors import (
    BadInput,
    CommandFailed,
    Incomplete,
    MissingDependency,
    Occupied,
    PointsFailed,
    Refused,
    ResultsError,
    UsageError,
)
from hpcsweep.spec import profile, sweep_file
from hpcsweep.spec.expansion import Expansion
from hpcsweep.submit import questions, request, steps
from localruns import COMMAND, TEN
from waiting import wait_for

ANEW = request.Options(again=True)


def test_a_sweep_is_measured_once(desk):
    """The second submit finds nothing to do, sends nothing, and says so."""
    desk.spec(TEN)
    first, second = desk.submit(), desk.submit()
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert len(desk.rows()) == 10
    assert "nothing to measure (10 ok)" in second.stdout
    assert len(desk.sweep().submissions()) == 1


def test_a_sweep_that_shrank_has_orphans(measured):
    """Their rows stay and are marked, also when the edit left nothing to measure."""
    measured.spec(TEN.replace("[a, b]", "[a]"))
    done = measured.submit()
    assert "nothing to measure" in done.stdout
    assert "note: 5 measured points no longer in the sweep: orphans, which tables" in done.stderr
    assert "orphans" not in measured.submit().stderr
    assert (
        json.loads(measured.run("collect", "sweep", "--json").stdout)["sweeps"][0]["orphans"] == 5
    )


def test_a_submission_that_was_not_sent_changes_nothing(measured):
    """No folder, no other sweep file; here there is no sbatch."""
    run = measured.sweep()
    before = sorted(path for path in run.path.rglob("*") if path.name != ".lock")
    sweep = run.sweep_file.read_bytes()
    (measured.folder / "site.yaml").write_text("gpu: l40\n")
    measured.spec(TEN.replace("[a, b]", "[c]"))
    done = measured.run("submit", "sweep.yaml", "--cluster", "site.yaml", PATH="/nowhere")
    assert done.returncode == MissingDependency.exit_code, done.stderr
    assert sorted(path for path in run.path.rglob("*") if path.name != ".lock") == before
    assert run.sweep_file.read_bytes() == sweep
    measured.spec(TEN, "other.yaml")
    done = measured.run("submit", "other.yaml", "--cluster", "site.yaml", PATH="/nowhere")
    assert done.returncode == MissingDependency.exit_code, done.stderr
    assert not (measured.results / "other").exists()


def test_a_second_submit_sends_nothing_that_is_on_its_way(desk):
    """What the first one will measure counts as pending; it is named, with how to watch it.

    An estimate counts it apart from what is measured.
    """
    gate = Gate(desk)
    gate.sweep(points=12, passes=0)
    first = desk.start("submit", "sweep.yaml", "--cluster", "local")
    wait_for("point at the gate", gate.waiting)
    told = desk.run("estimate", "sweep.yaml", "--cluster", "local", "--json").stdout
    (cost,) = json.loads(told)["estimates"]
    assert [cost[name] for name in ("points", "already_measured", "queued")] == [0, 0, 12]
    text = desk.run("estimate", "sweep.yaml", "--cluster", "local").stdout
    assert "0 measured already, 12 queued or running" in text
    second = desk.submit()
    assert second.returncode == Incomplete.exit_code
    assert "nothing to measure" in second.stdout
    (submission,) = desk.sweep().submissions()
    assert f"points are already queued or running in {submission.id}" in second.stdout
    assert "hpcsweep status sweep --watch" in second.stdout
    gate.open()
    first.communicate(timeout=300)
    points = [row["point_id"] for row in desk.rows()]
    assert len(points) == len(set(points)) == 12


def test_what_another_host_has_just_submitted_is_seen(desk, nfs, monkeypatch):
    """A listing of NFS may be a minute old; under the lock it is not."""
    desk.spec("workload: noop\naxes: {model: [a]}\n")
    assert desk.submit().returncode == 0
    desk.spec("workload: noop\naxes: {model: [a, b, c]}\n")
    monkeypatch.chdir(desk.folder)
    nfs()
    assert desk.run_process("submit", "sweep.yaml", "--cluster", "local").returncode == 0
    told = desk.submit()
    assert "nothing to measure (3 ok)" in told.stdout, told.stderr
    assert len(desk.rows()) == 3


@pytest.mark.parametrize(
    ("place", "kind", "words"),
    [("file", BadInput, "--results"), ("file/results", ResultsError, "cannot be written")],
)
def test_a_results_folder_that_cannot_be_is_told(desk, place, kind, words):
    """It is a file, or below one: one line."""
    desk.spec(TEN)
    (desk.folder / "file").write_text("")
    done = desk.run("--results", place, "submit", "sweep.yaml")
    assert done.returncode == kind.exit_code
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


OOM = """\
workload: noop
axes:
  model: [a, b]
  batch_size: [1, 2, 4, 8]
  input_size: [10, 20]
measure:
  fail: [{when: {model: a, batch_size: [4, 8]}, how: oom}]
"""


def test_what_is_larger_than_a_known_out_of_memory_is_skipped_on_request_only(desk):
    """Skipping saves the tries, says why, and is undone by the same command without the option."""
    desk.spec(OOM)
    assert desk.submit("--skip-dominated").returncode == 0
    by_point = {(r["model"], r["batch_size"], r["input_size"]): r for r in desk.rows()}
    found = {key: row["status"] for key, row in by_point.items() if row["status"] != "ok"}
    assert found == {
        ("a", "4", "10"): "oom",
        ("a", "4", "20"): "skipped",
        ("a", "8", "10"): "skipped",
        ("a", "8", "20"): "skipped",
    }
    reason = by_point["a", "8", "20"]["status_reason"]
    assert reason.startswith("batch_size 4, input_size 10 ran out of memory already")
    assert "without --skip-dominated" in reason
    assert "nothing to measure" in desk.submit("--skip-dominated").stdout
    assert desk.submit().returncode == 0
    assert Counter(row["status"] for row in desk.rows())["oom"] == 4


def test_a_later_submission_knows_what_ran_out_of_memory_before(desk):
    """The known points come from rows, not from the same attempt alone."""
    desk.spec(OOM + "exclude: [{batch_size: [2, 8]}]\n")
    assert desk.submit().returncode == 0
    desk.spec(OOM)
    assert desk.submit("--skip-dominated").returncode == 0
    statuses = {(r["batch_size"], r["status"]) for r in desk.rows() if r["model"] == "a"}
    assert statuses == {("1", "ok"), ("2", "ok"), ("4", "oom"), ("8", "skipped")}


def test_failed_points_are_told_with_what_to_do_about_them(desk):
    """After measuring, and when nothing is left to measure; in the order of the statuses' table."""
    desk.spec(TEN + "measure: {fail: [{when: {model: a}, how: error}]}\n")
    for head in ("measured 5 ok, 5 error; next:", "nothing to measure (5 ok, 5 error);"):
        done = desk.submit()
        said = done.stdout
        assert done.returncode == PointsFailed.exit_code
        assert head in said
        assert said.rstrip().endswith("; failed points: hpcsweep show sweep, hpcsweep retry sweep")


def test_a_run_on_this_machine_ends_with_tables_if_they_are_asked_for(desk):
    """Failed points are in them, and the exit code is still that of the points."""
    fail = "measure: {fail: [{when: {model: a, input_size: 10}, how: error}]}\n"
    desk.spec(TEN + fail)
    done = desk.submit("--collect")
    assert done.returncode == PointsFailed.exit_code, done.stderr
    assert "next: " not in done.stdout
    table = desk.results / "sweep" / "overall.csv"
    assert f"wrote {table.name}" in done.stdout
    with table.open() as file:
        found = Counter(row["status"] for row in csv.DictReader(file))
    assert found == {"ok": 9, "error": 1}


def test_a_command_runs_on_this_machine_after_the_last_point(desk):
    """Where the user stands, whatever became of the points; not where nothing is measured."""
    (desk.folder / "mine.yaml").write_text("extends: local\nenv: {WHO: me}\nthen: exit 9\n")
    desk.spec(TEN)
    then = "hpcsweep collect sweep && wc -l <results/sweep/overall.csv >after; echo $WHO >>after"
    words = ("submit", "sweep.yaml", "--cluster", "mine.yaml")
    assert desk.run(*words, "--then", then).returncode == 0
    assert (desk.folder / "after").read_text() == "11\nme\n"
    again = desk.run(*words, "--then", "touch late")
    assert "note: nothing was submitted, so `touch late` is not run" in again.stderr
    assert not (desk.folder / "late").exists()
    failing = desk.run(*words, "--again")
    assert "warning: `exit 9` ended with exit code 9" in failing.stderr
    assert failing.returncode == CommandFailed.exit_code


def test_tables_are_not_promised_of_rows_that_come_later(desk):
    """Jobs end after the command, and a dry run measures for nobody."""
    desk.spec(TEN)
    (desk.folder / "queue.yaml").write_text("gpu: l40\n")
    for words in (["--cluster", "queue.yaml"], ["--dry-run", "--cluster", "local"]):
        done = desk.run("submit", "sweep.yaml", "--collect", *words)
        assert done.returncode == UsageError.exit_code
        assert "--collect needs rows, and " in done.stderr
        assert "run `hpcsweep collect` then" in done.stderr
    assert not desk.results.exists()


_ONE = """\
workload: inference
axes: {model: [resnet18], input_size: [32]}
measure: {warmup: 1, iterations: 2, evidence: false, numerics: false}
"""


def _submit(pretend_gpu, desk, *more, **variables):
    command = (*COMMAND, "submit", "sweep.yaml", "--cluster", "local", *more)
    return pretend_gpu.run(*command, cwd=desk.folder, **variables)


@pytest.mark.slow
def test_rows_have_the_name_of_the_gpu_that_cuda_shows_to_the_process(pretend_gpu, desk):
    """Of several others, `nvidia-smi` lists another one first; what NVML does not tell is said."""
    desk.spec(_ONE)
    lists = desk.folder / "nvidia-smi"
    lists.write_text("#!/bin/sh\necho NVIDIA L40S; echo NVIDIA H100 80GB HBM3\n")
    lists.chmod(0o755)
    done = _submit(
        pretend_gpu,
        desk,
        PATH=f"{desk.folder}:{os.environ['PATH']}",
        CUDA_VISIBLE_DEVICES="1",
        PRETEND_FAIL="nvmlInitWithFlags=9",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {(row["gpu"], row["device_name"]) for row in desk.rows()} == {
        ("h100", "NVIDIA H100 80GB HBM3")
    }
    told = [line for line in done.stderr.splitlines() if "NVML does not start" in line]
    assert len(told) == 1
    assert "(Driver Not Loaded): see what nvidia-smi says; a container needs" in told[0]
    assert "these are off: clock, power, temperature, throttling, energy, and who" in told[0]


def test_a_gpu_that_a_variable_hides_is_named_with_the_variable(pretend_gpu, desk):
    """The CPU is measured, in rows of its own; a local run has no gres."""
    desk.spec(_ONE)
    done = _submit(pretend_gpu, desk, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["gpu"] for row in desk.rows()} == {"cpu"}
    assert (
        "warning: no GPU is seen with CUDA_VISIBLE_DEVICES='', so the CPU is measured; unset "
        "CUDA_VISIBLE_DEVICES to measure a GPU\n"
    ) in done.stderr
    assert "gres" not in done.stdout + done.stderr


def test_several_workers_on_one_gpu_are_refused_before_anything_runs(pretend_gpu, desk):
    """By the option, or by the profile, whose line is named; not for a program of one's own."""
    desk.spec(_ONE)
    done = _submit(pretend_gpu, desk, "--workers", "2")
    assert done.returncode == Refused.exit_code
    assert done.stderr == (
        "hpcsweep: 2 workers would share this machine's first GPU (h100), and disturb each other's "
        "times: submit with --workers 1\n"
    )
    (desk.folder / "two.yaml").write_text("launcher: local\nworkers: 2\n")
    command = (*COMMAND, "submit", "sweep.yaml", "--cluster", "two.yaml")
    done = pretend_gpu.run(*command, cwd=desk.folder)
    assert done.stderr.endswith("submit with `workers: 1` (two.yaml:2)\n")
    assert not desk.results.exists()
    desk.spec(TEN)
    assert pretend_gpu.run(*command, cwd=desk.folder).returncode == 0


def test_a_run_that_measured_nothing_names_no_tables(pretend_gpu, desk):
    """Why it stopped is the last word but one, and has its exit code."""
    desk.spec(_ONE)
    done = _submit(pretend_gpu, desk, PRETEND_MEMORY="1000000")
    assert done.returncode == Occupied.exit_code
    assert "warning: stopped: 'NVIDIA H100 80GB HBM3' is full: CUDA out of memory." in done.stderr
    assert done.stdout.endswith("sweep: measured nothing\n")


def test_jobs_of_a_python_without_nvml_are_told_before_the_queue(monkeypatch, desk):
    """Which checks are off, and what to install; jobs with a Python of their own may have it."""
    told = []
    monkeypatch.setattr("hpcsweep.extras.lacking", lambda _: ["nvidia-ml-py"])
    desk.spec("gpu: h100\n", "plain.yaml")
    desk.spec("gpu: h100\npython: /opt/python\n", "own.yaml")
    sweep = sweep_file.load(desk.spec(_ONE))
    with messages.told_to(lambda message: told.append(str(message))):
        for name in ("plain", "own"):
            steps._tell_device(request.make(sweep, profile.load(desk.folder / f"{name}.yaml")))
    (line,) = told
    assert line.startswith(
        "warning: jobs run this Python, without nvidia-ml-py: pip install 'hpcsweep[nvidia]'; "
        "these are off: clock, power, temperature, throttling, energy, and who else uses the GPU"
    )


@pytest.fixture
def counted(monkeypatch):
    """Count the expansions that are made, the runs through them, and points that are alive."""
    counts = Counter()
    alive = weakref.WeakValueDictionary()
    make, run = Expansion.__init__, Expansion.__iter__

    def making(self, *arguments, **more):
        counts["made"] += 1
        make(self, *arguments, **more)

    def running(self):
        counts["runs"] += 1
        for point in run(self):
            alive[point.point_id] = point
            counts["most alive"] = max(counts["most alive"], len(alive))
            yield point

    monkeypatch.setattr(Expansion, "__init__", making)
    monkeypatch.setattr(Expansion, "__iter__", running)
    return counts


def test_a_sweep_is_expanded_once_and_run_through_once(desk, counted):
    """To pack it; also where nothing is left. What --again begins is compared with it before."""
    sweep = sweep_file.load(desk.spec("workload: noop\naxes: {model: [a], input_size: [1, 2]}\n"))
    for options, runs in ((request.Options(), 1), (request.Options(), 1), (ANEW, 2)):
        counted.clear()
        assert steps.submit(desk.results, request.of_cluster(sweep, "local", options)) == 0
        assert (counted["made"], counted["runs"]) == (1, runs)


def test_what_is_asked_about_networks_takes_few_runs_through_the_points(desk, monkeypatch, counted):
    """One for all that torch is asked, one for what libcudnn is; to compare own files, to pack."""
    monkeypatch.setattr(questions, "asking", askinghere.asking)
    (desk.folder / "mine.py").write_text(
        "from torch import nn\ndef net():\n    return nn.Sequential(nn.Conv2d(3, 4, 3))\n"
    )
    spec = desk.spec(
        "workload: inference\n"
        "axes: {model: ['mine:net'], input_size: [8, 9], algorithm: [gemm, {'0': gemm}]}\n"
    )
    site = desk.spec("gpu: h100\nlauncher: sbatch\n", "site.yaml")
    asked = request.of_cluster(sweep_file.load(spec), str(site))
    (job,) = steps.checked(desk.results, [asked])
    assert counted["runs"] <= 2
    drafts.written(desk.sweep(), asked)
    assert job.operations
    assert (counted["made"], counted["runs"] <= 4) == (1, True)


def test_points_are_never_listed(desk, counted):
    """300,000 of them would take 226 MB: only those of the chunk that is packed are alive."""
    sizes = "input_size: {start: 1, stop: 999, step: 1}"
    spec = desk.spec(f"workload: noop\naxes: {{model: [a], {sizes}}}\n")
    site = desk.spec("gpu: l40\nmax_points_per_chunk: 10\n", "site.yaml")
    asked = request.of_cluster(sweep_file.load(spec), str(site))
    assert drafts.written(desk.sweep(), asked).points == 999
    assert 10 <= counted["most alive"] <= 30


@pytest.mark.slow
def test_verify_says_too_that_the_cpu_is_looked_at(pretend_gpu, desk):
    """What it proves on the CPU is not proven on the GPU."""
    desk.spec(_ONE)
    command = (*COMMAND, "verify", "sweep.yaml")
    done = pretend_gpu.run(*command, cwd=desk.folder, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert "no GPU is seen with CUDA_VISIBLE_DEVICES='', so the CPU is measured" in done.stderr
