"""What the profiler says: kernels and durations of every call, and what its sessions do."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import torch
from torch.nn import functional as F  # noqa: N812 - its own habit
from torch.profiler import record_function

from benchmarks.gpu import convolutions, points
from hpcsweep.conv.proof import profiler_events
from hpcsweep.conv.proof.kernels import Grade, recognise
from hpcsweep.conv.proof.profiler_events import SACRIFICE
from hpcsweep.measure.timing import stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from benchmarks.gpu.lab import Lab

_REPEATS: Final = 10
_TRIES: Final = 3
ATTACHED: Final = "attached"
_MARK: Final = "hpcsweep.proof|"
_OPERATOR: Final = "aten::cudnn_convolution"
_CONVOLUTIONS: Final = 60
_SESSIONS: Final = 8
_GPU: Final = torch.device("cuda")


def durations(lab: Lab) -> None:
    """Profile every convolution with every algorithm, and claim each of the others' kernels."""
    convolutions.full_precision()
    with torch.inference_mode():
        for key, shape in lab.each(convolutions.kinds(lab.options)):
            with lab.entry(key) as facts:
                runs = dict(convolutions.calls(shape, "cuda"))
                runs.pop(convolutions.AGAIN)
                found = profiled(runs)
                ran = {n: found[n]["kernels"] for n in convolutions.EXPLICIT if n in found}
                facts.update(found, controls=refuted(ran))


def refuted(ran: Mapping[str, list[str]]) -> dict[str, Any]:
    """Return what kernels say of every claim about them, by [what ran, what is claimed].

    Where the kernels that tell are of both algorithms (both FFTs, products of matrices, depthwise
    layers), or two names ran the same ones, no name can refute a claim: such pairs are `shared`.
    """
    seen = {name: found for name, found in ran.items() if found}
    accepted = []
    shared = []
    own = []
    for name, found in seen.items():
        told = recognise(found)
        if told.grade(name) is Grade.CONTRADICTED:
            own.append([name, str(told)])
        for claimed in (other for other in convolutions.EXPLICIT if other != name):
            if told.grade(claimed) is Grade.CONTRADICTED:
                continue
            both = {name, claimed} <= told.algorithms or sorted(found) == sorted(
                seen.get(claimed, [])
            )
            (shared if both else accepted).append([name, claimed])
    claims = len(seen) * (len(convolutions.EXPLICIT) - 1)
    return {"claims": claims, "accepted": accepted, "shared": shared, "own_refused": own}


def profiled(runs: Mapping[str, Callable[[], object]]) -> dict[str, Any]:
    """Return kernels and microseconds of each call; what shows no kernel is profiled again."""
    found: dict[str, Any] = {}
    for _ in range(_TRIES):
        lacking = {name: run for name, run in runs.items() if not found.get(name, {}).get("us")}
        if not lacking:
            break
        found |= read(_session(lacking, _REPEATS))
    return found


def names(run: Callable[[], object]) -> list[str]:
    """Return the full names of the kernels of a call, by the first session that shows any."""
    for _ in range(_TRIES):
        found: list[str] = read(_session({"call": run}, 1))["call"]["kernels"]
        if found:
            return found
    return []


def _session(runs: Mapping[str, Callable[[], object]], repeats: int) -> Iterable[Any]:
    for run in runs.values():
        run()
    with profiler_events.session(_GPU) as profiler:
        for name, run in runs.items():
            for _ in range(repeats):
                with record_function(f"{_MARK}{name}"):
                    run()
        torch.cuda.synchronize()
    found: Iterable[Any] = profiler.events()
    return found


def read(events: Iterable[Any]) -> dict[str, Any]:
    """Return of each marked call its kernels, and the median of their durations together.

    A repeat that shows fewer kernels than another lost some, and does not count.
    """
    seen: dict[str, list[list[Any]]] = {}
    for event in events:
        if profiler_events.is_range(event, _MARK):
            inside = [k for one in profiler_events.descendants(event) for k in one.kernels]
            seen.setdefault(event.name.removeprefix(_MARK), []).append(inside)
    return {name: _told(repeats) for name, repeats in seen.items()}


def _told(repeats: Sequence[list[Any]]) -> dict[str, Any]:
    most = max(map(len, repeats))
    whole = [kernels for kernels in repeats if len(kernels) == most]
    if not most:
        return {"kernels": [], "us": None, "lost": 0}
    return {
        "kernels": [kernel.name for kernel in whole[-1]],
        "us": stats.median([sum(kernel.duration for kernel in kernels) for kernels in whole]),
        "lost": len(repeats) - len(whole),
    }


def sessions(lab: Lab) -> None:
    """Measure a point, open many profiler sessions, measure it again; see what sessions lose.

    Then once more after a session that leaves CUPTI in the process, as torch does by itself.
    """
    # the order within one process is what is looked at, so a part of an earlier one is of no use
    lab.record.found.clear()
    lab.record.failed.clear()
    launches: dict[str, int | None] = {"first": None, "second": None}
    for number in range(_SESSIONS):
        launches[f"session {number}"] = SACRIFICE if number % 2 else 0
    launches |= {"after": None, ATTACHED: None}
    bench = points.bench_of()
    for key, sacrificed in lab.each(launches):
        with lab.entry(key) as facts:
            if sacrificed is not None:
                facts.update(_one_session(sacrificed, lab.options.idle_s))
                continue
            if key == ATTACHED:
                with mock.patch.dict(os.environ, TEARDOWN_CUPTI="0"):
                    _one_session(0, lab.options.idle_s)
            facts.update(points.pass_times(bench, lab.options))


def _one_session(sacrificed: int, idle_s: float) -> dict[str, Any]:
    """Profile convolutions in the product's session, with so many launches for nothing before."""
    x = torch.randn(1, 64, 28, 28, device=_GPU)
    weight = torch.randn(64, 64, 3, 3, device=_GPU)
    F.conv2d(x, weight, padding=1)
    torch.cuda.synchronize()
    time.sleep(idle_s)
    launches = mock.patch.object(profiler_events, "SACRIFICE", sacrificed)
    with launches, torch.no_grad(), profiler_events.session(_GPU) as seen:
        for _ in range(_CONVOLUTIONS):
            F.conv2d(x, weight, padding=1)
        torch.cuda.synchronize()
    return {"sacrificed": sacrificed, **lost(seen.events())}


def lost(events: Iterable[Any], operator: str = _OPERATOR) -> dict[str, Any]:
    """Return how many of an operator's calls show no kernel, and where the first ones are."""
    calls = [event for event in events if event.name == operator]
    without = [place for place, event in enumerate(calls) if not event.kernels]
    return {"calls": len(calls), "lost": len(without), "which": without[:12]}
