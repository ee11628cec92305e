"""The kit as a command: its limits, what it lacks, and all of its steps on a simulated GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import zipfile

import pytest

from benchmarks.gpu import record, runner, step
from paths import ROOT

ENOUGH = 1700.0  # seconds; 90 on an idle machine


@pytest.mark.slow
def test_the_whole_kit_runs_on_a_simulated_gpu_and_goes_on_where_it_stopped(tmp_path):
    """Every step completes, in the product's own code for a GPU; a second call measures nothing."""
    out = tmp_path / "proof"
    words = ("-m", "benchmarks.gpu", "--simulated", f"--seconds={ENOUGH}", f"--out={out}")
    subprocess.run((sys.executable, *words), cwd=ROOT, check=False, timeout=ENOUGH)
    records = {name: record.read(out / f"{name}.json") for name in runner.STEPS}
    odd = {name: (r.state, r.note, r.failed) for name, r in records.items() if r.failed}
    assert {r.state for r in records.values()} == {record.COMPLETE}, odd
    assert set(odd) <= {"plans"}, odd  # which cuDNN's front-end makes, of a device that is real
    page = (out / "summary.md").read_text()
    assert "SIMULATED" in page
    (rows,) = [line for line in page.splitlines() if line.startswith("| (o)")]
    assert rows.endswith("held |")
    before = {name: (out / f"{name}.json").stat().st_mtime_ns for name in ("points", "sessions")}
    subprocess.run((sys.executable, *words), cwd=ROOT, check=False, timeout=ENOUGH)
    again = {name: record.read(out / f"{name}.json").found for name in before}
    assert again == {name: records[name].found for name in before}


SIMULATED = """
import torch
assert torch.cuda.is_available()
x, graph = torch.ones(4, device="cuda"), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x + 1) * 2
x.fill_(5)
graph.replay()
assert y.tolist() == [12.0] * 4, y
begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
begin.record()
torch.cuda._sleep(3_000_000)
end.record()
assert 2.9 < begin.elapsed_time(end) < 4, begin.elapsed_time(end)
free = torch.cuda.mem_get_info()[0]
kept = torch.empty(free - 1000, dtype=torch.uint8, device="cuda")
try:
    torch.empty(2000, dtype=torch.uint8, device="cuda")
except torch.OutOfMemoryError:
    del kept
torch.empty(2000, dtype=torch.uint8, device="cuda")
print("all of it")
"""


def test_every_python_of_a_simulation_has_a_gpu(tmp_path):
    """Its graphs run again on new inputs, its events have a queue's times, its memory is full."""
    environ = runner.environment(tmp_path, simulated=True)
    command = (sys.executable, "-c", SIMULATED)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("all of it\n"), done.stderr


def test_a_machine_without_a_gpu_is_told_in_every_step(tmp_path):
    """And how the kit is tried there."""
    step.main({"step": "queue", "out": str(tmp_path), "seconds": 5.0, "simulated": False})
    assert "--simulated" in record.read(tmp_path / "queue.json").note


def test_what_is_missing_is_told_with_the_steps_that_it_leaves_open(tmp_path, monkeypatch, capsys):
    """Before anything runs; the steps that need nothing are begun."""
    begun = []
    monkeypatch.setattr(runner, "missing", lambda needs, _: [n for n in needs if n == "pynvml"])
    monkeypatch.setattr(runner, "run_within", lambda command, *_: begun.append(command) or "")
    runner.run(tmp_path, 1e6, tmp_path, simulated=False)
    assert "no module pynvml: its claims stay open (energy)" in capsys.readouterr().out
    assert record.read(tmp_path / "energy.json").note == "needs pynvml"
    assert len(begun) == len(runner.STEPS) - 1


def test_wheels_beside_the_source_are_found(tmp_path, monkeypatch):
    """Unpacked, since some have libraries inside."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "rarely-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("rarely/__init__.py", "")
    path = runner.environment(tmp_path, simulated=False)
    assert runner.missing(("rarely", "json"), path) == ["rarely"]
    monkeypatch.setattr(runner, "WHEELS", folder)
    assert runner.missing(("rarely", "json"), runner.environment(tmp_path, simulated=False)) == []


BARE = """
import sys
sys.modules.update(dict.fromkeys(("xdist", "submitit", "cudnn", "execnet"), None))
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


def test_tests_of_a_gpu_need_no_other_modules_than_the_kit_looks_for(tmp_path):
    """Few machines with GPUs have pytest-xdist."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text()]
    words = ("-p", "no:cacheprovider", "--collect-only", "-q", "-m", "gpu", *map(str, files))
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        (sys.executable, "-c", BARE, *words),
        cwd=ROOT, env=environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_a_process_that_overstays_is_ended(monkeypatch):
    """First asked to, then killed where it does not listen."""
    monkeypatch.setattr(runner, "_LAST_WORDS_S", 0.2)
    began = time.monotonic()
    assert runner.run_within(("sleep", "60"), os.environ, 0.2) == "its time over"
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    assert runner.run_within((sys.executable, "-c", deaf), os.environ, 1.0) == "its time over"
    assert time.monotonic() - began < 20
    assert runner.run_within(("false",), os.environ, 5.0) == "status 1"


def test_the_runner_says_in_the_file_how_a_step_ended_that_did_not_say_so(tmp_path, monkeypatch):
    """And begins no step when the time is over."""
    record.Record("device", {"kind": "cuda"}, planned=["delay"], folder=tmp_path).write()
    monkeypatch.setattr(runner, "run_within", lambda *_: "status -9")
    monkeypatch.setattr(runner, "missing", lambda *_: [])
    runner.run(tmp_path, 100.0, tmp_path, simulated=False)
    assert record.read(tmp_path / "device.json").note.startswith("ended with status -9 after 0 s")
    runner.run(tmp_path / "late", runner._GRACE_S, tmp_path, simulated=False)
    assert not (tmp_path / "late").exists()


def test_all_steps_fit_into_two_calls_of_ten_minutes():
    """With some seconds for each process to begin."""
    assert sum(5 + one.seconds for one in runner.STEPS.values()) <= 2 * (570 - runner._GRACE_S)
    assert list(step.FUNCTIONS) == list(runner.STEPS)
