"""What a person sees of a run on this machine."""

from __future__ import annotations

import io
import re
from functools import partial

import pytest

from hpcsweep.cluster.local import progress


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
    assert progress.time_left(took, current, points) == told


def test_the_time_left_is_that_of_the_estimate_until_some_points_are_done(desk, monkeypatch):
    """From the first line on; an estimate that was too low says nothing more."""
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "Lines", partial(progress.Lines, clock=lambda: 7.0))
    desk.spec("workload: noop\naxes: {model: [a, b, c]}\nmeasure: {sleep_ms: 400}\n")
    first = desk.submit().stderr.splitlines()[0]
    assert re.fullmatch(r"  0/3 points, 0 failed, elapsed 1 s, left about 1 s; now .*", first)
    assert progress.time_left([0.1, 0.1], 0.0, 8, 120.0) == "about 2 min"
    assert progress.time_left([0.1, 0.1], 0.0, 8, -3.0) == "not known yet"


def test_lines_are_labelled_and_name_the_point_in_work(capsys):
    """Every ten seconds, whether a point has ended or not."""
    now = [0.0]
    shown = progress.Lines(5, clock=lambda: now[0])
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
    monkeypatch.setattr(progress, "Bar", partial(progress.Bar, clock=lambda: now[0]))
    with progress.shown_progress(30_000, 0.0) as bar:
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
