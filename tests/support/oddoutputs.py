"""Small networks whose outputs are odd, right or wrong; reachable as ``oddoutputs:name``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import nn


@dataclass(slots=True)
class Scores:
    """A record."""

    scores: torch.Tensor
    more: object


class Boxes(NamedTuple):
    """A tuple with names."""

    boxes: torch.Tensor
    nothing: None


class Odd(nn.Module):
    """One convolution, whose output a subclass makes odd."""

    def __init__(self):
        """Make the layer."""
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)

    def forward(self, x):
        """Run a pass."""
        return self.odd(self.conv(x), x)


class NoisyHead(Odd):
    """Its second output is noise, small beside the first."""

    def odd(self, y, x):
        """Return both."""
        return y, 1e-4 * torch.rand_like(x)


class Dropout(Odd):
    """Dropout that is on."""

    def odd(self, y, x):
        """Drop."""
        return nn.functional.dropout(y, 0.1)


@torch.library.custom_op("oddoutputs::small", mutates_args=())
def small(x: torch.Tensor) -> torch.Tensor:
    """Return a thousandth, too much but in float64."""
    return x * (1e-3 if x.element_size() == 8 else 1.1e-3)


@small.register_fake
def _(x):
    return torch.empty_like(x)


class WrongHead(Odd):
    """Its second output is by an operator that is wrong but in float64."""

    def odd(self, y, x):
        """Return both."""
        return y, small(y.mean())


class Growing(Odd):
    """Returns one tensor more in every pass."""

    seen = 0

    def odd(self, y, x):
        """Count."""
        self.seen += 1
        return [y] * self.seen


class Float32Alone(Odd):
    """Its own code asks for the bytes of a number, and does not take eight."""

    def odd(self, y, x):
        """Refuse float64."""
        if x.element_size() == 8:
            raise TypeError("no float64 here")
        return y


class Undefined(Odd):
    """Takes the root of what is negative."""

    def odd(self, y, x):
        """Take it."""
        return (y - 100).sqrt()


class Nothing(Odd):
    """Returns a number."""

    def odd(self, y, x):
        """Return it."""
        return 3


class Records(Odd):
    """Returns a record with a named tuple and a plain object inside."""

    def odd(self, y, x):
        """Wrap."""
        return Scores(y, {"boxes": Boxes(y * 2, None), "text": "none"})


class Indices(Odd):
    """Returns whole numbers and truths beside its scores."""

    def odd(self, y, x):
        """Return all three."""
        y = y.mean((2, 3))
        return y, y.argmax(1), y > y.mean()


class Chosen(Odd):
    """Returns the largest of many scores that are nearly equal, and what they belong to."""

    def odd(self, y, x):
        """Choose, as a detector of objects does."""
        scores, places = (1 + 1e-6 * y.mean(1).flatten()).topk(50)
        return y.flatten(2)[..., places], scores


class Kept(Odd):
    """Returns what is above a threshold that lies among nearly equal scores."""

    def odd(self, y, x):
        """Choose; how many there are depends on rounding."""
        scores = 1 + 1e-6 * y.mean(1).flatten()
        return y.flatten(2)[..., scores > scores.mean()]


class KeptByFunction(Kept):
    """The same, with a convolution that nobody can compare."""

    def forward(self, x):
        """Run a pass."""
        return self.odd(nn.functional.conv2d(x, self.conv.weight, padding=1), x)


class ChosenByNoise(Odd):
    """Returns what has the largest scores, which are nothing but rounding."""

    def odd(self, y, x):
        """Choose."""
        scores = y.sum(1) - y.flip(1).sum(1)
        return y.flatten(2)[..., scores.flatten().topk(50)[1]]


class NoBoxes(Odd):
    """Returns nothing but empty tensors, as a detector does that sees no object."""

    def odd(self, y, x):
        """Choose none."""
        return {"boxes": y[y > y.max() + 1], "labels": y.argmax(1)[:0]}


class Complex(Odd):
    """Returns a spectrum, and convolves it as complex numbers."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.turn = nn.Conv2d(8, 8, 1, dtype=torch.complex64)

    def odd(self, y, x):
        """Transform."""
        wide = torch.float64 if y.dtype == torch.float64 else torch.float32
        y = torch.view_as_complex(torch.stack([y, y + 1], -1).to(wide))
        return self.turn(y)


class Masked(Odd):
    """Some of its output is minus infinity, as what attention must not see."""

    def odd(self, y, x):
        """Mask."""
        return y.masked_fill(torch.arange(8)[:, None, None] > 5, -math.inf)


class InPlace(Odd):
    """Changes the image that it gets."""

    def forward(self, x):
        """Halve it, in place."""
        return self.conv(x.mul_(0.5))


class Faint(nn.Module):
    """Adds a thousand-millionth of its last convolution to its output."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.first, self.late = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 16, 3)

    def forward(self, x):
        """Run a pass."""
        y = self.first(x)
        return y.mean((2, 3)) + 1e-9 * self.late(y).mean((2, 3))
