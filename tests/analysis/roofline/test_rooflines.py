"""Rooflines from end to end: sums, mistakes, peaks, the sample; and those of collected sweeps."""

from __future__ import annotations

import csv
import sys

import pytest

import ncufiles
import resultsfolder
from hpcsweep.analysis.roofline import rooflines
from hpcsweep.errors import UsageError
from hpcsweep.store.collect import collector
from ncufiles import Launch
from paths import ROOT

SAMPLE_SCRIPT = ROOT / "docs" / "sample_export.py"


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    """Return a collected sweep of 8 points on the CPU: 2 GFLOP and 1 MB in 2 ms each."""
    folder = resultsfolder.make(tmp_path_factory.mktemp("swept"))
    folder.submit("20260101-000000-aaaaaa")
    folder.measure(
        folder.shard("20260101-000000-aaaaaa"),
        median_ms=2.0, flops=2_000_000_000, bytes_min=1_000_000, peak_source="A100 SXM4 80GB",
    )  # fmt: skip
    collector.collect(folder.sweep_dir)
    return folder.sweep_dir


def rows_of(path):
    """Return the rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_summary_has_one_row_per_launch_and_adds_up(desk, step):
    """Repeated kernels stay apart; nothing is lost or doubled."""
    done = desk.run(
        "roofline", step, "--gpu", "l40", "--out", "all.csv", "--peak-bw", "1e6",
        "--peak-compute", "1e6",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = rows_of(desk.folder / "all.csv")
    assert [row["id"] for row in rows] == [str(i) for i in range(98)]
    assert sum(int(row["flops"]) for row in rows) == ncufiles.flops(ncufiles.step())
    assert "98 launches of 34 names" in done.stdout


def test_sums_by_name_have_one_row_per_kernel(desk, step):
    """With the number of launches, and the same total."""
    desk.run("roofline", step, "--gpu", "l40", "--by-name", "--out", "names.csv")
    rows = rows_of(desk.folder / "names.csv")
    assert len(rows) == 34
    assert sum(int(row["count"]) for row in rows) == 98
    assert sum(int(row["flops"]) for row in rows) == ncufiles.flops(ncufiles.step())


def test_what_is_above_its_roof_is_told_as_a_mistake(desk):
    """Exit code 3, by launch, never a triumph; on the roof is fine."""
    launches = [Launch(0, "sane", 1_000, 1_000_000), Launch(1, "mad", 1_000, 1_500_000)]
    path = ncufiles.write_wide(desk.folder / "k.csv", launches)
    done = desk.run(
        "roofline", path, "--peak-compute", "1", "--peak-bw", "1000", "--out", "k.png", "--out",
        "k.summary.csv",
    )  # fmt: skip
    assert done.returncode == 3
    assert "1 launch above the roof, which cannot be" in done.stdout
    assert "1: mad: 150 % of its memory roof" in done.stdout
    rows = rows_of(desk.folder / "k.summary.csv")
    assert [row["above_roof"] for row in rows] == ["false", "true"]


def test_peaks_come_from_the_device_that_the_export_names(desk):
    """The sample names an A100; its roofs are the dense ones."""
    shown = desk.run("roofline", "--example")
    assert shown.returncode == 0, shown.stderr
    assert "fp32 19.5, tf32 tensor 156 TFLOP/s, 2039 GB/s" in shown.stdout
    assert "computed, not measured" in shown.stdout


def test_the_sample_is_what_its_script_computes():
    """60 layer calls of ResNet-18; FLOPs are those of the shapes."""
    sys.path.insert(0, str(SAMPLE_SCRIPT.parent))
    try:
        import sample_export
    finally:
        sys.path.pop(0)
    assert rooflines.sample().read_text() == sample_export.text()
    found = rooflines.read_roofline([rooflines.sample()])
    calls = sample_export.calls()
    assert len(found.export.work) == len(calls) == 60
    tensor = found.export.work["tf32 tensor"].sum()
    assert tensor == sum(call.flops for call in calls if call.op == "conv2d")


def test_a_collected_sweep_needs_no_profiler(swept):
    """FLOPs and bytes of the shapes over the median; the dtype's peak is the roof."""
    found = rooflines.read_roofline(swept)
    assert len(found.export.work) == 8
    assert {*found.pieces["name"]} == {"gemm", "winograd"}
    assert found.pieces["tflops"][0] == pytest.approx(1)
    assert found.roofs.peak("float32") == 19.5e12
    assert "each tensor moved once" in found.text()
    assert found.label == "demo"


def test_a_training_point_s_work_is_held_against_the_time_of_its_forward_pass(tmp_path):
    """The work columns count a forward pass; in mixed precision the half type's peak counts."""
    folder = resultsfolder.make(tmp_path)
    folder.submit("20260101-000000-aaaaaa")
    cells = {"workload": "training", "gpu": "a100", "flops": 2 * 10**9, "bytes_min": 10**6}
    with resultsfolder.shards.ShardWriter(folder.shard("20260101-000000-aaaaaa")) as writer:
        for amp, forward, point in zip(
            ("off", "bf16", "off"), (2, 1, ""), folder.points, strict=False
        ):
            times = {"median_ms": 9.0, "phase_forward_ms": forward, "amp": amp}
            place = folder.shard("20260101-000000-aaaaaa")
            resultsfolder.commit(writer, point, place, **cells, **times)
    collector.collect(folder.sweep_dir)
    found = rooflines.read_roofline(folder.sweep_dir, gpu="a100")
    assert sorted(found.pieces["tflops"]) == pytest.approx([1, 2])
    assert {*found.peaks} == {"float32", "bfloat16"}
    assert "of a training step the forward pass" in found.text()
    assert "1 point without FLOPs or bytes left out" in found.text()


def test_times_in_doubt_are_told(tmp_path):
    """Their points stand under the roof as the others."""
    folder = resultsfolder.make(tmp_path)
    folder.submit("20260101-000000-aaaaaa")
    cells = {
        "median_ms": 2.0,
        "flops": 2 * 10**9,
        "bytes_min": 10**6,
        "peak_source": "A100 SXM4 80GB",
    }
    folder.measure(folder.shard("20260101-000000-aaaaaa"), valid=False, flags="throttled", **cells)
    collector.collect(folder.sweep_dir)
    assert "unreliable: throttled (8 points)" in rooflines.read_roofline(folder.sweep_dir).text()


@pytest.mark.parametrize(
    ("backend", "used", "unit"),
    [
        ("cudnn", "fft", "float32"),
        ("cudnn", "fft+gemm", "float32"),
        ("cudnn", "fft+winograd_nonfused", "tf32"),
        ("cudnn+framework", "fft+auto", "tf32"),
        ("framework", "auto", "tf32"),
        (float("nan"), float("nan"), "tf32"),  # a layer that is no convolution
    ],
)
def test_the_roof_of_tensor_cores_is_for_who_may_use_them(backend, used, unit):
    """The other explicit algorithms of cuDNN multiply in float32, whatever TF32 would allow."""
    row = {"backend": backend, "algorithm_used": used}
    assert rooflines._unit(row, {"dtype": "float32", "tf32": "true"}) == unit
    assert rooflines._unit(row, {"dtype": "float64", "tf32": "true"}) == "float64"


def test_a_sweep_s_rows_say_who_multiplied_and_how_often(tmp_path):
    """FFT of cuDNN has the float32 peak, not TF32's, and may be above its roof: it saves work."""
    folder = resultsfolder.make(tmp_path)
    folder.submit("20260101-000000-aaaaaa")
    ran = {"backend": "cudnn", "algorithm_used": "fft", "tf32": True, "gpu": "a100"}
    work = {"flops": 2 * 10**9, "bytes_min": 10**6, "median_ms": 2.0}
    folder.measure(folder.shard("20260101-000000-aaaaaa"), **ran, **work)
    collector.collect(folder.sweep_dir)
    found = rooflines.read_roofline(folder.sweep_dir)
    assert {*found.peaks} == {"float32"}
    assert found.export.work["fewer"].all()


def test_a_sweep_on_several_gpus_is_drawn_one_at_a_time(tmp_path):
    """One roof per picture."""
    folder = resultsfolder.make(tmp_path)
    folder.submit("20260101-000000-aaaaaa")
    with resultsfolder.shards.ShardWriter(folder.shard("20260101-000000-aaaaaa")) as writer:
        for gpu, point in zip(("l40", "v100"), folder.points, strict=False):
            cells = {"gpu": gpu, "median_ms": 1.0, "flops": 10**9, "bytes_min": 10**6}
            resultsfolder.commit(writer, point, folder.shard("20260101-000000-aaaaaa"), **cells)
    collector.collect(folder.sweep_dir)
    with pytest.raises(UsageError, match="measured on l40, v100; choose one with --gpu"):
        rooflines.read_roofline(folder.sweep_dir)
    found = rooflines.read_roofline(folder.sweep_dir, gpu="v100")
    assert (len(found.export.work), found.roofs.source) == (1, "V100 SXM2")


def test_a_sweep_above_its_roof_says_what_bytes_and_flops_leave_out(swept):
    """Winograd does fewer operations than are counted, so it is no mistake above that roof."""
    found = rooflines.read_roofline(swept, peak_compute=0.5, peak_bw=1000)
    assert {*found.above["name"]} == {"gemm"}
    assert len(found.above) == 4
    assert "4 points above the compute roof: Winograd and FFT do fewer operations" in found.text()
    low = rooflines.read_roofline(swept, peak_compute=500, peak_bw=0.001)
    assert len(low.above) == 8
    assert "caches served some of the bytes" in low.text()


def test_a_sweep_can_be_drawn_in_part(swept):
    """By values of its columns, as `plot` does."""
    assert (
        len(rooflines.read_roofline(swept, where="algorithm=gemm,input_size=64").export.work) == 1
    )
    with pytest.raises(UsageError, match=r"has input_size=65 \(.*64, 96, 128, 224\)"):
        rooflines.read_roofline(swept, where="input_size=65")


def test_a_sweep_without_work_is_refused(desk):
    """The no-op workload counts nothing."""
    desk.spec("workload: noop\naxes: {model: [a], input_size: [1, 2]}\n")
    desk.run("submit", "sweep.yaml")
    desk.run("collect")
    done = desk.run("roofline", "--peak-compute", "1", "--peak-bw", "1")
    assert done.returncode == 2
    assert "no row has flops, bytes_min, median_ms" in done.stderr
