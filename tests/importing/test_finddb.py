"""MIOpen's find-db: problems and what their solvers took, in both forms of entries."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import shutil
from collections import Counter

import pytest

import knownphysics
from hpcsweep.analysis import best
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.forecast import training_data
from hpcsweep.importing import finddb
from hpcsweep.store.folders import SweepDir
from localruns import Desk

KEY = "16-30-20-5x3-32-15-10-4-2x1-2x2-1x1-0-NCHW-FP16-F"
NEW = "GemmFwdRest:0.5,128,miopenConvolutionFwdAlgoGEMM"
OLD = "miopenConvolutionFwdAlgoGEMM:GemmFwdRest,0.5,128,rocBlas,not used"


DEEP_ONE = "with a 3-D problem"
UNREAD = "without a problem of a known type and layout, whose sizes agree"
NO_TIME = "without a time"


def read(text):
    """Read a line; return its rows, and what became of its solvers."""
    counts = Counter()
    return finddb.of_line(text, "gfx906_60", counts), +counts


@pytest.mark.parametrize("entry", [NEW, OLD])
def test_both_forms_say_the_same(entry):
    """Solver, time, workspace and algorithm."""
    (row,), counts = read(f"{KEY}={entry}")
    assert (row["algorithm"], row["algorithm_evidence"]) == ("gemm", "solver GemmFwdRest")
    assert (row["median_ms"], row["workspace_bytes"]) == (0.5, 128)
    assert counts == {"taken": 1}


def test_height_is_not_width():
    """Every pair of a problem is height x width."""
    (row,), _ = read(f"{KEY}={NEW}")
    sizes = (4, 16, 30, 20, 32, 5, 3, 2, 2, 2, 1, 1, 1)
    shape = ConvShape(*sizes, groups=1, dtype="float16")
    assert row["unique_key"] == shape.unique_key
    assert (row["out_h"], row["out_w"], row["direction"]) == (15, 10, "forward")
    assert row["memory_format"] == "nchw"


@pytest.mark.parametrize(("way", "direction"), [("B", "backward_data"), ("W", "backward_weights")])
def test_the_sides_of_a_gradient_change_places(way, direction):
    """Its line begins with the forward pass's output; sizes are told as of the forward pass."""
    back = KEY.replace("16-30-20-5x3-32-15-10", "32-15-10-5x3-16-30-20")[:-1] + way
    mine, other = read(f"{back}_g16={NEW}")[0][0], read(f"{KEY}_g16={NEW}")[0][0]
    assert mine["unique_key"] == other["unique_key"]
    assert (mine["groups"], mine["direction"]) == (16, direction)


def test_three_equal_layouts_are_one():
    """Input, weights and output are named apart where they are not the default."""
    found, _ = read(f"{KEY.replace('NCHW', 'NHWC-NHWC-NHWC')}={NEW}")
    assert found[0]["memory_format"] == "nhwc"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("1-1-1-1-1x4x4-512-1-4-4-8-0x0x0-1x1x1-1x1x1-0-NCDHW-FP32-F=" + NEW, DEEP_ONE),
        (KEY.replace("15-10", "15-11") + "=" + NEW, UNREAD),
        (KEY.replace("-2x2-", "-0x2-") + "=" + NEW, UNREAD),
        (KEY.replace("FP16", "INT8") + "=" + NEW, UNREAD),
        (KEY.replace("NCHW", "NCHW-NHWC-NCHW") + "=" + NEW, UNREAD),
        (KEY + "_g3=" + NEW, UNREAD),
        (KEY[:20], UNREAD),
        ("9" * 5000 + KEY + "=" + NEW, UNREAD),
        ("rubbish=" + NEW, UNREAD),
        (KEY + "=" + NEW.replace("0.5", "0.0"), NO_TIME),
        (KEY + "=" + NEW.replace("0.5", "nan"), NO_TIME),
        (KEY + "=" + NEW.replace("0.5", "-1"), NO_TIME),
        (KEY + "=" + NEW.replace("128", "9" * 5000), NO_TIME),
        (KEY + "=" + NEW[:15], NO_TIME),
        (KEY + "=" + OLD[:40], NO_TIME),
        (KEY, NO_TIME),
    ],
)
def test_what_is_left_out_is_counted(text, reason):
    """No line ends in an error."""
    assert read(text) == ([], {reason: 1})


def test_one_bad_entry_costs_no_other():
    """Each of the three is counted."""
    found, counts = read(f"{KEY}={NEW};GemmX:0.0,0,miopenConvolutionFwdAlgoGEMM;{OLD}")
    assert len(found) == 2
    assert counts == {"taken": 2, NO_TIME: 1}


@pytest.mark.parametrize("pack", [None, bz2, gzip])
def test_files_are_read_packed_or_not(tmp_path, pack):
    """As the vendor ships them, as a user's own lie there, and as somebody packed them."""
    path = tmp_path / f"a.ufdb.txt{ {None: '', bz2: '.bz2', gzip: '.gz'}[pack] }"
    text = f"{KEY}={NEW}\n\n{KEY}_g2={OLD}\n".encode()
    path.write_bytes(pack.compress(text) if pack else text)
    assert finddb.sweep_name(path)
    counts = Counter()
    found = [row["groups"] for row in finddb.read_rows(path, "gfx906_60", counts)]
    assert found == [1, 2]
    assert +counts == {"taken": 2}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le"])
def test_a_file_that_a_shell_of_windows_wrote_is_read(tmp_path, encoding):
    """The mark of its encoding is no part of the first problem."""
    path = tmp_path / "a.ufdb.txt"
    path.write_bytes(f"{KEY}={NEW}\r\n{KEY}_g2={OLD}\r\n".encode(encoding))
    counts = Counter()
    assert len(list(finddb.read_rows(path, "gfx906_60", counts))) == 2
    assert +counts == {"taken": 2}


@pytest.mark.parametrize(
    ("name", "gpu"),
    [
        ("gfx906_60.HIP.fdb.txt.bz2", "gfx906_60"),
        ("gfx90878.HIP.fdb.txt", "gfx908_120"),
        ("gfx90a68.HIP.2_20_0.ufdb.txt", "gfx90a_104"),
        ("gfx1030_36.HIP.fdb.txt", "gfx1030_36"),
        ("gfx942130.ufdb.txt", "gfx942_304"),
        ("gfx906_nosramecc_60.HIP.fdb.txt", "gfx906_60"),
        ("gfx90a_xnack68.HIP.fdb.txt", "gfx90a_104"),
        ("gfx90a:sramecc+:xnack-.ufdb.txt", "gfx90a"),
        ("gfx90a:sramecc+:xnack-68.HIP.ufdb.txt.gz", "gfx90a_104"),
        ("mine.ufdb.txt", ""),
    ],
)
def test_a_file_names_its_gpu(name, gpu):
    """Compute units stand behind it, decimal after a line, else hexadecimal; features do not."""
    assert finddb.gpu_of(name) == gpu


PLAIN = "3-8-8-3x3-4-8-8-2-1x1-1x1-1x1-0-NCHW-FP32-F"  # the only convolution of `Net`
ENTRIES = (
    "ConvDirectNaive:2.0,0,miopenConvolutionFwdAlgoDirect;"
    "ConvOclDirect:1.5,16,miopenConvolutionFwdAlgoDirect;"
    "GemmFwd:1.0,64,miopenConvolutionFwdAlgoGEMM"
)
DEEP = "1-1-1-1-1x4x4-512-1-4-4-8-0x0x0-1x1x1-1x1x1-0-NCDHW-FP32-F="
TEXT = f"{PLAIN}={ENTRIES}\n{PLAIN[:-1]}B=GemmBwd:9.0,0,miopenConvolutionBwdDataAlgoGEMM\n{DEEP}\n"
FILE = "gfx1030_36.HIP.fdb.txt"


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """Return a desk with the import of a small file, and a network of one convolution."""
    desk = Desk(tmp_path_factory.mktemp("miopen"))
    (desk.folder / FILE).write_text(TEXT)
    (desk.folder / "finddbnet.py").write_text(
        "from torch import nn\n\n\n"
        "def net():\n    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=True))\n"
    )
    done = desk.run("import", FILE)
    assert done.returncode == 0, done.stderr
    assert "gfx1030_36: imported from" in done.stdout
    assert "4 times on gfx1030_36" in done.stdout
    assert "5 solvers read: 4 taken" in done.stdout
    assert "left out: 1 solver with a 3-D problem" in done.stdout
    assert "to measure" not in done.stdout  # what is foreign cannot be measured again
    return desk


def test_each_solvers_time_is_a_layer_row(desk):
    """With shape, algorithm, solver and workspace; a gradient's row says its direction."""
    with (desk.results / "gfx1030_36" / "layers.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    fast = next(row for row in rows if row["algorithm_evidence"] == "solver ConvOclDirect")
    expected = {
        "algorithm": "direct", "median_ms": "1.5", "min_ms": "1.5", "workspace_bytes": "16",
        "gpu": "gfx1030_36", "batch_size": "2", "in_channels": "3", "out_channels": "4",
        "in_h": "8", "out_w": "8", "kernel_size": "3", "padding": "1", "direction": "forward",
        "input_size": "", "flops": str(2 * 2 * 4 * 64 * 27),
        "unique_key": "conv2d_n2_c3_8x8_k4_3x3_s1x1_p1x1_d1x1_g1_nobias_float32",
    }  # fmt: skip
    assert {name: fast[name] for name in expected} == expected
    assert [row["direction"] for row in rows].count("backward_data") == 1


def test_foreign_rows_are_never_valid_and_have_no_star(desk):
    """Whoever measured them did so in another way."""
    with (desk.results / "gfx1030_36" / "overall.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["valid"], row["flags"]) for row in rows} == {("false", "foreign")}
    for command in ("layers", "roofline"):
        options = ("--peak-compute", "10", "--peak-bw", "500") if command == "roofline" else ()
        shown = desk.run(command, "gfx1030_36", *options)
        assert (shown.returncode, shown.stderr) == (0, "")
        assert "n2_c3_8x8" in shown.stdout
    assert "?  unreliable: foreign" in desk.run("layers", "gfx1030_36").stdout


def test_layouts_are_those_of_points_in_earlier_imports_too(desk):
    """These had PyTorch's words; a layout chooses rows, and has a prediction learn from them."""
    earlier = SweepDir(desk.results / "earlier")
    shutil.copytree(desk.results / "gfx1030_36", earlier.path)
    details = earlier.path / "details.csv"
    text = details.read_text()
    assert ",nchw," in text
    details.write_text(text.replace(",nchw,", ",contiguous,"))
    for name in ("gfx1030_36", "earlier"):
        shown = desk.run("layers", name, "--where", "memory_format=nchw")
        assert (shown.returncode, shown.stderr) == (0, "")
        found = training_data.read_sweeps([desk.sweep(name)]).foreign
        assert set(found["setting"]) == {knownphysics.DEFAULTS}


def test_a_map_is_chosen_by_the_shapes_of_a_network(desk, monkeypatch):
    """A bias is added apart, so it does not count; the file says that nothing confirms it."""
    monkeypatch.syspath_prepend(desk.folder)
    network = ("--model", "finddbnet:net", "--input-size", "8", "--batch-size", "2")
    done = desk.run("best", "--from", "gfx1030_36", *network, "--out", "map.yaml", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["map"], found["confirmed"]) == ({"0": "gemm"}, False)
    row = found["rows"][0]
    assert (row["ms"], row["next"], row["next_ms"]) == (1.0, "direct", 1.5)
    text = (desk.folder / "map.yaml").read_text()
    assert "Unconfirmed" in text
    assert "has no\n# interval, and may be a loss" in text
    expansion = json.loads(desk.run("expand", "map.yaml", "--json").stdout)["expansions"][0]
    assert expansion["points_total"] == 2


def test_a_time_beyond_the_peak_is_flagged_and_neither_chosen_nor_learnt(desk, monkeypatch):
    """It stays in the tables, with a row of its own; other times of the file are as they were."""
    monkeypatch.syspath_prepend(desk.folder)
    fast = "ConvFft:0.000001,0,miopenConvolutionFwdAlgoFFT"
    (desk.folder / "gfx1030_36.odd.fdb.txt").write_text(f"{PLAIN}={ENTRIES};{fast}\n")
    done = desk.run("import", "gfx1030_36.odd.fdb.txt", "--as", "odd")
    assert "1 time of 4 shorter than the GPU can: flagged impossible" in done.stdout
    assert "disturbed" not in done.stdout  # nobody here can measure it again
    with (desk.results / "odd" / "layers.csv").open() as file:
        flags = {row["algorithm"]: row["flags"] for row in csv.DictReader(file)}
    assert flags == {"direct": "foreign", "gemm": "foreign", "fft": "foreign;impossible"}
    network = ("--model", "finddbnet:net", "--input-size", "8", "--batch-size", "2")
    found = json.loads(desk.run("best", "--from", "odd", *network, "--json").stdout)
    assert found["map"] == {"0": "gemm"}
    assert set(training_data.read_sweeps([desk.sweep("odd")]).foreign["algorithm"]) == {
        "direct", "gemm"
    }  # fmt: skip
    shown = desk.run("layers", "odd", "--unreliable").stdout
    assert "1 unreliable point left out" in shown
    assert "fft" not in shown.partition("left out")[0]
    (desk.folder / "gfx1030_36.ns.fdb.txt").write_text(f"{PLAIN}={fast}\n")
    done = desk.run("import", "gfx1030_36.ns.fdb.txt", "--as", "ns")
    assert "is the unit right?" in done.stdout
    shown = desk.run("layers", "ns", "--unreliable")
    assert (shown.returncode, "every point is unreliable" in shown.stderr) == (2, True)


def test_other_shapes_have_no_time(desk):
    """Nothing is guessed: a call without a time keeps the default."""
    known, other = ConvShape(2, 3, 8, 8, 4, 3, 3, 1, 1, 1, 1), ConvShape(2, 3, 9, 9, 4, 3, 3)
    run, axes = desk.sweep("gfx1030_36"), {"model": "net", "input_size": 8, "batch_size": 2}
    found = best.best_of_shapes(run, axes, [("a", known), ("b", other), ("a", other)], "")
    (layers,) = found.maps.values()
    assert layers == {known.unique_key: "gemm"}  # of layer a, one call has a time
    assert "2 calls of 1 shape without a time keep auto" in found.view.written("table")
    alone = best.best_of_shapes(run, axes, [("a", known)], "algorithm=gemm")
    assert "1 shape with times of one algorithm: no rival to compare" in alone.view.notes
    with pytest.raises(UsageError, match="no time of any of the 1 shape of net"):
        best.best_of_shapes(run, axes, [("b", other)], "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "gfx1030_36"), "--from NAME and --model belong together"),
        (("--model", "resnet18"), "--from NAME and --model belong together"),
        (("gfx1030_36", "--from", "gfx1030_36", "--model", "a"), "SWEEP does not go"),
        (("--from", "nowhere", "--model", "finddbnet:net"), "nowhere"),
    ],
)
def test_what_does_not_go_together_is_told(desk, arguments, message):
    """In one line, with exit code 2."""
    done = desk.run("best", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "unexpected" not in done.stderr


def test_a_file_of_an_unknown_gpu_needs_its_name(desk):
    """And a file without any time is no sweep."""
    (desk.folder / "mine.ufdb.txt").write_text(f"{PLAIN}={ENTRIES}\n")
    done = desk.run("import", "mine.ufdb.txt")
    assert (done.returncode, "--device" in done.stderr) == (2, True)
    done = desk.run("import", "mine.ufdb.txt", "--device", "gfx90a:sramecc+:xnack-")
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "mine")
    assert "3 times on gfx90a," in done.stdout
    (desk.folder / "empty.ufdb.txt").write_bytes(b"\0" * 5000 + b"\nPK\x03\x04\n")
    done = desk.run("import", "empty.ufdb.txt", "--device", "mi210")
    assert done.returncode == 6
    assert "1 solver read: 0 taken" in done.stderr
    assert desk.run("report", "empty").returncode == 2


def test_what_is_no_find_db_says_what_became_of_its_lines(tmp_path):
    """Packed, a file of some kilobytes may hold lines for hours: more than is honest is refused."""
    path = tmp_path / "gfx906_60.fdb.txt.bz2"
    megabyte = bz2.compress((b"x" * 1021 + b"=y\n") * 1024)
    for packed, words in (
        (bz2.compress(b""), "0 solvers read: 0 taken"),
        (bz2.compress(b"x=y\n" * 3), f"3 solvers read: 0 taken; left out: 3 solvers {UNREAD}"),
        (megabyte * 65, "unpacks to more than 67,108,864 bytes"),
    ):
        path.write_bytes(packed)
        with pytest.raises(ResultsError, match=words):
            list(finddb.read_rows(path, "gfx906_60", Counter()))
