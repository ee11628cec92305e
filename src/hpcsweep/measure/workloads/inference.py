"""The `inference` workload: a pass is the forward pass of a network on a batch of images.

The overall pass and the layer passes are lanes that take turns (see `timing.loop`), so that all run
under the same conditions. Shapes and work come from a shape pass on the meta device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import torch
from torch import Tensor, nn

from hpcsweep.catalog.row_records import TimeCells
from hpcsweep.conv import parts, swap
from hpcsweep.conv.parts import Held, tensors_in
from hpcsweep.measure import caches, layer_table, model_builder, work
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.layer_table import LayerTable
from hpcsweep.measure.machine.rig import Rig
from hpcsweep.measure.network import Choices, LayerRows, Network, Times
from hpcsweep.measure.shape_pass import Shapes, shape_pass
from hpcsweep.measure.timing import stats
from hpcsweep.measure.timing.lanes import Lanes, LaneWork, make_lanes
from hpcsweep.measure.timing.loop import Collected
from hpcsweep.point import Point

# Of an image; to compare them all would take as long as a small pass.
_NUMBERS: Final = 1000


class Inference:
    """Builds the networks of inference points; keeps the last one while points share it."""

    cannot: Sequence[str] = ()

    def __init__(self, rig: Rig) -> None:
        """Measure on one device."""
        self._rig = rig
        self._models = model_builder.ModelCache(rig.device.torch_device)
        self._shapes: dict[tuple[object, int], Shapes] = {}

    def refuse_early(self, point: Point) -> None:
        """Raise `CannotMeasure` if this device cannot do the point."""
        axes = point.axes
        if axes["cache_state"] == "cold" and point.measure["layers"] == layer_table.BATCHED:
            why = "layers: batched finds a warm cache; cache_state: cold takes unique"
            raise CannotMeasure(why)
        if axes["launch"] != "graph":
            return
        if self._rig.device.type != "cuda":
            raise CannotMeasure(f"launch: graph needs a GPU; this is {self._rig.device.type}")
        if axes["cache_state"] == "rotated":
            raise CannotMeasure("a graph replays one input; cache_state: cold is the alternative")

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Run in inference mode; drop a network that failed, for it may be broken."""
        try:
            with torch.inference_mode():
                yield
        except Exception:
            self.forget()
            raise

    def build(self, point: Point) -> Network:
        """Build or reuse the network, draw its inputs, record its shapes."""
        load = os.getloadavg()[0]
        model = self._network(point)
        device = self._rig.device.torch_device
        draw = partial(model_builder.make_inputs, point, device)
        bytes_each = model_builder.input_bytes(point)
        count = caches.input_count(point.axes["cache_state"], device, bytes_each)
        images = caches.inputs_in_turn(draw, count)
        shapes = self._shapes.get(_images_of(point))
        if shapes is None:
            with model_builder.seeded(point):  # the first pass may draw layers
                shapes = self._shapes[_images_of(point)] = shape_pass(model, images[0])
        return InferenceNetwork(
            point=point,
            rig=self._rig,
            model=model,
            # as its first pass left it: that may make and replace layers
            held=Held(model),
            shapes=shapes,
            load=load,
            run=Pass(model, images, draw),
        )

    def forget(self) -> None:
        """Drop the network and its shapes."""
        self._shapes.clear()
        self._models.drop()

    def _network(self, point: Point) -> nn.Module:
        """Build the network, or reuse the previous point's; memory never holds two."""
        key = model_builder.ModelKey.of(point)
        for images, shapes in self._shapes.items():
            if shapes.late and images != _images_of(point):
                self._models.drop()  # its layers may fit those images alone
        if not self._models.keep_only(key):
            self._shapes.clear()
            # before `settle`, which exempts what is loaded from collections
            if ":" not in point.axes["model"]:
                model_builder.torchvision_models()
            model_builder.settle()
        model = self._models.get(key)
        swap.restore(model)
        return model


class Pass:
    """A pass of a network on its inputs in turn; `image` is that of the last pass.

    Tensors of a class of the user's may compute when somebody asks for their numbers. If the first
    pass returns such tensors, a pass asks for them, too. `draw` returns the first images anew.
    """

    def __init__(
        self, model: nn.Module, images: Sequence[Tensor], draw: Callable[[int], Sequence[Tensor]]
    ) -> None:
        self._model = model
        self._images = images
        self._next = 0
        self._draw = draw
        self._before = _some_numbers(images[0])
        self._is_lazy = False
        self.image = images[0]

    def __call__(self) -> object:
        """Run on the next input."""
        self.image = self._images[self._next]
        self._next = (self._next + 1) % len(self._images)
        output = self._model(self.image)
        return [tensor + 0 for tensor in tensors_in(output)] if self._is_lazy else output

    def first(self) -> None:
        """Run on the next input, and see what the network returns."""
        output = self()
        # such a tensor computes when it is asked for numbers
        self._is_lazy = any(type(tensor) is not Tensor for tensor in tensors_in(output))

    def preparation(self, flush: Callable[[], object]) -> Callable[[], object]:
        """Return what comes before each pass: `flush`.

        If the first pass wrote over its input, the next input gets its numbers again before that.
        """
        if torch.equal(self._before, _some_numbers(self._images[0])):
            return flush
        drawn = self._draw(min(len(self._images), caches.DRAWN))
        self._images[0].copy_(drawn[0])

        def prepare() -> None:
            self._images[self._next].copy_(drawn[self._next % len(drawn)])
            flush()

        return prepare


@dataclass(kw_only=True)
class InferenceNetwork(Network):
    """A network that runs forward; `run` is a pass."""

    run: Pass

    def passes(self, choices: Choices) -> InferencePasses:
        """Return the overall pass, and a layer pass if the sweep wants one."""
        return InferencePasses(self, choices)

    def forward(self, image: Tensor | None = None) -> object:
        """Run on images, or on the input of the last pass."""
        return self.model(self.run.image if image is None else image)

    def step(self) -> object:
        """Run on the next input."""
        return self.run()

    def output(self, times: Times) -> object:
        """Run on the first input, drawn anew: a network may have changed it.

        A graph replays on its own image, and gives the output.
        """
        (image,) = model_builder.make_inputs(self.point, self.rig.device.torch_device)
        if self.point.axes["launch"] != "graph":
            return self.model(image)
        self.run.image.data.copy_(image)
        return times.run()


class InferencePasses:
    """The overall pass and the layer passes, in turn."""

    repeatable = True

    def __init__(self, network: InferenceNetwork, choices: Choices) -> None:
        self._network = network
        self._choices = choices
        self._settings = dict(network.point.measure)
        self._first_ms = 0.0
        self._warmup_n = 0
        self.lanes: Lanes
        self._done: Collected
        self._compiled = False

    def warm_up(self) -> None:
        """Run the first call, then passes until they are steady and nothing compiles."""
        network = self._network
        axes = network.point.axes
        device = network.rig.device.torch_device
        with network.held.settling():
            network.rig.wait()
            begin = time.perf_counter_ns()
            network.run.first()
            network.rig.wait()
            self._first_ms = (time.perf_counter_ns() - begin) / 1e6
        calls = network.shapes.calls
        timed = calls if self._settings["layers"] is True else ()
        prepare = network.run.preparation(caches.preparation(axes["cache_state"], device))
        todo = LaneWork(network.model, network.run, prepare, timed, watched=calls)
        lanes = make_lanes(device, axes["launch"], todo)
        # the first call is one of them
        self._warmup_n = 1 + lanes.warm_up(self._settings)
        self.lanes = lanes.settled(self._warmup_n)

    def time(self, look: Callable[[], object]) -> None:
        """Run the lanes in turn until the stopping rule is satisfied."""
        self._done, self._compiled = self.lanes.collect(self._settings, look)

    def samples(self) -> list[float]:
        """Return the milliseconds of the overall pass."""
        return self._done.times[0]

    def times(self) -> Times:
        """Return the times; time convolutions alone first, if the sweep wants that."""
        network = self._network
        lanes = self.lanes
        done = self._done
        summary = stats.summarise(done.times[0])
        seconds = done.timed_s
        table: LayerRows | None = LayerTable.of(lanes, done.times)
        if self._settings["layers"] in layer_table.MODES:
            alone = layer_table.time_isolated(
                network.model, network.shapes.calls, self._choices, network.point, summary
            )
            seconds += alone.timed_s
            table = alone
        unseen = self._settings["layers"] is True and parts.is_compiled_in_part(network.model)
        rates = work.rate_cells(
            network.shapes,
            summary.median,
            network.point.axes,
            network.rig.device,
            tensor_cores=self._choices.may_use_tensor_cores or bool(network.shapes.outside),
        )
        flags = []
        if lanes.uncaptured:
            flags.append("layers_uncaptured")
        if (rates.pct_peak_compute or 0.0) > 100.0:
            flags.append("above_peak")
        cells = TimeCells(
            warmup_n=self._warmup_n,
            stop_reason=done.reason,
            timer=lanes.timer_name,
            first_call_ms=self._first_ms,
        )
        return Times(
            samples=done.times[0],
            summary=summary,
            seconds=seconds,
            run=lanes.clean.run,
            cells=[cells, rates],
            flags=flags,
            table=table,
            lanes=lanes,
            compiled=self._compiled,
            recompiled=lanes.compiled.blocks > 0,
            layers_compiled=bool(lanes.untimed) or unseen,
        )


def _images_of(point: Point) -> tuple[object, int]:
    return model_builder.image_shape(point.axes), point.axes["batch_size"]


def _some_numbers(image: Tensor) -> Tensor:
    """Return a copy of some numbers of an image, which stand for all."""
    # spread over the image: a network may write over a corner alone
    step = 1 + image.numel() // _NUMBERS
    return image.take(torch.arange(0, image.numel(), step, device=image.device))
