"""What rows tell of how long points took."""

from __future__ import annotations

import pandas as pd
import pytest

import resultsfolder
import timedrows
from hpcsweep.errors import ResultsError
from hpcsweep.forecast import past_rows
from hpcsweep.forecast import sweep as predicting
from hpcsweep.store.folders import SweepDir
from timedrows import Law

LAW = Law()
TWO = resultsfolder.SWEEP.replace("[resnet18]", "[resnet18, vgg11]")


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
    rows = past_rows.measured(folder.sweep_dir, "inference", "cpu")
    assert [row.fresh for row in rows] == ["worker", *[""] * 7, "network", *[""] * 7]
    for row, point in zip(rows, folder.points, strict=True):
        more = {"worker": LAW.worker, "network": LAW.network, "": 0.0}[row.fresh]
        assert row.pass_s == pytest.approx(LAW.pass_s(point), rel=1e-4)
        assert row.extra_s == pytest.approx(more + LAW.fixed + LAW.slope * row.pass_s, rel=1e-3)
        assert row.layer_factor == pytest.approx(LAW.layer_factor, rel=1e-4)


def test_rows_of_other_devices_workloads_and_ends_do_not_count(tmp_path):
    """They say nothing of this one."""
    folder = measured(tmp_path)
    assert past_rows.measured(folder.sweep_dir, "inference", "h100") == []
    assert past_rows.measured(folder.sweep_dir, "training", "cpu") == []
    shard = folder.shard(folder.submit("20260102-000000-local").id)
    folder.measure(shard, folder.points[:3], status="timeout", workload="inference", wall_s=600.0)
    assert len(past_rows.measured(folder.sweep_dir, "inference", "cpu")) == 16


def test_a_row_that_no_gpu_can_have_tells_nothing(tmp_path):
    """Flagged, or of a version that did not look yet: neither an estimate nor a round takes it."""
    folder = measured(tmp_path)
    shard = folder.shard(folder.submit("20260102-000000-local").id)
    some = {"workload": "inference", "wall_s": 1.0, "device_name": "NVIDIA H200", "flops": 1e12}
    folder.measure(shard, folder.points[:2], mean_ms=1e-3, median_ms=1e-3, **some)
    other = folder.shard(folder.submit("20260103-000000-local").id)
    folder.measure(other, folder.points[2:3], mean_ms=1.0, median_ms=1.0, flags="impossible",
                   workload="inference", wall_s=1.0)  # fmt: skip
    assert len(past_rows.measured(folder.sweep_dir, "inference", "cpu")) == 16
    every = {point.point_id for point in folder.points}
    known = past_rows.known_points(folder.sweep_dir, every, ())
    assert {len(times) for times in known.times.values()} == {1}


def test_shards_of_other_devices_are_not_even_read(tmp_path):
    """A large sweep of a cluster must not slow down an estimate for this machine."""
    folder = measured(tmp_path)
    broken = folder.shard(folder.submit("20260102-000000-h100", gpu="h100").id)
    broken.overall.mkdir()
    assert len(past_rows.measured(folder.sweep_dir, "inference", "cpu")) == 16
    with pytest.raises(ResultsError):
        past_rows.measured(folder.sweep_dir, "inference", "h100")


def test_another_sweep_that_cannot_be_read_is_left_out(tmp_path):
    """What it says is a help, no more."""
    folder = measured(tmp_path)
    folder.shard("20260101-000000-local").overall.unlink()
    folder.shard("20260101-000000-local").overall.mkdir()
    assert (
        past_rows.measured(SweepDir(folder.sweep_dir.path.parent / "new"), "inference", "cpu") == []
    )


def test_the_newest_rows_count_where_there_are_many(tmp_path, monkeypatch):
    """A shard is read whole; older ones are not read when there are enough."""
    folder = measured(tmp_path)
    monkeypatch.setattr(past_rows, "_MOST", 3)
    timedrows.measure(folder, folder.submit("20260102-000000-local").id, folder.points[:4], LAW)
    assert len(past_rows.measured(folder.sweep_dir, "inference", "cpu")) == 4


def test_other_sweeps_of_the_folder_count_too_after_this_one(tmp_path):
    """A sweep that was never run learns from those beside it."""
    folder = measured(tmp_path)
    new = SweepDir(folder.sweep_dir.path.parent / "new")
    assert {row.sweep for row in past_rows.measured(new, "inference", "cpu")} == {"demo"}


def test_what_differs_only_in_amount_or_numbers_is_of_one_kind(tmp_path):
    """Size and batch, seeds and weights; not the layout."""
    (one, *_) = resultsfolder.points_of(tmp_path)
    names = past_rows.names_of_kind("inference")
    kind = past_rows.kind_of(names, one.axes)
    more = {"input_size": 9, "batch_size": 7, "seed": 3, "gpu": "l40"}
    assert past_rows.kind_of(names, {**one.axes, **more}) == kind
    assert past_rows.kind_of(names, {**one.axes, "memory_format": "nhwc"}) != kind
    assert past_rows.kind_of(names, {"model": "resnet18", "algorithm": "gemm"}) == kind


def test_what_predict_wrote_is_of_the_same_kinds(tmp_path):
    """Its table is that of pandas."""
    points = resultsfolder.points_of(tmp_path)
    run = SweepDir(tmp_path / "results" / "demo")
    rows = [
        {**row, "status": "predicted", "predicted_lo_ms": 8.0, "predicted_hi_ms": 15.0}
        for row in (
            {**resultsfolder.row_of(p, resultsfolder.Folder(run, points).shard("x")),
             "median_ms": 10.0, "mean_ms": None} for p in points
        )
    ]  # fmt: skip
    predicting.Predicted("demo", rows, pd.DataFrame(), {}).write(run.path)
    found = past_rows.predicted(run, "inference", "cpu")
    names = past_rows.names_of_kind("inference")
    assert [row.kind for row in found] == [past_rows.kind_of(names, point.axes) for point in points]
    assert {(row.pass_s, row.width, row.extra_s) for row in found} == {(0.01, 1.5, None)}
    assert past_rows.predicted(run, "inference", "h100") == []
    table = run.path / "predicted.csv"
    table.write_text(table.read_text().replace(",10.0,", ",,").replace(",10,", ",,"))
    assert past_rows.predicted(run, "inference", "cpu") == []  # edited: cells without a time


def test_only_valid_times_are_known_and_every_row_costs(tmp_path):
    """A point whose time is in doubt was measured, but teaches nothing."""
    folder = resultsfolder.make(tmp_path)
    folder.submit("one")
    good, doubtful, failed, *_ = folder.points
    for attempt, (point, cells) in enumerate(
        [
            (good, {"median_ms": 3.0, "wall_s": 2.0}),
            (doubtful, {"median_ms": 3.0, "wall_s": 2.0, "valid": False}),
            (failed, {"status": "oom", "wall_s": 1.0, "valid": False}),
            (good, {"median_ms": 4.0, "wall_s": 2.0}),
            (good, {"median_ms": 9.0, "wall_s": 2.0, "valid": False}),
        ]
    ):
        folder.measure(folder.shard("one", 0, attempt), [point], **cells)
    ids = [point.point_id for point in folder.points]
    known = past_rows.known_points(folder.sweep_dir, ids, {good.point_id, failed.point_id})
    assert known.times == {good.point_id: [3.0, 4.0]}
    assert known.ms == {good.point_id: 4.0}
    assert known.rows == {good.point_id: 3, doubtful.point_id: 1, failed.point_id: 1}
    assert known.failed == known.too_large == {failed.point_id}
    assert known.seconds == 7.0
    assert past_rows.known_points(folder.sweep_dir, [], []).rows == {}
