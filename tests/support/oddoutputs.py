"""Small networks whose outputs are odd, right or wrong; reachable as ``oddoutputs:name``."""

from __future__ import annotations

import math

import torch
from torch import nn


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
