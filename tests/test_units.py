"""Slurm's spellings of time and memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 3600),
        ("5:30", 330),
        ("24:00:00", 86400),
        ("1-12", 129_600),
        ("1-12:30", 131_400),
        ("2-00:00:01", 172_801),
        ("UNLIMITED", None),
        ("infinite", None),
        ("-1", None),
        ("0", None),
    ],
)
def test_every_form_of_sbatch_time_is_understood(text: str, seconds: int | None) -> None:
    """The forms of sbatch's manual; a bare number is minutes, zero is no limit."""
    assert units.seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "24h", "1:2:3:4", "-5", "1-", "x-01", "1.5", "٣", "12 :00"])
def test_other_times_are_refused(text: str) -> None:
    """With the forms that are allowed."""
    with pytest.raises(ValueError, match="HH:MM:SS"):
        units.seconds(text)


@given(
    days=st.integers(0, 400),
    hours=st.integers(0, 23),
    minutes=st.integers(0, 59),
    seconds=st.integers(1, 59),
)
def test_a_written_time_is_read_back(days: int, hours: int, minutes: int, seconds: int) -> None:
    """Days, hours, minutes and seconds add up."""
    text = f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    assert units.seconds(text) == days * 86400 + hours * 3600 + minutes * 60 + seconds


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [
        ("16G", 16384),
        ("16g", 16384),
        ("16GB", 16384),
        ("512M", 512),
        ("1T", 1 << 20),
        ("1K", 1),
        ("2048K", 2),
        ("0", 0),
    ],
)
def test_memory_is_counted_in_mebibytes(text: str, megabytes: int) -> None:
    """Rounded up; zero is Slurm's word for all of a node's memory."""
    assert units.megabytes(text) == megabytes


@pytest.mark.parametrize("text", ["", "16", "G", "1.5G", "16 Gi", "-1G", "16X"])
def test_memory_needs_a_unit(text: str) -> None:
    """16 alone would be 16 MB to Slurm, which nobody means."""
    with pytest.raises(ValueError, match="such as 16G"):
        units.megabytes(text)
