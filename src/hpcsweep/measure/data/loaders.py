"""Loads batches of images and labels, in an order that depends on seed and epoch alone.

`open_data` opens a data set as a `Data`: a loader for training, one for validation, and the number
of classes. A training epoch has full batches only, so that all steps do the same work; other epochs
have another order, so that they may use the remaining images.

The synthetic data set has random images in the host's memory, made once per point. It uses torch's
Dataset and DataLoader, so that `num_workers` and `pin_memory` have their usual effect. The images
of a class share a tint, so that a network can learn. Where CIFAR is not on disk as many such images
take its place, and the row has the flag `synthetic_data`.

Every image of the user's own data sets is checked when it is loaded, in less than a microsecond: on
a GPU a label out of range would be an assertion on the device, which ends the process.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hpcsweep.errors import HpcsweepError, UsageError, first_line, suggest
from hpcsweep.measure import model_builder, switches
from hpcsweep.measure.bench_api import CannotMeasure, OutOfMemory, is_out_of_memory
from hpcsweep.measure.data import downloads
from hpcsweep.point import Point
from hpcsweep.processes import die_with_parent

_OWN_WORDS = (HpcsweepError, CannotMeasure, OutOfMemory)


@dataclass(frozen=True)
class OwnDataset(Dataset[Any]):
    """A user's data set of (image, label), whose images are checked when they are loaded.

    An image is a tensor of 3 x `size` x `size` numbers, a label a class from 0.
    """

    name: str
    part: str
    images: Any
    num_classes: int
    size: int

    def __post_init__(self) -> None:
        """Raise `UsageError` unless this is a map-style data set, with a number of classes."""
        if not (hasattr(self.images, "__len__") and hasattr(self.images, "__getitem__")):
            kind = type(self.images).__name__
            raise UsageError(
                f"dataset '{self.name}': {self.part} data are a {kind}, not a map-style data set "
                "of (image, label), with a length"
            )
        if not isinstance(self.num_classes, int) or self.num_classes < 1:
            raise UsageError(
                f"dataset '{self.name}': has {self.num_classes!r} classes; a number is needed"
            )

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        """Return an image and its label; `UsageError` names a bad image."""
        where = f"dataset '{self.name}': {self.part} image {index}"
        try:
            image, label = self.images[index]
            sizes = tuple(image.shape)
            number = operator.index(label)
        except Exception as error:
            if isinstance(error, _OWN_WORDS) or is_out_of_memory(error):
                raise
            told = f"raised {words(error)}; an item is (image, label), a tensor and a class number"
            raise UsageError(f"{where} {told}") from error
        if sizes != (3, self.size, self.size):
            found = "x".join(map(str, sizes))
            raise UsageError(f"{where} is {found}, not 3x{self.size}x{self.size} (input_size)")
        if not 0 <= number < self.num_classes:
            most = self.num_classes - 1
            raise UsageError(f"{where} has label {number}; classes are 0 to {most}")
        return image, number


def words(error: BaseException) -> str:
    """Return an exception in a line: its type, and the first line of its message."""
    kind = type(error).__name__
    message = first_line(error)
    return kind if message == kind else f"{kind}: {message}"


SYNTHETIC: Final = "synthetic"
# Of an epoch: as many as the default `iterations` times, so that one epoch is enough.
SYNTHETIC_STEPS: Final = 20
# As CIFAR-10 has.
SYNTHETIC_CLASSES: Final = 10
SYNTHETIC_DATA: Final = "synthetic_data"
# For training and for validation, as published.
_CIFAR_IMAGES: Final = (50_000, 10_000)
# Training batches for each of validation, as in CIFAR.
_VALIDATION_SHARE: Final = 5
# Of distinct synthetic images, which repeat beyond that: more than a cache holds, less than a small
# job has.
_POOL_BYTES: Final = 256 << 20


@dataclass(frozen=True)
class Data:
    """An open data set: `train` yields full batches, `val` each image once."""

    name: str
    train: DataLoader[Any]
    val: DataLoader[Any]
    num_classes: int
    # epoch and index of each image of an epoch; the sampler of `train`
    order: list[tuple[int, int]]
    seed: int
    flags: tuple[str, ...] = ()  # for the rows of points that use it

    @property
    def steps(self) -> int:
        return len(self.train)

    @property
    def train_samples(self) -> int:
        return len(self.train) * int(self.train.batch_size or 1)

    @property
    def val_samples(self) -> int:
        return len(self.val.dataset)

    def epoch(self, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Return the batches of an epoch (from 0): the first of a shuffle by seed and epoch."""
        # so far apart, since epochs of another seed may not have the same one
        seed = self.seed * 1_000_003 + number
        generator = torch.Generator().manual_seed(seed)
        shuffled = torch.randperm(len(self.train.dataset), generator=generator)
        self.order[:] = [(number, index) for index in shuffled[: len(self.order)].tolist()]
        self.train.generator.manual_seed(seed)  # the workers' seed
        return iter(self.train)

    def close(self) -> None:
        """End the worker processes."""
        for loader in (self.train, self.val):
            iterator = getattr(loader, "_iterator", None)
            if iterator is not None:
                iterator._shutdown_workers()  # noqa: SLF001 - torch has no public one
                loader._iterator = None  # noqa: SLF001


class Seeded(Dataset[Any]):
    """A data set whose random augmentation depends on seed, epoch and image alone.

    So it is the same in every loading process, and in a resumed training.
    """

    def __init__(self, images: Dataset[Any], seed: int) -> None:
        """Wrap a data set; synthetic images have no random augmentation."""
        self._images = images
        self._seed = seed
        self._draws = not isinstance(images, Synthetic)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, place: tuple[int, int]) -> Any:  # noqa: ANN401 - what the data set holds
        epoch, index = place
        if not self._draws:
            return self._images[index]
        before = torch.get_rng_state()
        torch.default_generator.manual_seed(hash((self._seed, epoch, index)))
        try:
            return self._images[index]
        finally:
            torch.set_rng_state(before)


class Synthetic(Dataset[Any]):
    """`length` random images with random labels, which repeat beyond 256 MiB."""

    def __init__(self, point: Point, length: int, classes: int, seed: int) -> None:
        axes = point.axes
        size = axes["input_size"]
        generator = torch.Generator().manual_seed(seed)
        # an image has three channels of float32
        distinct = max(1, min(length, _POOL_BYTES // (12 * size * size)))
        self._length = length
        self._labels = torch.randint(classes, (distinct,), generator=generator)
        self._images = model_builder.fill((distinct, 3, size, size), axes["input_fill"], generator)
        if axes["input_fill"] != "zeros":
            # of a seed of their own, so that training and validation images share them
            tints = torch.randn(classes, 3, 1, 1, generator=torch.Generator().manual_seed(0))
            self._images += tints[self._labels]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        place = index % len(self._labels)
        return self._images[place], int(self._labels[place])


def open_data(point: Point) -> Data:
    """Open the data set of a training point.

    Raises:
        UsageError: there is no such data set, or it has fewer images than one batch.
    """
    name = str(point.axes["dataset"])
    if ":" in name:
        return _from_factory(name, point)
    if name not in DATASETS:
        names = ", ".join(DATASETS)
        raise UsageError(
            f"dataset '{name}': there is {names} or package.module:factory{suggest(name, DATASETS)}"
        )
    return DATASETS[name](point)


def loaders(
    point: Point, train: Dataset[Any], val: Dataset[Any], num_classes: int, name: str
) -> Data:
    """Make a `Data` of two map-style data sets of (image, label), by the point's axes.

    `steps_per_epoch` shortens an epoch; it cannot exceed the number of batches.

    Raises:
        UsageError: they are no data sets, or have fewer images than the point needs.
    """
    axes = point.axes
    wanted = str(axes["dataset"])
    if ":" in wanted:
        checked = (num_classes, axes["input_size"])
        train = OwnDataset(wanted, "training", train, *checked)
        val = OwnDataset(wanted, "validation", val, *checked)
    batch = axes["batch_size"]
    size = len(train)
    steps = axes["steps_per_epoch"] or size // batch
    if steps * batch > size or not steps:
        raise UsageError(
            f"dataset '{wanted}': has {size} training images, too few for "
            f"{max(steps, 1)} batches of {batch}"
        )
    if point.measure["validation"] and not len(val):
        raise UsageError(
            f"dataset '{wanted}': has no validation images; `validation: false` does without"
        )
    common: dict[str, Any] = {
        "batch_size": batch,
        "num_workers": axes["num_workers"],
        "pin_memory": axes["pin_memory"],
        "persistent_workers": axes["num_workers"] > 0,
        "worker_init_fn": _end_with_the_training,
    }
    order = [(0, 0)] * (steps * batch)
    seeded = Seeded(train, axes["seed"])
    # own generators, so that loading does not change other random numbers
    first = DataLoader(seeded, sampler=order, generator=torch.Generator(), **common)
    second = DataLoader(val, shuffle=False, generator=torch.Generator(), **common)
    return Data(name, first, second, num_classes, order, axes["seed"])


def _synthetic(point: Point) -> Data:
    axes = point.axes
    steps = axes["steps_per_epoch"] or SYNTHETIC_STEPS
    batch = axes["batch_size"]
    images = (steps * batch, max(1, steps // _VALIDATION_SHARE) * batch)
    return _drawn(point, images, axes["num_classes"] or SYNTHETIC_CLASSES)


def _drawn(point: Point, images: tuple[int, int], classes: int) -> Data:
    """Return random images, so many for training and for validation."""
    seed = 2 * point.axes["seed"]  # the next one is that of no other point's training images
    train = Synthetic(point, images[0], classes, seed)
    val = Synthetic(point, images[1], classes, seed + 1)
    return loaders(point, train, val, classes, SYNTHETIC)


def _cifar(point: Point) -> Data:
    name = point.axes["dataset"]
    classes = downloads.CIFAR[name].classes
    if not downloads.is_there(name):
        return replace(_drawn(point, _CIFAR_IMAGES, classes), flags=(SYNTHETIC_DATA,))
    return loaders(point, *downloads.open_cifar(name, point.axes["input_size"]), classes, name)


def _from_factory(path: str, point: Point) -> Data:
    """Call the user's factory `package.module:factory` with the point."""
    try:
        with switches.kept(path):
            data = model_builder.load_factory("dataset", path)(point)
    except Exception as error:  # the user's module may raise anything
        if isinstance(error, _OWN_WORDS) or is_out_of_memory(error):
            raise
        raise UsageError(f"dataset '{path}': raised {words(error)}") from error
    if not isinstance(data, Data):
        kind = type(data).__name__
        raise UsageError(
            f"dataset '{path}': returned {kind}, not a `Data` as `loaders.loaders` returns it"
        )
    return data


def _end_with_the_training(_number: int) -> None:
    die_with_parent()


# by the name in the sweep file: a function that opens the data set of a point
DATASETS: Final[Mapping[str, Callable[[Point], Data]]] = {
    SYNTHETIC: _synthetic,
    **dict.fromkeys(downloads.CIFAR, _cifar),
}
