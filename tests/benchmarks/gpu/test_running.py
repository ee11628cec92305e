"""Steps as real processes: limits, a kill in the middle, and nothing but torch to need."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from benchmarks.gpu import environment, record, runner, step
from paths import ROOT, SUPPORT

BLOCKED = ("pydantic", "submitit", "click", "rich", "pandas", "jinja2", "yaml", "filelock")
# every process that finds this on its path finds none of these, as where nobody installed them
BLOCKING = f"""
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED}:
            return None
        return PathFinder.find_spec(name, path, target)
sys.meta_path[:] = [Without if finder is PathFinder else finder for finder in sys.meta_path]
"""
SMALL = {"model": "tinynets:Residual", "size": 32, "iterations": 4, "sizes": 2, "gpu": "cpu"}
WORDS = [f"--{name}={value}" for name, value in SMALL.items()]


def bare(tmp_path):
    """Return the environment of a process without packages, without a GPU, and with the nets."""
    (tmp_path / "sitecustomize.py").write_text(BLOCKING)
    path = os.pathsep.join([str(tmp_path), str(SUPPORT)])
    return {**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}


@pytest.mark.slow
def test_steps_measure_without_any_package_but_torch(tmp_path):
    """The part that a CPU can do, from the source tree alone; a step of a GPU says so."""
    out, env = tmp_path / "out", bare(tmp_path)
    check = "import pydantic"
    blocked = subprocess.run(
        (sys.executable, "-c", check), env=env, check=False, capture_output=True
    )
    assert b"No module named 'pydantic'" in blocked.stderr
    steps = ("device", "support", "layers", "sessions")
    command = (sys.executable, "-m", "benchmarks.gpu", *steps, "--out", str(out), "--rehearse")
    done = subprocess.run(
        (*command, *WORDS), cwd=ROOT, env=env, check=False, capture_output=True, text=True
    )
    states = {step: record.read(out / f"{step}.json").state for step in steps}
    wanted = dict.fromkeys(steps, record.COMPLETE) | {"sessions": record.STOPPED}
    assert (states, done.returncode) == (wanted, 1), done.stdout + done.stderr
    layers = record.read(out / "layers.json")
    assert all("winograd" in facts["bare_us"] for facts in layers.found.values())
    assert len(layers.found) == 2
    assert "needs a GPU" in record.read(out / "sessions.json").note
    summary = subprocess.run(
        (*command[:3], "summary", str(out)), cwd=ROOT, env=env, check=False, capture_output=True
    )
    assert summary.returncode == 3
    assert b"rehearsed" in summary.stdout


@pytest.mark.slow
def test_a_step_that_is_killed_keeps_what_it_found_and_goes_on_from_there(tmp_path):
    """SIGKILL in the middle: the file says what is missing, and the step run again finds that."""
    out = tmp_path / "out"
    out.mkdir()
    told = {"step": "points", "out": str(out), "seconds": 300, "options": SMALL}
    command = (sys.executable, "-m", "benchmarks.gpu.step", json.dumps(told))
    path = out / "points.json"
    with subprocess.Popen(
        command, cwd=ROOT, env=bare(tmp_path), stdout=subprocess.DEVNULL
    ) as child:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and child.poll() is None:
            if path.exists() and len(record.read(path).found) >= 2:
                break
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    half = record.read(path)
    assert half.state == record.RUNNING
    assert len(half.found) >= 2
    assert half.missing
    assert f"{half.missing[0]}: missing" in (out / "points.txt").read_text()
    done = subprocess.run(
        command, cwd=ROOT, env=bare(tmp_path), check=True, capture_output=True, text=True
    )
    whole = record.read(path)
    assert (whole.state, whole.missing) == (record.COMPLETE, [])
    assert {key: whole.found[key] for key in half.found} == half.found
    assert not any(
        line.startswith(f"{next(iter(half.found))}:") for line in done.stdout.splitlines()
    )
    lines = (out / "algorithms.csv").read_text().splitlines()
    assert len(lines) == 1 + len({key[:-2] for key in whole.found})
    assert not {"node", "device_uuid"} & set(lines[0].split(","))


def test_a_process_that_overstays_is_ended(monkeypatch):
    """First asked to, then killed where it does not listen."""
    monkeypatch.setattr(runner, "_LAST_WORDS_S", 0.2)
    began = time.monotonic()
    assert runner.run_within(("sleep", "60"), 0.2) == "its time over"
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    assert runner.run_within((sys.executable, "-c", deaf), 1.0) == "its time over"
    assert time.monotonic() - began < 20
    assert runner.run_within(("false",), 5.0) == "status 1"


def test_the_runner_says_in_the_file_how_a_step_ended_that_did_not_say_so(tmp_path, monkeypatch):
    """And that the others were not begun, when the time is over."""
    kept = record.Record("queue", {"kind": "cuda"}, planned=["kernel"], folder=tmp_path)
    kept.write()
    monkeypatch.setattr(runner, "run_within", lambda *_: "status -9")
    assert runner.run(["queue", "floors"], tmp_path, {}, 60.0) == 2
    note = record.read(tmp_path / "queue.json").note
    assert note.startswith("ended with status -9 after 0 s")
    assert runner.run(["queue"], tmp_path, {}, 5.0) == 1


def test_every_step_ends_within_eight_minutes_and_exists():
    """With the time that its process gets to end."""
    assert max(one.seconds for one in runner.STEPS.values()) + runner._GRACE_S <= 480
    assert list(step.FUNCTIONS) == list(runner.STEPS)


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (
            "580.65.06, 1980, 1980, 345, 2619, 700.00, Enabled, Disabled\n",
            {"driver": "580.65.06", "sm_clock_max_mhz": "1980", "mig": "Disabled"},
        ),
        ("470.1, 1530, [N/A], 135, 877, 300.00, Disabled, [Not Supported]", {"driver": "470.1"}),
        ("No devices were found", {}),
        ("", {}),
    ],
)
def test_what_nvidia_smi_says_is_read(tmp_path, monkeypatch, line, found):
    """Whole answers only; what it does not know is left out."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{line}\nEND\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    told = environment.nvidia_smi("0")
    assert told.items() >= found.items()
    assert bool(told) == bool(found)
    assert not any(value.startswith("[") for value in told.values())


def test_the_environment_names_no_machine():
    """Neither the host nor its folders, nor the GPU's serial number."""
    text = json.dumps(environment.collect("cpu"))
    assert os.uname().nodename not in text
    assert str(ROOT) not in text
    assert "torch" in text
