"""The check of fresh inputs: a pass on an image that the network never saw.

The image has numbers and memory of its own, is read once before its pass, so that it lies in the
caches as any other, and is kept until the end, so that no other takes its place. The check runs
when the peak of memory is known, as the images would count. A network that keeps what it computed
is slower whenever an image is new, so one pass that is no slower ends the check. Passes that are
slower are compared with passes on the first image, in turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor

from hpcsweep.catalog.checks import fresh_inputs as told
from hpcsweep.catalog.checks.fresh_inputs import FreshInputs
from hpcsweep.measure import models
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.network import Finding, Network, PointCheck, Times, some_numbers
from hpcsweep.measure.rounding import if_it_fits
from hpcsweep.measure.timing import lanes, loop, stats

_FEW: Final = 4
# A machine that is busy makes a pass slower by more than that now and then: then all of the slow
# ones have to be slower than all of the others, since chance does it once in 252 times. Two looks
# of three decide, since one pass that was disturbed spoils a look.
_SLOWER: Final = 1.1
_PAIRS: Final = 5
_AGREE: Final = 2
_LARGE: Final = 1e30


class Check(PointCheck):
    """Times a few passes on images that were never seen."""

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:  # noqa: ARG002
        """Compare them, where there is memory for the images; the times stand without them."""
        if network.point.axes["launch"] == "graph":  # replays on one image; its kernels are told
            return Finding()
        return if_it_fits(lambda: self._compare(network, times)) or Finding()

    def _compare(self, network: Network, times: Times) -> Finding:
        """Compare fresh passes with the timed ones; with others in turn, if all look slower."""
        images = _Images(network, times)
        usual = times.summary
        seen = times.samples
        with loop.quiet_collector():
            fresh = [images.fresh_ms()]
            # a pass as slow as every fourth of the timed ones needs no second look
            limit = max(_SLOWER * usual.median, usual.q3)
            while min(fresh) > limit and len(fresh) < _FEW:
                fresh.append(images.fresh_ms())
            looks = list[bool]()
            while min(fresh) > limit and max(map(looks.count, (True, False))) < _AGREE:
                seen, fresh = images.in_turn()
                looks.append(_are_slower(fresh, seen))
        return Finding(
            cells=FreshInputs(fresh_ms=stats.median(fresh), seen_ms=stats.median(seen)),
            flags={told.FRESH_INPUTS: looks.count(True) == _AGREE or images.outputs_are_equal()},
        )


def _are_slower(fresh: Sequence[float], seen: Sequence[float]) -> bool:
    apart = min(fresh) > max(seen)
    return apart and stats.median(fresh) > _SLOWER * stats.median(seen)


class _Images:
    """Images to run a network on, one after the other; the first is the point's own."""

    def __init__(self, network: Network, times: Times) -> None:
        device = network.rig.device.torch_device
        self._network = network
        self._generator = torch.Generator().manual_seed(network.point.axes["seed"] + 1)
        (self._seen,) = models.make_inputs(network.point, device)
        self._image = self._seen
        self._kept: list[Tensor] = []
        self._output: object = None
        self._first_numbers = times.first_numbers
        timed = times.lanes.device_clock if times.lanes else None
        self._clock = lanes.clock(device, self._read, timed)

    def fresh_ms(self) -> float:
        """Return the milliseconds of a pass on an image that nobody has seen."""
        point = self._network.point
        self._kept.append(models.draw(point, self._seen.device, self._generator))
        return self._ms(self._kept[-1])

    def in_turn(self) -> tuple[list[float], list[float]]:
        """Return the times of passes on the first and on fresh images, each after one on the first.

        There are fewer pairs if one shows that not all of the fresh passes are slower.
        """
        seen = list[float]()
        fresh = list[float]()
        drawn = self._seen.clone()

        def again() -> float:
            ms = self._ms(self._seen)
            self._seen.copy_(drawn)  # the network may have written over it
            return ms

        while len(seen) < _PAIRS and min(fresh, default=math.inf) > max(seen, default=0.0):
            again()
            seen.append(again())
            fresh.append(self.fresh_ms())
        return seen, fresh

    def _ms(self, image: Tensor) -> float:
        self._image = image
        return self._clock.block(self._run, 1)[0]

    def _read(self) -> None:
        self._image.sum()

    def _run(self) -> None:
        output = self._network.model(self._image)
        if self._image is not self._seen:
            self._output = output

    def outputs_are_equal(self) -> bool:
        """Say whether a fresh image gave the numbers of the first pass, which are not all zero."""
        if self._network.point.axes["input_fill"] == "zeros":  # then the images are the same
            return False
        return self._are_first(self._output) and self._are_first(self._of_large_numbers())

    def _are_first(self, output: object) -> bool:
        pairs = zip(self._first_numbers, some_numbers(output), strict=False)
        same = [torch.equal(a, b) for a, b in pairs if a.any()]
        return bool(same) and all(same)

    def _of_large_numbers(self) -> object:
        """Run on an image that no network takes for another: in an undrawn one, images may fade."""
        point = self._network.point
        image = models.draw(point, self._seen.device, self._generator)
        with suppress(Exception):  # it computes, and cannot with these
            return self._network.model(image * _LARGE)
        return None
