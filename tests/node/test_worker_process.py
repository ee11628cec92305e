"""How a worker ends is seen at once and told by its last words; nothing of it stays behind."""

from __future__ import annotations

import os
import time

import pytest

import leaving
import resultsfolder
from attempts import attempt, prepared
from caring import caring
from hpcsweep import processes
from processmarks import marked, patched


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Measure with a real worker whose points do what their model names."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as found:
        yield found


def test_a_fault_is_told_by_the_thread_that_it_struck_and_at_once(measure):
    """Although another thread is listed first, and a child holds whatever the worker had open."""
    began = time.monotonic()
    outcome = measure("segfaults_with_a_child", limit=600.0)
    assert outcome.status == "crashed"
    assert outcome.reason.startswith("SIGSEGV: Fatal Python error: Segmentation fault File ")
    assert outcome.reason.endswith("in strike_here")
    assert time.monotonic() - began < 300  # or it would have waited for the limit


def test_the_last_words_are_the_last_ones(measure):
    """However much was printed before."""
    outcome = measure("says_much_and_ends")
    assert (outcome.status, outcome.reason) == ("crashed", "exit code 7: the last words")


def test_what_is_printed_like_a_fault_is_none(measure):
    """A worker that ends by itself is told by its last line."""
    assert measure("says_fatal_and_ends").reason == "exit code 3: and goes on"


@pytest.mark.parametrize(
    ("act", "reason"),
    [
        ("throws_in_cpp", "SIGABRT: CUDA error: an illegal memory access was encountered"),
        ("terminates", "SIGABRT: terminate called without an active exception"),
    ],
)
def test_an_exception_that_ended_c_plus_plus_is_the_reason(measure, act, reason):
    """Not the line of Python that was there, which did nothing wrong."""
    outcome = measure(act)
    assert (outcome.status, outcome.reason) == ("crashed", reason)


def test_an_exception_that_ended_something_else_is_not_the_reason(measure):
    """A fault is told by its place."""
    outcome = measure("says_it_threw_and_strikes")
    assert outcome.reason.startswith("SIGSEGV: Fatal Python error: Segmentation fault File ")


@pytest.mark.parametrize(
    "act", ["keeps_a_child", "daemonises", "segfaults_with_a_child", "nothing", "forks"]
)
def test_nothing_that_a_worker_started_outlives_it(desk, tmp_path, act):
    """Nor what made a session of its own: an attempt ends it all, however its worker ends."""
    submission = prepared(desk, "workload: noop\naxes: {model: [a, b]}\n")
    mark = f"{os.getpid()} {act}"
    done = attempt(submission, LEAVES=mark, LEAVING_ACT=act, PYTHONPATH=patched(tmp_path))
    done.communicate(timeout=300)
    assert done.returncode == 0
    assert len(resultsfolder.read_shard(submission.attempts(0)[0]).rows) == 2
    assert marked(f"LEAVES={mark}") == []
