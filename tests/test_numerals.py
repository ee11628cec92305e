"""A file writes its numbers in one way; so does Slurm its times and memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep import numerals
from hpcsweep.errors import UsageError
from hpcsweep.numerals import ANY, COUNT, WHOLE, Notation, notation

POINT, COMMA = Notation("."), Notation(",")


@pytest.mark.parametrize(
    ("text", "point", "comma"),
    [
        ("14.912", "14.912", "14912"),
        ("14,912", "14912", "14.912"),
        ("1.234.567", "", "1234567"),
        ("1,234.5", "1234.5", ""),
        ("1.234,5", "", "1234.5"),
        ("12,34,567.25", "1234567.25", ""),
        ("1'234.5", "1234.5", ""),
        ("1\u2019234\u2019567", "1234567", "1234567"),
        ("1\u202f234,5", "", "1234.5"),
        ("1\u00a0234", "1234", "1234"),
        ("1 234,5", "", "1234.5"),
        ("1.5e-05", "1.5e-05", ""),
        ("1,5E+3", "", "1.5E+3"),
        (" \u22120,5 ", "", "-0.5"),
        (".5", ".5", ""),
        ("5.", "5.", ""),
        ("007", "007", "007"),
        ("0.123", "0.123", ""),
        ("1234.567", "1234.567", ""),
        ("1,23", "", "1.23"),
        ("1,2345,678", "", ""),
        ("1'234.567'890", "", ""),
        ("224 224", "", ""),
        ("nan", "", ""),
        ("1_000", "", ""),
        ("٣", "", ""),
        ("", "", ""),
        ("(3, 3)", "", ""),
        ("GTX 1,080", "", ""),
    ],
)
def test_a_text_is_a_number_in_a_notation_or_none(text, point, comma):
    """Groups are of three digits, or of two above the first three; two sizes are no number."""
    assert (POINT.plain(text), COMMA.plain(text)) == (point, comma)


@pytest.mark.parametrize(
    ("cells", "decimal"),
    [
        ([("14.912", ANY), ("65.536", COUNT)], ","),  # no fraction of a count
        ([("14,912", ANY), ("65,536", COUNT)], "."),
        ([("14.912", ANY), ("3,25", ANY)], ","),
        ([("14.912", ANY), ("3.25", ANY)], "."),
        ([("1,234", ANY), ("1,234,567", ANY)], "."),
        ([("64.000", WHOLE), ("0.031", ANY)], "."),
        ([("64,000", WHOLE), ("1024", WHOLE)], ","),  # who writes 1024 parts no thousands
        ([("1.234", ANY), ("1024", WHOLE)], "."),
        ([("n/a", ANY), ("7", ANY), ("", ANY)], "."),
        ([("1'234", ANY), ("5,5", ANY)], ","),
    ],
)
def test_one_cell_tells_of_all(cells, decimal):
    """A fraction, a count, two marks of a kind, or a long number without any."""
    assert notation(cells).decimal == decimal
    assert notation(reversed(cells)).decimal == decimal


def test_what_no_cell_tells_is_refused_unless_the_program_is_known():
    """Both readings are named."""
    cells = [("1,234", ANY), ("12", ANY)]
    with pytest.raises(UsageError, match=r"'1,234' may be 1234 or 1\.234, and no other cell"):
        notation(cells)
    assert notation(cells, told=".").plain("1,234") == "1234"
    with pytest.raises(UsageError, match="no other cell"):
        notation(cells, usual=".")  # it writes no commas, so somebody else did
    assert notation([("1.234", ANY)], usual=".").plain("1.234") == "1.234"
    with pytest.raises(UsageError, match="no other cell"):
        notation([*cells, ("1.234", ANY), ("1024", ANY)], usual=".")


def test_a_cell_of_another_notation_is_no_number():
    """So a file of two notations is refused where they meet, or loses the cell."""
    found = notation([("0,5", ANY), ("0.5", ANY)])
    assert [found.plain("0,5"), found.plain("0.5")] == ["0.5", ""]
    assert found.plain("65,5", COUNT) == ""


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
    assert numerals.slurm_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "24h", "1:2:3:4", "-5", "1-", "x-01", "1.5", "٣", "12 :00"])
def test_other_times_are_refused(text: str) -> None:
    """With the forms that are allowed."""
    with pytest.raises(ValueError, match="HH:MM:SS"):
        numerals.slurm_seconds(text)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("4h", "04:00:00"),
        ("90m", "01:30:00"),
        ("1d12H", "1-12:00:00"),
        ("1h30m15s", "01:30:15"),
        (" 45s ", "00:00:45"),
        ("0h", "UNLIMITED"),
        ("90", "01:30:00"),
        ("1-12", "1-12:00:00"),
        ("infinite", "UNLIMITED"),
    ],
)
def test_an_option_takes_shorter_times_beside_those_of_sbatch(text: str, written: str) -> None:
    """It is handed on in Slurm's own form, which sbatch and submitit take."""
    assert numerals.time_of_option(text) == written
    assert numerals.slurm_time(numerals.slurm_seconds(written)) == written


@pytest.mark.parametrize("text", ["", " ", "h", "4x", "1.5h", "30m1h", "4h 30m", "-4h", "٣h"])
def test_other_times_of_an_option_are_refused(text: str) -> None:
    """With the forms that are allowed."""
    with pytest.raises(ValueError, match="needs a time limit: 4h, 90m, 1d12h, or as sbatch"):
        numerals.time_of_option(text)


@given(
    days=st.integers(0, 400),
    hours=st.integers(0, 23),
    minutes=st.integers(0, 59),
    seconds=st.integers(1, 59),
)
def test_a_written_time_is_read_back(days: int, hours: int, minutes: int, seconds: int) -> None:
    """Days, hours, minutes and seconds add up."""
    text = f"{days}-{hours:02}:{minutes:02}:{seconds:02}"
    assert numerals.slurm_seconds(text) == days * 86400 + hours * 3600 + minutes * 60 + seconds


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
    assert numerals.slurm_megabytes(text) == megabytes


@pytest.mark.parametrize("text", ["", "16", "G", "1.5G", "16 Gi", "-1G", "16X"])
def test_memory_needs_a_unit(text: str) -> None:
    """16 alone would be 16 MB to Slurm, which nobody means."""
    with pytest.raises(ValueError, match="such as 16G"):
        numerals.slurm_megabytes(text)
