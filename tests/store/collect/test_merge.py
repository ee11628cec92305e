"""Which row of a point counts, in which order, and whether rows may be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpcsweep.cluster import status
from hpcsweep.store import ledger
from hpcsweep.store.collect.collector import collect
from resultsfolder import Folder, by_point, overall

if TYPE_CHECKING:
    from resultsfolder import Folder


def test_ok_beats_everything_and_later_beats_earlier(folder: Folder) -> None:
    """A retry that fails does not take a number away."""
    points = folder.points[:3]
    folder.measure(folder.shard("s1"), points[:2], mean_ms=1.0)
    folder.measure(folder.shard("s1", attempt=1), points[1:], status="crashed")
    folder.submit("s2")
    folder.measure(folder.shard("s2"), points[:1], mean_ms=3.0)
    folder.measure(folder.shard("s2", attempt=1), points[2:], status="oom")
    report = collect(folder.sweep_dir)
    status, ms = by_point(folder.sweep_dir, "status"), by_point(folder.sweep_dir, "mean_ms")
    assert [status[p.point_id] for p in points] == ["ok", "ok", "oom"]
    assert [ms[p.point_id] for p in points[:2]] == ["3", "1"]
    assert "3 points with several rows" in report.text()


def test_the_later_round_counts_whatever_the_clock_said(folder: Folder) -> None:
    """The clock went back before the second submission; both orders of collecting agree."""
    point = folder.points[0]
    folder.submit("a-earlier-name", [point], round=1)
    folder.measure(folder.shard("s1"), [point], status="crashed")
    collect(folder.sweep_dir)
    folder.measure(folder.shard("a-earlier-name"), [point], status="oom")
    assert collect(folder.sweep_dir).statuses == {"oom": 1}
    folder.sweep_dir.collect_index.unlink()
    assert collect(folder.sweep_dir).statuses == {"oom": 1}
    assert ledger.statuses(folder.sweep_dir) == {point.point_id: "oom"}
    (found,) = status.read_status(folder.sweep_dir.path.parent, [])
    assert found.profiles[0].tally().counts() == {"oom": 1}


def test_a_manifest_that_comes_back_changes_which_row_counts(folder: Folder) -> None:
    """Until then its name says where it stands among the others; nothing of that is remembered."""
    point = folder.points[0]
    earlier = folder.submit("a-earlier-name", [point], round=1)
    folder.measure(folder.shard("s1"), [point], status="crashed")
    folder.measure(folder.shard("a-earlier-name"), [point], status="oom")
    manifest = earlier.manifest.read_bytes()
    earlier.manifest.unlink()
    assert collect(folder.sweep_dir).statuses == {"crashed": 1}
    earlier.manifest.write_bytes(manifest)
    assert collect(folder.sweep_dir).statuses == {"oom": 1}


def test_rows_that_ran_with_other_libraries_are_flagged(folder: Folder) -> None:
    """The minority of each GPU type, after the flags that they have."""
    points = folder.points
    folder.measure(folder.shard("s1"), points[:5])
    folder.measure(
        folder.shard("s1", 1), points[5:7], torch_version="2.8.0", flags="noisy;few_samples"
    )
    folder.measure(folder.shard("s1", 2), points[7:], torch_version="2.8.0", status="oom")
    report = collect(folder.sweep_dir)
    flags = by_point(folder.sweep_dir, "flags")
    assert [flags[p.point_id] for p in points] == (
        [""] * 5 + ["noisy;few_samples;version_mix"] * 2 + [""]
    )
    (mix,) = report.version_mixes
    assert [(g["torch_version"], g["rows"]) for g in mix["groups"]] == [("2.9.0", 5), ("2.8.0", 2)]
    assert "2 rows with torch_version 2.8.0" in report.text()


@pytest.mark.parametrize("what", ["digest", "date"])
@pytest.mark.parametrize("grows", [False, True])
def test_a_damaged_row_does_not_make_the_others_old(
    folder: Folder, what: str, *, grows: bool
) -> None:
    """Its version of the user's network is none, nor is the time at which it says it was measured.

    Also where the intact rows were collected before it came.
    """
    begun = "2026-01-01T00:00:0"
    for place, point in enumerate(folder.points):
        shard = folder.shard("s1", attempt=place)
        version = "a" if place < 4 or (place == 7 and what == "date") else "b"
        cells = {"own_files": f"model={version}", "started_at": f"{begun}{place}.000Z"}
        if grows and place == 7:
            collect(folder.sweep_dir)
        folder.measure(shard, [point], model="own:net", **cells)
    last = folder.shard("s1", attempt=7).overall
    old, new = (b"model=b", b"model=c") if what == "digest" else (b"2026-01-01T", b"2126-01-01T")
    last.write_bytes(last.read_bytes().replace(old, new))
    for _ in range(2):
        report = collect(folder.sweep_dir)
        assert [row["flags"] for row in overall(folder.sweep_dir)] == ["old_files"] * 4 + [""] * 3
        assert len(report.left_out) == 1


def test_layers_that_are_gone_cost_the_points_that_had_some(folder: Folder) -> None:
    """A point without layer rows needs none."""
    folder.measure(folder.shard("s1"), folder.points[:4])
    folder.measure(folder.shard("s1", 1), folder.points[4:], status="oom")
    for chunk in (0, 1):
        folder.shard("s1", chunk).layers.unlink(missing_ok=True)
    report = collect(folder.sweep_dir)
    assert report.statuses == {"oom": 4}
    assert len(report.left_out) == 4
    assert report.unreadable == [str(folder.shard("s1").overall)]
