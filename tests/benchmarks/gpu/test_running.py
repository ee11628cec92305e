"""The kit as a command: its limits, what it lacks, and its steps on the pretend GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import zipfile

import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import processes, record, runner, step
from paths import ROOT

ENOUGH = 900.0  # seconds of a call; 150 on an idle machine
KNOWN = {"kind": "cuda", "name": "NVIDIA H100 80GB HBM3", "torch": "2.11"}


@pytest.mark.slow
def test_the_whole_kit_runs_on_a_pretend_gpu_and_a_call_more_measures_nothing(
    pretend_gpu, tmp_path
):
    """Every step completes in torch's own code for a GPU; what is complete begins no process."""
    out = tmp_path / "proof"
    words = ("-m", "benchmarks.gpu", "--pretend", f"--seconds={ENOUGH}", f"--out={out}")

    def call():
        return subprocess.run(
            (sys.executable, *words),
            cwd=ROOT, capture_output=True, text=True, check=False, timeout=ENOUGH,
        )  # fmt: skip

    folder = out / "pretended-nvidia-h100-80gb-hbm3"
    records = {}
    for _ in range(3):  # a machine that is very busy ends a step at its limit
        done = call()
        records = {name: record.read(folder / f"{name}.json") for name in runner.STEPS}
        if {one.state for one in records.values()} == {record.COMPLETE}:
            break
    told = {name: record.standing(one) for name, one in records.items()}
    assert {one.state for one in records.values()} == {record.COMPLETE}, (told, done.stderr)
    page = (out / "summary.md").read_text()
    for letter in ("(o)", "(p)", "(q)"):
        (line,) = [one for one in page.splitlines() if one.startswith(f"| {letter}")]
        assert line.endswith("| pretended: held |"), line
    with tarfile.open(f"{out}.tar.gz") as archive:
        assert "./summary.md" in archive.getnames()
    again = call()
    assert again.returncode == 3, again.stderr
    assert "(at most" not in again.stdout
    assert (out / "summary.md").read_text() == page


def begins(monkeypatch, tmp_path, *, ends=lambda _name, _environ: processes.DONE):
    """Let steps end at once in some way; return a function that calls the kit, and what began."""
    began = []

    def process(words, _seconds, environ):
        told = json.loads(words[-1])
        if "to" in told:
            (tmp_path / "identity.json").write_text(json.dumps(KNOWN))
            return processes.DONE
        began.append(told["step"])
        ended = ends(told["step"], environ)
        one = record.begun(tmp_path / runner.folder_name(KNOWN), told["step"], KNOWN)
        one = one or record.Record(told["step"], dict(KNOWN))
        one.folder = tmp_path / runner.folder_name(KNOWN)
        one.end(record.COMPLETE if ended == processes.DONE else record.RUNNING)
        return ended

    monkeypatch.setattr(processes, "run", process)
    monkeypatch.setattr(runner, "missing", lambda *_: [])

    def call(seconds=1e6):
        began.clear()
        kept = []
        ends = time.monotonic() + seconds
        runner.run(tmp_path, ends, tmp_path, pretended=False, after=kept.append)
        return list(began)

    return call


def test_a_second_call_begins_with_what_never_began_and_then_goes_on(tmp_path, monkeypatch):
    """What is complete begins no process; other software has a record of its own."""
    call = begins(monkeypatch, tmp_path)
    folder = tmp_path / "nvidia-h100-80gb-hbm3"
    folder.mkdir()
    of = {"folder": folder, "planned": ["a"]}
    record.Record("points", dict(KNOWN), state=record.COMPLETE, **of).write()
    record.Record("device", dict(KNOWN), state=record.LATE, **of).write()
    record.Record("plans", {**KNOWN, "torch": "2.10"}, state=record.COMPLETE, **of).write()
    began = call()
    assert began[-1] == "device"
    assert began[:-1] == [name for name in runner.STEPS if name not in {"points", "device"}]
    assert call() == []


def test_a_step_that_ends_with_a_signal_runs_again_with_the_profiler_attached(
    tmp_path, monkeypatch
):
    """Its file says so, whatever came of it."""
    monkeypatch.delenv("TEARDOWN_CUPTI", raising=False)

    def ends(name, environ):
        dies = name == "kernels" and environ.get("TEARDOWN_CUPTI") != "0"
        return "signal 11" if dies else processes.DONE

    began = begins(monkeypatch, tmp_path, ends=ends)()
    assert [name for name in began if name == "kernels"] == ["kernels"] * 2
    there = record.read(tmp_path / "nvidia-h100-80gb-hbm3" / "kernels.json")
    assert there.state == record.COMPLETE
    assert there.remarks == ["ended with signal 11, then ran with TEARDOWN_CUPTI=0"]
    assert "TEARDOWN_CUPTI=0" in record.standing(there)


def test_the_runner_says_in_the_file_how_a_step_ended_that_did_not_say_so(tmp_path, monkeypatch):
    """And begins no step when the time is over."""
    call = begins(monkeypatch, tmp_path, ends=lambda *_: "status 9")
    assert call(runner._GRACE_S) == []
    call()
    there = record.read(tmp_path / "nvidia-h100-80gb-hbm3" / "device.json")
    assert there.state == record.STOPPED
    assert there.note.startswith("ended with status 9 after 0 s")


def test_a_machine_without_a_gpu_is_told_once_and_how_the_kit_is_tried_there(tmp_path, capfd):
    """Nothing is measured, and nothing begins."""
    assert command.main(["--out", str(tmp_path / "proof")]) == 3
    assert "this torch finds no GPU; --pretend tries the kit without one" in capfd.readouterr().err


def test_what_is_missing_is_told_with_the_step_that_it_leaves_open(tmp_path, monkeypatch, capsys):
    """Before anything runs; the steps that need nothing are begun."""
    call = begins(monkeypatch, tmp_path)
    monkeypatch.setattr(runner, "missing", lambda needs, _: [n for n in needs if n == "cudnn"])
    assert "plans" not in call()
    assert "plans: needs cudnn: its claims stay open" in capsys.readouterr().out
    assert record.read(tmp_path / "nvidia-h100-80gb-hbm3" / "plans.json").note == "needs cudnn"


def test_wheels_beside_the_source_are_found_unless_this_python_has_what_is_in_them(
    tmp_path, monkeypatch
):
    """Unpacked, since some have libraries inside, which may be for another Python."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name in ("rarely", "json"):
        with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", "")
            wheel.writestr(f"{name}-1.dist-info/METADATA", "")
    needs = ("rarely", "json")
    assert runner.missing(needs, runner.environment(tmp_path, pretended=False)) == ["rarely"]
    monkeypatch.setattr(runner, "WHEELS", folder)
    scratch = tmp_path / "scratch"
    assert runner.missing(needs, runner.environment(scratch, pretended=False)) == []
    assert not (scratch / "wheels" / "json").exists()


BARE = """
import sys
sys.modules.update(dict.fromkeys(("xdist", "submitit", "cudnn", "execnet"), None))
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.slow
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


DEAF = "trap '' TERM; sleep 600 & echo $! >$0; wait"


def test_a_process_that_overstays_is_ended_with_what_it_started(tmp_path, monkeypatch):
    """First asked to, then killed where it does not listen."""
    monkeypatch.setattr(processes, "LAST_WORDS_S", 0.2)
    assert processes.run(("sleep", "600"), 0.2) == processes.TOO_LATE
    told = tmp_path / "pid"
    assert processes.run(("sh", "-c", DEAF, str(told)), 5.0) == processes.TOO_LATE
    ends = time.monotonic() + 20
    while is_running(int(told.read_text())) and time.monotonic() < ends:
        time.sleep(0.05)
    assert not is_running(int(told.read_text()))
    assert processes.run(("false",), 60.0) == "status 1"
    assert processes.run(("sh", "-c", "kill -11 $$"), 60.0) == "signal 11"
    log = tmp_path / "log"
    assert processes.run(("sh", "-c", "echo yes; echo no >&2"), 60.0, log=log) == processes.DONE
    assert log.read_text() == "yes\nno\n"


def is_running(pid):
    """Say whether a process is there, and no zombie that nobody asked about."""
    try:
        state = subprocess.run(("ps", "-o", "stat=", str(pid)), capture_output=True, check=True)
    except subprocess.CalledProcessError:
        return False
    return not state.stdout.startswith(b"Z")


def test_all_steps_fit_into_a_quarter_of_an_hour():
    """A call of 565 s, and one of 300: also if every step takes all of its grace."""
    assert sum(one.seconds + runner._GRACE_S for one in runner.STEPS.values()) <= 565 + 300
    assert sum(one.seconds for one in runner.STEPS.values()) == 675
    assert list(step.FUNCTIONS) == list(runner.STEPS)
