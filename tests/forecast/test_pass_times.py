"""What rows teach, where the law behind them is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

import resultsfolder
import timedrows
from hpcsweep.forecast import pass_times, past_rows
from timedrows import Law

LAW = Law()
THREE = resultsfolder.SWEEP.replace("[resnet18]", "[resnet18, vgg11, alexnet]")


def rows(path, law=LAW, text=THREE):
    """Return the rows of a sweep under a law."""
    folder = resultsfolder.make(path, text)
    timedrows.measure(folder, folder.submit("20260101-000000-local").id, folder.points, law)
    return past_rows.measured(folder.run, "inference", "cpu")


def test_what_points_take_beside_their_passes_is_found(tmp_path):
    """The law that made the rows."""
    found = pass_times.learn(rows(tmp_path)).beside
    assert found.fixed == pytest.approx(LAW.fixed, rel=0.01)
    assert found.slope == pytest.approx(LAW.slope, rel=0.02)
    assert found.worker == pytest.approx(LAW.worker, rel=0.01)
    assert found.network == pytest.approx(LAW.network, rel=0.01)
    assert found.layer_factor == pytest.approx(LAW.layer_factor, rel=0.01)


def test_the_start_of_a_worker_is_not_part_of_a_point(tmp_path):
    """Else the first point of a sample would say that all points are slow."""
    found = pass_times.learn(rows(tmp_path))
    first = next(row for row in found.rows if row.fresh == "worker")
    assert found.extra_s[first.kind].at(first.work) == pytest.approx(first.extra_s, rel=0.01)
    assert first.extra_s < LAW.worker / 2


def test_a_single_row_tells_the_pass_and_leaves_the_rest_to_what_is_usual(tmp_path):
    """It cannot tell a worker's start from its own time."""
    (one, *_) = rows(tmp_path)
    found = pass_times.learn([one])
    assert found.pass_s[one.kind].at(one.work) == pytest.approx(one.pass_s)
    assert found.extra_s[one.kind].at(one.work) < LAW.worker / 2


def test_a_width_holds_what_neighbours_miss(tmp_path):
    """None where no point has two neighbours; 1 where the law is exact; more where it is not."""
    exact, noisy = rows(tmp_path / "a"), rows(tmp_path / "b", replace(LAW, noise=0.3))
    assert pass_times.learn(exact).width_of_measured(52) == pytest.approx(1.0, abs=0.02)
    assert pass_times.learn(noisy).width_of_measured(52) > 1.1
    assert pass_times.learn([r for r in exact if r.work < 0.15]).width_of_measured(52) is None


def test_the_table_is_corrected_by_network_and_algorithm(tmp_path):
    """An algorithm of which only another network was measured is as much slower here."""
    known = rows(tmp_path)
    found = pass_times.learn([row for row in known if row.kind[:2] != ("vgg11", "winograd")])
    (row,) = [row for row in known if row.kind[:2] == ("vgg11", "winograd") and row.work == 1]
    said = row.by_table * found.correction("vgg11", "winograd")
    assert said == pytest.approx(row.pass_s, rel=0.15)
    assert found.correction("unknown", "winograd") > 0
    assert pass_times.learn([]).correction("vgg11", "gemm") is None


def test_rows_without_a_wall_time_tell_of_passes_only(tmp_path):
    """Imported tables have none."""
    bare = [replace(row, extra_s=None) for row in rows(tmp_path)]
    found = pass_times.learn(bare)
    assert found.beside == replace(pass_times.Beside(), layer_factor=1.0, n=0.0)
    assert not found.extra_s
    assert found.pass_s
