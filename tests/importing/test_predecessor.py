"""Tables of the predecessor become a sweep that every command takes."""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import stat
import subprocess
import sys
from collections import Counter
from itertools import product

import pytest

import oldtables
from analysistables import table_of
from hpcsweep.analysis import best, compare, dataset, layers, report
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.forecast import check, training_data
from hpcsweep.importing import importer, predecessor, submission
from hpcsweep.importing.predecessor import MeasuredNetwork
from hpcsweep.store.collect import collector as collecting
from hpcsweep.store.folders import SweepDir
from localruns import TEN, Desk

SIZES = (224, 256, 320)
NAMES = [
    ("ResNet152", algorithm, device)
    for device in ("V100", "L40S")
    for algorithm in ("guess", "implicit precomp gemm", "fft tiling")
]


def brought(folder, path, name="", device=""):
    """Import a path and collect; return the sweep and the notes."""
    found = importer.bring(folder / "results", path, name, device)
    collecting.collect(found.sweep_dir)
    return found.sweep_dir, found.notes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return the sweep that comes of six tables of layers and one of networks."""
    folder = tmp_path_factory.mktemp("old")
    assert oldtables.folder(folder / "published", NAMES, SIZES, layers=4) == 72
    return brought(folder, folder / "published")[0]


def test_packed_tables_are_the_same_and_a_cut_one_is_told(run, tmp_path):
    """Alone, or in a folder."""
    oldtables.folder(tmp_path / "published", NAMES, SIZES, layers=4)
    for table in (tmp_path / "published").rglob("*.csv"):
        table.with_name(f"{table.name}.gz").write_bytes(gzip.compress(table.read_bytes()))
        table.unlink()
    packed = brought(tmp_path, tmp_path / "published")[0]
    for name in ("overall", "layers"):
        read, wanted = (
            re.sub(r"\d{8}-\d{6}-import", "", getattr(of, name).read_text()) for of in (packed, run)
        )
        assert read == wanted
    cut = next((tmp_path / "published").rglob("*.gz"))
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(ResultsError, match=f"{cut.name}: cannot be read"):
        importer.bring(tmp_path / "results", cut, "cut")


def test_names_and_times_are_translated(run):
    """`guess` is auto; the device stands in the file's name; rows say where they come from."""
    rows = dataset.read_dataset(run).rows
    assert sorted(rows["algorithm"].unique()) == ["auto", "fft_tiling", "implicit_precomp_gemm"]
    assert set(rows["model"]) == {"resnet152"}
    assert set(rows["gpu"]) == {"v100", "l40s"}
    assert (set(rows["source"]), set(rows["flags"])) == ({"published"}, {"host_copies"})
    row = rows[
        (rows["gpu"] == "v100") & (rows["input_size"] == 256) & (rows["algorithm"] == "auto")
    ]
    assert row["median_ms"].item() == pytest.approx(2 * 0.256 * 10)
    assert row["energy_j"].item() == 1.5
    power = [row[f"power_{name}_w"].item() for name in ("mean", "std", "min", "max")]
    assert power == [80, 2, 70, 90]
    assert set(rows["orphan"]) == {"false"}


def test_layers_of_an_unknown_network_have_no_shape_but_their_image(run):
    """No network of torchvision has these layers: sizes stay empty, what the rows state stays."""
    rows = dataset.read_dataset(run).layers()
    auto = rows[(rows["algorithm"] == "auto") & (rows["gpu"] == "l40s")]
    assert list(auto["input_size"]) == [size for size in SIZES for _ in range(4)]
    first = auto[auto["input_size"] == 256]
    assert first[["in_h", "out_h", "flops"]].isna().all(axis=None)
    assert list(first["call_index"]) == [0, 1, 2, 3]
    assert list(first["kernel_size"].astype(str)) == ["3"] * 4
    assert first["unique_key"].is_unique
    assert first["mean_ms"].tolist() == pytest.approx([0.256, 0.512, 0.768, 1.024])
    assert first["median_ms"].tolist() == first["mean_ms"].tolist()
    with pytest.raises(UsageError, match="18 points with a layer whose time or shape is not known"):
        training_data.read_sweeps([run])


def test_a_table_that_a_spreadsheet_saved_is_the_same(tmp_path):
    """In the notation of its country: semicolons, decimal commas, the mark of UTF-16."""
    oldtables.folder(tmp_path / "plain", NAMES[:2], SIZES, layers=2)
    for table in (tmp_path / "plain").rglob("*.csv"):
        to = tmp_path / "saved" / table.relative_to(tmp_path / "plain")
        to.parent.mkdir(parents=True, exist_ok=True)
        rows = [*csv.reader(table.read_text().splitlines())]
        rows = [[cell.replace(".", ",") if cell[:1].isdigit() else cell for cell in row]
                for row in rows]  # fmt: skip
        text = io.StringIO()
        csv.writer(text, delimiter=";").writerows(rows)
        to.write_bytes(text.getvalue().encode("utf-16"))
    names = ("model", "algorithm", "input_size", "layer", "mean_ms", "median_ms")
    tables = [brought(tmp_path / name, tmp_path / name)[0] for name in ("plain", "saved")]
    one, other = (dataset.read_dataset(each).layers()[[*names]] for each in tables)
    assert len(one) == 12
    assert one.equals(other)


@pytest.mark.parametrize(("place", "networks"), [("median", 2), ("mean_ms", 1)])
def test_a_time_beyond_the_peak_makes_a_network_invalid(tmp_path, place, networks):
    """Its own, or that of one of its layers; the other networks are valid."""
    rows = [["vgg16", "gemm", 32, size, 1e-3, 0, 1, 1, 1e-3, "L40S"] for size in (224, 256)]
    names = [*oldtables.NETWORKS[:9], "device"]
    layers = vgg_rows(224)
    if place == "mean_ms":
        rows = [[*row[:4], 90.0, 0, 90, 90, 90.0, "L40S"] for row in rows]
        layers[1][-3] = 1e-5
    oldtables.write(tmp_path / "networks_l40s.csv", names, rows)
    oldtables.write(tmp_path / "vgg_layers_l40s.csv", oldtables.LAYERS, layers)
    sweep_dir, notes = brought(tmp_path, tmp_path)
    found = dataset.read_dataset(sweep_dir).rows
    flagged = found["flags"] == "host_copies;impossible"
    assert flagged.sum() == networks
    assert list(found["valid"][flagged]) == ["false"] * networks
    assert any(f"{networks} time" in note and "impossible" in note for note in notes)


VGG = (("features.0", 3, 64), ("features.2", 64, 64), ("features.5", 64, 128))


def vgg_rows(size, layers=VGG, kernel="3"):
    """Return layer rows that fit VGG-16."""
    return [
        ["vgg16", "gemm", size, name, *channels, kernel, "(1, 1)", "1x1", 1.5, 0.1, 5]
        for name, *channels in layers
    ]


def imported_vgg(folder, rows):
    """Import a table of layers of VGG-16 beside its networks; return layer rows and notes."""
    folder.mkdir()
    oldtables.write(folder / "vgg16_gemm_v100_layers.csv", oldtables.LAYERS, rows)
    networks = oldtables.network_rows("vgg16", "gemm", "V100", (32, 51), 3)
    oldtables.write(folder / "vgg16_overall.csv", oldtables.NETWORKS, networks)
    run, notes = brought(folder.parent, folder)
    return run, dataset.read_dataset(run).layers(), notes


def test_layers_get_the_shapes_of_their_network(tmp_path):
    """An odd image, too: a pooling rounds down. What is learnt from it predicts without error."""
    run, rows, notes = imported_vgg(tmp_path / "vgg", [*vgg_rows(32), *vgg_rows(51)])
    assert list(rows["in_h"]) == [32, 32, 16, 51, 51, 25]
    assert list(rows["out_w"]) == [32, 32, 16, 51, 51, 25]
    assert rows["flops"].iloc[5] == 2 * 25 * 25 * 64 * 128 * 9
    assert rows["unique_key"].iloc[2].startswith("conv2d_n1_c64_16x16_k128_3x3_s1x1_p1x1")
    assert notes[1] == "8 rows read: 8 taken"
    assert list(rows["median_ms"]) == [1.5] * 6  # a missing one is the mean
    measured = training_data.read_sweeps([run])
    assert len(measured.calls) == 6
    assert measured.points["setting"].str.endswith(", alone: convolutions").all()
    assert "2 points of 1 network" in check.check(training_data.read_sweeps([run])).text()


def test_the_order_of_a_table_is_no_matter_and_what_stands_there_again_counts_once(tmp_path):
    """Sorted by layer, or with the rows of another run behind."""
    rows = [*vgg_rows(32), *vgg_rows(51)]
    expected = imported_vgg(tmp_path / "vgg", rows)[1]
    by_layer = imported_vgg(tmp_path / "by_layer", sorted(rows, key=lambda row: row[3]))
    again = imported_vgg(tmp_path / "again", [*rows, *rows])
    for _, found, notes in (by_layer, again):
        assert notes[0] == "2 tables: 2 networks, 6 layer rows"
        columns = ["layer", "call_index", "input_size", "in_h", "median_ms"]
        assert found[columns].equals(expected[columns])
    assert again[2][1:3] == ("14 rows read: 8 taken", "left out: 6 rows of what stands there again")
    assert by_layer[2][1] == "8 rows read: 8 taken"


def test_layers_of_several_batch_sizes_keep_to_their_networks(tmp_path):
    """A table of layers may have a column of it; without, they are of the first."""
    folder = tmp_path / "batches"
    folder.mkdir()
    layers = [[*row, batch] for batch in (1, 8) for row in vgg_rows(32)]
    oldtables.write(folder / "vgg16_V100.csv", [*oldtables.LAYERS, "batch_size"], layers)
    networks = oldtables.network_rows("vgg16", "gemm", "V100", (32,), 3)
    eight = [*networks[0]]
    eight[2] = 8
    oldtables.write(folder / "overall.csv", oldtables.NETWORKS, [*networks, eight])
    found, notes = brought(tmp_path, folder)
    rows = dataset.read_dataset(found).layers()
    assert rows.groupby("batch_size")["layer"].agg(tuple).to_dict() == dict.fromkeys(
        (1, 8), tuple(name for name, *_ in VGG)
    )
    assert (rows["flops"] / rows["batch_size"]).nunique() == 3
    assert notes[0] == "2 tables: 2 networks, 6 layer rows"


@pytest.mark.parametrize(
    ("rows", "shapeless"),
    [
        (vgg_rows(32, kernel="5"), 3),
        (vgg_rows(32, (("features.0", 1, 64), VGG[1])), 1),
        (vgg_rows(32, (("features.1", 3, 64), VGG[1])), 1),
        (vgg_rows(8), 3),
        (vgg_rows("1e30"), 3),
    ],
    ids=["another filter", "other channels", "no convolution", "too small an image", "no image"],
)
def test_a_row_that_does_not_fit_its_network_has_no_shape(tmp_path, rows, shapeless):
    """Nothing is guessed, and the import says how many."""
    run, found, notes = imported_vgg(tmp_path / "vgg", rows)
    assert found["in_h"].isna().sum() == shapeless
    assert any(note.startswith(f"{shapeless} layer row") for note in notes)
    with pytest.raises(UsageError, match="time or shape is not known"):
        training_data.read_sweeps([run])


def test_a_network_that_is_not_built_without_memory_has_no_shapes(tmp_path):
    """RegNets compute with values while they are built."""
    rows = oldtables.layer_rows("regnet_x_400mf", "gemm", "V100", (64,), 2)
    oldtables.write(tmp_path / "layers_v100.csv", oldtables.LAYERS, rows)
    _, notes = brought(tmp_path, tmp_path / "layers_v100.csv")
    assert any(note.startswith("2 layer rows without the layer's shape") for note in notes)


@pytest.mark.slow
def test_report_layers_compare_and_best_work_on_them(run):
    """As on rows that were measured here; every time is marked as unreliable."""
    assert "host_copies (18 points)" in table_of(report.read_report(run))
    slowest = layers.slowest_layers(run, where="gpu=v100").frame
    assert slowest["layer"][0] == "conv3"
    root = run.path.parent
    two = [compare.read_side(root, f"published:gpu={gpu}") for gpu in ("v100", "l40s")]
    compared = compare.compare_sides(*two)
    assert compared.verdicts == {"UNDECIDED": 9}  # one run on each side, and no controls
    assert (compared.table["ratio"] < 1).all()
    found = best.best_of_sweep(run, where="input_size=224,gpu=v100")
    assert found.maps[found.view.frame["map"][0]] == {}  # one visit, and no other layers


def test_more_tables_join_those_that_are_there(run):
    """Networks that are there already count once."""
    more = run.path.parents[1] / "more"
    oldtables.folder(more, [("VGG16", "gemm", "V100")], SIZES, layers=2)
    again, notes = brought(run.path.parents[1], more, "published")
    assert len(dataset.read_dataset(again).rows) == 21
    assert notes[0] == "2 tables: 3 networks, 6 layer rows"


def test_what_is_missing_or_twice_is_told(tmp_path):
    """Layers without their network, a network that two tables have, a row without a time."""
    folder = tmp_path / "odd"
    oldtables.folder(folder, [("VGG16", "gemm", "V100")], SIZES, layers=2)
    rows = oldtables.network_rows("VGG16", "gemm", "V100", (224,), 2)
    broken = [*rows[0]]
    broken[3:5] = 500, "nan?"
    oldtables.write(folder / "x_overall.csv", oldtables.NETWORKS, [*rows, broken])
    lone = oldtables.layer_rows("VGG16", "fft", "V100", (64,), 2)
    oldtables.write(folder / "VGG16_fft_V100_layers.csv", oldtables.LAYERS, lone)
    _, notes = brought(tmp_path, folder)
    assert notes[0] == "4 tables: 4 networks, 8 layer rows"
    assert notes[2:5] == (
        "13 rows read: 11 taken",
        "left out: 1 row of what stands there again",
        "left out: 1 row without size or time",
    )


@pytest.mark.parametrize(
    ("cell", "value", "words"),
    [
        ("algorithm", "guss", r"unknown algorithm 'guss'"),
        ("device", "cuda", "names no device; --device says which"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, cell, value, words):
    """With the file, and what to do."""
    row = dict(
        zip(
            oldtables.NETWORKS, oldtables.network_rows("A", "gemm", "V100", (8,), 1)[0], strict=True
        )
    )
    row[cell] = value
    path = tmp_path / "a_overall.csv"
    oldtables.write(path, oldtables.NETWORKS, [list(row.values())])
    with pytest.raises(UsageError, match=words):
        brought(tmp_path, path, "a")
    assert not SweepDir(tmp_path / "results" / "a").manifests()


def test_tables_do_not_mix_with_what_was_measured_here(run, tmp_path):
    """A sweep of one's own keeps to its points; the message names what takes both."""
    old = tmp_path / "tables"
    oldtables.folder(old, NAMES[:1], SIZES, layers=1)
    other = SweepDir(tmp_path / "results" / "mine")
    submission = other.submission("20260101-000000-local")
    submission.path.mkdir(parents=True)
    submission.write_manifest(run.manifests()[0].__class__(id=submission.id, profile="local"))
    with pytest.raises(UsageError, match="--as imports under another name"):
        brought(tmp_path, old, "mine")


# a peak of memory begins with the parent's, so a small process starts what is measured
USED = """\
import resource, subprocess, sys
subprocess.run([sys.executable, *sys.argv[1:]], check=True)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime, used.ru_maxrss)
"""


@pytest.mark.slow
def test_a_whole_study_is_imported_within_its_budget(tmp_path):
    """62 tables of layers, 477,500 rows: 1 GB of memory, and some 25 s of an idle processor."""
    names = list(product(oldtables.MODELS, oldtables.ALGORITHMS, ("V100", "L40S")))[:62]
    sizes = range(224, 474, 5)
    assert oldtables.folder(tmp_path / "study", names, sizes, layers=154) == 477_400
    extra = oldtables.layer_rows("ResNet18", "gemm", "V100", (64,), 100)
    oldtables.write(tmp_path / "study" / "ResNet18_gemm_V100_layers.csv", oldtables.LAYERS, extra)
    command = [sys.executable, "-c", USED, "-m", "hpcsweep", "import", "study"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    seconds, kib = map(float, done.stdout.split()[-2:])
    assert "477,500 layer rows" in done.stdout
    assert seconds < 120  # where neighbours share the caches it took 45 s
    assert kib < 1 << 20


def test_tables_are_known_by_their_headers(tmp_path):
    """Whatever they are called; other files are left alone."""
    oldtables.write(tmp_path / "a.csv", oldtables.NETWORKS, [])
    oldtables.write(tmp_path / "b.csv", oldtables.LAYERS, [])
    oldtables.write(tmp_path / "c.csv", ["x", "y"], [])
    (tmp_path / "d.csv").write_bytes(b"\xff\xfe")
    found, odd = predecessor.find(tmp_path)
    assert found == {tmp_path / "a.csv": False, tmp_path / "b.csv": True}
    assert odd == ["d.csv"]
    with pytest.raises(UsageError, match="neither a results folder nor tables"):
        predecessor.find(tmp_path / "c.csv")


@pytest.mark.parametrize(
    ("file", "column", "given", "expected"),
    [
        ("ResNet152_gemm_cuda_layers.csv", "NVIDIA L40S", "", "l40s"),
        ("ResNet152_gemm_V100_layers.csv", "cuda", "", "v100"),
        ("V100/layers.csv", "", "a100", "v100"),
        ("layers.csv", "", "a100", "a100"),
        ("layers.csv", "Quadro", "", "quadro"),
        ("layers.csv", "gfx90a:sramecc+:xnack-", "", "gfx90a"),
    ],
)
def test_the_device_stands_in_a_column_or_in_a_name(tmp_path, file, column, given, expected):
    """The column counts first, then the file's name, then its folder's."""
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    row = oldtables.layer_rows("ResNet_152", "winograd non-fused", "x", (224,), 1)[0]
    oldtables.write(path, [*oldtables.LAYERS, "device"], [[*row, column]])
    ((network, _cells),) = predecessor.rows(path, given, Counter())
    assert network == MeasuredNetwork("resnet152", "winograd_nonfused", expected, 224, 0)


def test_a_number_is_finite_or_unknown():
    """Never a zero that nobody wrote."""
    assert [submission.number(text) for text in ("1.5", "", None, "nan?", "inf")] == [
        1.5, None, None, None, None,
    ]  # fmt: skip


def test_a_damaged_row_costs_no_other_and_is_counted(tmp_path):
    """Cut, with a cell more, or with a quote that was lost."""
    rows = [
        ",".join(map(str, row)) for row in oldtables.network_rows("a", "gemm", "V100", SIZES, 1)
    ]
    odd = (rows[0][:20], f"7,{rows[0]}", f'"{rows[0]}', 'a,"gemm\nb\nc",1')
    path = tmp_path / "a_V100.csv"
    path.write_text("\n".join([",".join(oldtables.NETWORKS), *odd, *rows]))
    sweep, notes = brought(tmp_path, path, "a")
    assert len(dataset.read_dataset(sweep).rows) == len(SIZES)
    assert notes[1:5] == (
        "9 rows read: 3 taken",
        "left out: 3 rows with fewer cells than the header",
        "left out: 1 row with more cells than the header",
        "left out: 2 rows whose quotes do not match, or with a cell of several lines",
    )
    path.write_text(path.read_text().replace("power_std_w", "mean", 1))
    with pytest.raises(UsageError, match=r"a_V100\.csv: has 2 columns 'mean'; rename all but one"):
        brought(tmp_path, path, "b")


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("", ResultsError, "has no header in its first line"),
        ("model,algorithm,batch_size,input_size,mean\n", ResultsError, "0 rows read: 0 taken"),
        ("\ufeffmodel,algorithm,batch_size,input_size,mean\r\nvgg16,gemm,1,224,0\r\n", ResultsError,
         "1 row read: 0 taken; left out: 1 row without size or time"),
        ("model,algorithm,layer,mean_ms\nvgg16,gemm,a,1\n", UsageError,
         "has no column 'input_size'"),
    ],
)  # fmt: skip
def test_a_table_that_has_nothing_to_take_says_why(tmp_path, text, error, words):
    """An empty one, one without rows or times, and one that does not tell its images."""
    path = tmp_path / "a_V100.csv"
    path.write_bytes(text.encode())
    with pytest.raises(error, match=f"a_V100.csv: {words}"):
        brought(tmp_path, path, "a")


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
        assert f"{path}: {told}" in done.stderr
        assert "import the whole results folder" in done.stderr
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / name).write_bytes((run.path / name).read_bytes())
    for path in (alone, alone / name):
        done = desk.run("import", path, "--as", "taken")
        assert done.returncode == 2
        assert "import the whole results folder" in done.stderr
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
