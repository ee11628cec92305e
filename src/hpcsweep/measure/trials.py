"""Answers what `submit` asks of torch: about weights, maps, own networks, and engines of cuDNN.

`hpcsweep.submit.questions` runs this module as a program, and has the other end of the socket that
is its stdin and stdout. Requests come in and replies go out, one JSON object a line. The program
imports torch and computes nothing. For each request it forks the trial that runs the network, sees
how that ends, and kills what it left behind, also when nobody waits for the reply any more. One
network is tried at a time: a login node is shared, and a network may be large.

Networks are built without their weights, if possible on the meta device, and only their shapes are
used. Which engines cuDNN has for them is told of GPUs that are not here. Nothing is measured.
"""

from __future__ import annotations

import gc
import json
import linecache
import os
import re
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from hpcsweep import processes, sources
from hpcsweep.catalog import WORKLOADS
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.conv.libraries import cudnn_plans
from hpcsweep.conv.parts import tensors_in
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure import model_builder
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.data import downloads
from hpcsweep.measure.data.loaders import SYNTHETIC_CLASSES, words
from hpcsweep.measure.network import convolution_names, idle_patterns
from hpcsweep.measure.shape_pass import Shapes, shape_pass
from hpcsweep.measure.workloads import training_network
from hpcsweep.point import Point

# between two looks at a trial: a network with few layers takes about as long
_LOOK_SECONDS: Final = 0.02
# of a batch, in a pass that must run for real: more only take time, and a batch norm that learns
# refuses a single one
_IMAGES: Final = 2
# A login node may lack what the nodes have: libraries, files and memory raise these, ...
_LACKING: Final = (ImportError, OSError, MemoryError)
# ... and GPUs, their types, and variables of the jobs are in the message, or in the line itself.
_OF_NODES: Final = re.compile("CUDA|cuda|HIP|NVIDIA|GPU|not implemented for|allocate|environ")


def main() -> int:
    """Reply to one request after the other, until the other end is closed."""
    import torch._dynamo  # noqa: F401, PLC0415 - each first pass would import it, in 2 s

    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is imported may print
    sources.look_in(sys.argv[1:])
    processes.adopt_orphans()  # also those that make a session of their own
    print(file=replies, flush=True)  # ready: only now the time of a network begins
    for line in sys.stdin:
        request = json.loads(line)
        about = {question["about"] for question in request["questions"]}
        if ":" not in request["network"] and about != {"engines"}:  # which needs no network
            model_builder.torchvision_models()  # once for all
        gc.freeze()  # or the first search for garbage in each copy would copy all that it shares
        answers = _tried(request["questions"], request["seconds"], replies.fileno())
        print(json.dumps(answers), file=replies, flush=True)
    return 0


def _tried(
    questions: Sequence[Mapping[str, Any]], seconds: float, asker: int
) -> list[dict[str, Any]]:
    """Return an answer to each question; how the trial ended stands for those that did not come."""
    answers = list[dict[str, Any]]()
    with tempfile.TemporaryFile() as file:
        pid = processes.fork()
        if pid == 0:
            try:
                _answer(questions, file.fileno(), asker)
            finally:
                os._exit(0)  # threads that the network started may never end
        ending = _ending(pid, seconds, asker)
        file.seek(0)
        for line in file:
            with suppress(ValueError):  # it was cut off
                answers.append(json.loads(line))
    return answers + [ending] * (len(questions) - len(answers))


def _ending(pid: int, seconds: float, asker: int) -> dict[str, str]:
    """Return how a trial ended: by itself, or since it took too long or nobody waits for it."""
    hang_up = select.poll()
    hang_up.register(asker, 0)  # tells nothing but that the other end is closed
    until = time.monotonic() + seconds
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended and time.monotonic() < until and not hang_up.poll(1000 * _LOOK_SECONDS):
        ended, status = os.waitpid(pid, os.WNOHANG)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # where no process can adopt, this is all that can be done
    processes.end_orphans()
    if not ended:
        return {"failed": f"no answer within {seconds:.0f} s"}
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return {"wrong": f"it ends the process that runs it, with exit code {code}"}
    why = ", perhaps for lack of memory" if code == -signal.SIGKILL else ""
    return {"failed": f"its process ended by signal {-code} ({signal.strsignal(-code)}){why}"}


def _answer(questions: Sequence[Mapping[str, Any]], file: int, asker: int) -> None:
    """Write an answer to each question. What the network prints is lost; it has nothing to read."""
    os.setsid()
    processes.die_with_parent()
    os.close(asker)
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    with suppress(OSError):  # only Linux has it
        # where memory is short, this process is to be killed, and none of the user's others
        Path("/proc/self/oom_score_adj").write_text("1000")
    own = os.getpid()
    for question in questions:
        told = answer(question)
        if os.getpid() != own:
            return  # the network forked, and this is the copy
        os.write(file, json.dumps(told).encode() + b"\n")


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
        kind = "failed" if _may_work_elsewhere(error, workload, where) else "wrong"
        return {kind: told}
    calls = []
    for layer, shape in found.convolutions:
        about = {"key": shape.unique_key, "flops": shape.flops, "shape": asdict(shape)}
        calls.append({"layer": layer, **about})
    gflops = found.flops / min(axes["batch_size"], _IMAGES) / 1e9
    return {"calls": calls, "gflops": gflops}


def _may_work_elsewhere(error: BaseException, workload: str, where: str) -> bool:
    """Say whether a network that failed at a line, named as ``file:number``, may run on nodes."""
    if isinstance(error, _LACKING):
        return True
    if WORKLOADS[workload].learns and isinstance(error, CannotMeasure):
        return True  # the classes of the data, and so the last layer, are not known here
    file, _, number = where.rpartition(":")
    line = linecache.getline(file, int(number)) if file else ""
    return _OF_NODES.search(f"{error} {line}") is not None


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
            names = convolution_names(shapes(workload, json.dumps(axes)))
        except Exception as error:  # noqa: BLE001 - a factory runs whatever its author wrote
            why = words(error)
            continue
        looked = True
        idle = idle_patterns(idle, names)
        if not idle:
            break
    return {"idle": idle} if looked else {"failed": why}


def _engines(
    devices: Mapping[str, Mapping[str, Any]], convolutions: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the version of `cudnn`, and by device and convolution the `engines` that it has."""
    found: dict[str, dict[str, Any]] = {}
    try:
        library = cudnn_plans.load()
        for gpu, properties in devices.items():
            graphs = cudnn_plans.Graphs.of(library, properties)
            found[gpu] = {}
            for key, shape in convolutions.items():
                found[gpu][key] = graphs.ask(ConvShape(**shape))
    except LibraryUnusable as error:  # of which the class is no news
        return {"failed": str(error)}
    return {"cudnn": library.version, "engines": found}


_ABOUT: Final[Mapping[str, Callable[..., dict[str, Any]]]] = {
    "weights": _weights,
    "map": _look,
    "network": _try,
    "engines": _engines,
}


# as many cases as are asked of a map at most
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
    model = network(workload, json.dumps(axes))
    image = torch.ones(1, dtype=getattr(torch, axes["dtype"])).expand(images, *shape)
    checked = nullcontext()
    if not isinstance(model, torch.jit.ScriptModule):  # which takes no hook, and has types
        checked = model.register_forward_hook(_need_tensor)
    with checked, torch.autocast("cpu", amp, enabled=amp is not None):
        recorded = shape_pass(model, image)
    if recorded.late:
        network.cache_clear()  # the layers made now may fit these images only
    calls = []
    for call in recorded.convolution_calls:
        assert call.conv is not None  # noqa: S101 - it has a convolution
        calls.append(replace(call, conv=replace(call.conv, n=call.conv.n * batch // images)))
    return replace(recorded, calls=tuple(calls))


# memory never holds two networks
@lru_cache(maxsize=1)
def network(workload: str, case: str) -> nn.Module:
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


def _need_tensor(_model: nn.Module, _args: object, output: object) -> None:
    if next(iter(tensors_in(output)), None) is None:
        raise TypeError("the network returns no tensor")


if __name__ == "__main__":
    os._exit(main())  # to take torch apart is a tenth of what the program does
