"""What could prove the product wrong: plans, graphs, types, equal rivals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks.gpu import convolutions, kernels, points
from benchmarks.gpu.lab import alone
from benchmarks.gpu.machine import Gpu, in_turns
from benchmarks.gpu.record import reason
from hpcsweep import catalog
from hpcsweep.catalog import gpus
from hpcsweep.conv import backend as backends
from hpcsweep.conv import choice
from hpcsweep.conv.libraries import cudnn_plans
from hpcsweep.conv.proof.kernels import recognise
from hpcsweep.measure import model_builder, rounding, switches
from hpcsweep.measure.timing import stats

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.gpu.lab import Lab, Options
    from hpcsweep.conv.backend import Backend
    from hpcsweep.conv.shape import ConvShape

_MOST_PLANS: Final = 20  # of the heuristic
_PROCESSES: Final = 3
_TYPES: Final = ("float32", "tf32", "float16", "bfloat16")


def plans(lab: Lab) -> None:
    """Run plans of some convolutions: errors, notes against kernels, support told before.

    The heuristic's choice for each shape comes first, then all plans of one shape after the other.
    """
    convolutions.full_precision()
    backend = backends.choose("cuda")
    shapes = dict(list(convolutions.kinds(lab.options).items())[: lab.options.most])
    told = _told_before()
    first = {f"{key} {catalog.HEURISTIC}": shape for key, shape in shapes.items()}
    with torch.inference_mode():
        for key, shape in lab.each(first):
            with lab.entry(key) as facts:
                facts.update(tried(backend, catalog.HEURISTIC, shape))
        lab.record.plan(shapes)  # each is missing until its plans are known
        for key, shape in shapes.items():
            for _ in lab.each({key: shape}):
                with lab.entry(key) as facts:
                    facts["names"] = backend.plans(shape, _MOST_PLANS)
                    facts["told"] = _engines(told, shape)
            names = lab.record.found.get(key, {}).get("names", ())
            for plan, name in lab.each({f"{key} {name}": name for name in names}):
                with lab.entry(plan) as facts:
                    facts.update(tried(backend, name, shape))


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
    verdict = rounding.of_call(layer, x, output, picked, device=kind, tf32=False)
    run = kernels.names(lambda: backend.forward(name, x, weight, None, shape))
    return {
        "plan": picked.plan or name,
        "notes": picked.plan_notes or "",
        "error": verdict.error,
        "excess": verdict.excess,
        "kernels": str(recognise(run)),
    }


def _engines(told: cudnn_plans.Graphs | None, shape: ConvShape) -> list[str] | None:
    """Return the engines of a shape, as they are told without the device; None: nobody tells."""
    return told and [f"eng{one['engine']}" for one in told.ask(shape)["engines"]]


def _told_before() -> cudnn_plans.Graphs | None:
    """Return what answers for this GPU from its data sheet, as before the queue."""
    name = torch.cuda.get_device_name()
    short = next(
        (one for one in reversed(gpus.known_to_cudnn()) if one.upper() in name.upper()), ""
    )
    properties = gpus.cudnn_properties(short)
    try:
        return cudnn_plans.Graphs.of(cudnn_plans.load(), properties) if properties else None
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
        switches.apply(catalog.axis_defaults("inference") | {"tf32": dtype == "tf32"})
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
    layer = convolutions.layer_of(shape, weight)
    tf32 = dtype == "tf32"
    return rounding.of_call(layer, x, output, picked, device=kind, tf32=tf32).excess


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
            one, other = alone(twins, lab.options)
            facts.update(number=number, one_ms=one, other_ms=other)


def twins(options: Options) -> list[float]:
    """Return the medians of the network's pass under two names, timed in turns."""
    kind = "cuda"
    with torch.inference_mode():
        axes = points.point(options, {})
        network = model_builder.build(model_builder.ModelKey.of(axes), torch.device(kind))
        (image,) = model_builder.make_inputs(axes, torch.device(kind))
        runs = {name: (lambda: network(image)) for name in ("one", "other")}
        return [stats.median(times) for times in in_turns(Gpu(), runs, options.iterations).values()]
