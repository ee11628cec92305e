"""Rooflines of collected sweeps, without a profiler."""

from __future__ import annotations

import pytest

import resultsfolder
from hpcsweep.analysis.roofline import rooflines, sweep_work
from hpcsweep.errors import UsageError
from hpcsweep.store.collect import collector


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
    assert sweep_work._unit(row, {"dtype": "float32", "tf32": "true"}) == unit
    assert sweep_work._unit(row, {"dtype": "float64", "tf32": "true"}) == "float64"


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
