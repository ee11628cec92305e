"""Tells with torch, before `submit` sends anything, of weights, maps, own networks, and cuDNN.

Networks are built without their weights, if possible on the meta device, and only their shapes are
used. Which engines cuDNN has for them is told of GPUs that are not here. Each network is asked
about in a process of its own, by `hpcsweep.measure.trials`.
"""

from __future__ import annotations

import json
import linecache
import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, Final

import torch
from torch import nn

from hpcsweep import sources
from hpcsweep.catalog import WORKLOADS
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.conv.libraries import cudnn_graph
from hpcsweep.conv.shape import ConvShape
from hpcsweep.conv.tensors import tensors_in
from hpcsweep.measure import convolutions, model_builder
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.data import downloads
from hpcsweep.measure.data.loaders import SYNTHETIC_CLASSES, words
from hpcsweep.measure.shape_pass import Shapes, shape_pass
from hpcsweep.measure.workloads.training import training_network
from hpcsweep.point import Point

_IMAGES: Final = 2  # in a pass that must run for real, however large the batch is
# A login node may lack what the nodes have: libraries, files and memory raise these, ...
_LACKING: Final = (ImportError, OSError, MemoryError)
# ... and GPUs, their types, and variables of the jobs are in the message, or in the line itself.
_OF_NODES: Final = re.compile("CUDA|cuda|HIP|NVIDIA|GPU|not implemented for|allocate|environ")


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked `about` weights, a map, a network, or engines for convolutions.

    What cannot be told here is `failed`, the reason.
    """
    details = {name: value for name, value in question.items() if name != "about"}
    try:
        return _ABOUT[question["about"]](**details)
    except BaseException as error:  # noqa: BLE001 - whatever a factory's author wrote
        return {"failed": words(error)}


def _try(workload: str, axes: Mapping[str, Any]) -> dict[str, Any]:
    """Build a network and pass images through it; return what is `wrong`, or `failed` here.

    Else return the `calls` of its convolutions, and the `gflops` of an image.
    """
    try:
        found = shapes(workload, json.dumps(axes))
    except BaseException as error:  # noqa: BLE001 - whatever its author wrote, such as sys.exit
        where = sources.own_line(error)
        told = f"{where}: {words(error)}" if where else words(error)
        # the classes of the data, and so the last layer, are not known here
        is_open = WORKLOADS[workload].learns and isinstance(error, CannotMeasure)
        if is_open or isinstance(error, _LACKING) or _OF_NODES.search(f"{error} {_source(where)}"):
            return {"failed": told}
        return {"wrong": told}
    calls = [
        {"layer": layer, "key": shape.unique_key, "flops": shape.flops, "shape": asdict(shape)}
        for layer, shape in found.convolutions
    ]
    gflops = found.flops / min(axes["batch_size"], _IMAGES) / 1e9
    return {"calls": calls, "gflops": gflops}


def _source(where: str) -> str:
    """Return the text of a line that is named as ``file:number``."""
    file, _, number = where.rpartition(":")
    return linecache.getline(file, int(number)) if file else ""


def _weights(home: Mapping[str, str], model: str, name: str) -> dict[str, str]:
    """Return the problem of weights, below the TORCH_HOME of a profile."""
    os.environ.pop("TORCH_HOME", None)  # the previous profile's
    os.environ.update(home)
    return downloads.problem(model, name)


def _look(
    workload: str, layers: Mapping[str, str], cases: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the patterns of a map that match nothing, each with a hint.

    `cases` are the axes of points with the map and one network. A pattern may name shapes, so it
    needs to match in one case only. `failed` is the reason if no case could be checked.
    """
    idle = layers  # as a map; in the end the hints, by pattern
    looked = False
    why = ""
    for axes in cases:
        try:
            names = convolutions.names_of(shapes(workload, json.dumps(axes)))
        except Exception as error:  # noqa: BLE001 - a factory runs whatever its author wrote
            why = words(error)
            continue
        looked = True
        idle = convolutions.idle(idle, names)
        if not idle:
            break
    return {"idle": idle} if looked else {"failed": why}


def _engines(
    devices: Mapping[str, Mapping[str, Any]], convolutions: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the version of `cudnn`, and by device and convolution the `engines` that it has."""
    found: dict[str, dict[str, Any]] = {}
    try:
        library = cudnn_graph.load()
        for gpu, properties in devices.items():
            graphs = cudnn_graph.Graphs.of(library, properties)
            found[gpu] = {
                key: graphs.ask(ConvShape(**shape)) for key, shape in convolutions.items()
            }
    except LibraryUnusable as error:  # of which the class is no news
        return {"failed": str(error)}
    return {"cudnn": library.version, "engines": found}


_ABOUT: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    "weights": _weights,
    "map": _look,
    "network": _try,
    "engines": _engines,
}


@lru_cache(maxsize=1000)
def shapes(workload: str, case: str) -> Shapes:
    """Return the calls of a pass; `case` has the axes of a point as JSON."""
    axes = json.loads(case)
    shape = model_builder.image_shape(axes)
    batch = axes["batch_size"]
    images = min(batch, _IMAGES)
    amp = model_builder.AUTOCAST.get(axes.pop("amp", "off"))
    if WORKLOADS[workload].learns and ":" in axes["model"]:  # a pass tells the last layer of it
        axes["batch_size"] = images
    else:
        for name in ("batch_size", "input_size", "input_width"):
            axes.pop(name, None)
    model = _network(workload, json.dumps(axes))
    image = torch.ones(1, dtype=getattr(torch, axes["dtype"])).expand(images, *shape)
    with _returns_tensor(model), torch.autocast("cpu", amp, enabled=amp is not None):
        recorded = shape_pass(model, image)
    if recorded.late:
        _network.cache_clear()  # the layers made now may fit these images only
    calls = [
        replace(call, conv=replace(call.conv, n=call.conv.n * batch // images))
        for call in recorded.convolution_calls
        if call.conv
    ]
    return replace(recorded, calls=tuple(calls))


@lru_cache(maxsize=1)
def _network(workload: str, case: str) -> nn.Module:
    """Return the network of a case, with arbitrary weights."""
    axes = json.loads(case)
    if ":" not in axes["model"]:
        with suppress(NotImplementedError):  # RegNets compute with numbers while they are built
            return _built(workload, axes, torch.device("meta"))
    return _built(workload, axes, torch.device("cpu"))


def _built(workload: str, axes: Mapping[str, Any], device: torch.device) -> nn.Module:
    with device:
        if WORKLOADS[workload].learns:
            drawn = {**axes, "weights": model_builder.RANDOM, "seed": 0}
            classes = axes["num_classes"] or SYNTHETIC_CLASSES
            return training_network.build(Point(workload, drawn), classes, device)
        channels = model_builder.channels_of(axes)
        model = model_builder.build_float32(axes["model"], enliven=False, channels=channels)
    return model_builder.placed(model, device, axes["dtype"], axes["memory_format"])


def _returns_tensor(model: nn.Module) -> AbstractContextManager[object]:
    """Raise where a pass returns no tensor; a script takes no hook, and has types."""
    if isinstance(model, torch.jit.ScriptModule):
        return nullcontext()
    return model.register_forward_hook(_need_tensor)


def _need_tensor(_model: nn.Module, _args: object, output: object) -> None:
    if next(iter(tensors_in(output)), None) is None:
        raise TypeError("the network returns no tensor")
