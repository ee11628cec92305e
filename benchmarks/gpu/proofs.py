"""What could prove the product wrong: false claims, plans, graphs, types, equal rivals, energy."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.gpu import ROOT, convolutions, environment, kernels, points
from benchmarks.gpu.machine import in_turns
from benchmarks.gpu.record import reason
from hpcsweep import catalog
from hpcsweep.catalog import gpus
from hpcsweep.conv import backend as backends
from hpcsweep.conv import choice
from hpcsweep.conv.libraries import cudnn_graph
from hpcsweep.conv.proof.kernels import recognise
from hpcsweep.measure import models, rounding
from hpcsweep.measure.machine import framework, provenance
from hpcsweep.measure.rounding import Arithmetic
from hpcsweep.measure.timing import caches, clocks, stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from benchmarks.gpu.lab import Lab
    from hpcsweep.conv.backend import Backend
    from hpcsweep.conv.shape import ConvShape

_MOST_PLANS: Final = 20  # of the heuristic
_PROCESSES: Final = 3
_POWER_S: Final = 3.0
_LOOK_S: Final = 0.02
_TYPES: Final = ("float32", "tf32", "float16", "bfloat16")


def plans(lab: Lab) -> None:
    """Run every plan of some convolutions: errors, notes against kernels, support told before."""
    convolutions.full_precision()
    backend = backends.choose("cuda")
    kinds = list(convolutions.kinds(lab.options).items())[: lab.options.most]
    told = _told_before()
    with torch.inference_mode():
        for key, shape in lab.each(dict(kinds)):
            with lab.entry(key) as facts:
                facts["plans"] = {
                    name: tried(backend, name, shape) for name in backend.plans(shape, _MOST_PLANS)
                }
                if told:
                    facts["told"] = [f"eng{one['engine']}" for one in told.ask(shape)["engines"]]


def tried(backend: Backend, name: str, shape: ConvShape) -> dict[str, Any]:
    """Run a plan once; return its error over what rounding explains, its notes, its kernels."""
    kind = "cuda"
    try:
        picked = choice.decide(name, "layer", shape, backend, kind)
    except Exception as error:  # noqa: BLE001 - a plan that ends a point must not end the step
        return {"raised": reason(error)}
    if picked.fallback:
        return {"refused": picked.reason}
    x, weight = convolutions.operands(shape, kind)
    layer = convolutions.layer_of(shape, weight)
    output = backend.forward(name, x, weight, None, shape)
    how = Arithmetic.of(picked, kind, tf32=False, casts=False)
    verdict = rounding.of_call(layer, x, output, how, whole=True)
    run = kernels.names(lambda: backend.forward(name, x, weight, None, shape))
    return {
        "plan": picked.plan or name,
        "notes": picked.plan_notes or "",
        "error": verdict.error,
        "excess": verdict.excess,
        "kernels": str(recognise(run)),
    }


def _told_before() -> cudnn_graph.Graphs | None:
    """Return what answers for this GPU from its data sheet, as before the queue."""
    name = torch.cuda.get_device_name()
    short = next(
        (one for one in reversed(gpus.known_to_cudnn()) if one.upper() in name.upper()), ""
    )
    properties = gpus.cudnn_properties(short)
    try:
        return cudnn_graph.Graphs.of(cudnn_graph.load(), properties) if properties else None
    except Exception as error:  # noqa: BLE001 - the plans are there without it
        print(f"support is not told before: {reason(error)}", flush=True)
        return None


def precision(lab: Lab) -> None:
    """Compare every algorithm with float64 in each type: errors over what rounding explains."""
    backend = backends.choose("cuda")
    shapes = list(convolutions.kinds(lab.options).values())[: lab.options.most]
    wanted = {
        f"{name} {dtype}": (name, dtype) for dtype in _TYPES for name in convolutions.EXPLICIT
    }
    for key, (name, dtype) in lab.each(wanted):
        framework.apply(catalog.axis_defaults("inference") | {"tf32": dtype == "tf32"})
        with lab.entry(key) as facts, torch.inference_mode():
            of_type = (convolutions.of_type(shape, dtype) for shape in shapes)
            found = [_excess(backend, name, one, dtype) for one in of_type]
            known = [one for one in found if one is not None]
            facts.update(ran=len(known), of=len(found), excess=max(known, default=None))
    convolutions.full_precision()


def _excess(backend: Backend, name: str, shape: ConvShape, dtype: str) -> float | None:
    kind = "cuda"
    picked = choice.decide(name, "layer", shape, backend, kind)
    if picked.fallback:
        return None
    x, weight = convolutions.operands(shape, kind)
    output = backend.forward(name, x, weight, None, shape)
    how = Arithmetic.of(picked, kind, tf32=dtype == "tf32", casts=False)
    layer = convolutions.layer_of(shape, weight)
    return rounding.of_call(layer, x, output, how, whole=True).excess


def replayed(lab: Lab) -> None:
    """Compare the output of a graph's replay with the eager one, on inputs that it never saw."""
    convolutions.full_precision()
    kind = "cuda"
    names = (catalog.AUTO, *convolutions.EXPLICIT)
    shapes = list(convolutions.kinds(lab.options).items())[: lab.options.most]
    with torch.inference_mode():
        for key, shape in lab.each(dict(shapes)):
            with lab.entry(key) as facts:
                runs = dict(convolutions.calls(shape, kind))
                facts.update({n: same_replayed(lab, runs[n]) for n in names if n in runs})


def same_replayed(lab: Lab, run: Callable[[], object]) -> bool:
    """Say whether a batch of calls in a graph gives, after new inputs, what eager calls give."""
    x = next(one for one in run.args if isinstance(one, torch.Tensor))  # type: ignore[attr-defined]
    kept: list[torch.Tensor] = []
    batch = lab.machine.batch(lambda: kept.append(run()), 1)  # type: ignore[arg-type]
    x.copy_(torch.randn(x.shape).to(x))
    kept[:-1] = []
    batch()
    lab.machine.runtime.synchronize()
    eager = run()
    return bool(torch.allclose(kept[-1].double(), eager.double(), rtol=1e-5, atol=1e-5))  # type: ignore[attr-defined]


def stars(lab: Lab) -> None:
    """Time one call under two names in several processes: a star would be for nothing."""
    for key, number in lab.each({f"process {n}": n for n in range(_PROCESSES)}):
        with lab.entry(key) as facts:
            command = (sys.executable, "-c", _TWINS, json.dumps(asdict(lab.options)))
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
            one, other = json.loads(done.stdout.splitlines()[-1])
            facts.update(number=number, one_ms=one, other_ms=other)


_TWINS: Final = """
import json, sys
from benchmarks.gpu import machine, proofs
from benchmarks.gpu.lab import Options
print(json.dumps(proofs.twins(machine.Gpu(), Options(**json.loads(sys.argv[1])))))
"""


def twins(device: Any, options: Any) -> list[float]:  # noqa: ANN401 - a machine, and options
    """Return the medians of the network's pass under two names, timed in turns."""
    kind = "cuda"
    with torch.inference_mode():
        axes = points.point(options, {})
        network = models.build(models.ModelKey.of(axes), torch.device(kind))
        (image,) = models.make_inputs(axes, torch.device(kind))
        runs = {name: (lambda: network(image)) for name in ("one", "other")}
        return [
            stats.median(times) for times in in_turns(device, runs, options.iterations).values()
        ]


def energy(lab: Lab) -> None:
    """Hold the energy counter against power that is integrated, under a heavy batch."""
    watch = environment.watch()
    with torch.inference_mode():
        network = models.build_float32(lab.options.model).cuda()
        image = torch.randn(lab.options.heavy, 3, lab.options.size, lab.options.size, device="cuda")
        for key, run in lab.each({"heavy batch": lambda: network(image)}):
            with lab.entry(key) as facts:
                watch.begin()
                row = watch.energy_of(run, torch.cuda.synchronize)
                facts.update(energy_j=row.get("energy_j"), **integrated(run))
                watch.sample()
                facts["reasons"] = watch.cells().get("throttle_reasons")


def integrated(run: Callable[[], object]) -> dict[str, float]:
    """Return joules of a pass by NVML's power, looked at every 20 ms while passes run."""
    import pynvml  # noqa: PLC0415 - only where there is an NVIDIA GPU

    pynvml.nvmlInit()
    number = provenance.driver_index(torch.cuda.current_device())
    handle = pynvml.nvmlDeviceGetHandleByIndex(number)
    looks = list[tuple[float, float]]()
    passes = 0
    began = time.monotonic()
    while time.monotonic() - began < _POWER_S:
        run()
        torch.cuda.synchronize()
        passes += 1
        looks.append((time.monotonic(), pynvml.nvmlDeviceGetPowerUsage(handle) / 1000))
        time.sleep(max(0.0, _LOOK_S - (time.monotonic() - looks[-1][0])))
    return {"integrated_j": area(looks) / passes, "looks": float(len(looks))}


def area(looks: Iterable[tuple[float, float]]) -> float:
    """Return the integral of (time, power), by trapezoids."""
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(looks))


def bandwidth(lab: Lab) -> None:
    """Read a whole cache's worth cold: no faster than memory, and hot it may be."""
    kind = torch.device("cuda")
    numbers = torch.randn(caches.cache_bytes(kind) // 4, device=kind)
    flush = caches.preparation("cold", kind)
    for key, prepare in lab.each({"cold": flush, "hot": clocks.nothing}):
        with lab.entry(key) as facts:
            ms = stats.median(
                in_turns(lab.machine, {"": numbers.sum}, lab.options.iterations, prepare)[""]
            )
            facts.update(bytes=numbers.nbytes, ms=ms, gbs=numbers.nbytes / ms / 1e6)
