"""Data sets of somebody's own, good and bad, reachable as ``owndatasets:name``."""

from __future__ import annotations

import time

import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.data import loaders

NUMBER = 3


class Images(Dataset):
    """Images of a size, some of them spoilt by a function of index, image and label."""

    def __init__(self, point, count=40, spoil=lambda _index, image, label: (image, label)):
        """Keep what to make."""
        self.size, self.count, self.spoil = point.axes["input_size"], count, spoil

    def __len__(self):
        """Return how many images there are."""
        return self.count

    def __getitem__(self, index):
        """Return a grey image and its label."""
        return self.spoil(index, torch.full((3, self.size, self.size), 0.1), index % 2)


def _loaders(point, *, train=None, val=None, num_classes=2):
    train, val = (Images(point) if images is None else images for images in (train, val))
    return loaders.loaders(point, train, val, num_classes, "own")


def good(point):
    """Return two classes."""
    return _loaders(point)


def numpy_labels(point):
    """Return labels as tensors of bytes, which cross-entropy would refuse."""
    spoil = Images(
        point, spoil=lambda _, image, label: (image, torch.tensor(label, dtype=torch.uint8))
    )
    return _loaders(point, train=spoil, val=spoil)


def raises(_point):
    """Look for a file that nobody has, and say so at length."""
    raise OSError("no such file: labels.txt\nsearched everywhere")


def says_nothing(_point):
    """Fail without a word."""
    raise AssertionError


def cannot(_point):
    """Know that it cannot be done here."""
    raise CannotMeasure("needs the archive that only the other cluster has")


def hungry(_point):
    """Take more memory than there is."""
    torch.empty(1 << 55)


def a_list(_point):
    """Return something else."""
    return [1, 2]


def stream(point):
    """Return data without a length."""

    class Stream(IterableDataset):
        def __iter__(self):
            return iter(Images(point))

    return _loaders(point, train=Stream())


def empty(point):
    """Return no image at all."""
    return _loaders(point, train=Images(point, 0))


def no_validation(point):
    """Return nothing to validate on."""
    return _loaders(point, val=Images(point, 0))


def no_classes(point):
    """Return no number of classes."""
    return _loaders(point, num_classes=None)


def other_size(point):
    """Return images of another size than the point says."""
    images = TensorDataset(torch.zeros(40, 3, 9, 9), torch.zeros(40, dtype=torch.long))
    return _loaders(point, train=images)


def one_is_grey(point):
    """Return an image with one channel among the others."""
    return _loaders(
        point,
        train=Images(point, spoil=lambda i, image, label: (image[: 1 + 2 * (i != 7)], label)),
    )


def no_class(point):
    """Return a label that has no class."""
    return _loaders(point, train=Images(point, spoil=lambda i, image, _: (image, i % 3)))


def bad_validation(point):
    """Return such a label in the validation data alone."""
    return _loaders(point, val=Images(point, spoil=lambda i, image, _: (image, i - 1)))


def named_labels(point):
    """Return words as labels."""
    return _loaders(point, train=Images(point, spoil=lambda _, image, __: (image, "cat")))


def bare_images(point):
    """Return images without labels."""
    return _loaders(point, train=Images(point, spoil=lambda _, image, __: image))


def no_tensor(point):
    """Return lists of numbers."""
    return _loaders(point, train=Images(point, spoil=lambda _, __, label: ([0.0], label)))


def damaged(point):
    """Fail at an image."""

    def spoil(index, image, label):
        if index == 5:
            raise ValueError("truncated: 3 of 9 bytes")
        return image, label

    return _loaders(point, train=Images(point, spoil=spoil))


class Slow(loaders.Synthetic):
    """Synthetic images, each of which takes a few milliseconds."""

    def __getitem__(self, index):
        """Wait, then return an image and its label."""
        time.sleep(0.01)
        return super().__getitem__(index)


def slow(point):
    """Return as many images as the epochs need; a training on them can be interrupted."""
    count = point.axes["batch_size"] * point.axes["steps_per_epoch"]
    train, val = (Slow(point, n, 4, seed) for seed, n in enumerate((count, 4)))
    return loaders.loaders(point, train, val, 4, "slow")
