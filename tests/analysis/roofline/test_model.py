"""Rooflines from end to end: roofs, sums, mistakes, pictures, and the command line."""

from __future__ import annotations

import csv
import json
import sys

import pytest
from matplotlib.image import imread

import ncufiles
import resultsfolder
from hpcsweep.analysis.roofline import chart, model
from hpcsweep.analysis.roofline.work import Roofs, Work, roofs_of
from hpcsweep.catalog.gpus import DEVICES, GPUS
from hpcsweep.collect import workflow
from hpcsweep.errors import UsageError, suggest
from ncufiles import Launch
from paths import ROOT

PEAKS = {"peak_compute": 10.0, "peak_bw": 1000.0}
SAMPLE_SCRIPT = ROOT / "docs" / "sample_export.py"


@pytest.fixture
def step(tmp_path):
    """Return an export of 98 launches of 34 kernels."""
    return ncufiles.write_long(tmp_path / "step.csv", ncufiles.step())


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Return a collected sweep of 8 points on the CPU: 2 GFLOP and 1 MB in 2 ms each."""
    folder = resultsfolder.make(tmp_path_factory.mktemp("swept"))
    folder.submit("20260101-000000-aaaaaa")
    folder.measure(
        folder.shard("20260101-000000-aaaaaa"),
        median_ms=2.0, flops=2_000_000_000, bytes_min=1_000_000, peak_source="A100 SXM4 80GB",
    )  # fmt: skip
    workflow.collect(folder.run)
    return folder.run


def rows_of(path):
    """Return the rows of a CSV file."""
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_summary_has_one_row_per_launch_and_adds_up(desk, step):
    """Repeated kernels stay apart; nothing is lost or doubled."""
    done = desk.run(
        "roofline", step, "--gpu", "l40", "--summary", "all.csv", "--peak-bw", "1e6",
        "--peak-compute", "1e6",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = rows_of(desk.folder / "all.csv")
    assert [row["id"] for row in rows] == [str(i) for i in range(98)]
    assert sum(int(row["flops"]) for row in rows) == ncufiles.flops(ncufiles.step())
    assert "98 launches of 34 names" in done.stdout


def test_sums_by_name_have_one_row_per_kernel(desk, step):
    """With the number of launches, and the same total."""
    desk.run("roofline", step, "--gpu", "l40", "--by-name", "--summary", "names.csv")
    rows = rows_of(desk.folder / "names.csv")
    assert len(rows) == 34
    assert sum(int(row["count"]) for row in rows) == 98
    assert sum(int(row["flops"]) for row in rows) == ncufiles.flops(ncufiles.step())


def test_json_is_pure_and_holds_pieces_sums_and_total(desk, step):
    """For machines; what was written is told on stderr."""
    done = desk.run_process("roofline", step, "--gpu", "a100", "--json", "--summary", "s.csv")
    record = json.loads(done.stdout)
    assert (len(record["pieces"]), len(record["groups"])) == (98, 34)
    assert record["total"]["flops"] == ncufiles.flops(ncufiles.step())
    assert record["compute_tflops"] == {"fp32": 19.5}
    assert "s.csv" in done.stderr


def test_the_roof_is_the_lower_of_memory_and_compute():
    """A piece's share is the least time that it can take over the time it took."""
    roofs = Roofs(1e12, "x", {"fp32": 1e13})
    light = Work("k", "0", {"fp32": 1e9}, 1e9, 2e-3)
    assert (roofs.bound(light), roofs.share(light)) == ("memory", pytest.approx(0.5))
    heavy = Work("k", "0", {"fp32": 1e11}, 1e9, 4e-2)
    assert (roofs.bound(heavy), roofs.share(heavy)) == ("compute", pytest.approx(0.25))


def test_units_that_work_side_by_side_are_not_added():
    """Tensor cores and FP32 pipes have peaks of their own; the slower one bounds."""
    roofs = Roofs(1e12, "x", {"fp32": 1e13, "tf32 tensor": 1e14})
    mixed = Work("k", "0", {"fp32": 1e10, "tf32 tensor": 1e11}, 0, 1e-3)
    assert roofs.share(mixed) == pytest.approx(1.0)


def test_what_is_above_its_roof_is_told_as_a_mistake(desk):
    """Exit code 3, by launch, never a triumph; on the roof is fine."""
    launches = [Launch(0, "sane", 1_000, 1_000_000), Launch(1, "mad", 1_000, 1_500_000)]
    path = ncufiles.write_wide(desk.folder / "k.csv", launches)
    done = desk.run(
        "roofline", path, "--peak-compute", "1", "--peak-bw", "1000", "--out", "k.png", "--summary",
        "k.summary.csv",
    )  # fmt: skip
    assert done.returncode == 3
    assert "1 launch above the roof, which cannot be" in done.stdout
    assert "1: mad: 150 % of its memory roof" in done.stdout
    rows = rows_of(desk.folder / "k.summary.csv")
    assert [row["above_roof"] for row in rows] == ["false", "true"]


def test_peaks_come_from_the_device_that_the_export_names(desk):
    """The sample names an A100; its roofs are the dense ones."""
    shown = desk.run("roofline", "--sample")
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
    assert model.sample().read_text() == sample_export.text()
    found = model.read([model.sample()])
    calls = sample_export.calls()
    assert len(found.export.work) == len(calls) == 60
    tensor = sum(piece.flops["tf32 tensor"] for piece in found.export.work)
    assert tensor == sum(call.flops for call in calls if call.op == "conv2d")


@pytest.mark.parametrize("gpu", DEVICES, ids=lambda gpu: gpu.name)
def test_every_device_of_the_table_has_its_dense_roofs(gpu):
    """Units without a figure have no roof; MI250 is one die."""
    roofs = roofs_of(gpu)
    assert roofs.peak("fp32") == gpu.fp32_tflops * 1e12
    assert roofs.peak("float32") == (gpu.fp32_matrix_tflops or gpu.fp32_tflops) * 1e12
    assert roofs.bandwidth == gpu.bandwidth_gbs * 1e9
    if gpu.tf32_tflops is None:
        with pytest.raises(UsageError, match="give --peak-compute"):
            roofs.peak("tf32 tensor")


def test_mi250_is_one_of_two_dies():
    """A module's peak would halve every share."""
    assert roofs_of(GPUS["mi250"]).bandwidth == 1638e9


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("k.csv",), "the export names no device: give --gpu"),
        (("k.csv", "--gpu", "v10"), "did you mean 'v100'"),
        (("k.csv", "--gpu", "l40", "--out", "k.jpeg"), "pictures end in .png"),
        (("k.csv", "--gpu", "l40", "--out", "no/k.png"), "there is no folder"),
        (("k.csv", "--gpu", "l40", "--summary", "no/k.csv"), "No such file"),
        (("k.csv", "--gpu", "l40", "--layers"), "--layers is for sweeps"),
        (("missing.csv", "--gpu", "l40"), "missing.csv: No such file"),
        (("k.csv", "k.csv", "--gpu", "l40"), "give one export"),
        (("x.ncu-rep",), "ncu --import x.ncu-rep --csv"),
        (("other.csv",), "this is no ncu export"),
        (("nosweep",), "no results of a sweep 'nosweep'"),
    ],
)
def test_what_cannot_be_drawn_is_told_in_a_line(desk, arguments, words):
    """Exit code 2, no traceback."""
    ncufiles.write_wide(desk.folder / "k.csv", [Launch(0, "k")])
    (desk.folder / "other.csv").write_text("a,b\n1,2\n")
    (desk.folder / "x.ncu-rep").write_bytes(b"\x00")
    done = desk.run("roofline", *arguments)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_pictures_are_drawn_without_a_display(tmp_path, step, suffix):
    """By suffix."""
    found = model.read([step], label="a step", **PEAKS)
    path = tmp_path / f"step.{suffix}"
    chart.draw(found, path)
    head = path.read_bytes()[:400]
    assert {"png": b"PNG", "svg": b"<svg", "pdf": b"%PDF"}[suffix] in path.read_bytes()[:2000], head


def test_the_picture_says_what_its_axes_are(tmp_path, step):
    """Units on both, roofs with their figures, the title that was asked for."""
    import matplotlib as mpl

    found = model.read([step], label="a step & more", **PEAKS)
    with mpl.rc_context({"svg.fonttype": "none"}):
        chart.draw(found, tmp_path / "step.svg")
    text = (tmp_path / "step.svg").read_text()
    for words in (
        "arithmetic intensity (FLOP/byte)", "performance (TFLOP/s)", "peak 10 TFLOP/s",
        "1000 GB/s", "a step &amp; more", "26 others",
    ):  # fmt: skip
        assert words in text


def test_nothing_to_draw_is_still_a_picture(tmp_path):
    """A kernel without FLOPs has no place on a logarithmic axis; the roofs stand."""
    path = ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "copy")])
    found = model.read([path], **PEAKS)
    chart.draw(found, tmp_path / "k.png")
    assert imread(tmp_path / "k.png").std() > 0
    assert "1 launch without FLOPs: not in the picture" in found.text()


def test_a_collected_sweep_needs_no_profiler(swept):
    """FLOPs and bytes of the shapes over the median; the dtype's peak is the roof."""
    found = model.read([swept.path])
    assert len(found.export.work) == 8
    assert {piece.name for piece in found.export.work} == {"gemm", "winograd"}
    assert found.export.work[0].rate == pytest.approx(1e12)
    assert found.roofs.peak("float32") == 19.5e12
    assert "each tensor moved once" in found.text()
    assert model.read([swept.overall]).label == "demo"


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
    workflow.collect(folder.run)
    found = model.read([folder.run.path], gpu="a100")
    assert sorted(piece.rate for piece in found.export.work) == pytest.approx([1e12, 2e12])
    assert {unit for piece in found.export.work for unit in piece.flops} == {"float32", "bfloat16"}
    assert "of a training step the forward pass" in found.text()
    assert "1 point without FLOPs left out" in found.text()


def test_a_sweep_on_several_gpus_is_drawn_one_at_a_time(tmp_path):
    """One roof per picture."""
    folder = resultsfolder.make(tmp_path)
    folder.submit("20260101-000000-aaaaaa")
    with resultsfolder.shards.ShardWriter(folder.shard("20260101-000000-aaaaaa")) as writer:
        for gpu, point in zip(("l40", "v100"), folder.points, strict=False):
            cells = {"gpu": gpu, "median_ms": 1.0, "flops": 10**9, "bytes_min": 10**6}
            resultsfolder.commit(writer, point, folder.shard("20260101-000000-aaaaaa"), **cells)
    workflow.collect(folder.run)
    with pytest.raises(UsageError, match="measured on l40, v100; choose one with --gpu"):
        model.read([folder.run.path])
    found = model.read([folder.run.path], gpu="v100")
    assert (len(found.export.work), found.roofs.source) == (1, "V100 SXM2")


def test_a_sweep_above_its_roof_says_what_bytes_and_flops_leave_out(swept):
    """Winograd does fewer operations than are counted, caches move fewer bytes."""
    found = model.read([swept.path], peak_compute=0.5, peak_bw=1000)
    assert len(found.above) == 8
    assert "fewer operations than a direct convolution" in found.text()


def test_a_sweep_can_be_drawn_in_part(swept):
    """By values of its columns, as `plot` does."""
    assert len(model.read([swept.path], where="algorithm=gemm,input_size=64").export.work) == 1
    with pytest.raises(UsageError, match=r"has input_size=65 \(.*64, 96, 128, 224\)"):
        model.read([swept.path], where="input_size=65")


def test_a_sweep_without_work_is_refused(desk):
    """The no-op workload counts nothing."""
    desk.spec("workload: noop\naxes: {model: [a], input_size: [1, 2]}\n")
    desk.run("submit", "sweep.yaml")
    desk.run("collect")
    done = desk.run("roofline", "--peak-compute", "1", "--peak-bw", "1")
    assert done.returncode == 2
    assert "no row has flops, bytes_min, median_ms" in done.stderr


def test_what_to_collect_is_printed_for_both_profilers(desk):
    """As their command line, or their input file, takes it."""
    shown = desk.run("roofline", "--metrics", "ncu")
    assert shown.stdout.startswith("gpu__time_duration.sum,dram__bytes.sum,smsp__sass")
    assert "sm__ops_path_tensor_src_" in shown.stderr
    assert desk.run("roofline", "--metrics", "rocprof").stdout.startswith("pmc: SQ_INSTS_VALU")


def test_the_nearest_gpu_is_told_as_it_is_typed():
    """The table has each in two spellings; the short one comes first."""
    assert suggest("l4", ["l40", "L40"]) == "; did you mean 'l40'?"
