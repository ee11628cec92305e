"""Networks of the recorded sweeps: one that works, and one for each way in which a point ends badly.

What goes wrong goes wrong at an image size of 48, which lies between the sizes that are tried.
"""

from __future__ import annotations

import os
import signal
import time

import torch
from torch import nn


class Small(nn.Module):
    """Two convolutions and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.head = nn.Linear(8, 10)

    def forward(self, images):
        features = torch.relu(self.second(torch.relu(self.first(images))))
        return self.head(features.mean((2, 3)))


class AtFortyEight(Small):
    """`Small`, which does something else first where images have 48 pixels."""

    def __init__(self, happens) -> None:
        super().__init__()
        self.happens = happens

    def forward(self, images):
        if images.shape[-1] == 48:
            self.happens()
        return super().forward(images)


def small():
    return Small()


def raises():
    return AtFortyEight(refuse)


def dies():
    return AtFortyEight(lambda: os.kill(os.getpid(), signal.SIGSEGV))


def sleeps():
    return AtFortyEight(lambda: time.sleep(600))


def swallows():
    return AtFortyEight(lambda: torch.empty(1 << 50))


def wide():
    """Return a network without a convolution that Winograd's algorithm can do."""
    return nn.Sequential(nn.Conv2d(3, 8, 7, stride=2), nn.Flatten(1), nn.LazyLinear(4))


def refuse():
    raise ValueError("48 pixels are not for me")
