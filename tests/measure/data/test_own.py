"""Data sets of the user's own: what is wrong in them is a line that names them."""

from __future__ import annotations

import sys

import pytest

from hpcsweep.errors import UsageError
from hpcsweep.measure.bench_api import OutOfMemory, Unsupported
from hpcsweep.measure.data import loaders
from hpcsweep.measure.training.workload import Training
from measuring import training

# what the row says of a factory, after its name
COMPLAINTS = {
    "raises": "raised OSError: no such file: labels.txt",
    "says_nothing": "raised AssertionError",
    "NUMBER": "is a int, not a function that takes the point",
    "missing": "module 'owndatasets' has no 'missing'",
    "loaders_by_hand": "returned Data, not a `Data` as `loaders.loaders` returns it",
    "a_list": "returned list, not a `Data` as `loaders.loaders` returns it",
    "stream": "training data are a Stream, not a map-style data set of (image, label)",
    "empty": "has 0 training images, too few for 5 batches of 4",
    "no_validation": "has no validation images; `validation: false` does without",
    "no_classes": "has None classes; a number is needed",
    "other_size": "is 3x9x9, not 3x16x16 (input_size)",
    "one_is_grey": "training image 7 is 1x16x16, not 3x16x16 (input_size)",
    "no_class": "has label 2; classes are 0 to 1",
    "bad_validation": "validation image 0 has label -1; classes are 0 to 1",
    "named_labels": "has a str as label, not a class number",
    "bare_images": "is a Tensor, not (image, label)",
    "no_tensor": "is a list, not a tensor",
    "damaged": "training image 5 raised ValueError: truncated: 3 of 9 bytes",
}


@pytest.fixture(scope="module")
def bench():
    """Return a bench on the CPU."""
    return Training("cpu")


def _own(name, **axes):
    return training(dataset=f"owndatasets:{name}", batch_size=4, epochs=3, **axes)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "complaint"), COMPLAINTS.items())
def test_what_is_wrong_with_a_data_set_is_one_line_that_names_it(bench, name, complaint):
    """Raising, of another type, shape or length, or with labels that have no class."""
    with pytest.raises(UsageError) as caught:
        bench.measure(_own(name))
    text = str(caught.value)
    assert text.startswith(f"dataset 'owndatasets:{name}': ")
    assert complaint in text
    assert "\n" not in text


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["good", "numpy_labels"])
def test_a_good_data_set_trains(bench, name, workers):
    """With loader processes as without."""
    assert bench.measure(_own(name, num_workers=workers)).row["n"] == 15


def test_without_validation_nobody_misses_its_images(bench):
    """The setting switches the pass off."""
    point = training(dataset="owndatasets:no_validation", measure={"validation": False})
    assert bench.measure(point).row["val_samples"] == 0


def test_what_a_factory_knows_better_is_left_as_it_is(bench):
    """Unsupported stays unsupported, and memory that runs out is an oom."""
    with pytest.raises(Unsupported, match="the other cluster"):
        bench.measure(_own("cannot"))
    with pytest.raises(OutOfMemory):
        bench.measure(_own("hungry"))


def test_a_module_that_does_not_even_load_is_named(tmp_path, monkeypatch):
    """A typing error in the user's file is told as Python tells it."""
    (tmp_path / "brokendata.py").write_text("def make(point)\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"dataset 'brokendata:make': cannot import: SyntaxError"):
        loaders.open_data(training(dataset="brokendata:make"))
    assert "brokendata" not in sys.modules
