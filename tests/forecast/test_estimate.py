"""How long points will take, before and after there are rows."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import resultsfolder
import timedrows
from hpcsweep.catalog import columns
from hpcsweep.forecast import Basis, estimate, past_rows
from hpcsweep.spec import profile, sweep_file
from hpcsweep.submit import cost, prepare, request
from localruns import Desk
from timedrows import Law

LAW = Law()
THREE = resultsfolder.SWEEP.replace("[resnet18]", "[resnet18, vgg11, alexnet]")
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


def after(path, measured, law=LAW, text=SIZES):
    """Return an estimator, the folder, and the request after some points were measured."""
    folder, asked = resultsfolder.make(path, text), asked_of(path, text)
    chosen = [point for point in folder.points if measured(point)]
    timedrows.measure(folder, folder.submit("20260101-000000-local").id, chosen, law)
    return estimate.estimator(folder.sweep_dir, asked.sweep, asked.device), folder, asked


def off(seconds_of, points, law=LAW):
    """Return by how much each estimate is off, without the start of workers."""
    return [seconds_of(point) / law.wall_s(point) - 1 for point in points]


def test_a_few_sizes_tell_the_others(tmp_path):
    """Four of thirteen, by network and algorithm; beyond the largest, too."""
    seconds_of, folder, _ = after(
        tmp_path, lambda point: point.axes["input_size"] in {64, 128, 192}
    )
    assert max(map(abs, off(seconds_of, folder.points))) < 0.01
    assert set(seconds_of.counts) == {Basis.MEASURED}
    assert not seconds_of.is_calibrated
    assert seconds_of.start == pytest.approx(LAW.worker, rel=0.01)


def test_a_batch_is_as_much_work_as_its_images(tmp_path):
    """One axis of work for both."""
    text = SIZES.replace("  algorithm", "  batch_size: [1, 2, 4]\n  algorithm")
    seconds_of, folder, _ = after(
        tmp_path, lambda p: p.axes["batch_size"] != 2 and p.axes["input_size"] < 200, text=text
    )
    assert max(map(abs, off(seconds_of, folder.points))) < 0.02


def test_an_algorithm_that_was_not_measured_rests_on_the_others(tmp_path):
    """That is no firm ground: a factor of three, where nothing says better."""
    seconds_of, folder, _ = after(tmp_path, lambda point: point.axes["algorithm"] == "gemm")
    wrong = off(seconds_of, [p for p in folder.points if p.axes["algorithm"] == "winograd"])
    assert max(map(abs, wrong)) < 1
    assert set(seconds_of.counts) == {Basis.OTHERS}
    assert not seconds_of.is_calibrated
    assert seconds_of.width == 3.0


def test_predicted_passes_serve_where_no_such_point_was_measured(tmp_path):
    """With what measured points took beside their passes; and with their interval."""
    _, folder, asked = after(tmp_path, lambda point: point.axes["model"] == "resnet18")
    names = ["gpu", "status", "median_ms", "predicted_hi_ms", *columns.OVERALL_COLUMNS[:5]]
    lines = [",".join(names)]
    for point in (point for point in folder.points if point.axes["model"] == "vgg11"):
        ms = 1000 * LAW.pass_s(point)
        values = {**point.axes, "status": "predicted", "median_ms": ms, "predicted_hi_ms": 1.4 * ms}
        lines.append(",".join(columns.cell(values.get(name)) for name in names))
    (folder.sweep_dir.path / "predicted.csv").write_text("\n".join(lines))
    seconds_of = estimate.estimator(folder.sweep_dir, asked.sweep, asked.device)
    assert max(map(abs, off(seconds_of, folder.points))) < 0.02
    assert seconds_of.counts == {Basis.MEASURED: 26, Basis.PREDICTED: 26}
    assert seconds_of.width == pytest.approx(1.4, rel=1e-3)


def test_without_rows_a_table_of_peaks_serves(tmp_path):
    """Longer for larger images, slower algorithms and slower devices."""
    folder = resultsfolder.make(tmp_path, SIZES)
    asked = asked_of(tmp_path)
    seconds_of = estimate.estimator(folder.sweep_dir, asked.sweep, asked.device)
    first, *_, last = [p for p in folder.points if p.axes["algorithm"] == "winograd"]
    assert seconds_of(first) < seconds_of(last)
    assert set(seconds_of.counts) == {Basis.PEAKS}


def test_a_map_of_algorithms_has_a_time_too(tmp_path):
    """It is no name that one could look up."""
    text = SIZES.replace("[gemm, winograd]", "[{layer1.0.conv1: gemm, default: auto}]")
    folder, asked = resultsfolder.make(tmp_path, text), asked_of(tmp_path, text)
    assert all(
        estimate.estimator(folder.sweep_dir, asked.sweep, asked.device)(point) > 0
        for point in folder.points
    )


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


def test_an_estimate_says_what_it_rests_on(tmp_path):
    """First on the catalogue alone, then on rows; with what holds nine times in ten."""
    folder, asked = resultsfolder.make(tmp_path, SIZES), asked_of(tmp_path)
    bare = cost.cost_of(folder.sweep_dir.path.parent, asked)
    assert bare.share_from_rows == 0
    assert "52 from the table of peaks: nothing was measured on this device yet" in bare.text()
    half = [point for point in folder.points if point.axes["model"] == "resnet18"]
    half = [point for point in half if point.axes["input_size"] % 32 == 0]
    timedrows.measure(folder, folder.submit("20260101-000000-local").id, half, LAW)
    told = cost.cost_of(folder.sweep_dir.path.parent, asked)
    assert "38 points in 1 chunk, 14 measured already" in told.text()
    assert "12 from measured points of the same network and algorithm (14 of demo)" in told.text()
    assert "26 from measured points of other networks or algorithms (14 of demo)" in told.text()
    assert told.share_from_rows == pytest.approx(12 / 38)
    assert (told.width, bare.width) == (None, None)  # one network cannot tell of others


def test_points_that_were_left_out_say_how_far_an_estimate_may_be_off(tmp_path):
    """Nine times in ten the true time is below the upper end."""
    law = Law(noise=0.3)
    seconds_of, folder, asked = after(tmp_path, lambda p: p.axes["input_size"] % 32 == 0, law)
    told = cost.cost_of(folder.sweep_dir.path.parent, asked)
    assert 1.05 < told.width < 2
    assert "(nine times in ten below " in told.text()
    left = [point for point in folder.points if point.axes["input_size"] % 32]
    held = [1 / (1 + wrong) < told.width for wrong in off(seconds_of, left, law)]
    assert sum(held) > 0.8 * len(held)


def test_packing_uses_the_same_seconds(tmp_path):
    """The chunks of a submission last as long as the estimate says, with a start each."""
    _, folder, asked = after(tmp_path, lambda point: point.axes["input_size"] in {64, 128, 192})
    expected = cost.cost_of(folder.sweep_dir.path.parent, asked)
    ready = prepare.prepare(folder.sweep_dir, asked)
    assert ready.seconds == pytest.approx(expected.seconds)
    left = [point for point in folder.points if point.axes["input_size"] not in {64, 128, 192}]
    true = LAW.worker + LAW.network + sum(LAW.wall_s(point) for point in left)
    assert ready.seconds == pytest.approx(true, rel=0.01)


def rows(path, law=LAW, text=THREE):
    """Return the rows of a sweep under a law."""
    folder = resultsfolder.make(path, text)
    timedrows.measure(folder, folder.submit("20260101-000000-local").id, folder.points, law)
    return past_rows.measured(folder.sweep_dir, "inference", "cpu")


def test_what_points_take_beside_their_passes_is_found(tmp_path):
    """The law that made the rows."""
    found = estimate.learn(rows(tmp_path)).beside
    assert found.fixed == pytest.approx(LAW.fixed, rel=0.01)
    assert found.slope == pytest.approx(LAW.slope, rel=0.02)
    assert found.worker == pytest.approx(LAW.worker, rel=0.01)
    assert found.network == pytest.approx(LAW.network, rel=0.01)
    assert found.layer_factor == pytest.approx(LAW.layer_factor, rel=0.01)


def test_the_start_of_a_worker_is_not_part_of_a_point(tmp_path):
    """Else the first point of a sample would say that all points are slow."""
    found = estimate.learn(rows(tmp_path))
    first = next(row for row in found.rows if row.fresh == "worker")
    assert found.extra_s[first.kind].at(first.work) == pytest.approx(first.extra_s, rel=0.01)
    assert first.extra_s < LAW.worker / 2


def test_a_single_row_tells_the_pass_and_leaves_the_rest_to_what_is_usual(tmp_path):
    """It cannot tell a worker's start from its own time."""
    (one, *_) = rows(tmp_path)
    found = estimate.learn([one])
    assert found.pass_s[one.kind].at(one.work) == pytest.approx(one.pass_s)
    assert found.extra_s[one.kind].at(one.work) < LAW.worker / 2


def test_a_width_holds_what_neighbours_miss(tmp_path):
    """None where no point has two neighbours; 1 where the law is exact; more where it is not."""
    exact, noisy = rows(tmp_path / "a"), rows(tmp_path / "b", replace(LAW, noise=0.3))
    assert estimate.learn(exact).width_of_measured(52) == pytest.approx(1.0, abs=0.02)
    assert estimate.learn(noisy).width_of_measured(52) > 1.1
    assert estimate.learn([r for r in exact if r.work < 0.15]).width_of_measured(52) is None


def test_the_table_is_corrected_by_network_and_algorithm(tmp_path):
    """An algorithm of which only another network was measured is as much slower here."""
    known = rows(tmp_path)
    found = estimate.learn([row for row in known if row.kind[:2] != ("vgg11", "winograd")])
    (row,) = [row for row in known if row.kind[:2] == ("vgg11", "winograd") and row.work == 1]
    said = row.by_table * found.correction("vgg11", "winograd")
    assert said == pytest.approx(row.pass_s, rel=0.15)
    assert found.correction("unknown", "winograd") > 0
    assert estimate.learn([]).correction("vgg11", "gemm") is None


def test_rows_without_a_wall_time_tell_of_passes_only(tmp_path):
    """Imported tables have none."""
    bare = [replace(row, extra_s=None) for row in rows(tmp_path)]
    found = estimate.learn(bare)
    assert found.beside == replace(estimate.Overhead(), layer_factor=1.0, n=0.0)
    assert not found.extra_s
    assert found.pass_s
