"""The check of fresh inputs: passes on images that the network never saw.

Each image has numbers and memory of its own, is read once before its pass, so that it lies in the
caches as any other, and is kept until the end, so that no other takes its place. The check runs
when the peak of memory is known, as the images would count. Two passes tell: a network that keeps
what it computed is slower in both. What looks slower is timed in turn with passes on one image;
before each pass of both kinds the network has just run on that image.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor

from hpcsweep.catalog.checks import fresh_inputs as told
from hpcsweep.catalog.checks.fresh_inputs import FreshInputs
from hpcsweep.conv.proof.autograd_graph import tensors_in
from hpcsweep.measure import models
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.network import Finding, Network, PointCheck, Times
from hpcsweep.measure.rounding import if_it_fits
from hpcsweep.measure.shadow import exact
from hpcsweep.measure.timing import lanes, loop, stats
from hpcsweep.measure.timing.loop import Lane

_FEW: Final = 2
_MORE: Final = 5
# A machine that is busy makes a pass slower by more than that now and then: then all of the slow
# ones have to be slower than all of the others, twice, since chance does it once in 252 times.
_SLOWER: Final = 1.1
_LOOKS: Final = 2


class Check(PointCheck):
    """Times a few passes on images that were never seen."""

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:  # noqa: ARG002
        """Compare them, where there is memory for the images; the times stand without them."""
        if network.point.axes["launch"] == "graph":  # replays on one image; its kernels are told
            return Finding()
        return if_it_fits(lambda: self._compare(network, times)) or Finding()

    def _compare(self, network: Network, times: Times) -> Finding:
        """Compare them with the timed passes, and with passes in turn if they look slower."""
        images = _Images(network)
        (fresh,) = self._timed(_FEW, images, images.fresh)
        seen = times.samples
        usual = times.summary
        # a pass as slow as every fourth of the timed ones needs no second look
        slower = min(fresh) > max(_SLOWER * usual.median, usual.q3)
        for _ in range(_LOOKS):
            if slower:
                seen, fresh = self._timed(_MORE, images, images.seen, images.fresh)
                slower = min(fresh) > max(seen)
                slower = slower and stats.median(fresh) > _SLOWER * stats.median(seen)
        return Finding(
            cells=FreshInputs(fresh_ms=stats.median(fresh), seen_ms=stats.median(seen)),
            flags={told.FRESH_INPUTS: slower or images.outputs_are_equal()},
        )

    def _timed(
        self, passes: int, images: _Images, *kinds: Callable[[], Tensor]
    ) -> list[list[float]]:
        """Return the times of passes on images of these kinds, in turn if there are several."""
        device = self.rig.device.torch_device
        made = []
        for kind in kinds:
            prepare = partial(images.prepare, kind, after_seen=len(kinds) > 1)
            clock = lanes.clock(device, prepare, images.run)
            made.append(Lane(images.run, clock, most=1))
        return loop.collect(made, loop.Fixed(passes)).times


class _Images:
    """Images to run a network on, one after the other."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._generator = torch.Generator().manual_seed(network.point.axes["seed"] + 1)
        (self._seen,) = models.make_inputs(network.point, network.rig.device.torch_device)
        self._image = self._seen
        self._kept: list[Tensor] = []
        self._outputs: list[object] = []

    def seen(self) -> Tensor:
        """Return the first image of the point."""
        return self._seen

    def fresh(self) -> Tensor:
        """Return an image that nobody has seen."""
        image = models.draw(self._network.point, self._seen.device, self._generator)
        self._kept.append(image)
        return image

    def prepare(self, kind: Callable[[], Tensor], *, after_seen: bool) -> None:
        """Read the next image, after a pass on the first one if that is asked for."""
        if after_seen:
            self._image = self._seen
            self.run()
        self._image = kind()
        self._image.sum()

    def run(self) -> None:
        """Run on the image that was prepared."""
        output = self._network.model(self._image)
        if self._image is not self._seen:
            self._outputs = [*self._outputs[:1], output]

    def outputs_are_equal(self) -> bool:
        """Say whether two fresh images gave the same numbers, which are not all zero."""
        if self._network.point.axes["input_fill"] == "zeros":  # then the images are the same
            return False
        first, last = (map(exact, tensors_in(output)) for output in self._outputs)
        same = [
            a.shape == b.shape and torch.equal(a, b)
            for a, b in zip(first, last, strict=False)
            if a.is_floating_point() and a.any()  # a class or a count may well be the same
        ]
        return bool(same) and all(same)
