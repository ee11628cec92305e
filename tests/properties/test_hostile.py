"""Whatever a file or a program says, hpcsweep takes it or refuses it in a line or two of its own.

`python -m benchmarks.hostile` does the same at length, with limits on memory, too.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.hostile import place as places
from benchmarks.hostile import watch
from benchmarks.hostile.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.hostile.place import Place


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Return a folder with all that is attacked; environment and folder are as before, then."""
    here, before = Path.cwd(), signal.getsignal(signal.SIGPROF)
    with mock.patch.dict(os.environ), mock.patch("sys.argv", []):
        yield places.enter(tmp_path_factory.mktemp("hostile"))
    os.chdir(here)
    signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_whole_is_read(place: Place, name: str) -> None:
    """So that what is mutated is what the program reads."""
    for data in TARGETS[name].seeds(place):
        assert not watch.judged(TARGETS[name], place, data).wrong


@pytest.mark.parametrize("name", TARGETS)
@settings(max_examples=4)
@given(number=st.integers(0, 1 << 32))
def test_any_input_is_taken_or_refused(place: Place, name: str, number: int) -> None:
    """In seconds, and without a traceback."""
    data = TARGETS[name].draw(place, random.Random(number))
    verdict = watch.judged(TARGETS[name], place, data)
    assert not verdict.wrong
    assert verdict.seconds <= watch.SECONDS
