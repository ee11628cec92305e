"""The file of a step: readable at any time, and honest about what is missing."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

import proofs
from benchmarks.gpu import record as records
from benchmarks.gpu.lab import Lab, Stop, end
from benchmarks.gpu.machine import Gpu
from benchmarks.gpu.record import COMPLETE, LATE, STOPPED, Record
from hpcsweep.errors import ResultsError
from hpcsweep.measure.bench_api import OutOfMemory


@pytest.fixture
def lab(tmp_path):
    """Return a step's surroundings without a GPU."""
    answering = SimpleNamespace(synchronize=lambda: None)
    return Lab(Gpu(answering), Record("floors", dict(proofs.ENVIRONMENT), folder=tmp_path))


def on_disk(lab):
    """Return the record as the file has it."""
    return records.read(lab.record.folder / "floors.json")


def test_the_file_has_everything_after_every_item(lab):
    """It says what is missing meanwhile."""
    items = lab.each({"a": 1, "b": 2, "c": 3})
    key, value = next(items)
    with lab.entry(key) as facts:
        facts["us"] = 1.5 * value
    there = on_disk(lab)
    assert (there.state, there.found, there.missing) == ("running", {"a": {"us": 1.5}}, ["b", "c"])


def test_an_item_that_fails_is_told_without_folders_and_the_next_one_is_tried(lab):
    """Out of memory, or an error of a library that derives from Exception alone."""
    fails = {
        "a": RuntimeError("/home/somebody/lib/libcudnn.so.9: failed\nsecond line"),
        "b": OutOfMemory(1, 2, "no room"),
        "d": type("cudnnGraphNotSupportedError", (Exception,), {})("no engine"),
    }
    for key, error in lab.each({**fails, "c": None}):
        with lab.entry(key):
            if error:
                raise error
    end(lab)
    there = on_disk(lab)
    assert there.failed["a"] == "libcudnn.so.9: failed"
    assert there.failed["b"].startswith("out of memory")
    assert (list(there.found), there.state) == (["c"], COMPLETE)


def test_a_device_that_answers_no_more_ends_the_step(lab):
    """After such an error every other item would fail for the same reason."""
    lab.machine.runtime.synchronize = _breaks
    items = lab.each({"a": 1, "b": 2})
    with pytest.raises(Stop, match="answers no more"), lab.entry(next(items)[0]):
        _breaks()
    assert on_disk(lab).missing == ["b"]


def _breaks():
    raise RuntimeError("an illegal memory access was encountered")


def test_a_step_begins_nothing_when_its_time_is_over(lab):
    """And says that it did not end."""
    for key, _ in lab.each({"a": 1, "b": 2}):
        with lab.entry(key):
            lab.ends = time.monotonic()
    end(lab)
    there = on_disk(lab)
    assert (there.state, list(there.found), there.missing) == (LATE, ["a"], ["b"])


def test_a_step_goes_on_where_it_was(lab):
    """What the file has is not measured again."""
    lab.record.plan(["a", "b"])
    lab.record.put("a", {"us": 1.0})
    lab.record.fail("b", "no")
    assert [key for key, _ in lab.each({"a": 1, "b": 2, "c": 3})] == ["c"]


def test_a_step_that_stopped_says_why(lab):
    """Not the end that it did not reach."""
    lab.record.end(STOPPED, "this step needs a GPU")
    assert records.standing(on_disk(lab)) == "stopped, 0 of 0 items (this step needs a GPU)"


@pytest.mark.parametrize("text", ["", "[]", '{"format": 1}', '{"format": 9, "step": "floors"}'])
def test_what_is_no_file_of_a_step_is_told(tmp_path, text):
    """With its name."""
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ResultsError, match=r"x\.json"):
        records.read(path)
