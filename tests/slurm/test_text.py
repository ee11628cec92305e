"""Times and numbers in Slurm's output."""

from __future__ import annotations

import pytest

from hpcsweep import slurm


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("5:30", 330),
        ("24:00:00", 86400),
        ("1-00:00:00", 86400),
        ("2-12", 216000),
        ("1-02:03", 93780),
        ("UNLIMITED", None),
        ("INFINITE", None),
        ("INVALID", None),
        ("N/A", None),
        ("", None),
        ("-", None),
        ("1:2:3:4", None),
    ],
)
def test_slurm_times_are_read_in_every_form(text: str, seconds: int | None):
    """As limits and as times that passed; no limit, and what is no time, are None."""
    assert slurm.duration(text) == seconds


def test_a_limit_of_zero_is_none():
    """Slurm's way to say that there is no limit."""
    assert slurm.duration("0:00") is None


@pytest.mark.parametrize("read", [slurm.number, slurm.amount, slurm.duration])
def test_a_number_of_thousands_of_digits_is_none(read):
    """Python refuses to read it."""
    assert read("9" * 5000) is None
