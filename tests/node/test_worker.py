"""The worker behind a real socket; of a network it is forked by the template, and ends with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import resultsfolder
from attempts import attempt, prepared
from caring import caring
from hpcsweep import sources
from hpcsweep.catalog.row_records import TimeCells
from hpcsweep.errors import Refused
from hpcsweep.measure.bench_api import Measurement, Progress
from hpcsweep.node import worker
from hpcsweep.node.protocol import MeasureRequest
from hpcsweep.point import Point
from hpcsweep.store import chunk_file
from paths import SUPPORT
from processmarks import marked, patched
from waiting import wait_for


def test_a_worker_measures_over_its_socket(tmp_path):
    """A real worker process: hello with the environment, then a row, layers and samples."""
    hello = []
    with caring(tmp_path, hello.append) as measure:
        first, graph = (measure("tinynets:Residual", 32, launch) for launch in ("eager", "graph"))
    assert [env["software"]["torch"] for env in hello] == [torch.__version__]
    assert [first.status, graph.status, len(first.layers)] == ["ok", "unsupported", 7]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_worker_refuses_a_machine_without_the_promised_gpu(tmp_path):
    """It says so in its hello and leaves."""
    with (
        caring(tmp_path, run={"gpu": "v100", "gpu_name": "V100"}) as measure,
        pytest.raises(Refused, match="promises gpu 'v100'"),
    ):
        measure("tinynets:Residual")


class Misspelt:
    """A bench whose check makes cells that no record declares, of a row or of a layer."""

    history: dict[str, object] = {}  # noqa: RUF012 - as a bench has it

    def measure(self, point: Point, _tries: int, _progress: Progress) -> Measurement:
        """Measure."""
        kind = point.axes["model"]
        if kind == "row":
            return Measurement({"median_mss": 1.0})
        if kind == "layer":
            return Measurement({"median_ms": 1.0}, [{"kernel_hh": 3}])
        if kind == "record":
            TimeCells(median_mss=1.0)  # type: ignore[call-arg]
        return Measurement({"median_ms": 1.0}, [{"kernel_h": 3}])


def test_a_cell_that_no_record_declares_is_the_error_of_its_point():
    """The row names it, and the next point is measured."""
    points = [Point("noop", {"model": kind}, {}) for kind in ("row", "layer", "record", "right")]
    request = MeasureRequest(points=tuple(points))
    found = [*worker.outcomes(Misspelt(), request, lambda _message: None)]
    assert [one.status for one in found] == ["error", "error", "error", "ok"]
    assert [one.reason.partition(";")[0] for one in found] == [
        "UndeclaredCell: a row of overall.csv has no cell 'median_mss'",
        "UndeclaredCell: a row of layers.csv has no cell 'kernel_hh'",
        "UndeclaredCell: TimeCells has no cell 'median_mss'",
        "",
    ]


def test_a_file_that_is_replaced_while_its_point_is_measured_is_a_version_of_its_own(
    tmp_path, monkeypatch
):
    """Nobody can tell which one was measured; the next point has the new one."""
    (tmp_path / "w.pt").write_text("first")
    monkeypatch.setattr(sources, "_in_use", [str(tmp_path)])
    point = Point("inference", {"model": "resnet18", "weights": "w.pt"}, {})

    class Bench:
        def measure(self, _point: Point, _tries: int, _progress: Progress) -> Measurement:
            (tmp_path / "w.pt").write_text("second")
            return Measurement({})

    cells = [
        sources.parts(one.row["own_files"])["weights"]
        for one in worker.outcomes(
            Bench(), MeasureRequest(points=(point, point)), lambda _message: None
        )
    ]
    assert cells[0].endswith(f"-{cells[1]}")
    assert sources.Sources([str(tmp_path)]).digest("weights", "w.pt") == cells[1]


linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="adopts orphans")
QUICK = "{warmup: 1, iterations: 4, layers: false, evidence: false, numerics: false}"


def in_order(submission, networks):
    """Let a submission measure networks in this order; each may come again, with another seed."""
    chunk = chunk_file.read_chunk(submission.chunks, 0)
    (first, *_) = chunk.points
    points = [
        replace(
            first,
            axes={**first.axes, "model": network, "seed": seed},
            point_id=f"{seed:016x}",
        )
        for seed, network in enumerate(networks)
    ]
    chunk_file.write_chunks(submission.chunks, [replace(chunk, points=tuple(points))])
    return submission


def rows_of(submission):
    """Return the rows in the order in which they were written."""
    return [row for one in submission.attempts(0) for row in resultsfolder.read_shard(one).rows]


ENDS = {
    "strike_here": ("crashed", "SIGSEGV: Fatal Python error: Segmentation fault File "),
    "says_much_and_ends": ("crashed", "exit code 7: the last words"),
    "hangs": ("timeout", "no result within 4 s"),
    "closes": ("crashed", "exit code 1"),
    "keeps_a_child": ("ok", ""),
    "daemonises": ("ok", ""),
    "forks": ("ok", ""),
    "spins": ("ok", ""),
    "redirects_output": ("ok", ""),
    "lowers_a_limit": ("ok", ""),
}


@linux
def test_what_a_network_does_is_its_own_row_and_ends_with_its_worker(desk, tmp_path):
    """The signal and the last words are told; the network after it is another process."""
    text = f"workload: inference\naxes: {{model: [resnet18]}}\nmeasure: {QUICK}\npoint_timeout: 4\n"
    networks = [name for act in ENDS for name in (act, "nothing")]
    submission = in_order(prepared(desk, text), networks)
    mark = f"{os.getpid()} template"
    done = attempt(submission, LEAVES=mark, PYTHONPATH=patched(tmp_path))
    done.communicate(timeout=300)
    assert done.returncode == 0
    rows = rows_of(submission)
    assert [row["model"] for row in rows] == networks
    assert {row["status"] for row in rows[1::2]} == {"ok"}
    assert len({row["node"] for row in rows[1::2]}) == len(ENDS)  # their process ids
    for row in rows[::2]:
        status, reason = ENDS[row["model"]]
        assert (row["status"], row["status_reason"][: len(reason)]) == (status, reason)
    assert marked(f"LEAVES={mark}") == []


@linux
def test_a_killed_supervisor_takes_template_and_worker_along(desk, tmp_path):
    """The worker hangs in a pass; nobody is there to read what it says."""
    submission = in_order(
        prepared(desk, "workload: inference\naxes: {model: [resnet18]}\n"), ["nothing", "hangs"]
    )
    mark = f"{os.getpid()} killed"
    running = attempt(submission, LEAVES=mark, PYTHONPATH=patched(tmp_path))
    wait_for("one row", lambda: rows_of(submission), enough=lambda rows: len(rows) == 1)
    wait_for(
        "three processes",
        lambda: marked(f"LEAVES={mark}"),
        enough=lambda found: len(found) == 3,
    )
    running.kill()
    running.communicate()
    wait_for("end of all", lambda: marked(f"LEAVES={mark}"), enough=lambda found: not found)


OWN = """\
workload: inference
axes: {model: ["tinynets:Residual"], input_size: [32]}
measure: {warmup: 1, iterations: 4, evidence: false, numerics: false}
"""


@pytest.mark.slow
@linux
def test_a_machine_that_is_slow_for_one_of_twenty_networks_is_flagged(desk):
    """The control knows its usual time from the workers before."""
    networks = ["tinynets:Residual"] * 20
    networks[12] = "leaving:network_that_hogs"
    submission = in_order(
        prepared(desk, OWN.replace("numerics: false", "numerics: false, layers: false")), networks
    )
    attempt(submission, PYTHONPATH=str(SUPPORT)).communicate(timeout=500)
    rows = rows_of(submission)
    assert [row["status"] for row in rows] == ["ok"] * 20
    assert [bool(row["control_shift_pct"]) for row in rows] == [False] * 5 + [True] * 15
    assert {"contended", "machine_shift"} & {*rows[12]["flags"].split(";")}


@linux
def test_peak_memory_is_that_of_the_point_whatever_came_before(desk):
    """Neither a larger network nor a larger image of the same one is in it."""
    text = OWN.replace('"tinynets:Residual"', "squeezenet1_1").replace("[32]", "[64]")
    text = text.replace("numerics: false", "numerics: false, layers: false")
    networks = ["squeezenet1_1", "alexnet", "squeezenet1_1", *["tinynets:Residual"] * 3]
    submission = in_order(prepared(desk, text), networks)
    chunk = chunk_file.read_chunk(submission.chunks, 0)
    points = [*chunk.points]
    for at, size in ((3, 64), (4, 1024), (5, 64)):  # the last two are of one worker
        axes = {**points[at].axes, "input_size": size, "seed": min(at, 4)}
        points[at] = replace(points[at], axes=axes)
    chunk_file.write_chunks(submission.chunks, [replace(chunk, points=tuple(points))])
    attempt(submission, PYTHONPATH=str(SUPPORT)).communicate(timeout=500)
    rows = rows_of(submission)
    if {row["mem_source"] for row in rows} != {"vm_hwm"}:
        pytest.skip("this kernel does not let us reset the high-water mark")
    alone, larger, after, tiny, large, tiny_after = (int(row["mem_peak_bytes"]) for row in rows)
    assert after == pytest.approx(alone, abs=0.05 * (larger - alone))
    assert tiny_after == pytest.approx(tiny, abs=0.2 * (large - tiny))


@linux
def test_what_networks_of_torch_do_to_their_process_is_not_met_by_the_next(desk):
    """It crashes with torch in it, eats memory, changes a switch, or cannot be imported."""
    bad = {
        "leaving:network_that_strikes_here": "crashed",
        "leaving:network_that_switches_to_float64": "ok",
        "tinynets:Hungry": "oom",
        "nowhere:network": "error",
    }
    networks = [name for each in bad for name in (each, "tinynets:Residual")]
    submission = in_order(prepared(desk, OWN), networks)
    attempt(submission, PYTHONPATH=str(SUPPORT)).communicate(timeout=500)
    rows = rows_of(submission)
    assert [row["status"] for row in rows[::2]] == [*bad.values()]
    assert "cannot import 'nowhere'" in rows[-2]["status_reason"]
    good = rows[1::2]
    told = {(row["status"], row["flops"], row["params"], row["layer_rows"]) for row in good}
    assert told == {("ok", good[0]["flops"], good[0]["params"], "7")}


@linux
def test_torch_that_cannot_be_imported_is_told(desk, tmp_path):
    """As it was before there was a template."""
    (tmp_path / "torch.py").write_text("raise ImportError('libjpeg.so.9 is missing')\n")
    running = attempt(prepared(desk, OWN), PYTHONPATH=str(tmp_path))
    _, errors = running.communicate(timeout=300)
    assert running.returncode == Refused.exit_code
    assert "the worker does not start: exit code 1: ImportError: libjpeg.so.9 is missing" in errors


def test_what_the_template_imports_computes_nothing():
    """Before a fork there is no pool of threads, and nobody asked for a GPU.

    torch's compiler is there: its profiler would import it in each worker, which takes 2 s.
    """
    program = """\
import json, sys, threading
from hpcsweep.node import worker
worker.import_all()
compiles = "torch._dynamo" in sys.modules
import torch
print(json.dumps([threading.active_count(), torch.cuda.is_initialized(), compiles]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [1, False, True]
