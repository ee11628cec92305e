"""Points that the sweep no longer has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import resultsfolder
from hpcsweep.collect.workflow import collect
from resultsfolder import SWEEP, by_point, overall

if TYPE_CHECKING:
    from pathlib import Path

    from resultsfolder import Folder


def test_points_that_left_the_sweep_are_orphans(measured: Folder, tmp_path: Path) -> None:
    """Their rows stay; what the edited file still has is none, though submitted long ago."""
    text = SWEEP.replace("64, ", "").replace("224", "256")
    new = resultsfolder.points_of(tmp_path, text)
    fresh = [p for p in new if p.axes["input_size"] == 256]
    measured.submit("s2", fresh, text=text)
    measured.measure(measured.shard("s2"), fresh[:1])
    report = collect(measured.run)
    orphan = {(row["input_size"], row["orphan"]) for row in overall(measured.run)}
    assert orphan == {
        ("64", "true"), ("96", "false"), ("128", "false"), ("224", "true"), ("256", "false")
    }  # fmt: skip
    assert (report.orphans, report.missing, report.points) == (4, 1, 9)


def test_an_edited_sweep_that_leaves_nothing_to_measure_has_orphans_too(measured: Folder) -> None:
    """Points were only taken away, so there is a new sweep file and no new submission."""
    assert collect(measured.run).orphans == 0
    measured.run.sweep_file.write_text(SWEEP.replace("64, 96, ", ""))
    report = collect(measured.run)
    assert (report.orphans, report.missing, report.shards_read) == (4, 0, 0)
    orphan = {(row["input_size"], row["orphan"]) for row in overall(measured.run)}
    assert orphan == {("64", "true"), ("96", "true"), ("128", "false"), ("224", "false")}


def test_points_of_another_profile_are_no_orphans(tmp_path: Path) -> None:
    """Each submission's device and rehearsal count."""
    folder = resultsfolder.make(tmp_path)
    real = resultsfolder.points_of(tmp_path, gpu="l40")
    folder.submit("s1", text=f"{SWEEP}# first\n")
    folder.submit("s2", real, gpu="l40", rehearsal=False)
    folder.measure(folder.shard("s1"))
    folder.measure(folder.shard("s2"), real)
    report = collect(folder.run)
    assert (report.points, report.orphans) == (16, 0)


def test_without_a_readable_sweep_file_orphans_are_unknown(measured: Folder) -> None:
    """The cell is empty, and the report says why."""
    measured.submit("s2", measured.points[:2], text="workload: [\n")
    report = collect(measured.run)
    orphan = by_point(measured.run, "orphan")
    assert [orphan[p.point_id] for p in measured.points] == ["false"] * 2 + [""] * 6
    assert report.orphans == 0
    assert "orphans is unknown" in report.text()
