"""The row schema: names, order, cells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep import catalog
from hpcsweep.catalog import columns
from hpcsweep.catalog.columns import (
    COMMIT,
    DOUBTFUL,
    FLAGS,
    LAYER_COLUMNS,
    LAYERS,
    MERGED_COLUMNS,
    MUST_AGREE,
    OVERALL,
    OVERALL_COLUMNS,
    SAMPLES,
    SHARD_COLUMNS,
)


@pytest.mark.parametrize("columns", [LAYER_COLUMNS, MERGED_COLUMNS, SHARD_COLUMNS])
def test_no_table_has_a_column_twice(columns: tuple[str, ...]) -> None:
    """Names are looked up."""
    assert len(set(columns)) == len(columns)


def test_the_predecessors_names_come_first() -> None:
    """Notebooks that select by position keep working."""
    assert OVERALL_COLUMNS[:10] == (
        "model", "algorithm", "device", "batch_size", "input_size",
        "mean_ms", "std_ms", "min_ms", "max_ms", "median_ms",
    )  # fmt: skip
    assert LAYER_COLUMNS[:6] == (
        "model", "layer", "algorithm", "device", "batch_size", "input_size"
    )  # fmt: skip


def test_every_axis_has_the_column_of_its_name() -> None:
    """Whoever sweeps over it finds it in the table."""
    assert set(catalog.AXES) <= set(OVERALL_COLUMNS)


def test_the_tables_join_on_the_point() -> None:
    """All three have its id."""
    for table in (OVERALL, LAYERS, SAMPLES):
        assert "point_id" in {column.name for column in table}


def test_shards_lead_with_what_counting_needs_and_end_with_the_checksum() -> None:
    """The quick look parses two cells; the checksum covers all before it."""
    assert SHARD_COLUMNS[:2] == ("point_id", "status")
    assert SHARD_COLUMNS[-5:] == COMMIT
    assert SHARD_COLUMNS[-1] == "row_crc"
    assert set(SHARD_COLUMNS) == {*OVERALL_COLUMNS, *COMMIT}


def test_lists_of_names_are_made_of_known_names() -> None:
    """A renamed flag or column must not linger."""
    assert set(FLAGS) >= DOUBTFUL
    assert set(OVERALL_COLUMNS) >= set(MUST_AGREE)


def test_a_row_with_a_flag_of_a_check_that_went_stays_not_valid() -> None:
    """A report of older rows does not begin to quote their times."""
    assert not columns.is_valid("ok", ["fresh_inputs", "noisy"])
    assert {"fresh_ms", "seen_ms"} <= {*OVERALL_COLUMNS} & columns.CLOCKED


@pytest.mark.parametrize("column", [*OVERALL, *LAYERS, *SAMPLES, *columns.COLLECTED])
def test_every_column_says_what_a_cell_holds(column: columns.Column) -> None:
    """The documentation is made from it."""
    kinds = {"str", "int", "float", "bool", "time", "list", "algorithm", "model", "dataset", "gpu"}
    assert column.kind in kinds
    assert column.doc


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        ("", ""),
        (True, "true"),
        (False, "false"),
        (0, "0"),
        (0.0, "0"),
        (1 / 3, "0.3333333"),
        (3_628_146_688, "3628146688"),
        (1e-9, "1e-09"),
        ("two\nlines\tand\0more ", "two lines and more"),
        ({"fc": "gemm", "conv*": "fft"}, '{"conv*":"fft","fc":"gemm"}'),
    ],
)
def test_cells_are_one_line_and_unknown_is_empty(value: object, text: str) -> None:
    """Zero is a number, and no cell breaks a line."""
    assert columns.cell(value) == text


@given(st.text() | st.integers() | st.floats() | st.booleans() | st.lists(st.text()))
def test_no_value_breaks_a_line(value: object) -> None:
    """A row is a line, whatever an exception's message holds."""
    assert len(columns.cell(value).splitlines()) <= 1
    assert "\0" not in columns.cell(value)


def test_the_device_is_the_gpu_of_the_point() -> None:
    """The predecessor's name for it."""
    cells = columns.axis_cells({"model": "resnet18", "gpu": "l40", "not_an_axis": 1})
    assert cells == {"model": "resnet18", "gpu": "l40", "device": "l40"}
