"""Rooflines from end to end: sums, mistakes, peaks, the sample."""

from __future__ import annotations

import csv
import sys

import ncufiles
from hpcsweep.analysis.roofline import rooflines
from ncufiles import Launch
from paths import ROOT

SAMPLE_SCRIPT = ROOT / "docs" / "sample_export.py"


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
