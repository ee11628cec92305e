"""Supervised workers on this machine: interrupted, suspended, side by side, on a full disk."""

from __future__ import annotations

import io
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from hpcsweep.cluster.local import supervisors
from hpcsweep.errors import EXIT_INTERRUPTED, ResultsError
from hpcsweep.spec import profile, sweep_file
from hpcsweep.submit import request, steps
from killing import MARK, kill, marked
from localruns import COMMAND, FORTY_SLOW, TEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from localruns import Desk


def test_ctrl_c_finishes_the_current_point_and_the_same_command_continues(desk):
    """The exit code is a shell's own for an interrupt."""
    desk.spec(TWELVE)
    running = desk.start("submit", "sweep.yaml", "--cluster", "local")
    desk.wait_for_rows(3)
    running.send_signal(signal.SIGINT)
    out, errors = running.communicate(timeout=30)
    assert running.returncode == EXIT_INTERRUPTED
    assert errors == "  finishing the current point; Ctrl-C again stops now\n"
    assert "run the same command again to resume" in out
    assert "collect" not in out
    before = len(desk.rows())
    assert before < 12
    assert desk.submit().returncode == 0
    points = [row["point_id"] for row in desk.rows()]
    assert len(points) == len(set(points)) == 12


SOON = "extends: local\nkill_wait: 0.2\n"
TWELVE = FORTY_SLOW.replace("40", "12")


@contextmanager
def _suspended(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, *roles: str, more: tuple[str, ...] = ()
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Measure on this machine, and stop the processes of some roles with SIGSTOP meanwhile."""
    desk.spec(TWELVE)
    (desk.folder / "cluster_profiles").mkdir()
    (desk.folder / "cluster_profiles/soon.yaml").write_text(SOON)
    monkeypatch.setenv(MARK, str(desk.folder))
    running = desk.start("submit", "sweep.yaml", "--cluster", "soon", *more)
    monkeypatch.delenv(MARK)
    try:
        desk.wait_for_rows(3)
        pids = [pid for pid, role in marked(str(desk.folder)).items() if role in roles]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield running, pids
    finally:
        for pid in marked(str(desk.folder)):
            kill(pid)
        running.communicate()


def _await(condition) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("roles", "signals"),
    [
        (("supervisor", "worker"), [signal.SIGTERM]),
        pytest.param(("supervisor",), [signal.SIGINT, signal.SIGINT], marks=pytest.mark.slow),
    ],
)
def test_a_run_whose_processes_do_not_react_can_be_ended(desk, monkeypatch, roles, signals):
    """After `kill_wait` they are killed, with all that they started; no row is lost."""
    with _suspended(desk, monkeypatch, *roles, more=("--workers", "2")) as (running, _pids):
        before = {row["point_id"] for row in desk.rows()}
        for number in signals:
            running.send_signal(number)
            time.sleep(0.2)
        out, errors = running.communicate(timeout=25)
        assert running.returncode == EXIT_INTERRUPTED, out + errors
        assert "run the same command again to resume" in out
        _await(lambda: not marked(str(desk.folder)))
    assert before <= {row["point_id"] for row in desk.rows()}
    assert desk.run("submit", "sweep.yaml", "--cluster", "soon").returncode == 0
    points = [row["point_id"] for row in desk.rows()]
    assert len(points) == len(set(points)) == 12


def test_a_suspended_attempt_writes_nothing_after_its_points_were_sent_again(desk, monkeypatch):
    """Its submit was killed, and it goes on when the sweep is done: a laptop that wakes up."""
    with _suspended(desk, monkeypatch, "supervisor", "worker") as (running, pids):
        kill(running.pid)
        running.wait()
        assert desk.run("submit", "sweep.yaml", "--cluster", "soon").returncode == 0
        before = sorted(row["point_id"] for row in desk.rows())
        assert len(before) == len(set(before)) == 12
        for pid in pids:
            with suppress(ProcessLookupError):  # the supervisor, awake, has ended it
                os.kill(pid, signal.SIGCONT)
        _await(lambda: not marked(str(desk.folder)))
        assert sorted(row["point_id"] for row in desk.rows()) == before


@pytest.mark.slow
def test_when_its_time_is_over_a_run_ends_with_the_current_point(desk):
    """The clock starts with the first point; what is left can be submitted again."""
    spec = sweep_file.load(desk.spec(FORTY_SLOW))
    asked = request.make(spec, profile.load("local"), request.Options(stop_after=0.5))
    with pytest.raises(steps.OutOfTime, match=r"measured [1-9][0-9]? ok; the time"):
        steps.submit(desk.results, asked, lambda _line: None)
    assert 1 <= len(desk.rows()) < 40
    assert desk.submit().returncode == 0
    assert len({row["point_id"] for row in desk.rows()}) == len(desk.rows()) == 40


def test_a_disk_that_fills_up_keeps_every_complete_row(desk):
    """A limit on file size stands for the full disk; afterwards the same command continues."""
    desk.spec(
        FORTY_SLOW.replace("100}", "0}")
        .replace("num: 40", "num: 120")
        .replace("stop: 40", "stop: 120")
    )

    def small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    done = subprocess.run(
        [*COMMAND, "submit", "sweep.yaml", "--cluster", "local"],
        cwd=desk.folder,
        preexec_fn=small_files,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == ResultsError.exit_code, done.stdout + done.stderr
    assert "cannot be written" in done.stdout + done.stderr
    kept = len(desk.rows())
    assert 0 < kept < 120
    assert desk.submit().returncode == 0
    assert len({row["point_id"] for row in desk.rows()}) == len(desk.rows()) == 120


def test_several_workers_share_the_points(desk):
    """Each chunk is one supervisor; no point is measured by two of them."""
    desk.spec(TEN)
    assert desk.submit("--workers", "3").returncode == 0
    assert len({row["chunk"] for row in desk.rows()}) == 3
    assert len(desk.rows()) == 10


INSTALLED = "import os, sys; sys.path = [p for p in sys.path if p not in ('', os.getcwd())]; "


@pytest.mark.parametrize(
    ("how", "folders"),
    [
        (["-c", f"{INSTALLED}{COMMAND[2]}"], ":/nowhere"),
        pytest.param(["-m", "hpcsweep"], "/nowhere", marks=pytest.mark.slow),
    ],
)
def test_modules_beside_the_sweep_do_not_stand_in_for_those_of_python(desk, how, folders):
    """`python -m` would look there first, and an empty entry of PYTHONPATH means that folder."""
    desk.spec(TEN)
    for name in ("queue", "selectors", "runpy", "json", "threading", "click"):
        (desk.folder / f"{name}.py").write_text("open('ran', 'w'); raise SystemExit(9)\n")
    command = [sys.executable, *how, "submit", "sweep.yaml"]
    env = {**os.environ, "PYTHONPATH": folders}
    done = subprocess.run(
        command, cwd=desk.folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not (desk.folder / "ran").exists()
    assert len(desk.rows()) == 10


@pytest.mark.parametrize(
    ("took", "current", "points", "told"),
    [
        ([], 0.0, 30, "not known yet"),
        ([0.1, 0.1], 0.0, 28, "not known yet"),
        ([2.0, 2.0, 2.0], 0.0, 10, "about 20 s"),
        ([1.0, 1.0, 4.0], 0.0, 10, "20 s to 40 s"),
        ([1.0, 1.0, 1.0], 60.0, 10, "1 s to 9 min"),  # the point in work takes longer than any
    ],
)
def test_the_time_left_is_a_range(took, current, points, told):
    """It is not told from two points, and grows with a point that takes long."""
    assert supervisors.left(took, current, points) == told


def test_the_time_left_is_that_of_the_estimate_until_some_points_are_done(desk, monkeypatch):
    """From the first line on; an estimate that was too low says nothing more."""
    monkeypatch.setattr(supervisors, "_LINE_SECONDS", 0.0)
    desk.spec("workload: noop\naxes: {model: [a, b, c]}\nmeasure: {sleep_ms: 400}\n")
    first = desk.submit().stderr.splitlines()[0]
    assert re.fullmatch(r"  0/3 points, 0 failed, elapsed 1 s, left about 1 s; now .*", first)
    assert supervisors.left([0.1, 0.1], 0.0, 8, 120.0) == "about 2 min"
    assert supervisors.left([0.1, 0.1], 0.0, 8, -3.0) == "not known yet"


def test_lines_are_labelled_and_name_the_point_in_work(capsys):
    """Every ten seconds, whether a point has ended or not."""
    now = [0.0]
    shown = supervisors.Lines(5, clock=lambda: now[0])
    shown.begins("vgg16 224 1 gemm")
    now[0] = 9.0
    shown.tick()
    assert capsys.readouterr().err == ""
    now[0] = 11.0
    shown.tick()
    told = "0/5 points, 0 failed, elapsed 11 s, left not known yet; now vgg16 224 1 gemm"
    assert capsys.readouterr().err == f"  {told}\n"
    for end in (12.0, 18.0, 24.0, 30.0):
        now[0] = end
        shown.point("error" if end == 30.0 else "ok")
    shown.tick()
    told = "  4/5 points, 1 failed, elapsed 30 s, left 8 s to 12 s; now vgg16 224 1 gemm\n"
    assert capsys.readouterr().err == told


def test_the_bar_fits_80_columns():
    """With the point in work below it, and the answer to Ctrl-C."""
    out = io.StringIO()
    columns = (BarColumn(bar_width=12), TextColumn("{task.fields[told]}", markup=False))
    console = Console(file=out, width=80, force_terminal=True, color_system=None)
    with Progress(*columns, console=console, auto_refresh=False) as shown:
        bar = supervisors.Bar(30_000, 0.0, shown)
        bar.begins("resnet152 512 1 implicit_precomp_gemm")
        for _ in range(4):
            bar.point("ok")
        bar.stopping()
        lines = [line.strip() for line in out.getvalue().splitlines()]
    assert any("4/30000 points, 0 failed, elapsed 1 s, left " in line for line in lines)
    wanted = "now resnet152 512 1 implicit_precomp_gemm (finishing the current point; Ctrl-C"
    assert any(wanted[:50] in line for line in lines)
