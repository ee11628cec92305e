"""How long points will take, before and after there are rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import resultsfolder
import timedrows
from drafts import written
from hpcsweep.errors import Refused
from hpcsweep.point import Point
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store.folders import SweepDir
from hpcsweep.submit import estimate, request
from hpcsweep.submit.cost import cost_of
from hpcsweep.submit.estimate import EstimateBasis
from hpcsweep.submit.passes import Operations, Peaks
from localruns import Desk
from timedrows import Law

LAW = Law()
TWO = resultsfolder.SWEEP.replace("[resnet18]", "[resnet18, vgg11]")
SIZES = """\
name: demo
workload: inference
axes:
  model: [resnet18, vgg11]
  input_size: {start: 64, stop: 256, num: 13}
  algorithm: [gemm, winograd]
"""


def asked_of(path, text=SIZES, cluster="local"):
    """Return the request for a sweep."""
    (path / "demo.yaml").write_text(text)
    return request.make(sweep_file.load(path / "demo.yaml"), profile.load(cluster))


def after(path, is_measured, law=LAW, text=SIZES, **cells):
    """Return an estimator, the folder, and the request after some points were measured."""
    folder, asked = resultsfolder.make(path, text), asked_of(path, text)
    chosen = [point for point in folder.points if is_measured(point)]
    timedrows.measure(folder, folder.submit("20260101-000000-local").id, chosen, law, **cells)
    return estimate.estimator(folder.sweep_dir, asked), folder, asked


def off(seconds_of, points, law=LAW):
    """Return by what factor each estimate is off, without the start of workers."""
    ratios = [seconds_of(point) / law.wall_s(point) for point in points]
    return [max(ratio, 1 / ratio) for ratio in ratios]


def test_what_was_measured_is_told_as_it_was(tmp_path):
    """With the start of the worker and of the other network, as rows tell them."""
    seconds_of, folder, _ = after(tmp_path, lambda _: True)
    wrong = sorted(off(seconds_of, folder.points))
    assert wrong[-3] < 1.01
    assert wrong[-1] < 1.2  # the first of each network waited, so its own time is not known
    assert set(seconds_of.counts) == {EstimateBasis.MEASURED}
    assert seconds_of.start == pytest.approx(LAW.worker, rel=0.05)
    assert seconds_of.worker == pytest.approx(LAW.network, rel=0.1)


@pytest.mark.parametrize(
    ("is_measured", "more"),
    [
        (lambda axes: axes["input_size"] in {64, 128, 192}, ""),
        (lambda axes: axes["batch_size"] != 2, "  batch_size: [1, 2, 4]\n"),
    ],
)
def test_a_few_sizes_tell_the_others(tmp_path, is_measured, more):
    """Of images or batches, by network and algorithm; beyond the largest, too."""
    seconds_of, folder, _ = after(tmp_path, lambda p: is_measured(p.axes), text=SIZES + more)
    assert max(off(seconds_of, folder.points)) < 1.25
    assert set(seconds_of.counts) == {EstimateBasis.MEASURED}


def test_more_passes_take_longer_by_their_time_alone(tmp_path):
    """What comes beside the passes stays as it was measured."""
    _, folder, asked = after(tmp_path, lambda _: True)
    many = replace(asked.sweep, measure={**asked.sweep.measure, "iterations": 2000})
    seconds_of = estimate.estimator(folder.sweep_dir, replace(asked, sweep=many))
    point = folder.points[0]
    more = 1980 * 2 * LAW.pass_s(point)
    assert seconds_of(point) == pytest.approx(LAW.wall_s(point) + more, rel=0.05)


def test_an_algorithm_that_was_not_measured_rests_on_the_others(tmp_path):
    """The table of peaks, times what rows of the same network took longer."""
    seconds_of, folder, _ = after(tmp_path, lambda point: point.axes["algorithm"] == "gemm")
    others = [point for point in folder.points if point.axes["algorithm"] == "winograd"]
    assert max(off(seconds_of, others)) < 2
    assert set(seconds_of.counts) == {EstimateBasis.OTHERS}


def test_the_time_of_an_own_network_is_a_guess_until_it_was_tried(tmp_path):
    """The table of peaks knows the device; the trial counts operations and convolutions."""
    asked = asked_of(tmp_path)
    axes = next(asked.points()).axes
    own = Point("inference", {**axes, "model": "mine:net"}, {})
    folder = resultsfolder.make(tmp_path, SIZES)
    seconds_of = estimate.estimator(folder.sweep_dir, asked)
    seconds = seconds_of(own)
    assert seconds_of.about(seconds).endswith(", a guess: no table has these networks")
    assert "1 from a guess of 10 GFLOPs an image" in seconds_of.basis()
    tried = {"mine:net": Operations(0.01, 3)}
    seconds_of = estimate.estimator(folder.sweep_dir, asked, tried)
    assert seconds_of(own) < seconds / 2
    assert set(seconds_of.counts) == {EstimateBasis.PEAKS}


def test_rows_that_are_not_valid_teach_nothing(tmp_path):
    """Six seconds are not told as the minutes that they took on a busy machine."""
    slow = replace(LAW, image={"gemm": 5.0, "winograd": 8.0})
    seconds_of, folder, _ = after(
        tmp_path, lambda _: True, slow, valid=False, flags="contended;very_noisy"
    )
    assert seconds_of(folder.points[0]) < LAW.wall_s(folder.points[0]) * 3
    assert set(seconds_of.counts) == {EstimateBasis.PEAKS}
    assert not seconds_of.rows


def test_of_a_device_without_a_sheet_nothing_is_known_until_rows_are(tmp_path):
    """It is no CPU: estimate and submission say so; then its own rows tell."""
    (tmp_path / "banana.yaml").write_text("gpu: banana\ntime: 30\n")
    folder = resultsfolder.make(tmp_path, SIZES)
    asked = asked_of(tmp_path, cluster=tmp_path / "banana.yaml")
    told = cost_of(folder.sweep_dir.path.parent, asked)
    assert "expected: nobody knows how long on banana" in told.text()
    assert "52 from nothing: the catalogue lacks this device" in told.text()
    assert told.to_json()["gpu_hours"] == {"banana": None}
    limited = replace(asked, options=request.Options(max_gpu_hours=1000.0))
    with pytest.raises(Refused, match="--max-gpu-hours cannot be kept"):
        written(folder.sweep_dir, limited)
    sent = written(folder.sweep_dir, asked)
    assert "52 points on banana, nobody knows how long" in sent.headline
    points = resultsfolder.points_of(tmp_path, SIZES, "banana")
    submission = folder.submit("20260101-000000-banana", gpu="banana").id
    timedrows.measure(folder, submission, points[:26:8], LAW)
    seconds_of = estimate.estimator(folder.sweep_dir, asked)
    assert max(off(seconds_of, points[:26:2])) < 1.7
    assert set(seconds_of.counts) == {EstimateBasis.MEASURED}


def test_rows_of_a_noop_teach_nothing(tmp_path):
    """It lasts as long as the sweep says, however many rows there are already."""
    desk = Desk(tmp_path)
    desk.spec(
        "workload: noop\naxes: {model: [a], input_size: [1, 2, 3, 4]}\nmeasure: {sleep_ms: 300}\n"
    )
    assert desk.run("submit", "sweep.yaml", "--cluster", "local", "--sample", "1").returncode == 0
    (told,) = json.loads(desk.run("estimate", "sweep.yaml", "--json").stdout)["estimates"]
    assert (told["points"], told["rests_on"]) == (3, {"given": 3})
    assert sum(told["gpu_hours"].values()) * 3600 == pytest.approx(0.9, abs=0.1)


def test_every_gpu_of_a_job_counts_until_the_last_one_has_ended(tmp_path):
    """Nine points on eight GPUs: one has two of them, and seven wait for it."""
    desk = Desk(tmp_path)
    (tmp_path / "cluster_profiles").mkdir()
    profile = "gpu: mi250\ngres: gpu:8\ngpus_per_job: 8\ntime: 30\n"
    (tmp_path / "cluster_profiles/node.yaml").write_text(profile)
    desk.spec(
        "workload: noop\naxes: {model: [a], input_size: [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n"
        "measure: {sleep_ms: 2000}\n"
    )
    (told,) = json.loads(desk.run("estimate", "--cluster", "node", "sweep.yaml", "--json").stdout)[
        "estimates"
    ]
    assert (told["points"], told["chunks"]) == (9, 8)
    assert sum(told["rests_on"].values()) == 9
    assert told["gpu_hours"]["mi250"] * 3600 == pytest.approx(8 * 4, abs=0.5)
    text = desk.run("estimate", "--cluster", "node", "sweep.yaml").stdout
    assert "shared by the 8 GPUs of a job (0.0089 GPU-hours" in text
    refused = desk.run("submit", "--cluster", "node", "sweep.yaml", "--max-gpu-hours", "0.006")
    assert refused.returncode == Refused.exit_code
    assert "the estimate of 0.00" in refused.stderr


def test_a_command_counts_a_minute_until_it_ran_and_says_so(tmp_path):
    """Then a point has its own time, another the mean of all; a failed one tells nothing."""
    desk = Desk(tmp_path)
    text = "workload: command\nshell: true\naxes: {x: [0.1, 0.5, 9]}\n"
    text += "run: test {x} != 9 && sleep {x}\n"
    desk.spec(text)
    first = desk.run("submit", "sweep.yaml", "--cluster", "local").stdout
    assert "3 points on cpu, about 3 min, a guess of a minute each" in first
    desk.spec(text.replace("9]", "9, 8]"))
    again = desk.run("estimate", "sweep.yaml", "--again", "--json").stdout
    (told,) = json.loads(again)["estimates"]
    assert told["rests_on"] == {"runs": 4}
    assert 1.2 < sum(told["gpu_hours"].values()) * 3600 < 30  # not minutes, on a busy machine, too


def test_an_estimate_says_what_it_rests_on(tmp_path):
    """First on the catalogue alone, then on rows."""
    folder, asked = resultsfolder.make(tmp_path, SIZES), asked_of(tmp_path)
    bare = cost_of(folder.sweep_dir.path.parent, asked)
    assert bare.to_json()["share_from_rows"] == 0
    assert "52 from the table of peaks: nothing valid was measured on this device" in bare.text()
    half = [point for point in folder.points if point.axes["model"] == "resnet18"]
    half = [point for point in half if point.axes["input_size"] % 32 == 0]
    timedrows.measure(folder, folder.submit("20260101-000000-local").id, half, LAW)
    told = cost_of(folder.sweep_dir.path.parent, asked)
    assert "38 points in 1 chunk, 14 measured already" in told.text()
    assert "12 from measured points of the same network and algorithm (14 of demo)" in told.text()
    assert "26 from measured points of other networks or algorithms (14 of demo)" in told.text()
    assert told.to_json()["share_from_rows"] == pytest.approx(12 / 38)


def test_packing_uses_the_same_seconds(tmp_path):
    """The chunks of a submission last as long as the estimate says, with a start each."""
    _, folder, asked = after(tmp_path, lambda point: point.axes["input_size"] in {64, 128, 192})
    expected = cost_of(folder.sweep_dir.path.parent, asked)
    ready = written(folder.sweep_dir, asked)
    assert ready.seconds == pytest.approx(expected.job.seconds)
    left = [point for point in folder.points if point.axes["input_size"] not in {64, 128, 192}]
    true = LAW.worker + LAW.network + sum(LAW.wall_s(point) for point in left)
    assert ready.seconds == pytest.approx(true, rel=0.1)


def test_a_single_row_tells_the_pass_and_leaves_the_rest_to_what_is_usual(tmp_path):
    """It cannot tell a worker's start from its own time."""
    only = resultsfolder.points_of(tmp_path, SIZES)[0]
    seconds_of, folder, _ = after(tmp_path, lambda point: point.axes == only.axes)
    assert off(seconds_of, folder.points[:1])[0] < 2


def test_rows_without_a_wall_time_tell_of_passes_only(tmp_path):
    """Imported tables have none."""
    seconds_of, folder, asked = after(tmp_path, lambda _: True, wall_s=None)
    rows = estimate.past_times(folder.sweep_dir, Peaks("inference", asked.device))
    assert {row.beside_s for row in rows} == {None}
    assert max(off(seconds_of, folder.points)) < 2
    assert seconds_of.start > seconds_of.worker > 0


def measured(path, points=None, text=TWO):
    """Return a folder with one attempt under the law."""
    folder = resultsfolder.make(path, text)
    timedrows.measure(
        folder, folder.submit("20260101-000000-local").id, points or folder.points, LAW
    )
    return folder


def test_a_row_tells_passes_and_what_came_beside_them(tmp_path):
    """The first row of an attempt waited for a worker, the first of a network for that."""
    folder = measured(tmp_path)
    peaks = Peaks("inference", "cpu")
    rows = estimate.past_times(folder.sweep_dir, peaks)
    assert [row.made_first for row in rows] == ["worker", *[""] * 7, "network", *[""] * 7]
    for row, point in zip(rows, folder.points, strict=True):
        more = {"worker": LAW.worker, "network": LAW.network, "": 0.0}[row.made_first]
        pass_s = LAW.pass_s(point)
        layers = 20 * (LAW.layer_factor - 1) * pass_s
        assert row.slower == pytest.approx(pass_s / peaks.pass_s(point.axes), rel=1e-4)
        beside = more + LAW.fixed + LAW.slope * pass_s + layers
        assert row.beside_s == pytest.approx(beside, rel=1e-3)


def test_rows_of_other_devices_workloads_and_ends_do_not_count(tmp_path):
    """They say nothing of this one."""
    folder = measured(tmp_path)
    assert estimate.past_times(folder.sweep_dir, Peaks("inference", "h100")) == []
    assert estimate.past_times(folder.sweep_dir, Peaks("training", "cpu")) == []
    shard = folder.shard(folder.submit("20260102-000000-local").id)
    folder.measure(shard, folder.points[:3], status="timeout", workload="inference", wall_s=600.0)
    assert len(estimate.past_times(folder.sweep_dir, Peaks("inference", "cpu"))) == 16


def test_a_row_that_no_gpu_can_have_tells_nothing(tmp_path):
    """Flagged, or of a version that did not look yet."""
    folder = measured(tmp_path)
    shard = folder.shard(folder.submit("20260102-000000-local").id)
    some = {"workload": "inference", "wall_s": 1.0, "device_name": "NVIDIA H200", "flops": 1e12}
    folder.measure(shard, folder.points[:2], mean_ms=1e-3, median_ms=1e-3, **some)
    assert len(estimate.past_times(folder.sweep_dir, Peaks("inference", "cpu"))) == 16


def test_shards_of_other_devices_are_not_even_read(tmp_path):
    """A large sweep of a cluster must not slow down an estimate for this machine."""
    folder = measured(tmp_path)
    folder.shard(folder.submit("20260102-000000-h100", gpu="h100").id).overall.mkdir()
    assert len(estimate.past_times(folder.sweep_dir, Peaks("inference", "cpu"))) == 16


def test_what_cannot_be_read_tells_nothing(tmp_path):
    """An estimate needs no rows; who needs them says what is wrong."""
    folder = measured(tmp_path)
    shard = folder.shard("20260101-000000-local").overall
    shard.unlink()
    shard.mkdir()
    for name in ("demo", "new"):
        sweep_dir = SweepDir(folder.sweep_dir.path.parent / name)
        assert estimate.past_times(sweep_dir, Peaks("inference", "cpu")) == []


def test_the_newest_rows_count_where_there_are_many(tmp_path, monkeypatch):
    """Older ones are not read when there are enough."""
    folder = measured(tmp_path)
    monkeypatch.setattr(estimate, "_MOST_ROWS", 3)
    timedrows.measure(folder, folder.submit("20260102-000000-local").id, folder.points[-4:], LAW)
    rows = estimate.past_times(folder.sweep_dir, Peaks("inference", "cpu"))
    assert [row.kind[0] for row in rows] == ["vgg11"] * 3  # the older begin with resnet18


def test_other_sweeps_of_the_folder_count_too_after_this_one(tmp_path):
    """A sweep that was never run learns from those beside it."""
    folder = measured(tmp_path)
    new = SweepDir(folder.sweep_dir.path.parent / "new")
    assert {row.sweep for row in estimate.past_times(new, Peaks("inference", "cpu"))} == {"demo"}


def test_what_differs_only_in_amount_or_numbers_is_of_one_kind(tmp_path):
    """Size and batch, seeds and weights; not the layout."""
    (one, *_) = resultsfolder.points_of(tmp_path)
    names = estimate.names_of_kind("inference")
    kind = estimate.kind_of(names, one.axes)
    more = {"input_size": 9, "batch_size": 7, "seed": 3, "gpu": "l40"}
    assert estimate.kind_of(names, {**one.axes, **more}) == kind
    assert estimate.kind_of(names, {**one.axes, "memory_format": "nhwc"}) != kind
    assert estimate.kind_of(names, {"model": "resnet18", "algorithm": "gemm"}) == kind
