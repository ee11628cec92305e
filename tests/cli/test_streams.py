"""Output that cannot be written never costs a point."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest

from hpcsweep.cli import streams
from hpcsweep.errors import PointsFailed
from localruns import COMMAND

if TYPE_CHECKING:
    from localruns import Desk

SWEEP = """\
workload: noop
axes: {model: [a], input_size: {start: 1, stop: 6, num: 6}}
measure: {sleep_ms: 60}
"""


def shell(desk: Desk, command: str, redirected: str) -> int:
    """Run hpcsweep under a shell; return its own exit code."""
    line = f"{shlex.join(COMMAND)} {command} {redirected}"
    return subprocess.run(
        ["bash", "-c", line], cwd=desk.folder, env={**os.environ}, timeout=120, check=False
    ).returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    "redirected",
    [
        "<&- >&- 2>&-",
        ">/dev/full 2>&1",
        "2>&1 | true; exit ${PIPESTATUS[0]}",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (
                "2>&-",
                ">&-",
                ">/dev/full",
                "2>/dev/full",
                "| true; exit ${PIPESTATUS[0]}",
            )
        ),
    ],
)
def test_a_submit_measures_every_point_whatever_becomes_of_its_output(desk: Desk, redirected: str):
    """As under cron, on a full disk, and before `head`; its exit code is that of the points."""
    desk.spec(SWEEP)
    assert shell(desk, "submit sweep.yaml --cluster local", redirected) == 0
    assert [row["status"] for row in desk.rows()] == ["ok"] * 6


def test_a_retry_measures_again_whatever_becomes_of_its_output(desk: Desk):
    """Here all of its outputs are closed or full."""
    fails = SWEEP.replace("sleep_ms: 60", "fail: [{when: {model: a}, how: error}]")
    desk.spec(fails)
    code = shell(desk, "submit sweep.yaml --cluster local", ">/dev/full 2>&-")
    assert code == PointsFailed.exit_code
    assert shell(desk, "retry sweep", ">/dev/full 2>&-") == PointsFailed.exit_code
    assert len(desk.rows()) == 12


def test_a_mistake_keeps_its_exit_code_where_nobody_can_read_of_it(desk: Desk):
    """Scripts branch on it."""
    for redirected in ("2>&-", "2>/dev/full", "<&- >&- 2>&-"):
        assert shell(desk, "submit nowhere", redirected) == 2


def test_a_table_that_is_cut_short_ends_quietly(desk: Desk):
    """`hpcsweep status | head` prints no traceback, and says by its code that not all was read."""
    desk.spec(SWEEP)
    assert shell(desk, "submit sweep.yaml --cluster local", ">/dev/null 2>&1") == 0
    line = f"{shlex.join(COMMAND)} status | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=desk.folder, capture_output=True, text=True, check=False
    )
    assert not done.stderr


def test_a_name_that_is_not_utf_8_is_shown() -> None:
    """With its bytes as escapes, where the stream takes no others."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "utf-8")
    streams.show("a \udcff b \ud800", file=stream, flush=True)
    assert written.getvalue() == b"a \\udcff b \\ud800\n"
