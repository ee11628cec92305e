"""Packed files are read whole, and those that would fill the memory or a disk are refused."""

from __future__ import annotations

import bz2
import gzip

import pytest

from hpcsweep.errors import ResultsError
from hpcsweep.importing import importer, unpacking

ZEROS = bytes(65 << 20)
NEUSIGHT = (
    b"Device,Kernels,B,Input_Channel,Output_Channel,Input_Size,Kernel_Szie,Stride,Padding,Latency\n"
)
TEXT = b"".join(b"%d,%d\n" % (number, number**3) for number in range(100_000))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_what_is_packed_is_read_whole_whatever_its_name(tmp_path, pack, name):
    """By how it begins: a browser unpacks a file and keeps its name."""
    path = tmp_path / name
    path.write_bytes(pack(TEXT))
    with unpacking.opened(path, 1 << 30) as file:
        assert file.read() == TEXT
    with (
        pytest.raises(ResultsError, match=r"a\.csv.*: .* 1,000 "),
        unpacking.opened(path, 1000) as file,
    ):
        file.read()


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress])
def test_a_file_that_was_cut_is_told(tmp_path, pack):
    """Not as if it was whole."""
    path = tmp_path / "a.csv.gz"
    path.write_bytes(pack(TEXT)[:-9])
    with (
        pytest.raises(ResultsError, match="cannot be read"),
        unpacking.opened(path, 1 << 30) as file,
    ):
        file.read()


@pytest.mark.parametrize(
    ("name", "pack", "columns"),
    [
        ("V100_overall.csv.gz", gzip.compress, ""),
        ("table.csv.gz", gzip.compress, "neusight"),
        ("gfx906_60.fdb.txt.bz2", bz2.compress, ""),
        ("gfx906_60.fdb.txt", gzip.compress, ""),
        ("trace.json.gz", gzip.compress, ""),
    ],
)
def test_a_file_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path, name, pack, columns):
    """Whatever imports it; an honest one has a hundredth of that."""
    path = tmp_path / name
    head = NEUSIGHT if columns else b"algorithm,batch_size,input_size,model\n"
    path.write_bytes(pack(head + ZEROS))
    with pytest.raises(ResultsError, match=f"{name}.* unpacks to more than 67,108,864 bytes"):
        importer.bring(tmp_path / "results", path, columns=columns)
