"""Profiled passes that several tests judge: each algorithm is profiled once."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from hpcsweep.conv import swap
from hpcsweep.conv.backend import choose
from hpcsweep.conv.proof import profiled_passes, profiler_events
from hpcsweep.measure.shape_pass import shape_pass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.conv.proof import Evidence, Proof
    from hpcsweep.conv.proof.onednn import Primitive

BACKEND = choose("cpu")
X = torch.randn(2, 4, 20, 20, generator=torch.Generator().manual_seed(1))


class ForwardNet(nn.Module):
    """Three convolutions in four calls, and one more that no layer makes."""

    def __init__(self) -> None:
        """Draw the filters."""
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Conv2d(4, 8, 3, padding=1, bias=False)
        self.b = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.c = nn.Conv2d(8, 8, 1)
        self.functional = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call `b` twice."""
        x = self.c(self.b(self.b(self.a(x))))
        return nn.functional.conv2d(x, self.c.weight) if self.functional else x


class StepNet(ForwardNet):
    """The same convolutions around an addition; the first has no gradient of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Call `b` twice."""
        x = self.a(x)
        x = x + self.b(torch.relu_(self.b(x)))
        return self.c(x)


CALLS = shape_pass(ForwardNet().eval(), X).convolutions  # of both


class Profiled(NamedTuple):
    """What a profiled pass left: the choices of its calls, the events, oneDNN's reports."""

    picked: list[LayerChoice]
    events: list[Any]
    primitives: list[Primitive]


def forward_net() -> ForwardNet:
    """Return a swapped network."""
    net = ForwardNet().eval()
    swap.swap(net)
    return net


def step_net() -> StepNet:
    """Return a swapped network that trains."""
    net = StepNet()
    swap.swap(net)
    return net


@cache
@torch.inference_mode()
def forward(algorithm: str) -> Profiled:
    """Run the forward network by an algorithm, having warmed up."""
    net = forward_net()
    picked = swap.assign(net, CALLS, algorithm, "fallback", BACKEND)
    net(X)
    ranges = profiled_passes.forward_ranges(net)
    return Profiled(picked, *profiler_events.record(net, ranges, lambda: net(X)))


@cache
def step(algorithm: str) -> Profiled:
    """Run a step of the other network by an algorithm, having warmed up."""
    net = step_net()
    picked = swap.assign(net, CALLS, algorithm, "fallback", BACKEND)

    def run() -> None:
        net(X).sum().backward()

    with _two_threads():
        run()
        return Profiled(
            picked, *profiler_events.record(net, profiled_passes.backward_ranges(net), run)
        )


@contextmanager
def _two_threads() -> Iterator[None]:
    """With one thread torch takes some small convolutions from oneDNN."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def forward_proof(ran: str, claimed: str | None = None) -> Proof:
    """Judge a profiled pass, or a false claim about its first calls."""
    picked, events, primitives = forward(ran)
    return profiled_passes.proof_of_forward(events, _claims(picked, claimed), BACKEND, primitives)


def step_proof(ran: str, claimed: str | None = None) -> list[Evidence]:
    """Judge the gradients of a profiled step, or a false claim about those of its first calls."""
    picked, events, primitives = step(ran)
    return profiled_passes.proof_of_backward(events, _claims(picked, claimed), BACKEND, primitives)


def _claims(picked: list[LayerChoice], claimed: str | None) -> list[LayerChoice]:
    return picked if claimed is None else [replace(item, used=claimed) for item in picked[:2]]
