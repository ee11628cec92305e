"""Supervised workers on this machine: interrupted, suspended, on a full disk; what is shown."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import re
import resource
import select
import signal
import subprocess
import sys
import termios
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import pytest

from gate import Gate
from hpcsweep.cluster.local import supervisors
from hpcsweep.errors import EXIT_INTERRUPTED, ResultsError
from killing import MARK, kill, marked
from localruns import COMMAND, FORTY_SLOW, TEN, said_until
from waiting import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from localruns import Desk


def test_ctrl_c_finishes_the_current_point_and_the_same_command_continues(desk):
    """The exit code is a shell's own for an interrupt."""
    gate = Gate(desk)
    gate.sweep(points=6, passes=3)
    running = desk.start("submit", "sweep.yaml", "--cluster", "local")
    wait_for("point at the gate", gate.waiting)
    running.send_signal(signal.SIGINT)
    said = said_until(running, "finishing the current point")
    gate.open()
    out, errors = running.communicate(timeout=120)
    assert running.returncode == EXIT_INTERRUPTED
    # a machine that is slow shows its progress meanwhile
    told = [line for line in [*said, *errors.splitlines()] if "/6 points" not in line]
    assert told == ["  finishing the current point, 30 s at most; Ctrl-C again stops now"]
    assert "run the same command again to resume" in out
    assert "collect" not in out
    assert len(desk.rows()) == 4
    assert desk.submit().returncode == 0
    points = [row["point_id"] for row in desk.rows()]
    assert len(points) == len(set(points)) == 6


def _begin_on_terminal() -> None:
    """Let a new process have its stdin as the terminal whose Ctrl-C it hears."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize(("kill_wait", "presses"), [("0.5", 1), ("600", 2)])
def test_ctrl_c_on_a_terminal_gives_the_point_the_time_that_it_says(desk, kill_wait, presses):
    """A point that takes longer is dropped, by a second Ctrl-C at once; nothing else is lost."""
    gate = Gate(desk)
    gate.sweep(points=4, passes=2)
    (desk.folder / "site.yaml").write_text(f"extends: local\nkill_wait: {kill_wait}\n")
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        [*COMMAND, "submit", "sweep.yaml", "--cluster", "site.yaml"],
        cwd=desk.folder,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        preexec_fn=_begin_on_terminal,  # noqa: PLW1509 - no thread is there
    )
    os.close(theirs)
    shown = bytearray()

    def shows(words: str) -> bool:
        with suppress(OSError):  # as Linux says that the other end is closed
            while select.select([ours], [], [], 0)[0]:
                shown.extend(os.read(ours, 4096))
        return words.encode() in shown

    wait_for("point at the gate", lambda: shows("") and gate.waiting())
    promise = f"finishing the current point, {kill_wait} s at most; Ctrl-C again stops now"
    for _ in range(presses):
        os.write(ours, b"\x03")
        wait_for("promise", lambda: shows(promise))
    wait_for("end", lambda: shows("run the same command again to resume"))
    assert running.wait(60) == EXIT_INTERRUPTED
    os.close(ours)
    assert len(desk.rows()) == 2
    gate.open()
    assert desk.submit().returncode == 0
    points = [row["point_id"] for row in desk.rows()]
    assert len(points) == len(set(points)) == 4


SOON = "extends: local\nkill_wait: 0.2\n"


@contextmanager
def _suspended(
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    *roles: str,
    when: Callable[[], object],
    more: tuple[str, ...] = (),
) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """Measure on this machine, and stop the processes of some roles with SIGSTOP meanwhile."""
    (desk.folder / "cluster_profiles").mkdir()
    (desk.folder / "cluster_profiles/soon.yaml").write_text(SOON)
    monkeypatch.setenv(MARK, str(desk.folder))
    running = desk.start("submit", "sweep.yaml", "--cluster", "soon", *more)
    monkeypatch.delenv(MARK)
    try:
        wait_for("moment to stop them", when)
        pids = [pid for pid, role in marked(str(desk.folder)).items() if role in roles]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield running, pids
    finally:
        for pid in marked(str(desk.folder)):
            kill(pid)
        running.communicate()


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
    desk.spec(FORTY_SLOW.replace("100", "300"))  # six seconds, of which one is over then
    first, *more = signals
    has_rows, two = (lambda: len(desk.rows()) >= 3), ("--workers", "2")
    with _suspended(desk, monkeypatch, *roles, when=has_rows, more=two) as (running, _pids):
        before = {row["point_id"] for row in desk.rows()}
        running.send_signal(first)
        said_until(running, "finishing the current point")
        for number in more:
            running.send_signal(number)
        out, errors = running.communicate(timeout=120)
        assert running.returncode == EXIT_INTERRUPTED, out + errors
        assert "run the same command again to resume" in out
        wait_for("end of all", lambda: marked(str(desk.folder)), enough=lambda pids: not pids)
    assert before <= {row["point_id"] for row in desk.rows()}
    assert desk.run("submit", "sweep.yaml", "--cluster", "soon").returncode == 0
    points = [row["point_id"] for row in desk.rows()]
    assert len(points) == len(set(points)) == 40


def test_a_suspended_attempt_writes_nothing_after_its_points_were_sent_again(desk, monkeypatch):
    """Its submit was killed, and it goes on when the sweep is done: a laptop that wakes up."""
    gate = Gate(desk)
    gate.sweep(points=6, passes=3)
    roles = ("supervisor", "worker")
    with _suspended(desk, monkeypatch, *roles, when=gate.waiting) as (running, pids):
        kill(running.pid)
        running.wait()
        gate.open()
        assert desk.run("submit", "sweep.yaml", "--cluster", "soon").returncode == 0
        before = sorted(row["point_id"] for row in desk.rows())
        assert len(before) == len(set(before)) == 6
        for pid in pids:
            with suppress(ProcessLookupError):  # the supervisor, awake, has ended it
                os.kill(pid, signal.SIGCONT)
        wait_for("end of all", lambda: marked(str(desk.folder)), enough=lambda pids: not pids)
        assert sorted(row["point_id"] for row in desk.rows()) == before


@pytest.mark.slow
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
        timeout=300,
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
        ([1.0, 1.0, 4.0], 0.0, 10, "about 20 s"),
        ([1.0, 1.0, 1.0], 60.0, 10, "about 2 min"),  # the point in work takes longer than any
    ],
)
def test_the_time_left_is_that_of_the_points_so_far(took, current, points, told):
    """It is not told from two points, and grows with a point that takes long."""
    assert supervisors.time_left(took, current, points) == told


def test_the_time_left_is_that_of_the_estimate_until_some_points_are_done(desk, monkeypatch):
    """From the first line on; an estimate that was too low says nothing more."""
    monkeypatch.setattr(supervisors, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(supervisors, "Lines", partial(supervisors.Lines, clock=lambda: 7.0))
    desk.spec("workload: noop\naxes: {model: [a, b, c]}\nmeasure: {sleep_ms: 400}\n")
    first = desk.submit().stderr.splitlines()[0]
    assert re.fullmatch(r"  0/3 points, 0 failed, elapsed 1 s, left about 1 s; now .*", first)
    assert supervisors.time_left([0.1, 0.1], 0.0, 8, 120.0) == "about 2 min"
    assert supervisors.time_left([0.1, 0.1], 0.0, 8, -3.0) == "not known yet"


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
    told = "  4/5 points, 1 failed, elapsed 30 s, left about 8 s; now vgg16 224 1 gemm\n"
    assert capsys.readouterr().err == told


class Terminal(io.StringIO):
    """What is written to a terminal."""

    def isatty(self):
        """Be one."""
        return True


def test_the_bar_fits_80_columns(monkeypatch):
    """With the point in work below it, and the answer to Ctrl-C; at the end nothing is left."""
    out = Terminal()
    monkeypatch.setattr("sys.stderr", out)
    monkeypatch.setenv("COLUMNS", "80")
    now = [0.0]
    monkeypatch.setattr(supervisors, "Bar", partial(supervisors.Bar, clock=lambda: now[0]))
    with supervisors.shown_progress(30_000, 0.0) as bar:
        bar.begins("resnet152 512 1 implicit_precomp_gemm")
        for _ in range(15_000):
            bar.point("ok")
        now[0] = 1.0
        bar.tick()
        bar.stopping(30.0)
    *_, told, stopping, end = out.getvalue().split("\r\x1b[J")
    lines = told.removesuffix("\x1b[F").splitlines()
    assert lines[0].startswith("[######------] 15000/30000 points, 0 failed, elapsed 1 s, left ")
    assert lines[1] == "  now resnet152 512 1 implicit_precomp_gemm"
    lines += stopping.removesuffix("\x1b[F").splitlines()
    assert lines[3] == "  now finishing the current point, 30 s at most; Ctrl-C again stops now"
    assert max(map(len, lines)) < 80
    assert end == ""
