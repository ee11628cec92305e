"""The words for states, and which of several rows of a point counts."""

from __future__ import annotations

import csv
import io
import json
from itertools import permutations

import pytest

from hpcsweep.store.state import FAILED, AttemptState, ChunkState, PointStatus, best, rank

OK, ERROR, PROFILED = PointStatus.OK, PointStatus.ERROR, PointStatus.PROFILED


@pytest.mark.parametrize("kind", [PointStatus, ChunkState, AttemptState])
def test_every_state_is_its_word_wherever_it_is_written(kind) -> None:
    """In JSON, in a table, in a sentence; and each says what it means."""
    for state in kind:
        line = io.StringIO()
        csv.writer(line).writerow([state])
        assert (json.loads(json.dumps(state)), line.getvalue().strip(), f"{state}") == (
            state.value, state.value, state.value,
        )  # fmt: skip
        assert kind(state.value) is state
        assert state.says


def test_ok_beats_all_and_later_beats_earlier() -> None:
    """A row under a profiler counts where there is no other."""
    assert best([("p", OK), ("p", ERROR)]) == {"p": OK}
    assert best([("p", PointStatus.OOM), ("p", ERROR)]) == {"p": ERROR}
    for rows in permutations([PROFILED, ERROR, OK]):
        assert best(("p", status) for status in rows) == {"p": OK}
    assert best([("p", ERROR), ("p", PROFILED), ("q", PROFILED)]) == {"p": ERROR, "q": PROFILED}
    assert min(PointStatus, key=rank) is PROFILED


def test_what_failed_can_be_taken_again() -> None:
    """What a machine cannot do is a finding, not a failure."""
    assert {PointStatus.OOM, PointStatus.UNSUPPORTED, PointStatus.SKIPPED}.isdisjoint(FAILED)
