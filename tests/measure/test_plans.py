"""Every plan of a convolution, timed and compared: rehearsed with the reference algorithms."""

from __future__ import annotations

import json

import pandas as pd
import pytest

import resultsfolder
from collectedsweep import SUBMISSION
from hpcsweep.analysis import reliability
from hpcsweep.catalog import columns
from hpcsweep.cli.common import request_of
from hpcsweep.conv import backend as backends
from hpcsweep.conv.backend import Expected
from hpcsweep.conv.reference import FAMILIES, Reference
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure import layer_table
from hpcsweep.measure.measure_point import on_device
from hpcsweep.spec import sweep_file
from hpcsweep.store import shards
from hpcsweep.store.collect import collector
from localruns import Desk

NETS = """\
from torch import nn

def net():
    return nn.Sequential(
        nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 4, 3, stride=2),
    )
"""
SWEEP = """\
name: demo
workload: inference
axes: {model: ["nets:net"], input_size: [16], algorithm: [implicit_gemm]}
measure: {warmup: 0, iterations: 3, repeats: 3, layers: plans, plans: 3, numerics: false}
"""
PLANS = [*FAMILIES][:3]
MS = {"implicit_gemm": 4.0, "implicit_precomp_gemm": 3.99, "gemm": 1.0}


@pytest.fixture(scope="module")
def tried(tmp_path_factory):
    """Return a folder, and the layer rows of three visits in which every plan was timed."""
    desk = Desk(tmp_path_factory.mktemp("plans"))
    (desk.folder / "nets.py").write_text(NETS)
    folder = resultsfolder.make(desk.folder, SWEEP)
    folder.submit(SUBMISSION, text=SWEEP)
    shard, bench, rows = folder.shard(SUBMISSION), on_device("inference"), []
    with shards.ShardWriter(shard) as writer, pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(desk.folder)
        patch.setattr(layer_table.caches, "input_count", lambda *_: 2)
        for visit, point in enumerate(folder.points):
            done = bench.measure(point)
            rows += done.layers
            times = [MS[row["algorithm"]] * (1 + 0.001 * visit) for row in done.layers]
            names = ("median_ms", "mean_ms", "q1_ms", "q3_ms")
            steady = [  # those of a busy machine may be anything
                row | dict.fromkeys(names, ms) for row, ms in zip(done.layers, times, strict=True)
            ]
            row = {**resultsfolder.row_of(point, shard), **done.row, "flags": "", "valid": True}
            writer.commit(row, steady)
    collector.collect(folder.sweep_dir)
    return desk, rows


def test_every_plan_has_a_row_with_its_error_and_equal_work_is_timed_once(tried):
    """Beside what the point itself ran; none is wrong."""
    _, rows = tried
    second = [row for row in rows if row["layer"] == "1"]
    timed = [row for row in second if row["layer_timer"] == "plans"]
    assert [row["algorithm"] for row in timed] == [n for n in PLANS if n != "implicit_gemm"] * 3
    assert all(row["plan"] == row["algorithm_used"] == row["algorithm"] for row in timed)
    assert {row["backend"] for row in timed} == {"reference"}
    assert all("aten::bmm" in row["algorithm_evidence"] for row in timed)
    assert not any(row["fallback_reason"] for row in timed)
    assert all(0 < row["max_rel_error"] < 1e-4 for row in timed)
    assert all(row["error_over_bound"] <= 1 for row in timed)
    own = [row for row in second if row["layer_timer"] != "plans"]
    assert [row["algorithm"] for row in own] == ["implicit_gemm"] * 3
    twins = [row for row in rows if row["layer"] in {"0", "1"}]
    assert len({(r["point_id"], r["algorithm"], r["mean_ms"]) for r in twins}) == len(twins) / 2
    assert all(set(row) <= set(columns.LAYER_COLUMNS) for row in rows)


def test_layers_shows_every_plan_and_best_pins_what_a_sweep_replays(tried, monkeypatch):
    """The map names plans; the rows of its sweep ran them, and the profiler saw that."""
    desk, _ = tried
    monkeypatch.syspath_prepend(desk.folder)
    shown = json.loads(desk.run("layers", "demo", "--json").stdout)
    assert set(shown["algorithms"]) == set(PLANS)
    assert "layers: plans" not in desk.run("layers", "demo").stderr
    over = ("--over", "implicit_gemm", "--out", "map.yaml")
    done = desk.run("best", "demo", *over)
    assert done.returncode == 0, done.stderr
    with (desk.folder / "map.yaml").open("a") as file:
        file.write("measure: {warmup: 0, iterations: 2, numerics: false}\n")
    asked = request_of(sweep_file.load(desk.folder / "map.yaml"), "local")
    mapped = [point for point in asked.points() if isinstance(point.axes["algorithm"], dict)]
    rows = [row for point in mapped for row in on_device("inference").measure(point).layers]
    replayed = [row for row in rows if row["op"] == "conv2d"]
    assert [row["layer"] for row in replayed] == ["0", "1", "2"]
    for row in replayed:
        assert row["algorithm_used"] == "gemm"
        assert row["algorithm_evidence"].startswith("profiler: aten::")


def test_a_plan_that_runs_something_else_is_no_choice(desk, monkeypatch):
    """Its row says what the profiler saw; `best` leaves it out as it does a fallback."""
    (desk.folder / "nets.py").write_text(NETS)
    monkeypatch.syspath_prepend(desk.folder)
    monkeypatch.setattr(Reference, "expected", lambda *_: Expected(must=(("aten::nothing",),)))
    (point, *_) = resultsfolder.make(desk.folder, SWEEP).points
    rows = pd.DataFrame(on_device("inference").measure(point).layers)
    plans = rows[rows["layer_timer"] == "plans"]
    assert set(plans["fallback_reason"]) == {"no aten::nothing"}
    assert reliability.fell_back(plans).all()


def test_a_limit_of_plans_and_of_memory_holds():
    """The heuristic's first ones; a plan that needs more has no row."""
    backend = backends.choose("cpu")
    shape = ConvShape(1, 8, 16, 16, 8, 3, 3, 1, 1, 1, 1)
    assert backend.plans(shape, 2) == list(FAMILIES)[:2]
    assert backend.about("gemm", shape) == (None, None, None)


@pytest.mark.parametrize("name", ["heuristic", "eng12", "eng53_k2=5_k13=1@9.26.0", "sol85"])
def test_a_plan_of_a_gpus_library_is_unsupported_here_with_the_reason(name):
    """As `autotune` is."""
    why = Reference("cpu").unsupported(name, ConvShape(1, 8, 16, 16, 8, 3, 3))
    assert why == f"{name}: there are no plans of cuDNN or MIOpen on cpu"
