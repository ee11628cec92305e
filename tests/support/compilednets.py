"""Networks that torch compiles in part, as ``compilednets:name``; "eager" generates no code."""

from __future__ import annotations

import torch
from torch import nn

BACKEND = "eager"


def _block():
    return nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())


class _Framed(nn.Module):
    """A part between a convolution and a linear layer."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3)
        self.end = nn.Linear(4, 5)
        self.passes = 0

    def forward(self, x):
        """Run a pass."""
        self.passes += 1
        return self.end(self.inner(self.stem(x)).mean((2, 3)))


class Part(_Framed):
    """`torch.compile(module)` as a submodule."""

    def __init__(self):
        """Compile the part."""
        super().__init__()
        self.inner = torch.compile(_block(), backend=BACKEND)


class InPlace(_Framed):
    """`module.compile()` of a submodule."""

    def __init__(self):
        """Compile the part."""
        super().__init__()
        self.inner = _block()
        self.inner.compile(backend=BACKEND)


class Function(_Framed):
    """A compiled function that calls modules, which nothing says of them."""

    def __init__(self):
        """Compile the function."""
        super().__init__()
        self.part = _block()
        self.function = torch.compile(lambda x: self.part(x) * 2, backend=BACKEND)

    def inner(self, x):
        """Call it."""
        return self.function(x)


def whole():
    """Return a network that is compiled as a whole."""
    return torch.compile(nn.Sequential(nn.Conv2d(3, 4, 3), *_block()), backend=BACKEND)


class Again(_Framed):
    """Compiles again in each third pass, since a guard fails, until torch gives up."""

    def __init__(self):
        """Compile the function."""
        super().__init__()
        self.function = torch.compile(lambda x, text: x * len(text), backend=BACKEND)

    def inner(self, x):
        """Call it."""
        return self.function(x, "a" * (self.passes // 3))


class Always(_Framed):
    """Compiles in each seventh pass for ever, as code that makes functions does."""

    def inner(self, x):
        """Compile and call."""
        if self.passes % 7 == 0:
            torch.compiler.reset()
            self.__dict__["function"] = torch.compile(lambda x: x * 2, backend=BACKEND)
        return self.__dict__.get("function", abs)(x)
