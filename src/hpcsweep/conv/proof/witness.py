"""A second look at a pass, without profiler, hooks and modes, and at what the timed passes gave.

Code can ask whether the profiler runs, and compute otherwise meanwhile. Torch's execution trace
lists the same operators with their sizes, and nothing says that it is on. So the pass is traced
before it is profiled, and both lists must be equal. The last output of the timed passes must be
that of the profiled pass, bit by bit, unless two plain passes on one input differ, too.

A graph's replay has no operators, so nothing says which call a kernel belongs to. But the call that
was profiled eagerly says which kernels it needs: each has to be among those of the replay, as often
as all calls together ran it.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

from hpcsweep.conv.choice import FRAMEWORK_CHOICES, LayerChoice
from hpcsweep.conv.operators import Operation
from hpcsweep.conv.proof import profiler_events
from hpcsweep.conv.proof.autograd_graph import tensors_in
from hpcsweep.conv.proof.evidence import Evidence, Proof, kernel_word
from hpcsweep.records import dataclass, field, replace

Work = Counter[Operation]

_STDERR: Final = 2
_ADDS: Final = Operation("aten::add")  # what `profiler_events.sacrifice` launches
# What passes that are not the same twice may differ by: of the largest value, or of two plain ones.
_CLOSE: Final = 1e-3
_SPREAD: Final = 16
_SMALL: Final = 1 << 20  # bytes of outputs that are kept between timed passes
_FEW: Final = 4
_SESSIONS: Final = 3  # of the profiler, for one replay


class Kept:
    """A pass whose last output is kept."""

    def __init__(self, run: Callable[[], object]) -> None:
        self.run, self.output = run, cast("object", None)

    def __call__(self) -> object:
        """Run; the output before goes first, so that there are never two."""
        self.output = None
        self.output = self.run()
        return self.output


class Witness:
    """Looks at a pass before it is profiled, if any of its calls claims an algorithm."""

    def __init__(self, picked: Iterable[LayerChoice], run: Callable[[], object]) -> None:
        explicit = any(item.used not in FRAMEWORK_CHOICES for item in picked)
        self.seen = look(run)[0] if explicit else None
        self.problem: str | None = None

    def compare(self, events: Iterable[Any], run: Kept) -> None:
        """Compare with the profiler's events of a pass; `run` is that pass."""
        if self.seen is not None:
            profiled = work_in(profiler_events.roots(events))
            self.problem = contradiction(self.seen, profiled, run.output, run.run)


@dataclass
class _Event:
    """A node of the trace, as the profiler has events."""

    name: str
    input_shapes: list[Any]
    cpu_children: list[_Event] = field(default_factory=list)
    cpu_parent: None = None


def look(run: Callable[[], object]) -> tuple[Work, object]:
    """Return what computes in a run, and its output."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with _traced(str(path)):
            output = run()
        nodes = json.loads(path.read_text())["nodes"]
    events = {node["id"]: _Event(node["name"], node["inputs"]["shapes"]) for node in nodes}
    roots = list[_Event]()
    for node in sorted(nodes, key=lambda node: node["id"]):
        event, parent = events[node["id"]], events.get(node["ctrl_deps"])
        siblings = roots if parent is None or parent is event else parent.cpu_children
        siblings.append(event)
    return work_in(roots), output


def work_in(roots: Iterable[Any]) -> Work:
    """Return what computes in events that are inside of no other."""
    found = Counter(operation for operation, _ in profiler_events.work_of(roots))
    del found[_ADDS]
    return found


def seeded(run: Callable[[], object]) -> Callable[[], object]:
    """Return a pass that draws the same random numbers every time."""

    def repeatable() -> object:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return run()

    return repeatable


def contradiction(
    seen: Work, profiled: Work, output: object, run: Callable[[], object]
) -> str | None:
    """Return what a pass runs only while the profiler looks, or only while it does not.

    What is computed may depend on the input's values. So if another input was seen, `run` is looked
    at. If it is the same twice, which its output tells, it has to run the same.
    """
    for _ in range(2):
        if seen == profiled:
            return None
        seen, again = look(run)
        if seen != profiled and _same(list(tensors_in(again)), list(tensors_in(output))):
            break
    else:
        return None
    for more, less, when in ((profiled, seen, "only"), (seen, profiled, "not")):
        if found := more - less:
            return f"ran {found.most_common(1)[0][0]} {when} while the profiler looked"
    return None


def differ(timed: Sequence[object], profiled: object, again: Callable[[], object]) -> str | None:
    """Return how the outputs of timed passes differ from that of the profiled pass, or None.

    What is not the same twice (`again`) may differ as much as it does anyway.
    """
    wanted, given = list(tensors_in(profiled)), [list(tensors_in(output)) for output in timed]
    if all(_same(output, wanted) for output in given):
        return None
    steady = len(given) > 1 and all(_same(output, given[0]) for output in given)
    first, second = ([t.clone() for t in tensors_in(again())] for _ in range(2))
    if not steady and not _same(first, second):
        spread = _SPREAD * max(map(_distance, first, second))
        if all(_close(output, wanted, spread) for output in given):
            return None
    return "the timed passes gave another output than the profiled one"


def keep(outputs: list[object], output: object) -> None:
    """Add an output to distinct ones, if it is small and they are few."""
    tensors = list(tensors_in(output))
    small = sum(t.numel() * t.element_size() for t in tensors) <= _SMALL and len(outputs) < _FEW
    if small and not any(_same(list(tensors_in(kept)), tensors) for kept in outputs):
        outputs.append(output)


def replayed_kernels(run: Callable[[], object], device: torch.device) -> Counter[str]:
    """Return the kernels of one replay, the most that a session has: each may lose some."""
    kernels = Counter[str]()
    for _ in range(_SESSIONS):
        if not profiler_events.sees_kernels():
            break
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            profiler_events.sacrifice(torch.zeros(8, device=device))
            run()
            torch.cuda.synchronize()
        cuda = torch.autograd.DeviceType.CUDA
        events = list(profiler.events())
        profiler_events.look_for_kernels(events)
        kernels |= Counter(event.name for event in events if event.device_type == cuda)
    return kernels


def held_against(proof: Proof, ran: Counter[str]) -> Proof:
    """Return a proof whose calls are contradicted where the replay lacks kernels of theirs.

    A profiler that recorded none at all has not seen that one is missing.
    """

    def computing(call: Evidence) -> list[str]:
        return call.seen.computing if call.seen else []

    def judged(call: Evidence) -> Evidence:
        missing = next((name for name in computing(call) if ran[name] < needed[name]), None)
        if missing is None or call.problem:
            return call
        return replace(call, problem=f"the replay lacks {kernel_word(missing)}")

    if not ran:
        return proof
    needed = Counter(name for call in proof.calls for name in computing(call))
    return replace(proof, calls=tuple(map(judged, proof.calls)))


def _same(given: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> bool:
    """Say whether tensors have the same bits; not a number is the same as itself."""
    return len(given) == len(wanted) and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
        for a, b in zip(given, wanted, strict=True)
    )


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = _dense(tensor.detach())
    return tensor.reshape(-1).contiguous().view(torch.uint8)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    return tensor if tensor.layout == torch.strided else tensor.to_dense()


def _close(given: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], most: float) -> bool:
    return len(given) == len(wanted) and all(
        a.shape == b.shape and _distance(a, b) <= max(most, _CLOSE * _distance(b, 0 * b))
        for a, b in zip(given, wanted, strict=True)
    )


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    exact = torch.complex128 if a.is_complex() else torch.float64
    a, b = _dense(a).to(exact), _dense(b).to(exact)
    return float((a - b).abs().max()) if a.numel() else 0.0


@contextmanager
def _traced(path: str) -> Iterator[None]:
    """Write the execution trace of the block; torch announces it on standard error."""
    observer = ExecutionTraceObserver()
    with _silenced():
        observer.register_callback(path)
        observer.start()
    try:
        yield
    finally:
        with _silenced():
            observer.stop()
            observer.unregister_callback()


@contextmanager
def _silenced() -> Iterator[None]:
    sys.stderr.flush()
    saved, nowhere = os.dup(_STDERR), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, _STDERR)
    try:
        yield
    finally:
        os.dup2(saved, _STDERR)
        os.close(saved)
        os.close(nowhere)
