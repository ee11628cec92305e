"""Tables that are not as collect writes them are refused; their Parquet files have types."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pandas as pd
import pytest

import hpcsweep
import manypoints
import quickstart
from hpcsweep.analysis import merged
from hpcsweep.errors import MissingDependency, UsageError

if TYPE_CHECKING:
    from pathlib import Path

HEAD = "point_id,status,model,algorithm,input_size,median_ms,batch_size"
ROW = "{},ok,a,gemm,64,1.5,1"


@pytest.mark.parametrize(
    ("head", "row", "words"),
    [
        (HEAD.replace("status", "statvs"), ROW.format("1"), "no column status"),
        (f"{HEAD},model", f"{ROW.format('1')},a", "column 'model' stands there twice"),
        (HEAD, ROW.format("1").replace("64", "6x"), ":3: input_size is '6x', and needs a number"),
        (HEAD, ROW.format("1").replace("1.5", "true"), ":3: median_ms is 'true', and needs a"),
        (HEAD, ROW.format("1").replace("ok", "fine"), ":3: no status 'fine'"),
        (HEAD, ROW.format("0"), ":3: point 0 stands there twice"),
        (HEAD.replace("point_id", "point_is"), ROW.format("1"), "no column point_id"),
        (HEAD, "\0", "overall.csv"),
        (HEAD.removesuffix(",batch_size"), ROW.format("1"), "more cells than the header"),
    ],
)
def test_what_collect_would_not_have_written_is_named(
    tmp_path: Path, head: str, row: str, words: str
) -> None:
    """With its line, and with the command that writes the table again."""
    path = tmp_path / "overall.csv"
    path.write_text(f"{head}\n{ROW.format('0')}{',a' * head.endswith(',model')}\n{row}\n")
    with pytest.raises(UsageError) as caught:
        merged.read_table(path, "s")
    assert words in str(caught.value)
    assert str(caught.value).endswith("; run `hpcsweep collect s` again")


def test_a_table_as_it_was_written_is_read(tmp_path: Path) -> None:
    """Numbers as numbers, all else as text; a status of a point that has no time."""
    path = tmp_path / "overall.csv"
    path.write_text(f"{HEAD}\n{ROW.format('0')}\n1,oom,a,gemm,64,,1\n")
    table = merged.read_table(path, "s")
    assert (list(table["input_size"]), list(table["point_id"])) == ([64, 64], ["0", "1"])


def test_a_loss_that_diverged_is_a_number(tmp_path: Path) -> None:
    """Training writes what it measured: nan, or inf."""
    path = tmp_path / "overall.csv"
    rows = [f"{ROW.format(i)},{loss}" for i, loss in enumerate(("0.5", "nan", "inf"))]
    path.write_text("\n".join([f"{HEAD},train_loss", *rows, ""]))
    assert len(merged.read_table(path, "s")) == 3


NOOP = "workload: noop\naxes: {model: [a], input_size: [1, 2]}\n"


def test_parquet_has_the_same_rows_with_types(tmp_path):
    """As `hpcsweep.load` reads them: every cell, empty ones too; but floats have 32 bits."""
    run = quickstart.collected(tmp_path)
    assert [path.name for path in merged.write_parquet(run)] == [
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
    """A ninth of the bytes, though times are random digits; CSV has no empty columns."""
    run = manypoints.collected(tmp_path)
    merged.write_parquet(run)
    sizes = {path.suffix: 0 for path in (run.layers, run.layers.with_suffix(".parquet"))}
    for path in run.merged():
        for one in (path, path.with_suffix(".parquet")):
            sizes[one.suffix] += one.stat().st_size if one.exists() else 0
    assert sizes[".parquet"] < sizes[".csv"] / 9


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
    assert merged.write_parquet(run) == [run.file("samples.parquet")]


def test_a_cell_that_is_no_number_is_told(tmp_path):
    """In the table, with its line; the old Parquet file stays."""
    run = quickstart.collected(tmp_path)
    merged.write_parquet(run)
    before = run.file("overall.parquet").read_bytes()
    run.overall.write_text(run.overall.read_text().replace(",64,", ",sixty-four,", 1))
    with pytest.raises(UsageError, match=r"overall\.csv.*sixty-four"):
        merged.write_parquet(run)
    assert run.file("overall.parquet").read_bytes() == before
