"""Headlines: no count of points hides those that are not valid."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpcsweep.collect.workflow import collect
from hpcsweep.store import shards, tally
from hpcsweep.store.tally import VALID, Tally
from resultsfolder import make

if TYPE_CHECKING:
    from pathlib import Path

    from resultsfolder import Folder

NOISY = {"valid": False, "flags": "few_samples;very_noisy"}


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a results folder with one submission of all points, and no rows yet."""
    made = make(tmp_path)
    made.submit("s1")
    return made


def test_a_tally_says_how_many_are_not_valid_and_why() -> None:
    """Only of those that are ok; a row may have several flags."""
    found = Tally()
    for doubts in (VALID, "very_noisy", "very_noisy;shared_cpu"):
        found.add("ok", doubts)
    assert str(found) == "3 ok, 2 of them not valid: very_noisy 2, shared_cpu 1"
    found.add("error", "inaccurate")
    assert str(found).endswith("shared_cpu 1; 1 error")
    assert found.to_json() == {"not_valid": 2, "doubts": {"very_noisy": 2, "shared_cpu": 1}}


def test_a_tally_of_valid_rows_is_as_short_as_ever() -> None:
    """Nothing is said of what is not there."""
    found = Tally()
    found.add("ok")
    found.add("timeout")
    assert str(found) == "1 ok, 1 timeout"


@pytest.mark.parametrize("reason", ["", 'a "quoted", cell', "b,c"])
def test_the_quick_look_finds_why_rows_are_not_valid(folder: Folder, reason: str) -> None:
    """It parses the last cells only, and quotes do not mislead it; of several ok rows the last."""
    first, second, third, fourth, *_ = folder.points
    folder.measure(folder.shard("s1"), [first, second, third], **NOISY, status_reason=reason)
    folder.measure(folder.shard("s1", attempt=1), [second], valid=True, node=reason)
    folder.measure(folder.shard("s1", attempt=2), [third, fourth], **NOISY, status="error")
    assert tally.doubts_in(folder.run.shards()) == {
        first.point_id: "very_noisy",
        second.point_id: VALID,
        third.point_id: "very_noisy",
    }


def test_the_quick_look_agrees_with_a_full_one(folder: Folder) -> None:
    """Whatever the columns; a line that is torn counts in neither."""
    shard = folder.shard("s1")
    folder.measure(shard, folder.points[:3], **NOISY)
    with shard.overall.open("ab") as file:
        file.write(b"0123456789abcdef,ok,")
    full = {row["point_id"]: tally.doubts_of(row) for row in shards.read(shard).rows}
    assert tally.doubts_in([shard]) == full


def test_collect_says_it_and_remembers_it(folder: Folder) -> None:
    """Also when nothing is new."""
    folder.measure(folder.shard("s1"), folder.points[:3], **NOISY)
    folder.measure(folder.shard("s1", 1), folder.points[3:], valid=True)
    for _ in range(2):
        report = collect(folder.run)
        head = "demo: 8 points (8 ok, 3 of them not valid: very_noisy 3), 16 layer rows\n"
        assert report.text().startswith(head)
        assert report.to_json()["doubts"] == {"very_noisy": 3}
