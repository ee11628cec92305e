"""Tables of other programs: a map says what their columns are."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter

import pandas as pd
import pytest

from hpcsweep.errors import ResultsError, UsageError
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
    left = Counter()
    rows = list(table.read_rows(path, table.read_columns(columns), device, left))
    del left[table.TAKEN]
    return rows, left


def test_a_table_is_imported_and_collected(tmp_path):
    """Its rows are layer rows that nobody takes for own ones; the map is a file of the user's."""
    (tmp_path / "map.yaml").write_text(OWN)
    (tmp_path / "results_t4.csv").write_text(ROWS)
    desk = Desk(tmp_path)
    done = desk.run("import", "results_t4.csv", "--columns", "map.yaml", "--as", "theirs")
    assert done.returncode == 0, done.stderr
    assert "1 time on t4" in done.stdout
    assert "2 rows read: 1 taken" in done.stdout
    assert "left out: 1 row without a shape" in done.stdout  # 4 channels have no 3 groups
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
    assert not left  # a row may lack some of its times
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


def test_a_packed_table_is_the_same_and_parquet_is_refused(tmp_path):
    """The reader goes by columns, not by how they are packed."""
    (tmp_path / "map.yaml").write_text(OWN)
    (tmp_path / "t4.csv").write_text(ROWS)
    (tmp_path / "t4.csv.gz").write_bytes(gzip.compress(ROWS.encode()))
    columns = str(tmp_path / "map.yaml")
    read = [rows_of(tmp_path / name, columns) for name in ("t4.csv", "t4.csv.gz")]
    assert read[0] == read[1]
    assert len(read[0][0]) == 1
    pd.read_csv(tmp_path / "t4.csv").to_parquet(tmp_path / "t4.parquet")
    with pytest.raises(ResultsError, match=r"t4\.parquet: cannot be read .* save it as CSV"):
        rows_of(tmp_path / "t4.parquet", str(tmp_path / "map.yaml"))


SITE = "seconds,N,C,K,H,W,R,G,algo\n0.0125,2,4,8,9,7,3,1,gemm\n1.5,1024,4,8,9,7,3,1,gemm\n"
EXCEL = SITE.replace(",", ";").replace(".", ",")


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (SITE, "utf-8"),
        (SITE, "utf-8-sig"),
        (SITE, "utf-16"),
        (SITE.replace(",", "\t"), "utf-16-le"),
        (EXCEL, "utf-8"),
        (EXCEL.replace("1024", "1.024"), "utf-8"),
        (EXCEL.replace("1024", "1\u202f024"), "utf-8"),
        (EXCEL.replace("1024", "1\u00a0024"), "utf-16"),
        (f"sep=;\n{EXCEL}", "utf-8-sig"),
        (SITE.replace(",", ";").replace("1024", "1'024"), "utf-8"),
        (SITE.replace(",", ";").replace("1024", "1\u2019024"), "utf-8"),
        (SITE.replace("1024", '"1,024"'), "utf-8"),
        (SITE.replace(",", ";").replace("1024", "1,024"), "utf-8"),
    ],
)
def test_a_table_is_the_same_in_the_notation_of_any_country(tmp_path, text, encoding):
    """Whatever parts its cells, thousands and fractions; one cell tells of all."""
    (tmp_path / "map.yaml").write_text(OWN)
    (tmp_path / "t4.csv").write_bytes(text.encode(encoding))
    rows, left = rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))
    assert not left
    found = [(row["median_ms"], row["batch_size"]) for row in rows]
    assert found == [(12.5, 2), (1500.0, 1024)]


def test_a_table_that_may_be_read_in_two_ways_needs_a_word(tmp_path):
    """Never guessed: a thousand times as long would be as good."""
    (tmp_path / "map.yaml").write_text(OWN)
    text = "seconds;N;C;K;H;W;R;G;algo\n{};2;4;8;9;7;3;1;gemm\n"
    (tmp_path / "t4.csv").write_text(text.format("1,234"))
    with pytest.raises(UsageError, match=r"t4\.csv: '1,234' may be 1234 or 1\.234.*`decimal: ','`"):
        rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))
    for decimal, ms in ((",", 1234.0), (".", 1234000.0)):
        (tmp_path / "map.yaml").write_text(f"{OWN}decimal: '{decimal}'\n")
        ((row,), _) = rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))
        assert row["median_ms"] == ms
    (tmp_path / "t4.csv").write_text(text.format("0,5") + text.format("0.5").split("\n")[1])
    rows, left = rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))
    assert (len(rows), left) == (1, {"without a time": 1})  # not in the file's notation


GOOD = "0.001,2,4,8,9,7,3,1,gemm"


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        ("0,001,2,4,8,9,7,3,1,gemm", "with more cells than the header"),
        (f"{GOOD},", "with more cells than the header"),
        (GOOD[:12], "with fewer cells than the header"),
        (f'"{GOOD}', "whose quotes do not match, or with a cell of several lines"),
        ('0.001,"2,4,8,9,7,3,1,gemm', "whose quotes do not match, or with a cell of several lines"),
        (
            '0.001,"2"0,4,8,9,7,3,1,gemm',
            "whose quotes do not match, or with a cell of several lines",
        ),
        ('0.001,2",4,8,9,7,3,1,gemm', "without a shape"),
        (GOOD.replace("0.001", '0.001"'), "without a time"),
    ],
)
def test_a_damaged_row_costs_no_other_and_is_counted(tmp_path, odd, reason):
    """Its cells may be shifted; an open quote would take the rows below it."""
    (tmp_path / "map.yaml").write_text(OWN)
    head = ROWS.split("\n", maxsplit=1)[0]
    (tmp_path / "t4.csv").write_text("\n".join([head, GOOD, odd, *[GOOD] * 50, odd, GOOD]))
    how = {"name": "x", "columns": str(tmp_path / "map.yaml")}
    found = importer.bring(tmp_path / "results", tmp_path / "t4.csv", **how)
    assert found.notes[0] == "52 times on t4"
    assert found.notes[2:4] == ("54 rows read: 52 taken", f"left out: 2 rows {reason}")
    (tmp_path / "t4.csv").write_text(f"{head}\n{odd}\n")
    with pytest.raises(
        ResultsError, match=f"t4.csv: 1 row read: 0 taken; left out: 1 row {reason}"
    ):
        importer.bring(tmp_path / "results", tmp_path / "t4.csv", **how)


@pytest.mark.parametrize(
    ("cell", "dtype"),
    [("half", "float16"), ("float", "float32"), ("double", "float64"), ("int8", "int8"),
     ("FP16", "float16"), ("fp32", "float32"), ("bf16", "bfloat16"), ("bfloat16", "bfloat16"),
     ("f64", "float64"), ("", "float32"), ("my half", "float16")],
)  # fmt: skip
def test_types_are_known_by_their_usual_names(tmp_path, cell, dtype):
    """A part of such a name is no word of the map."""
    columns = OWN.replace("  time:", "  dtype: type\n  time:")
    words = "words: {dtype: {float: float32, half: float16}}"
    (tmp_path / "map.yaml").write_text(f"{columns}{words}")
    (tmp_path / "t4.csv").write_text(f"seconds,N,C,K,H,W,R,G,algo,type\n{GOOD},{cell}\n")
    ((row,), _) = rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))
    assert row["dtype"] == dtype


@pytest.mark.parametrize("filter_", ["3", "3.0", "3x3", "(3, 3)", "[3 3]", "3;3", "3 x 3"])
@pytest.mark.parametrize("name", ["t4.csv", "t4.tsv"])
def test_two_sizes_stand_in_one_column(tmp_path, filter_, name):
    """In any way of writing; a column of one side alone counts before it."""
    (tmp_path / "map.yaml").write_text(OWN)
    mark = "\t" if name == "t4.tsv" else ","
    lines = [["seconds", "N", "C", "K", "H", "W", "R", "G", "algo", "high, of a filter"],
             ["0.001", "2", "4", "8", "9", "7", filter_, "1", "gemm", "5"]]  # fmt: skip
    with (tmp_path / name).open("w") as file:
        csv.writer(file, delimiter=mark).writerows(lines)
    ((row,), _) = rows_of(tmp_path / name, str(tmp_path / "map.yaml"))
    assert (row["kernel_h"], row["kernel_w"]) == (3, 3)
    (tmp_path / "map.yaml").write_text(
        f"{OWN}".replace("unit", "  kernel_h: high, of a filter\nunit")
    )
    ((row,), _) = rows_of(tmp_path / name, str(tmp_path / "map.yaml"))
    assert (row["kernel_h"], row["kernel_w"]) == (5, 3)


@pytest.mark.parametrize("decimal", [".", ","])
def test_two_sizes_with_a_comma_are_no_thousands(tmp_path, decimal):
    """Equal ones are two; others may be one, of which the import asks, unless thousands cannot."""
    own = OWN.replace("  in_h: H\n  in_w: W", "  input_size: H").replace("  algorithm: algo\n", "")
    (tmp_path / "map.yaml").write_text(own)
    text = 'seconds;N;C;K;H;R;G\n0.5;1024;4;8;"224,224";3,3;1\n'.replace("0.5", f"0{decimal}5")
    columns = str(tmp_path / "map.yaml")
    (tmp_path / "t4.csv").write_text(text)
    ((row,), _) = rows_of(tmp_path / "t4.csv", columns)
    assert (row["in_h"], row["in_w"], row["kernel_w"], row["median_ms"]) == (224, 224, 3, 500)
    (tmp_path / "t4.csv").write_text(text.replace("224,224", "1,200").replace("3,3", "1"))
    if decimal == ".":
        with pytest.raises(UsageError, match=r"t4.csv: '1,200' may be 1x200 or 1200; write it"):
            rows_of(tmp_path / "t4.csv", columns)
    else:
        ((row,), _) = rows_of(tmp_path / "t4.csv", columns)
        assert (row["in_h"], row["in_w"]) == (1, 200)


def test_a_column_of_times_may_be_of_an_algorithm(tmp_path):
    """Of a direction, too; what a row lacks is told."""
    (tmp_path / "map.yaml").write_text(
        "columns: {time: {gemm: G_ms, backward_data: {Winograd: W_ms}}, batch_size: N,"
        " in_channels: C, out_channels: K, input_size: H, kernel_size: R}"
    )
    (tmp_path / "t4.csv").write_text(
        "G_ms,W_ms,N,C,K,H,R\n1,2,2,4,8,9,3\n,3,2,4,8,9,3\n,,2,4,8,9,3\n"
    )
    rows, left = rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))
    found = [(row["algorithm_used"], row["direction"], row["median_ms"]) for row in rows]
    two = [("winograd", "backward_data", ms) for ms in (2, 3)]
    assert found == [("gemm", "forward", 1), *two]
    assert left == {"without a time": 1}


def test_two_columns_of_one_name_are_refused_where_the_map_asks_for_them(tmp_path):
    """Which of them is meant is not guessed."""
    (tmp_path / "map.yaml").write_text(OWN)
    (tmp_path / "t4.csv").write_text("seconds,N,C,K,H,W,R,G,algo,x,x,N\n" + f"{GOOD},1,2,3\n")
    with pytest.raises(UsageError, match=r"t4\.csv: has 2 columns 'N'; rename all but one"):
        rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))
    (tmp_path / "t4.csv").write_text("seconds,N,C,K,H,W,R,G,algo,x,x\n" + f"{GOOD},1,2\n")
    assert len(rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))[0]) == 1


@pytest.mark.parametrize("time", ["0", "-1", "nan", "inf", "5e-324", "1e-12", "", "n/a"])
def test_a_cell_that_is_no_time_is_left_out_and_counted(tmp_path, time):
    """On any device, known or not."""
    (tmp_path / "map.yaml").write_text(OWN)
    (tmp_path / "x.csv").write_text(ROWS.replace("0.001", time))
    rows, left = rows_of(tmp_path / "x.csv", str(tmp_path / "map.yaml"), "abacus")
    assert (rows, left) == ([], {"without a time": 1, "without a shape": 1})


def test_a_unit_in_the_name_of_a_column_is_not_overruled(tmp_path):
    """Microseconds that are read as milliseconds are a thousand times too long."""
    said = {"fwd (usec)": "us", "Time [ns]": "ns", "t_\u00b5s": "us", "t ms": "ms"}
    for name, unit in said.items():
        text = OWN.replace("time: seconds", f"time: '{name}'").replace("unit: s\n", "")
        (tmp_path / "map.yaml").write_text(f"{text}unit: {unit}\n")
        assert table.read_columns(str(tmp_path / "map.yaml")).unit == unit
        (tmp_path / "map.yaml").write_text(f"{text}unit: s\n")
        with pytest.raises(UsageError, match=f"is s, and the name of the column .* says {unit}"):
            table.read_columns(str(tmp_path / "map.yaml"))
    for name in ("channels", "Latency", "runs", "ms_per_pass"):
        (tmp_path / "map.yaml").write_text(OWN.replace("time: seconds", f"time: {name}"))
        assert table.read_columns(str(tmp_path / "map.yaml")).unit == "s"


@pytest.mark.parametrize(("ms", "asked"), [(120, False), (120_000, True), (0.12, True)])
def test_times_of_a_wrong_unit_are_asked_about(tmp_path, ms, asked):
    """A thousand times as long, or as short; a V100 needs 60 ms at its peak."""
    text = OWN.replace("seconds", "Latency").replace("unit: s", "unit: ms")
    (tmp_path / "map.yaml").write_text(text)
    table_path = tmp_path / "v100.csv"
    table_path.write_text(f"Latency,N,C,K,H,W,R,G,algo\n{ms},64,512,512,58,58,3,1,\n")
    found = importer.bring(
        tmp_path / "results", table_path, "x", columns=str(tmp_path / "map.yaml")
    )
    assert any("is the unit right?" in note for note in found.notes) == asked


def test_a_size_of_zero_is_a_size(tmp_path):
    """A padding of 0 is not an empty cell."""
    (tmp_path / "map.yaml").write_text(OWN.replace("  in_h", "  padding: P\n  in_h"))
    head, row, _ = ROWS.split("\n", maxsplit=2)
    (tmp_path / "t4.csv").write_text(f"P,{head}\n0,{row}\n")
    rows, _ = rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))
    assert [row["pad_h"] for row in rows] == [0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{OWN}decimal: x", r"map\.yaml:12: decimal: found 'x', allowed are \., ,"),
        (OWN.replace("time", "tim"), r"map\.yaml:2: columns\.tim: unknown key.*mean 'time'"),
        (OWN.replace("  in_w: W\n", ""), "needs input_size, or in_h and in_w"),
        (OWN.replace("unit: s", "unit: h"), "unit: found 'h', allowed are s, ms, us, ns"),
        (OWN.replace("N\n", "Batch\n"), "has no column 'Batch'"),
        (OWN.replace("columns", "column"), "column: unknown key.*did you mean 'columns'"),
        (OWN.replace("  time: seconds", "  time: {back: seconds}"), "time: 'back' is none of forw"),
        (OWN.replace("  batch_size: N\n", ""), "columns.batch_size: is missing"),
        ("columns: 1", "columns: found 1, needs a map of keys to values"),
        (OWN.replace("seconds", "[a]"), "columns.time: needs the name of a column"),
        (f"{OWN}words: {{dtype: half}}", "words.dtype: found 'half', needs a map"),
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


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff"])
def test_an_empty_table_says_so(tmp_path, text):
    """It lacks no column in particular."""
    (tmp_path / "map.yaml").write_text(OWN)
    (tmp_path / "t4.csv").write_bytes(text.encode())
    with pytest.raises(ResultsError, match=r"t4\.csv: has no header in its first line"):
        rows_of(tmp_path / "t4.csv", str(tmp_path / "map.yaml"))


def test_a_chip_with_features_is_the_chip(tmp_path):
    """As ROCm's programs print it."""
    (tmp_path / "map.yaml").write_text(OWN.replace("  time:", "  gpu: arch\n  time:"))
    text = f"seconds,N,C,K,H,W,R,G,algo,arch\r\n{GOOD},gfx90a:sramecc+:xnack-\r\n"
    (tmp_path / "a.csv").write_text(text)
    ((row,), _) = rows_of(tmp_path / "a.csv", str(tmp_path / "map.yaml"))
    assert row["gpu"] == "gfx90a"


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
