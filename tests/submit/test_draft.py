"""What a submission records, which points it leaves to those before it, and how it packs them."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise, product
from math import ceil, inf
from operator import itemgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafts import written
from hpcsweep.cluster.slurm import job_script, journal
from hpcsweep.errors import ResultsError
from hpcsweep.point import Point
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import folders, manifest
from hpcsweep.submit import comparison, draft, request
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


COSTS = st.lists(st.floats(min_value=0.0, max_value=50.0), max_size=60)


def shared(_point):
    """Let all points share a worker."""


def points(costs: list[float]) -> list[Point]:
    """Return points that say what they cost."""
    return [
        Point("noop", {"seed": i, "cost": cost}, {}, f"{i:016x}") for i, cost in enumerate(costs)
    ]


def swept(visits=3, models=2, sizes=4, algorithms=("auto", "gemm", "fft")):
    """Return the points of a sweep in its order: model, size, algorithm, visit."""
    axes = product(range(models), range(sizes), algorithms, range(1, visits + 1))
    return [
        Point("noop", {"model": m, "input_size": s, "algorithm": a, "visit": v}, {}, f"{i:016x}")
        for i, (m, s, a, v) in enumerate(axes)
    ]


def test_what_will_be_compared_stays_in_one_chunk():
    """All algorithms and visits of a configuration, also where the limit is in their middle."""
    for most in (9, 10, 17, 20):
        limits = draft.Limits(inf, most)
        chunks = list(draft.packed(draft.blocks(swept()), lambda _: 1.0, shared, limits))
        assert [point for chunk in chunks for point in chunk.points] == swept()
        for chunk in chunks:
            configurations = Counter((p.axes["model"], p.axes["input_size"]) for p in chunk.points)
            assert set(configurations.values()) == {9}


def test_a_chunk_measures_one_visit_after_the_other_in_random_complete_blocks():
    """Each visit has every point once; a network is built once; algorithms lie side by side."""
    (chunk,) = draft.packed(draft.blocks(swept()), lambda _: 1.0, shared, draft.Limits(inf, 1000))
    order = draft.arranged(chunk).points
    assert sorted(p.point_id for p in order) == [p.point_id for p in swept()]
    assert [p.axes["visit"] for p in order] == [1] * 24 + [2] * 24 + [3] * 24
    visits = [[(p.axes["model"], p.axes["input_size"], p.axes["algorithm"])
               for p in order[at : at + 24]] for at in (0, 24, 48)]  # fmt: skip
    assert len({tuple(visit) for visit in visits}) == 3
    for visit in visits:
        assert len({of[0] for of in visit[:12]}) == len({of[0] for of in visit[12:]}) == 1
        for at in range(0, 24, 3):
            assert len({of[:2] for of in visit[at : at + 3]}) == 1
    assert draft.arranged(replace(chunk, points=chunk.points[::-1])).points == order


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.integers(1, 60))
def test_arranging_loses_nothing(visits: int, models: int, sizes: int, most: int) -> None:
    """Whatever the sweep and the limit."""
    points_ = swept(visits, models, sizes)
    limits = draft.Limits(inf, most)
    chunks = map(draft.arranged, draft.packed(draft.blocks(points_), lambda _: 1.0, shared, limits))
    assert sorted(p.point_id for chunk in chunks for p in chunk.points) == [
        p.point_id for p in points_
    ]


def single(points):
    """Return each point as a block of its own."""
    return [[point] for point in points]


def cost(point: Point) -> float:
    """Return what a point costs."""
    return float(point.axes["cost"])


@given(COSTS, st.floats(min_value=1.0, max_value=100.0), st.integers(min_value=1, max_value=20))
def test_packing_loses_nothing_and_keeps_order_and_limits(
    costs: list[float], seconds: float, most: int
) -> None:
    """Only a point that is over the limit by itself may exceed it, alone."""
    made = points(costs)
    chunks = list(draft.packed(single(made), cost, shared, draft.Limits(seconds, most)))
    assert [point for chunk in chunks for point in chunk.points] == made
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    for chunk in chunks:
        assert 1 <= len(chunk.points) <= most
        assert chunk.seconds == pytest.approx(sum(cost(point) for point in chunk.points))
        assert chunk.seconds <= seconds * (1 + 1e-9) or len(chunk.points) == 1


@given(COSTS, st.floats(min_value=1.0, max_value=100.0))
def test_packing_starts_a_chunk_only_where_the_next_point_does_not_fit(
    costs: list[float], seconds: float
) -> None:
    """A start of Python and CUDA is paid once for as many points as possible."""
    chunks = list(draft.packed(single(points(costs)), cost, shared, draft.Limits(seconds, 1000)))
    for chunk, following in pairwise(chunks):
        assert chunk.seconds + cost(following.points[0]) > seconds


@given(COSTS, st.integers(min_value=1, max_value=8))
def test_sharing_over_workers_loses_nothing(costs: list[float], workers: int) -> None:
    """At most one chunk per worker, none empty, in order."""
    made = points(costs)
    chunks = list(draft.spread(single(made), cost, shared, draft.Limits(), workers))
    assert [point for chunk in chunks for point in chunk.points] == made
    assert len(chunks) <= workers
    assert all(chunk.points for chunk in chunks)
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))


def test_points_are_spread_over_tasks_within_the_limits():
    """Of about equal time; each point once, in order; more tasks where one would be too large."""

    def cut(number, tasks, seconds=1e9, points=2000):
        limits = draft.Limits(seconds, points)
        return list(draft.spread(single(range(number)), lambda _: 1.0, shared, limits, tasks))

    chunks = cut(300, 4)
    assert [len(chunk.points) for chunk in chunks] == [75] * 4
    assert [chunk.index for chunk in chunks] == [0, 1, 2, 3]
    assert [point for chunk in chunks for point in chunk.points] == [*range(300)]
    assert [len(chunk.points) for chunk in cut(2, 4)] == [1, 1]
    assert [len(chunk.points) for chunk in cut(300, 2, points=100)] == [100, 50, 100, 50]
    assert {chunk.seconds for chunk in cut(300, 3, seconds=50.0)} == {50.0}


@given(st.lists(st.integers(1, 9), min_size=1, max_size=60), st.integers(10, 60), st.integers(2, 8))
def test_evening_out_loses_nothing_and_keeps_the_limits(
    costs: list[int], seconds: int, per_job: int
) -> None:
    """In order; there are as many jobs as before, and all but the last have a chunk a GPU."""
    made = points([float(each) for each in costs])
    limits = draft.Limits(float(seconds), 20)
    packed = list(draft.packed(single(made), cost, shared, limits))
    chunks = list(draft.evened(packed, cost, shared, limits, per_job))
    assert [point for chunk in chunks for point in chunk.points] == made
    assert [chunk.index for chunk in chunks] == list(range(len(chunks)))
    assert all(chunk.seconds <= seconds and len(chunk.points) <= 20 for chunk in chunks)
    assert ceil(len(chunks) / per_job) == ceil(len(packed) / per_job)


def test_the_gpus_of_a_job_get_about_equal_work():
    """Seven chunks' worth for two jobs of four GPUs; what is compared stays on one of them."""
    made = swept(visits=1, models=1, sizes=28)  # of three points each
    limits = draft.Limits(12.0, 1000)
    packed = draft.packed(draft.blocks(made), lambda _: 1.0, shared, limits)
    chunks = list(draft.evened(packed, lambda _: 1.0, shared, limits, 4))
    assert [chunk.seconds for chunk in chunks] == [12.0, 12.0, 12.0, 12.0, 9.0, 9.0, 9.0, 9.0]
    few = draft.packed(draft.blocks(made[:6]), lambda _: 1.0, shared, limits)
    chunks = list(draft.evened(few, lambda _: 1.0, shared, limits, 4))
    assert [chunk.seconds for chunk in chunks] == [3.0, 3.0]


def test_each_worker_of_a_chunk_has_its_start():
    """Of two networks in turns, both workers are there after two points; a new chunk pays again."""
    made = [[(1.0, name)] for name in "abab" + "bbb"]
    limits = draft.Limits(seconds=20.0, start=2.0, worker=5.0)
    chunks = list(draft.packed(made, itemgetter(0), itemgetter(1), limits))
    assert [(len(chunk.points), chunk.seconds) for chunk in chunks] == [(7, 19.0)]
    chunks = list(draft.packed(made, itemgetter(0), itemgetter(1), replace(limits, seconds=16.0)))
    assert [(len(chunk.points), chunk.seconds) for chunk in chunks] == [(4, 16.0), (3, 10.0)]
