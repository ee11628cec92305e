"""Tables of other programs: a map says what their columns are."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter

import pandas as pd
import pytest

from hpcsweep.errors import UsageError
from hpcsweep.importing import importer, table
from localruns import Desk
from paths import FACTS

OWN = """columns:
  time: seconds
  batch_size: N
  in_channels: C
  out_channels: K
  in_h: H
  in_w: W
  kernel_size: R
  groups: G
  algorithm: algo
unit: s
"""
ROWS = "seconds,N,C,K,H,W,R,G,algo\n0.001,2,4,8,9,7,3,1,Implicit GEMM\n0.002,2,4,8,9,7,3,3,x\n"


def rows_of(path, columns, device=""):
    """Return the rows of a table, and what was left out."""
    counts = Counter()
    return list(table.read_rows(path, table.read_columns(columns), device, counts)), counts


def test_a_table_is_imported_and_collected(tmp_path):
    """Its rows are layer rows that nobody takes for own ones; the map is a file of the user's."""
    (tmp_path / "map.yaml").write_text(OWN)
    (tmp_path / "results_t4.csv").write_text(ROWS)
    desk = Desk(tmp_path)
    done = desk.run("import", "results_t4.csv", "--columns", "map.yaml", "--as", "theirs")
    assert done.returncode == 0, done.stderr
    assert "1 time on t4" in done.stdout
    assert "left out: 1 cell without a shape" in done.stdout  # 4 channels have no 3 groups
    with (tmp_path / "results" / "theirs" / "layers.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["median_ms"], row["algorithm_used"]) == ("1", "implicit_gemm")
    assert (row["out_h"], row["out_w"], row["flops"]) == ("7", "5", str(2 * 2 * 8 * 35 * 36))
    shown = json.loads(desk.run("report", "theirs", "--json").stdout)
    assert "foreign" in json.dumps(shown)


@pytest.mark.parametrize("name", ["Tesla_P100-PCIE-16GB", "Tesla_T4", "Tesla_V100-PCIE-32GB"])
def test_neusight_is_read_by_a_shipped_map(name):
    """Every shape is whole, and the kernels, in lower case, tell the algorithm of 98 %."""
    rows, left = rows_of(FACTS / "neusight" / f"{name}.csv.gz", "neusight")
    assert not left
    assert {row["gpu"] for row in rows} == {name.lower().split("_")[1].rsplit("-", 1)[0]}
    assert all(row["out_h"] == row["in_h"] for row in rows)
    unknown = sum(row["algorithm_used"] == "unknown" for row in rows)
    assert unknown < 0.02 * len(rows)


def test_deepbench_has_three_directions_and_two_types():
    """A column of times per direction; the cell of a sheet has the type among its words."""
    rows, left = rows_of(FACTS / "deepbench" / "convolutions.csv", "deepbench")
    counts = Counter((row["gpu"], row["dtype"], row["direction"]) for row in rows)
    assert counts["v100", "float32", "forward"] == counts["t4", "float16", "forward"] == 94
    assert counts["p100-pcie", "float32", "backward_data"] == 94
    assert counts["v100", "float32", "backward_data"] == 84
    assert left == {"time": 40}
    assert {"algorithm_used" in row for row in rows if row["direction"] != "forward"} == {False}


def test_a_direction_that_has_no_name_here_is_refused_until_a_word_gives_it_one(tmp_path):
    """Else its rows would count as those of the output."""
    columns = OWN.replace("  time:", "  direction: dir\n  time:")
    (tmp_path / "map.yaml").write_text(columns)
    (tmp_path / "t4.csv").write_text("seconds,N,C,K,H,W,R,G,algo,dir\n0.001,2,4,8,9,7,3,1,x,bwdw\n")
    with pytest.raises(UsageError, match=r"direction 'bwdw': `words` makes it one of forward"):
        rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))
    (tmp_path / "map.yaml").write_text(f"{columns}words: {{direction: {{bwdw: backward_weights}}}}")
    ((row,), _) = rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))
    assert row["direction"] == "backward_weights"


def test_parquet_and_packed_tables_are_the_same(tmp_path):
    """The reader goes by columns, not by how they are packed."""
    (tmp_path / "map.yaml").write_text(OWN)
    (tmp_path / "t4.csv").write_text(ROWS)
    (tmp_path / "t4.csv.gz").write_bytes(gzip.compress(ROWS.encode()))
    pd.read_csv(tmp_path / "t4.csv").to_parquet(tmp_path / "t4.parquet")
    read = [rows_of(tmp_path / f"t4.{kind}", str(tmp_path / "map.yaml"))
            for kind in ("csv", "csv.gz", "parquet")]  # fmt: skip
    assert read[0] == read[1] == read[2]
    assert len(read[0][0]) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (OWN.replace("time", "tim"), "unknown name; did you mean 'time'"),
        (OWN.replace("  in_w: W\n", ""), "needs input_size, or in_h and in_w"),
        (OWN.replace("unit: s", "unit: h"), "unit: needs one of s, ms, us, ns"),
        (OWN.replace("N\n", "Batch\n"), "has no column 'Batch'"),
        (OWN.replace("columns", "column"), "unknown key; did you mean 'columns'"),
        (OWN.replace("  time: seconds", "  time: {back: seconds}"), "time.back: needs one of"),
        ("columns: 1", "columns: needs `key: value` lines"),
        (OWN.replace("seconds", "[a]"), "columns.time: needs the name of a column"),
    ],
)
def test_what_is_wrong_with_a_map_is_told(tmp_path, text, words):
    """With the file, the line and the key; nothing is written."""
    (tmp_path / "map.yaml").write_text(text)
    (tmp_path / "t4.csv").write_text(ROWS)
    with pytest.raises(UsageError, match=words):
        importer.bring(
            tmp_path / "results", tmp_path / "t4.csv", "x", columns=str(tmp_path / "map.yaml")
        )
    assert not (tmp_path / "results" / "x" / "submissions").exists()


def test_a_table_without_a_device_needs_one(tmp_path):
    """Neither a column nor the file's name tells it."""
    (tmp_path / "map.yaml").write_text(OWN)
    (tmp_path / "times.csv").write_text(ROWS)
    with pytest.raises(UsageError, match="--device does"):
        rows_of(tmp_path / "times.csv", str(tmp_path / "map.yaml"))
    rows, _ = rows_of(tmp_path / "times.csv", str(tmp_path / "map.yaml"), "v100")
    assert rows[0]["gpu"] == "v100"
    with pytest.raises(UsageError, match="one of the maps deepbench, neusight"):
        table.read_columns("nobody")
