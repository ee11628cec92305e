"""What tests start: it hears signals whoever runs them, and nothing of it stays behind."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

import offspring

CHILD = """\
import signal
print(signal.getsignal(signal.SIGINT).__name__, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
"""
PARENT = f"""\
import os, signal, subprocess, sys
sys.path[:0] = {sys.path!r}
import offspring
offspring.hear_signals()
os.kill(os.getpid(), signal.SIGINT)
subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)
"""


def test_a_parent_that_ignores_signals_does_not_make_children_deaf():
    """As in the background job of a script; the parent itself goes on ignoring them."""

    def background() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])

    done = subprocess.run(
        [sys.executable, "-c", PARENT],
        preexec_fn=background,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "default_int_handler set()\n"


def test_what_a_module_leaves_running_is_ended_and_told(monkeypatch):
    """Also a grandchild whose parent is gone; what ends by itself is fine."""
    monkeypatch.setattr(offspring, "PATIENCE", 0.5)
    with offspring.all_end("tidy"):
        subprocess.run(["true"], check=True)
    with pytest.raises(AssertionError, match=r"left running: .*sleep 600"), offspring.all_end("m"):
        subprocess.run("sleep 600 & sleep 0.2", shell=True, check=True)  # it has begun by then
    assert not offspring._marked("m")
