"""The workbench: what torch raises becomes an outcome, with the line that says what is missing."""

from __future__ import annotations

import pytest

from hpcsweep.measure.bench_api import CannotMeasure, OutOfMemory
from hpcsweep.measure.workbench import Workbench


@pytest.fixture(scope="module")
def bench():
    """Return a bench on the CPU."""
    return Workbench("cpu")


def test_memory_that_runs_out_is_given_back_after_its_figures_were_taken(bench):
    """The peak is that of the point, not of what is left."""
    events = []
    with (
        pytest.raises(OutOfMemory) as caught,
        bench.translate_torch_errors(give_back=lambda: events.append(1)),
    ):
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore words")
    assert events == [1]
    assert caught.value.peak > 0
    assert str(caught.value).endswith("CUDA out of memory. Tried to allocate 2 GiB")


def test_the_line_that_says_what_is_missing_is_the_reason(bench):
    """The first line of a compiler may be a heading."""
    text = "backend raised:\nNo working C++ compiler found in PATH\nat line 3"
    with (
        pytest.raises(CannotMeasure, match=r"^No working C\+\+ compiler found in PATH$"),
        bench.translate_torch_errors(["No working C++ compiler found"]),
    ):
        raise RuntimeError(text)


def test_other_errors_stay_what_they_are(bench):
    """A text that nobody knows is no finding about the machine."""
    with pytest.raises(RuntimeError, match=r"^sizes do not fit$"), bench.translate_torch_errors():
        raise RuntimeError("sizes do not fit")
