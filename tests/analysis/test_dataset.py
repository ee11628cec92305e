"""The measured rows of a sweep, and the choice among them."""

from __future__ import annotations

import pandas as pd
import pytest

import resultsfolder
from analysistables import table_of
from collectedsweep import SUBMISSION, SWEEP, cells_of
from hpcsweep.analysis import dataset, plot
from hpcsweep.catalog import gpus
from hpcsweep.errors import UsageError
from hpcsweep.store import shards
from hpcsweep.store.collect import collector
from localruns import Desk


def test_only_measured_points_that_the_sweep_still_has_are_shown(tmp_path):
    """Failures have no time; orphans are no longer asked for."""
    folder = resultsfolder.make(tmp_path, SWEEP)
    folder.submit(SUBMISSION, text=SWEEP)
    shard = folder.shard(SUBMISSION)
    with shards.ShardWriter(shard) as writer:
        for point in folder.points:
            status = "oom" if point.axes["batch_size"] == 16 else "ok"
            cells = cells_of(point.axes) if status == "ok" else {}
            resultsfolder.commit(writer, point, shard, status=status, **cells)
    smaller = SWEEP.replace("[1, 4, 16]", "[1, 16]")
    folder.submit(
        "20260102-000000-bbbbbb", resultsfolder.points_of(tmp_path, smaller), text=smaller
    )
    collector.collect(folder.sweep_dir)
    found = plot.read_plot(folder.sweep_dir, "batch_size")
    assert found.places == [1]
    assert "(6 ok, 6 oom, 6 orphans left out)" in table_of(found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"x": "bach_size"}, "no column 'bach_size'; did you mean 'batch_size'"),
        ({"y": "troughput_ips"}, "did you mean 'throughput_ips'"),
        ({"y": "layer_rows", "where": "num_threads=3"}, r"has num_threads=3 \(.*1, 2, 4\)"),
        ({"baseline": "num_threads=3"}, r"has num_threads=3 \(.*1, 2, 4\)"),
        ({"y": "status"}, "status holds no numbers"),
        ({"x": "energy_j"}, "no measured point has both energy_j and median_ms"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(run, options, words):
    """The nearest column, or the values that there are."""
    given = {"x": "batch_size", **options}
    with pytest.raises(UsageError, match=words):
        plot.read_plot(run, given.pop("x"), given.pop("y", "median_ms"), **given)


@pytest.mark.slow
def test_points_of_an_earlier_version_of_own_files_are_left_out_and_named(tmp_path):
    """By every command: a table or a picture never holds two versions of a network."""
    text = resultsfolder.SWEEP.replace("resnet18", "nets:tiny")
    folder = resultsfolder.make(tmp_path, text)
    work = {"median_ms": 2.0, "flops": 1e9, "bytes_min": 1e6, "peak_source": "h100"}
    for day, cell, some in ((1, "model=a", folder.points), (2, "model=b", folder.points[:6])):
        folder.submit(f"s{day}", some, text=text, round=day)
        started = f"2026-01-0{day}T00:00:00Z"
        folder.measure(folder.shard(f"s{day}"), some, own_files=cell, started_at=started, **work)
    collector.collect(folder.sweep_dir)
    desk = Desk(tmp_path)
    told = "2 points left out, measured with an earlier version of your own files: nets:tiny"
    commands = (
        ["report"],
        ["plot", "--x", "input_size"],
        ["layers"],
        ["roofline", "--gpu", "h100"],
    )
    for command in (*commands, ["compare", "demo", "demo"], ["report", "--html", "page.html"]):
        name = ["demo"] * ("demo" not in command)
        done = desk.run(command[0], *name, *command[1:])
        assert told in done.stdout + done.stderr, (command, done)
    assert len(dataset.read_dataset(folder.sweep_dir).rows) == 6
    assert "retry demo --changed" in " ".join(dataset.read_dataset(folder.sweep_dir).notes())
    folder.submit("s3", folder.points[:1], text=text, round=3)
    folder.measure(folder.shard("s3"), folder.points[:1], own_files="model=c", started_at="2027",
                   status="error")  # fmt: skip
    collector.collect(folder.sweep_dir)
    with pytest.raises(UsageError, match="8 points left out"):
        dataset.read_dataset(folder.sweep_dir)


def _table(*devices, gpu="l40"):
    return pd.DataFrame({"gpu": gpu, "device_name": list(devices), "ms": range(len(devices))})


def _apart(*tables):
    return [list(table["gpu"]) for table in dataset.products_apart(*tables)]


def test_two_products_under_one_gpu_are_two():
    """The value stays with the product that it names; rows that name no device keep theirs."""
    assert _apart(_table("NVIDIA L40", "NVIDIA L40S", None)) == [["l40", "l40s", "l40"]]
    v100s = _table("Tesla V100-SXM2-16GB", "Tesla V100-PCIE-16GB", gpu="v100")
    assert _apart(v100s) == [["v100", "v100-pcie"]]
    assert gpus.sheet("v100-pcie").name == "V100 PCIe"
    others = _table("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090", gpu="desk")
    assert _apart(others) == [["nvidia-geforce-rtx-4090", "nvidia-geforce-rtx-3090"]]


def test_one_product_keeps_the_name_that_its_profile_gives_it():
    """Sizes of memory make no other product, and processors are not told apart."""
    assert _apart(_table("NVIDIA L40S", "NVIDIA L40S")) == [["l40", "l40"]]
    v100s = _table("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-32GB", gpu="v100")
    assert _apart(v100s) == [["v100", "v100"]]
    assert _apart(_table("Xeon", "EPYC", gpu="cpu")) == [["cpu", "cpu"]]
    assert _apart(pd.DataFrame({"ms": [1]}).assign(gpu="l40")) == [["l40"]]


def test_products_of_tables_that_are_read_together_are_told_apart():
    """Each has one product, under the same value."""
    both = _table("NVIDIA L40S", "NVIDIA L40S"), _table("NVIDIA L40")
    assert _apart(*both) == [["l40s", "l40s"], ["l40"]]
