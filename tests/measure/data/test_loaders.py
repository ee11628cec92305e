"""Data sets: order, sizes, worker processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from hpcsweep.errors import UsageError
from hpcsweep.measure.data import loaders
from measuring import training
from paths import SUPPORT


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
    until = time.monotonic() + 10
    while any(Path(f"/proc/{pid}/cmdline").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    process.stdout.close()
    alive = [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert [pid for pid in alive if "Z" not in Path(f"/proc/{pid}/stat").read_text()] == []
