"""The summary of many files: joined where they belong together, and only there."""

from __future__ import annotations

import os

import proofs
from benchmarks.gpu import __main__ as command
from benchmarks.gpu import claims, summary
from benchmarks.gpu.record import LATE


def written(folder, records):
    """Write the files of steps."""
    folder.mkdir(exist_ok=True)
    for one in records.values():
        one.folder = folder
        one.write()
    return folder


def test_the_page_has_verdicts_facts_and_what_each_step_did(tmp_path):
    """For one device, all of it; the exit code says that everything holds."""
    folder = written(tmp_path / "out", proofs.good())
    page, verdicts = summary.page(*summary.load([folder]))
    assert claims.tally(verdicts) == {"PASS": 20, "FAIL": 0, "UNKNOWN": 0}
    assert page.startswith("# NVIDIA H100 80GB HBM3\n")
    for line in (
        "* an event pair around nothing reads 1.60 us, in steps of 32 ns",
        "* the driver queues 1022 entries of: kernel",
        "* layer pass over clean pass: worst +20.00 % of 26 points",
        "| fft float32 nchw | 5 of 9 | 5 of 9 | 5 of 9 |",
        "| winograd | 2.000 | 2.000 | 100 | 1.0e-06 |",
        "| layers | complete, 1 of 1 items |",
    ):
        assert line in page
    assert command.main(["summary", str(folder), "--out", str(tmp_path / "summary.md")]) == 0
    assert (tmp_path / "summary.md").read_text() == page


def test_the_exit_code_tells_failed_from_unknown(tmp_path):
    """One and three."""
    records = proofs.good()
    records["points"].found["gemm eager 0"]["max_rel_error"] = 1.0
    assert command.main(["summary", str(written(tmp_path / "a", records))]) == 1
    few = {"queue": proofs.good()["queue"]}
    assert command.main(["summary", str(written(tmp_path / "b", few))]) == 3
    assert command.main(["summary", str(tmp_path / "nothing")]) == 3


def test_parts_of_a_step_in_several_folders_are_joined(tmp_path):
    """The later file counts where both have an item; together they may be the whole."""
    early, late = proofs.good(), proofs.good()
    for records, kept in ((early, (0, 12)), (late, (10, 26))):
        items = list(records["points"].found.items())
        records["points"].found = dict(items[slice(*kept)])
    early["points"].state = LATE
    late["points"].found["fft eager 0"] = early["points"].found["fft eager 0"] | {"median_ms": 7.0}
    first = written(tmp_path / "early", {"points": early["points"]})
    second = written(tmp_path / "late", {"points": late["points"]})
    os.utime(first / "points.json", (1, 1))
    steps = summary.by_environment(summary.load([first, second])[0])
    (found,) = steps.values()
    assert not found["points"].missing
    assert found["points"].found["fft eager 0"]["median_ms"] == 7.0
    assert claims.errors(found).verdict == claims.PASS


def test_files_of_two_devices_are_never_put_together(tmp_path):
    """Nor those of two drivers: kernels of one say nothing about the other's times."""
    records = proofs.good()
    records["kernels"].environment["driver"] = "570"
    page, verdicts = summary.page(*summary.load([written(tmp_path / "out", records)]))
    assert page.count("# NVIDIA H100 80GB HBM3\n") == 2
    told = {v.verdict for v in verdicts if "CUPTI" in v.claim}
    assert told == {claims.UNKNOWN}


def test_a_step_that_was_killed_and_a_file_that_is_broken_are_told(tmp_path):
    """The rest is summed up all the same."""
    records = proofs.good()
    records["layers"].state = "running"
    records["layers"].planned.append("conv2d_of_which_nothing_is_known")
    records["support"].failed["fft float64 nhwc"] = "no room"
    folder = written(tmp_path / "out", records)
    (folder / "queue.json").write_text('{"format": 1, "st')
    page, _ = summary.page(*summary.load([folder]))
    assert "| layers | killed before its end, 1 of 2 items |" in page
    assert "* layers: 1 items missing: conv2d_of_which_nothing_is_known" in page
    assert "* support: fft float64 nhwc: no room" in page
    assert "queue.json: cannot be read" in page
