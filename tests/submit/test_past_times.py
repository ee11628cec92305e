"""What rows tell an estimate of how long points took."""

from __future__ import annotations

import pytest

import resultsfolder
import timedrows
from hpcsweep.store.folders import SweepDir
from hpcsweep.submit import past_times
from hpcsweep.submit.passes import Peaks
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
    peaks = Peaks("inference", "cpu")
    rows = past_times.measured(folder.sweep_dir, peaks)
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
    assert past_times.measured(folder.sweep_dir, Peaks("inference", "h100")) == []
    assert past_times.measured(folder.sweep_dir, Peaks("training", "cpu")) == []
    shard = folder.shard(folder.submit("20260102-000000-local").id)
    folder.measure(shard, folder.points[:3], status="timeout", workload="inference", wall_s=600.0)
    assert len(past_times.measured(folder.sweep_dir, Peaks("inference", "cpu"))) == 16


def test_a_row_that_no_gpu_can_have_tells_nothing(tmp_path):
    """Flagged, or of a version that did not look yet."""
    folder = measured(tmp_path)
    shard = folder.shard(folder.submit("20260102-000000-local").id)
    some = {"workload": "inference", "wall_s": 1.0, "device_name": "NVIDIA H200", "flops": 1e12}
    folder.measure(shard, folder.points[:2], mean_ms=1e-3, median_ms=1e-3, **some)
    assert len(past_times.measured(folder.sweep_dir, Peaks("inference", "cpu"))) == 16


def test_shards_of_other_devices_are_not_even_read(tmp_path):
    """A large sweep of a cluster must not slow down an estimate for this machine."""
    folder = measured(tmp_path)
    folder.shard(folder.submit("20260102-000000-h100", gpu="h100").id).overall.mkdir()
    assert len(past_times.measured(folder.sweep_dir, Peaks("inference", "cpu"))) == 16


def test_what_cannot_be_read_tells_nothing(tmp_path):
    """An estimate needs no rows; who needs them says what is wrong."""
    folder = measured(tmp_path)
    shard = folder.shard("20260101-000000-local").overall
    shard.unlink()
    shard.mkdir()
    for name in ("demo", "new"):
        sweep_dir = SweepDir(folder.sweep_dir.path.parent / name)
        assert past_times.measured(sweep_dir, Peaks("inference", "cpu")) == []


def test_the_newest_rows_count_where_there_are_many(tmp_path, monkeypatch):
    """Older ones are not read when there are enough."""
    folder = measured(tmp_path)
    monkeypatch.setattr(past_times, "_MOST", 3)
    timedrows.measure(folder, folder.submit("20260102-000000-local").id, folder.points[-4:], LAW)
    rows = past_times.measured(folder.sweep_dir, Peaks("inference", "cpu"))
    assert [row.kind[0] for row in rows] == ["vgg11"] * 3  # the older begin with resnet18


def test_other_sweeps_of_the_folder_count_too_after_this_one(tmp_path):
    """A sweep that was never run learns from those beside it."""
    folder = measured(tmp_path)
    new = SweepDir(folder.sweep_dir.path.parent / "new")
    assert {row.sweep for row in past_times.measured(new, Peaks("inference", "cpu"))} == {"demo"}


def test_what_differs_only_in_amount_or_numbers_is_of_one_kind(tmp_path):
    """Size and batch, seeds and weights; not the layout."""
    (one, *_) = resultsfolder.points_of(tmp_path)
    names = past_times.names_of_kind("inference")
    kind = past_times.kind_of(names, one.axes)
    more = {"input_size": 9, "batch_size": 7, "seed": 3, "gpu": "l40"}
    assert past_times.kind_of(names, {**one.axes, **more}) == kind
    assert past_times.kind_of(names, {**one.axes, "memory_format": "nhwc"}) != kind
    assert past_times.kind_of(names, {"model": "resnet18", "algorithm": "gemm"}) == kind
