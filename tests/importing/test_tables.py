"""Which files are tables of the predecessor, and what their names mean."""

from __future__ import annotations

import pytest

import oldtables
from hpcsweep.errors import UsageError
from hpcsweep.importing import tables
from hpcsweep.importing.tables import Key, Table


def test_tables_are_known_by_their_headers(tmp_path):
    """Whatever they are called; other files are left alone."""
    oldtables.write(tmp_path / "a.csv", oldtables.NETWORKS, [])
    oldtables.write(tmp_path / "b.csv", oldtables.LAYERS, [])
    oldtables.write(tmp_path / "c.csv", ["x", "y"], [])
    (tmp_path / "d.csv").write_bytes(b"\xff\xfe")
    found = tables.find(tmp_path)
    assert [(table.path.name, table.of_layers) for table in found] == [
        ("a.csv", False), ("b.csv", True),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="neither a results folder nor tables"):
        tables.find(tmp_path / "c.csv")


@pytest.mark.parametrize(
    ("file", "column", "given", "expected"),
    [
        ("ResNet152_gemm_cuda_layers.csv", "NVIDIA L40S", "", "l40s"),
        ("ResNet152_gemm_V100_layers.csv", "cuda", "", "v100"),
        ("V100/layers.csv", "", "a100", "v100"),
        ("layers.csv", "", "a100", "a100"),
        ("layers.csv", "Quadro", "", "quadro"),
    ],
)
def test_the_device_stands_in_a_column_or_in_a_name(tmp_path, file, column, given, expected):
    """The column counts first, then the file's name, then its folder's."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    row = oldtables.layer_rows("ResNet_152", "winograd non-fused", "x", (224,), 1)[0]
    oldtables.write(path, [*oldtables.LAYERS, "device"], [[*row, column]])
    ((key, _cells),) = tables.rows(Table(path, of_layers=True), given)
    assert key == Key("resnet152", "winograd_nonfused", expected)


def test_a_number_is_finite_or_unknown():
    """Never a zero that nobody wrote."""
    assert [tables.number(text) for text in ("1.5", "", None, "nan?", "inf")] == [
        1.5, None, None, None, None,
    ]  # fmt: skip
    assert tables.times({"mean": "2", "std_ms": "0.5", "max": ""}) == {"mean_ms": 2, "std_ms": 0.5}
