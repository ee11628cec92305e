"""The line below a headline that counts points that are not valid."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.store import disturbed
from resultsfolder import make

if TYPE_CHECKING:
    from pathlib import Path

    from resultsfolder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a results folder with a sweep."""
    made = make(tmp_path)
    made.run.sweep_file.write_text("name: demo\n")
    return made


def row(flags: str = "very_noisy", **cells: Any) -> dict[str, Any]:
    """Return a row that is not valid."""
    return {"status": "ok", "valid": "false", "flags": flags, **cells}


def told(folder: Folder, *rows: dict[str, Any]) -> str:
    """Return the line."""
    return disturbed.advice(folder.run, rows).replace(f"--results {folder.run.path.parent} ", "")


def test_columns_of_these_rows_say_what_disturbed(folder: Folder) -> None:
    """Medians over those that tell of it, whether cells are texts or numbers."""
    rows = [
        row("contended", load_avg_1min="3.5", threads="2", waited_pct="23.4", switches_per_s="80"),
        row("contended", load_avg_1min=3.7, threads=2, waited_pct=math.nan, switches_per_s=24),
        row("very_noisy", load_avg_1min="", stolen_pct="5"),
    ]
    assert told(folder, *rows) == (
        "disturbed (load 3.6; 23 % of the time waited for "
        "a CPU; 5 % of the time stolen by the hypervisor); "
        "to measure these 3 points again: hpcsweep retry demo --invalid"
    )


def test_flags_say_what_no_column_does(folder: Folder) -> None:
    """Other processes on the GPU, and why it was throttled."""
    found = told(
        folder, row("shared_gpu"), row("throttled;noisy", throttle_reasons="sw_thermal_slowdown")
    )
    assert "(another process on the GPU; the GPU throttled: sw_thermal_slowdown)" in found


def test_a_load_that_is_the_points_own_disturbs_nobody(folder: Folder) -> None:
    """Four threads make a load of four; where nothing tells, that is said."""
    found = told(folder, row(load_avg_1min="4.2", threads="4"))
    assert found.startswith("disturbed (no column says what by); to measure this point again: ")


def test_what_would_be_so_again_is_not_measured_again(folder: Folder) -> None:
    """Doubts of what a point is; one that is disturbed besides is measured again."""
    found = told(folder, row("algorithm_absent"), row("inaccurate"))
    assert found == "algorithm_absent, inaccurate: would be so again (hpcsweep show demo)"
    found = told(folder, row("inaccurate;shared_cpu"), row("unverified"))
    assert "this point again: hpcsweep retry demo --invalid; unverified: would" in found


def test_valid_and_failed_points_have_no_line(folder: Folder) -> None:
    """Nor have runs under a profiler."""
    fine = {"status": "ok", "valid": "true", "flags": "noisy", "load_avg_1min": "99"}
    assert (
        told(
            folder,
            fine,
            row("old_files"),
            row() | {"status": "error"},
            row() | {"status": "profiled"},
        )
        == ""
    )


def test_without_a_sweep_file_no_command_is_named(folder: Folder) -> None:
    """As of tables that were imported."""
    folder.run.sweep_file.unlink()
    assert told(folder, row()) == "disturbed (no column says what by)"
