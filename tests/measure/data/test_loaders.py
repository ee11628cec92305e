"""Data sets: order, sizes, worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import torch
from torch.utils.data import TensorDataset

from hpcsweep.errors import UsageError
from hpcsweep.measure.bench_api import CannotMeasure, OutOfMemory
from hpcsweep.measure.data import loaders
from hpcsweep.measure.measure_point import on_device
from measuring import training
from paths import SUPPORT
from waiting import is_alive, wait_for

# what the row says of a factory, after its name
COMPLAINTS = {
    "raises": "raised OSError: no such file: labels.txt",
    "says_nothing": "raised AssertionError",
    "NUMBER": "raised TypeError: 'int' object is not callable",
    "missing": "module 'owndatasets' has no 'missing'",
    "a_list": "returned list, not a `Data` as `loaders.loaders` returns it",
    "stream": "training data are a Stream, not a map-style data set of (image, label)",
    "empty": "has 0 training images, too few for 5 batches of 4",
    "no_validation": "has no validation images; `validation: false` does without",
    "no_classes": "has None classes; a number is needed",
    "other_size": "is 3x9x9, not 3x16x16 (input_size)",
    "one_is_grey": "training image 7 is 1x16x16, not 3x16x16 (input_size)",
    "no_class": "has label 2; classes are 0 to 1",
    "bad_validation": "validation image 0 has label -1; classes are 0 to 1",
    "named_labels": "raised TypeError: 'str' object cannot be interpreted as an integer; an",
    "bare_images": "an item is (image, label), a tensor and a class number",
    "no_tensor": "raised AttributeError: 'list' object has no attribute 'shape'; an item is",
    "damaged": "training image 5 raised ValueError: truncated: 3 of 9 bytes",
}


@pytest.fixture(scope="module")
def bench():
    """Return a bench on the CPU."""
    return on_device("training", "cpu")


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


@pytest.mark.parametrize(("name", "workers"), [("good", 1), ("numpy_labels", 0)])
def test_a_good_data_set_trains(bench, name, workers):
    """With loader processes as without."""
    assert bench.measure(_own(name, num_workers=workers)).row["n"] == 15


def test_without_validation_nobody_misses_its_images(bench):
    """The setting switches the pass off."""
    point = training(dataset="owndatasets:no_validation", measure={"validation": False})
    assert bench.measure(point).row["val_samples"] == 0


def test_what_a_factory_knows_better_is_left_as_it_is(bench):
    """Unsupported stays unsupported, and memory that runs out is an oom."""
    with pytest.raises(CannotMeasure, match="the other cluster"):
        bench.measure(_own("cannot"))
    with pytest.raises(OutOfMemory):
        bench.measure(_own("hungry"))


def test_a_module_that_does_not_even_load_is_named(tmp_path, monkeypatch):
    """A typing error in the user's file is told as Python tells it."""
    (tmp_path / "brokendata.py").write_text("def make(point)\n    return 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"dataset 'brokendata:make': raised SyntaxError"):
        loaders.open_data(training(dataset="brokendata:make"))
    assert "brokendata" not in sys.modules


def _labels(opened, epoch):
    return torch.cat([labels for _, labels in opened.epoch(epoch)]).tolist()


def _numbered(point, count=23):
    """Return a data set whose labels are its indices."""
    images = TensorDataset(torch.zeros(count, 3, 4, 4), torch.arange(count))
    return loaders.loaders(point, images, images, count, "numbered")


@pytest.mark.parametrize("workers", [0, 2])
def test_the_order_depends_on_seed_and_epoch_alone(workers):
    """Asking twice, or for another epoch in between, changes nothing."""
    opened = _numbered(training(steps_per_epoch=None, num_workers=workers))
    first, second = _labels(opened, 0), _labels(opened, 1)
    assert first != second
    assert _labels(opened, 0) == first
    assert _labels(_numbered(training(steps_per_epoch=None)), 0) == first
    assert _labels(_numbered(training(steps_per_epoch=None, seed=1)), 0) != first
    opened.close()


def test_an_epoch_is_full_batches_and_validation_is_everything():
    """23 images are five batches of four; the three left over wait for another order."""
    opened = _numbered(training(steps_per_epoch=None))
    assert (opened.steps, opened.train_samples, opened.val_samples) == (5, 20, 23)
    assert [len(labels) for _, labels in opened.epoch(0)] == [4] * 5
    assert sum(len(labels) for _, labels in opened.val) == 23
    assert len({label for epoch in range(6) for label in _labels(opened, epoch)}) == 23


@pytest.mark.parametrize(
    "axes", [{"batch_size": 24, "steps_per_epoch": None}, {"steps_per_epoch": 6}]
)
def test_more_batches_than_there_are_is_an_error_with_numbers(axes):
    """Nobody's epoch repeats images."""
    with pytest.raises(UsageError, match="has 23 training images, too few for"):
        _numbered(training(**axes))


def own_data(point):
    """Return the data set of a user's module."""
    return _numbered(point)


def no_data(_point):
    """Return something else."""
    return [1, 2]


def test_a_data_set_of_ones_own_is_opened_by_name():
    """A function from the point to loaders; anything else is refused by name."""
    opened = loaders.open_data(training(dataset=f"{__name__}:own_data", steps_per_epoch=None))
    assert (opened.name, opened.num_classes, opened.steps) == ("numbered", 23, 5)
    with pytest.raises(UsageError, match="returned list, not a `Data`"):
        loaders.open_data(training(dataset=f"{__name__}:no_data"))


def test_synthetic_data_has_the_sizes_that_were_asked_for():
    """Classes, image size, a fifth as much for validation."""
    opened = loaders.open_data(training(num_classes=3, steps_per_epoch=10))
    assert (opened.name, opened.num_classes) == ("synthetic", 3)
    assert (opened.train_samples, opened.val_samples) == (40, 8)
    images, labels = next(opened.epoch(0))
    assert images.shape == (4, 3, 16, 16)
    assert set(labels.tolist()) <= {0, 1, 2}
    zeros = loaders.open_data(training(input_fill="zeros"))
    assert not next(zeros.epoch(0))[0].any()


def test_synthetic_images_repeat_beyond_the_memory_that_they_may_take(monkeypatch):
    """The length is what was asked for all the same."""
    monkeypatch.setattr(loaders, "_POOL_BYTES", 12 * 16 * 16 * 5)
    images = loaders.Synthetic(training(), 12, 2, seed=0)
    assert len(images) == 12
    assert torch.equal(images[11][0], images[1][0])


def test_loading_leaves_random_numbers_alone():
    """Dropout is the same whether or not there is validation."""
    torch.manual_seed(1)
    opened = loaders.open_data(training())
    list(opened.val)
    list(opened.epoch(0))
    found = torch.rand(1)
    torch.manual_seed(1)
    assert torch.equal(found, torch.rand(1))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_loaders_die_with_the_process_that_trains():
    """A worker that is killed must not leave processes behind that hold its pipes."""
    code = (
        "from measuring import training\nfrom hpcsweep.measure.data import loaders\nimport time\n"
        "opened = loaders.open_data(training(num_workers=2))\nnext(opened.epoch(0))\n"
        "print(*[w.pid for w in opened.train._iterator._workers], flush=True)\ntime.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=SUPPORT, stdout=subprocess.PIPE, text=True
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    os.kill(process.pid, signal.SIGKILL)
    assert process.stdout.read() == ""  # end of file: nobody holds the pipe any more
    process.wait(10)
    process.stdout.close()
    for pid in pids:
        wait_for(f"end of loader {pid}", lambda pid=pid: not is_alive(pid))
