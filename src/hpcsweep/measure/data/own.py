"""Data sets of the user's own: every fault in them is one line that names the data set.

A factory may raise, or return something else; images may have another size than the point says, and
labels may be out of range. On a GPU such a label is an assertion on the device that ends the
process. So every image is checked when it is loaded, which takes less than a microsecond.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset

from hpcsweep.errors import HpcsweepError, UsageError, first_line
from hpcsweep.measure import models
from hpcsweep.measure.bench_api import OutOfMemory, Unsupported
from hpcsweep.measure.machine import framework
from hpcsweep.point import Point

_OWN_WORDS = (HpcsweepError, Unsupported, OutOfMemory)


def call(path: str, point: Point) -> object:
    """Return what the factory `package.module:factory` returns for a point.

    Raises:
        UsageError: it cannot be imported, is no function, or raised.
    """
    try:
        factory = models.load_factory("dataset", path)
    except UsageError:
        raise
    except Exception as error:  # a module runs whatever its author wrote
        raise UsageError(f"dataset '{path}': cannot import: {words(error)}") from error
    if not callable(factory):
        kind = type(factory).__name__
        raise UsageError(f"dataset '{path}': is a {kind}, not a function that takes the point")
    try:
        return factory(point)
    except Exception as error:
        if isinstance(error, _OWN_WORDS) or framework.is_out_of_memory(error):
            raise
        raise UsageError(f"dataset '{path}': raised {words(error)}") from error


def check(name: str, part: str, images: object, num_classes: object) -> None:
    """Raise `UsageError` for what is no map-style data set, or no number of classes."""
    if not (hasattr(images, "__len__") and hasattr(images, "__getitem__")):
        kind = type(images).__name__
        raise UsageError(
            f"dataset '{name}': {part} data are a {kind}, not a map-style data set of "
            "(image, label), with a length"
        )
    if not isinstance(num_classes, int) or isinstance(num_classes, bool) or num_classes < 1:
        raise UsageError(f"dataset '{name}': has {num_classes!r} classes; a number is needed")


@dataclass(frozen=True)
class Own(Dataset[Any]):
    """A data set of (image, label) whose images are checked when they are loaded.

    An image is a tensor of 3 x `size` x `size` numbers, a label a class from 0.
    """

    name: str
    part: str
    images: Any
    num_classes: int
    size: int

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        """Return an image and its label; `UsageError` names the image that is none."""
        try:
            item = self.images[index]
        except Exception as error:
            if isinstance(error, _OWN_WORDS) or framework.is_out_of_memory(error):
                raise
            raise self._complaint(index, f"raised {words(error)}") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise self._complaint(index, f"is a {type(item).__name__}, not (image, label)")
        image, label = item
        if not isinstance(image, torch.Tensor):
            raise self._complaint(index, f"is a {type(image).__name__}, not a tensor")
        if image.shape != (3, self.size, self.size):
            sizes = "x".join(map(str, image.shape))
            raise self._complaint(index, f"is {sizes}, not 3x{self.size}x{self.size} (input_size)")
        return image, self._label(index, label)

    def _label(self, index: int, label: Any) -> int:  # noqa: ANN401 - whatever there is
        try:
            number = operator.index(label)
        except TypeError as error:
            kind = type(label).__name__
            raise self._complaint(index, f"has a {kind} as label, not a class number") from error
        if not 0 <= number < self.num_classes:
            most = self.num_classes - 1
            raise self._complaint(index, f"has label {number}; classes are 0 to {most}")
        return number

    def _complaint(self, index: int, text: str) -> UsageError:
        return UsageError(f"dataset '{self.name}': {self.part} image {index} {text}")


def words(error: BaseException) -> str:
    """Return an exception in a line: its type, and the first line of what it says."""
    kind, said = type(error).__name__, first_line(error)
    return kind if said == kind else f"{kind}: {said}"
