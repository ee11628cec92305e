"""Parquet beside the merged tables."""

from __future__ import annotations

import sys

import pandas as pd
import pytest

import hpcsweep
import manypoints
import quickstart
from hpcsweep.collect import parquet
from hpcsweep.errors import MissingDependency, ResultsError

NOOP = "workload: noop\naxes: {model: [a], input_size: [1, 2]}\n"


def test_parquet_has_the_same_rows_with_types(tmp_path):
    """As `hpcsweep.load` reads them: every cell, empty ones too; but floats have 32 bits."""
    run = quickstart.collected(tmp_path)
    assert [path.name for path in parquet.write(run)] == [
        "overall.parquet", "layers.parquet", "samples.parquet",
    ]  # fmt: skip
    found = hpcsweep.load(run.path)
    for name in ("overall", "layers", "samples"):
        table = pd.read_parquet(run.file(f"{name}.parquet"), dtype_backend="numpy_nullable")
        wanted = getattr(found, name)
        assert list(table) == list(wanted)
        assert table["point_id"].tolist() == wanted["point_id"].tolist()
        for column in wanted:
            known = wanted[column].notna()
            assert table[column].notna().tolist() == known.tolist()
            cells = wanted[column][known]
            if pd.api.types.is_float_dtype(cells):
                cells = cells.astype("float32")
            assert table[column][known].tolist() == cells.tolist()


def test_parquet_is_much_smaller(tmp_path):
    """A tenth of the bytes, though times are random digits."""
    run = manypoints.collected(tmp_path)
    parquet.write(run)
    sizes = {path.suffix: 0 for path in (run.layers, run.layers.with_suffix(".parquet"))}
    for path in (run.overall, run.layers, run.samples):
        for one in (path, path.with_suffix(".parquet")):
            sizes[one.suffix] += one.stat().st_size
    assert sizes[".parquet"] < sizes[".csv"] / 10


def test_collect_writes_parquet_if_asked(desk):
    """And names the files."""
    desk.spec(NOOP)
    desk.submit()
    done = desk.run("collect", "sweep", "--parquet")
    assert done.returncode == 0, done.stderr
    assert "results/sweep/overall.parquet" in done.stdout
    assert len(pd.read_parquet(desk.results / "sweep" / "overall.parquet")) == 2


def test_without_pyarrow_nothing_is_merged_and_the_extra_is_named(desk, monkeypatch):
    """Before a long collect, not after it."""
    desk.spec(NOOP)
    desk.submit()
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = desk.run("collect", "sweep", "--parquet")
    assert done.returncode == MissingDependency.exit_code
    assert "pip install 'hpcsweep[parquet]'" in done.stderr
    assert not (desk.results / "sweep" / "overall.csv").exists()


def test_where_no_table_is_yet_none_is_written(tmp_path):
    """Before the first point is measured."""
    run = quickstart.collected(tmp_path)
    for path in (run.overall, run.layers):
        path.unlink()
    assert parquet.write(run) == [run.file("samples.parquet")]


def test_a_cell_that_is_no_number_is_told(tmp_path):
    """In the table, with its line; the old Parquet file stays."""
    run = quickstart.collected(tmp_path)
    parquet.write(run)
    before = run.file("overall.parquet").read_bytes()
    run.overall.write_text(run.overall.read_text().replace(",64,", ",sixty-four,", 1))
    with pytest.raises(ResultsError, match=r"overall\.csv.*sixty-four"):
        parquet.write(run)
    assert run.file("overall.parquet").read_bytes() == before
