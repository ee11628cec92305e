"""Exports of Nsight Compute: both layouts, units, and refusal when in doubt."""

from __future__ import annotations

import contextlib
import math

import pytest

import ncufiles
from hpcsweep.analysis.roofline import ncu, ncu_export
from hpcsweep.errors import UsageError
from ncufiles import Launch

WRITERS = pytest.mark.parametrize("write", [ncufiles.write_long, ncufiles.write_wide])


def test_each_value_is_converted_by_its_own_unit(tmp_path):
    """Nanoseconds, microseconds and milliseconds, bytes and gigabytes stand in one column."""
    launches = [Launch(0, "a", 900, 12), Launch(1, "a", 1_500, 3_000), Launch(2, "a", 2 * 10**6)]
    launches.append(Launch(3, "a", 5, 7 * 10**9))
    work = ncu.read(ncufiles.write_long(tmp_path / "k.csv", launches)).work
    assert [piece.seconds for piece in work] == pytest.approx([9e-7, 1.5e-6, 2e-3, 5e-9])
    assert [piece.bytes for piece in work] == pytest.approx([12, 3_000, 1e6, 7e9])


@pytest.mark.parametrize(
    ("known_units", "unit", "factor"),
    [
        (ncu_export.BYTES, "Kbyte", 1e3),
        (ncu_export.BYTES, "Mbyte", 1e6),
        (ncu_export.BYTES, "Gbyte/second", 1e9),
        (ncu_export.BYTES, "byte/nsecond", 1e9),
        (ncu_export.SECONDS, "us", 1e-6),
        (ncu_export.SECONDS, "second", 1.0),
        (ncu_export.OPERATIONS, "inst", 1.0),
        (ncu_export.OPERATIONS, "Minst", 1e6),
        (ncu_export.OPERATIONS, "inst/cycle", 1.0),
        (ncu_export.CYCLES, "cycle/nsecond", 1e9),
        (ncu_export.CYCLES, "Ghz", 1e9),
        (ncu_export.CYCLES, "hz", 1.0),
        (ncu_export.BYTES, "KiB", None),
        (ncu_export.BYTES, "usecond", None),
        (ncu_export.SECONDS, "Kbyte", None),
        (ncu_export.SECONDS, "fortnight", None),
        (ncu_export.OPERATIONS, "%", None),
        (ncu_export.CYCLES, "cycle/fortnight", None),
    ],
)
def test_units_are_decimal_and_known_or_refused(known_units, unit, factor):
    """A Kbyte is 1000 bytes; a unit of another quantity is as unknown as one from nowhere."""
    found = ncu_export.factor(unit, known_units)
    assert found == pytest.approx(math.nan if factor is None else factor, nan_ok=True)


@WRITERS
@pytest.mark.parametrize("keep", [0.35, 0.5, 0.77, 0.93])
def test_an_export_that_was_cut_is_refused(tmp_path, write, keep):
    """Wherever the cut falls: inside a number, a name or a row."""
    path = write(tmp_path / "step.csv", ncufiles.step(6, 3))
    whole = path.read_text()
    path.write_text(whole[: int(len(whole) * keep)])
    with pytest.raises(UsageError, match=r"cut|lacks"):
        ncu.read(path)


@WRITERS
def test_no_cut_gives_a_wrong_number(tmp_path, write):
    """A cut that falls between two launches, where nothing shows it, leaves whole ones."""
    launches = ncufiles.step(4, 2)
    path = write(tmp_path / "step.csv", launches)
    whole = path.read_bytes()
    right = {str(x.ident): (ncufiles.flops([x]), x.bytes, x.ns / 1e9) for x in launches}
    for length in range(0, len(whole), 17):
        path.write_bytes(whole[:length])
        with contextlib.suppress(UsageError):
            for piece in ncu.read(path).work:
                found = (piece.total, piece.bytes, piece.seconds)
                assert found == pytest.approx(right[piece.ident])


@pytest.mark.parametrize("name", ["Metric Unit", "Metric Value", "Kernel Name", "ID"])
def test_an_export_with_other_columns_is_refused(tmp_path, name):
    """Of another version, or edited."""
    path = ncufiles.write_long(tmp_path / "k.csv", [Launch(0, "k")])
    path.write_text(path.read_text().replace(f'"{name}"', '"Something"'))
    with pytest.raises(UsageError, match=r"no column|no line begins"):
        ncu.read(path)


def test_an_export_cut_between_rows_is_refused(tmp_path):
    """Every launch must have every metric; and ncu said how many kernels it profiled."""
    path = ncufiles.write_long(tmp_path / "k.csv", [Launch(0, "k"), Launch(1, "k")])
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(rows[:-3]))
    with pytest.raises(UsageError, match=r"ID 1 \(k\) lacks .*the export was cut"):
        ncu.read(path)
    said = "".join(f'==PROF== Profiling "k" - {i}: 0%....100% - 8 passes\n' for i in range(3))
    ncufiles.write_wide(path, [Launch(0, "k"), Launch(1, "k")], said)
    with pytest.raises(UsageError, match="2 launches, and ncu announced 3: the export was cut"):
        ncu.read(path)


def test_what_ncu_could_not_measure_is_refused(tmp_path):
    """n/a is no zero."""
    path = ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "k", bytes=77)])
    path.write_text(path.read_text().replace('"77"', '"n/a"'))
    with pytest.raises(UsageError, match=r"lacks dram__bytes\.sum"):
        ncu.read(path)


def test_an_unknown_unit_is_refused_by_name(tmp_path):
    """A guess would be wrong by a thousand."""
    path = ncufiles.write_long(tmp_path / "k.csv", [Launch(0, "k")])
    path.write_text(path.read_text().replace("usecond", "fortnight"))
    with pytest.raises(UsageError, match=r"'fortnight' of gpu__time_duration\.sum is not known"):
        ncu.read(path)


@pytest.mark.parametrize("text", ["1.234,5", "12,34", "four"])
def test_a_number_of_another_locale_is_refused(tmp_path, text):
    """1.234,5 must not become 1.234."""
    path = ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "k", ns=999)])
    path.write_text(path.read_text().replace('"999"', f'"{text}"'))
    with pytest.raises(UsageError, match="LC_ALL=C"):
        ncu.read(path)


@WRITERS
def test_two_exports_in_one_file_are_refused(tmp_path, write):
    """Their IDs would be joined."""
    path = write(tmp_path / "k.csv", [Launch(0, "a")])
    first = path.read_text()
    path.write_text(first + write(path, [Launch(0, "b")], "").read_text())
    with pytest.raises(UsageError, match="second table"):
        ncu.read(path)
    rows = [line for line in path.read_text().splitlines(keepends=True) if line.startswith('"')]
    header = next(line for line in rows if line.startswith('"ID"'))
    path.write_text("".join([header, *(line for line in rows if line != header)]))
    with pytest.raises(UsageError, match="ID 0 again"):
        ncu.read(path)
