"""The table of claims from the files of many steps, of one device."""

from __future__ import annotations

import proofs
from benchmarks.gpu import summary
from benchmarks.gpu.record import STOPPED, Record


def written(folder, records):
    """Write the files of steps."""
    folder.mkdir(exist_ok=True)
    for one in records.values():
        one.folder = folder
        one.write()
    return folder


def test_the_page_has_verdicts_facts_and_what_each_step_did(tmp_path):
    """For one device, all of it, with what a point's parts cost."""
    page, verdicts = summary.page(written(tmp_path / "out", proofs.good()))
    assert {one.verdict for one in verdicts} == {"held"}, page
    assert page.startswith("# NVIDIA H100 80GB HBM3\n")
    for line in (
        "27 held, 0 refuted, 0 open",
        "* an event pair around nothing reads 1.60 us, in steps of 32 ns",
        "* queue: kernel: the driver holds 1022 entries",
        "* layer pass over clean pass: worst +20.00 % of 26 points",
        "| winograd | 2.000 | 2.000 | 100 | 1.0e-06 |",
        "| timed | 1.50 | 1.50 |",
        "| all | 2.00 | 2.00 |",
        "| layers | complete, 1 of 1 items, 0 s |",
    ):
        assert line in page


def test_files_of_two_devices_are_never_put_together(tmp_path):
    """Nor those of two drivers: kernels of one say nothing about the other's times."""
    records = proofs.good()
    records["kernels"].environment["driver_version"] = "570"
    page, verdicts = summary.page(written(tmp_path / "out", records))
    assert "of another device or software: left out" in page
    assert {v.verdict for v in verdicts if v.claim.startswith("(a)")} == {"open"}


def test_a_step_that_was_killed_and_a_file_that_is_broken_are_told(tmp_path):
    """The rest is summed up all the same, and what lacks a module says which."""
    records = proofs.good()
    records["layers"].state = "running"
    records["layers"].planned.append("conv2d_of_which_nothing_is_known")
    records["stars"].failed["process 3"] = "no room"
    records["plans"] = proofs.record("plans", {}, state="stopped", note="needs cudnn")
    folder = written(tmp_path / "out", records)
    (folder / "device.json").write_text('{"format": 1, "st')
    page, _ = summary.page(folder)
    assert "| layers | running, 1 of 2 items, 0 s |" in page
    assert "* layers: 1 items missing: conv2d_of_which_nothing_is_known" in page
    assert "* stars: process 3: no room" in page
    assert "not measured: needs cudnn | open |" in page
    assert "device.json: cannot be read" in page


def test_a_page_without_any_measurement_says_so(tmp_path):
    """As of a machine whose torch finds no GPU: every claim is open."""
    Record("device", {}, state=STOPPED, note="no GPU", folder=tmp_path).write()
    text, verdicts = summary.page(tmp_path)
    assert text.startswith("# Nothing was measured\n\n| claim |")
    assert {v.verdict for v in verdicts} == {"open"}


def test_a_page_of_a_pretend_gpu_says_so_first_and_in_every_verdict(tmp_path):
    """No figure of a GPU that is not there holds a claim, or refutes one."""
    records = proofs.good()
    records["points"].found["fft graph 0"]["call_rel_error"] = 1.0
    for one in records.values():
        one.environment["kind"] = "pretended"
    page, verdicts = summary.page(written(tmp_path / "out", records))
    first, _, second, *_ = page.splitlines()
    assert first == "# NVIDIA H100 80GB HBM3, pretended"
    assert second == "**There is no GPU: it is pretended, and nothing on this page is evidence.**"
    assert {v.verdict for v in verdicts} == {"pretended: held", "pretended: refuted"}
    assert "0 held, 0 refuted, 0 open" in page
