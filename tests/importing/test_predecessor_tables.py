"""Which files are tables of the predecessor, and what their names mean."""

from __future__ import annotations

import os
import stat

import pytest

import oldtables
from hpcsweep.errors import UsageError
from hpcsweep.importing import predecessor_tables
from hpcsweep.importing.predecessor_tables import Key, Table
from localruns import TEN, Desk


def test_tables_are_known_by_their_headers(tmp_path):
    """Whatever they are called; other files are left alone."""
    oldtables.write(tmp_path / "a.csv", oldtables.NETWORKS, [])
    oldtables.write(tmp_path / "b.csv", oldtables.LAYERS, [])
    oldtables.write(tmp_path / "c.csv", ["x", "y"], [])
    (tmp_path / "d.csv").write_bytes(b"\xff\xfe")
    found = predecessor_tables.find(tmp_path)
    assert [(table.path.name, table.of_layers) for table in found] == [
        ("a.csv", False), ("b.csv", True),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="neither a results folder nor tables"):
        predecessor_tables.find(tmp_path / "c.csv")


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
    ((key, _cells),) = predecessor_tables.rows(Table(path, of_layers=True), given)
    assert key == Key("resnet152", "winograd_nonfused", expected)


def test_a_number_is_finite_or_unknown():
    """Never a zero that nobody wrote."""
    assert [predecessor_tables.number(text) for text in ("1.5", "", None, "nan?", "inf")] == [
        1.5, None, None, None, None,
    ]  # fmt: skip
    assert predecessor_tables.times({"mean": "2", "std_ms": "0.5", "max": ""}) == {
        "mean_ms": 2,
        "std_ms": 0.5,
    }


def test_a_row_that_is_cut_short_names_no_algorithm(tmp_path):
    """Nor does one whose cell holds lines of the table, after a quote that was lost."""
    path = tmp_path / "a_V100.csv"
    for row, shown in (("1", "unknown algorithm ''"), ('"x\n1,2\n3\n",1', "unknown algorithm '1'")):
        path.write_text(f"batch_size,model,algorithm,input_size,mean\n1,{row}\n")
        with pytest.raises(UsageError, match=shown):
            list(predecessor_tables.rows(Table(path, of_layers=False)))
    path.write_text('model,algorithm,batch_size,input_size,mean\nx,"a\nb\nc",1,1,1\n')
    with pytest.raises(UsageError, match="unknown algorithm 'a b c'"):
        list(predecessor_tables.rows(Table(path, of_layers=False)))


@pytest.mark.parametrize("name", ["overall.csv", "layers.csv", "samples.csv", "predicted.csv"])
def test_a_table_of_hpcsweep_is_refused_with_the_folder_to_import(tmp_path, name):
    """Its rows would lose their marks; a table alone has nothing that could be imported."""
    desk = Desk(tmp_path)
    desk.spec(TEN)
    assert desk.submit("--collect").returncode == 0
    run = desk.sweep()
    (run.path / "predicted.csv").write_bytes(run.overall.read_bytes())
    shard = next(run.shards_dir.rglob("*.overall.csv"))
    for path in (run.path / name, shard):
        done = desk.run("import", path, "--as", "taken")
        assert (done.returncode, "taken" in done.stdout) == (2, False)
        told = "a table of hpcsweep itself, whose rows are imported from their shards"
        assert f"{told}: hpcsweep import {run.path}" in done.stderr
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / name).write_bytes((run.path / name).read_bytes())
    for path in (alone, alone / name):
        done = desk.run("import", path, "--as", "taken")
        assert done.returncode == 2
        assert "copy the whole results folder" in done.stderr
    assert not (desk.results / "taken").exists()


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (os.mkfifo, "a pipe"),
        (lambda path: path.symlink_to("/dev/zero"), "a link"),
        (lambda path: path.symlink_to(path.parent.parent / "else.csv"), "a link"),
        (lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5)), "a device"),
    ],
    ids=["pipe", "link to a device", "link to a table", "device"],
)
def test_only_regular_files_are_read_and_what_else_is_there_is_told(tmp_path, make, kind):
    """Given directly, or beside tables: nothing hangs, and nothing is read from elsewhere."""
    oldtables.folder(tmp_path / "tables", [("OldNet", "gemm", "V100")], (64,), layers=2)
    rows = oldtables.network_rows("OldNet2", "gemm", "V100", (64,), 2)
    oldtables.write(tmp_path / "else.csv", oldtables.NETWORKS, rows)
    odd = tmp_path / "tables" / "a_overall.csv"
    try:
        make(odd)
    except PermissionError:
        pytest.skip("only root may make devices")
    desk = Desk(tmp_path)
    done = desk.run_process("import", odd, "--as", "taken")
    assert (done.returncode, kind in done.stderr, "cp -rL" in done.stderr) == (6, True, True)
    assert not desk.sweep("taken").path.joinpath("submissions").exists()
    done = desk.run_process("import", "tables", "--as", "old")
    assert (done.returncode, done.stderr) == (0, "")
    assert "2 tables: 1 network, 2 layer rows" in done.stdout
    assert "left out a_overall.csv" in done.stdout
