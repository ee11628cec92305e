"""Tables as pictures: what the commands write, where, and what they refuse."""

from __future__ import annotations

import json

import pytest

import ncufiles
from collectedsweep import collected
from localruns import Desk
from ncufiles import Launch


@pytest.fixture(scope="module")
def plotted(tmp_path_factory):
    """Return a collected sweep of batch sizes, algorithms and threads."""
    return collected(tmp_path_factory.mktemp("plotted"))


@pytest.fixture
def step(tmp_path):
    """Return an export of 98 launches of 34 kernels."""
    return ncufiles.write_wide(tmp_path / "step.csv", ncufiles.step())


def test_a_wrong_plot_is_told_in_a_line(plotted):
    """Exit code 2; nothing is written."""
    desk = Desk(plotted.path.parent.parent)
    for arguments, words in (
        (("demo", "--x", "bach_size"), "did you mean 'batch_size'"),
        (("demo", "--x", "batch_size", "--out", "x.gif"), "pictures end in .png"),
        (("dmeo",), "did you mean 'demo'"),
    ):
        done = desk.run("plot", *arguments)
        assert done.returncode == 2
        assert words in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1


def test_the_json_of_a_roofline_is_pure_and_holds_pieces_sums_and_total(desk, step):
    """For machines; what was written is a part of it."""
    done = desk.run_process("roofline", step, "--gpu", "a100", "--json", "--out", "s.csv")
    record = json.loads(done.stdout)
    assert (len(record["pieces"]), len(record["groups"])) == (98, 34)
    assert record["total"]["flops"] == ncufiles.flops(ncufiles.step())
    assert record["compute_tflops"] == {"fp32": 19.5}
    assert record["files"] == ["s.csv"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("k.csv",), "the export names no device: give --gpu"),
        (("k.csv", "--gpu", "v10"), "did you mean 'v100'"),
        (("k.csv", "--gpu", "l40", "--out", "k.jpeg"), "pictures end in .png"),
        (("k.csv", "--gpu", "l40", "--out", "no/k.png"), "there is no folder"),
        (("k.csv", "--gpu", "l40", "--out", "no/k.csv"), "No such file"),
        (("k.csv", "--gpu", "l40", "--layers"), "k.csv: --layers is for sweeps"),
        (("missing.csv", "--gpu", "l40"), "missing.csv: No such file"),
        (("k.csv", "k.csv", "--gpu", "l40"), "give one export"),
        (("x.ncu-rep",), "ncu --import x.ncu-rep --csv"),
        (("other.csv",), "other.csv: no export of a known profiler; these are read: ncu --csv"),
        (("nosweep",), "no results of a sweep 'nosweep'"),
    ],
)
def test_a_roofline_that_cannot_be_drawn_is_told_in_a_line(desk, arguments, words):
    """Exit code 2, no traceback."""
    ncufiles.write_wide(desk.folder / "k.csv", [Launch(0, "k")])
    (desk.folder / "other.csv").write_text("a,b\n1,2\n")
    (desk.folder / "x.ncu-rep").write_bytes(b"\x00")
    done = desk.run("roofline", *arguments)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_counters_to_collect_are_printed_for_both_profilers(desk):
    """As their command line, or their input file, takes it."""
    shown = desk.run("roofline", "--counters", "ncu")
    assert shown.stdout.startswith("gpu__time_duration.sum,dram__bytes.sum,smsp__sass")
    assert "sm__ops_path_tensor_src_" in shown.stderr
    assert desk.run("roofline", "--counters", "rocprof").stdout.startswith("pmc: SQ_INSTS_VALU")


@pytest.mark.parametrize("form", ["csv", "md", "latex", "json"])
def test_a_plot_has_every_form(plotted, form):
    """CSV as in the file that --out writes; other forms have the table of the terminal."""
    desk = Desk(plotted.path.parent.parent)
    options = ("plot", "demo", "--y", "throughput_ips", "--x", "batch_size", "--by=algorithm")
    done = desk.run(*options, "--format", form, "--out", "s.csv")
    assert (done.returncode, done.stderr) == (0, "" if form == "json" else "note: wrote s.csv\n")
    wanted = {
        "csv": (desk.folder / "s.csv").read_text(),
        "md": "| batch_size | gemm | winograd |",
        "latex": "batch_size & gemm & winograd",
        "json": '"y": "throughput_ips"',
    }
    assert wanted[form].replace("_", r"\_" if form == "latex" else "_") in done.stdout
