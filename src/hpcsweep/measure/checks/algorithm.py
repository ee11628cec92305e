"""The algorithm check: proves what each convolution ran, and tells how much of the pass that is.

All convolutions of a pass count, whatever calls them. If the point has an explicit algorithm, those
that no back-end can run are *uncovered*, and a column names them.

1. Each call of a plain `nn.Conv2d` has a choice: as requested, or a fallback with its reason.
2. The evidence of a call, by the profiler or the library, may refute its choice.
3. Other convolutions run in the framework: they are uncovered if the algorithm is an explicit one;
   so are those that the profiler saw and the shape pass did not.
4. The share of calls that used the algorithm is by work and, with a layer pass, by time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from hpcsweep import catalog
from hpcsweep.catalog.checks.algorithm import (
    ABSENT,
    FALLBACK,
    KERNELS_UNSEEN,
    MISMATCH,
    UNCOVERED,
    UNPROVEN,
    WORK_UNKNOWN,
    AlgorithmCells,
    LayerAlgorithm,
)
from hpcsweep.conv import choice, parts
from hpcsweep.conv.backend import FRAMEWORK
from hpcsweep.conv.choice import Algorithm, LayerChoice
from hpcsweep.conv.proof import Evidence, Proof, Source, cell, profiled_passes, profiler_events
from hpcsweep.conv.proof.kernels import recognise
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.network import Choices, Network, Times, left_to_framework, reason, unmet
from hpcsweep.measure.operations import Convolution
from hpcsweep.measure.shape_pass import Shapes
from hpcsweep.measure.timing import layer_timer

# Layers that a cell names; the others are counted, so that a table stays readable.
_SHOWN: Final = 3
# Of all operations: products with vectors are in one of the two counts alone.
_SHARE: Final = 0.01


class AlgorithmCheck(PointCheck):
    """Profiles a pass, and a step if the workload learns."""

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Prove what ran; compare it with what was asked for."""
        return _found(network, choices, times, self._prove(network, choices, times))

    def without(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Tell what was chosen; nothing proves it."""
        return _found(network, choices, times, _unseen(choices))

    def _prove(self, network: Network, choices: Choices, times: Times) -> Proof:
        """Prove a forward pass, hold a graph's replay against it, prove the gradients of a step."""
        axes = network.point.axes
        compiled = axes.get("compile", "none") != "none"  # then the pass is not what was timed
        if not network.point.measure["evidence"] or compiled or not choices.calls:
            return _unseen(choices)
        device = self.rig.device
        # on a GPU the other layers are marked, so that their kernels are known
        marked = network.shapes.calls if device.type == "cuda" else ()
        marking = partial(layer_timer.marked, network.model, marked)
        proof = profiled_passes.prove_forward(
            network.model, network.forward, choices.calls, choices.backend, marking
        )
        if axes.get("launch") == "graph":
            ran = profiled_passes.replayed_kernels(times.run, device.torch_device)
            proof = profiled_passes.held_against(proof, ran)
        if network.compute is None:
            return proof
        backward = profiled_passes.prove_backward(
            network.model, network.compute, choices.learning, choices.backend
        )
        return replace(proof, calls=(*proof.calls, *backward))


def _found(network: Network, choices: Choices, times: Times, proof: Proof) -> Finding:
    """Return what is told of the algorithms, given the proof of what ran."""
    algorithm = network.point.axes["algorithm"]
    means = times.table.convolution_means() if times.table else None
    cells = use(algorithm, network.shapes, choices, proof, means)
    is_profiled = proof.work is not None
    other_work = is_other_work(network.shapes, proof)
    flags = {
        MISMATCH: any(call.problem is not None for call in proof.calls),
        ABSENT: is_absent(algorithm, choices.calls),
        FALLBACK: bool(cells.conv_fallbacks) or any(c.fallback for c in choices.gradients),
        UNCOVERED: cells.algorithm_uncovered is not None,
        UNPROVEN: is_unproven(choices, proof),
        KERNELS_UNSEEN: is_profiled and not profiler_events.sees_kernels(),
        # compiled parts run what no shape pass sees
        WORK_UNKNOWN: other_work and not parts.is_compiled_in_part(network.model),
    }
    layers = call_cells(choices.all, proof.calls)
    others = [LayerAlgorithm(kernel_ms=ms) for ms in proof.others_ms]
    return Finding(cells=cells, flags=flags, layers=layers, others=others, proof=proof)


def _unseen(choices: Choices) -> Proof:
    return Proof.unseen(picked.layer for picked in [*choices.calls, *choices.learning])


def is_unproven(choices: Choices, proof: Proof) -> bool:
    """Say whether a pass was profiled, and did not show what an explicit algorithm ran."""
    if proof.work is None or not profiler_events.sees_kernels():
        return False
    for picked, call in zip(choices.calls, proof.calls, strict=False):  # gradients come last
        if picked.used not in choice.FRAMEWORK_CHOICES and call.source is not Source.PROFILER:
            return True
    return False


def is_other_work(shapes: Shapes, proof: Proof) -> bool:
    """Say whether the profiled pass ran other convolutions or products than the shape pass.

    Its path may depend on the device or on values, or it kept what an earlier pass computed.
    """
    profiled = proof.work
    if profiled is None:
        return False
    for conv in shapes.outside:
        if not conv.counted or conv.part or not conv.operator.startswith("conv"):
            return False  # the profiler counts such a one otherwise, or not at all
    expected = len(shapes.convolution_calls) + len(shapes.outside)
    if profiled.convolutions != expected or profiled.elsewhere > 0:
        return True
    products = shapes.flops - shapes.convolution_flops
    if profiled.flops is None:
        return False
    return abs(profiled.flops - products) > _SHARE * shapes.flops


def use(
    algorithm: Algorithm,
    shapes: Shapes,
    choices: Choices,
    proof: Proof,
    means: tuple[Sequence[float], Sequence[float]] | None = None,
) -> AlgorithmCells:
    """Return the columns that say whether a point used its algorithm.

    `means` are the mean milliseconds in the layer pass of the convolution calls, gradients last,
    and of the layers with other convolutions; None without a layer pass.
    """
    missed = unmet(algorithm, shapes.outside)
    refuted = {at for at, call in enumerate(proof.calls) if call.problem is not None}
    as_asked = []
    reasons = []
    workspaces = []
    for at, picked in enumerate(choices.all):
        as_asked.append(picked.as_requested and at not in refuted)
        if picked.reason:
            reasons.append(picked.reason)
        if picked.workspace_bytes is not None:
            workspaces.append(picked.workspace_bytes)
    reasons += map(reason, missed)
    commonest = Counter(reasons).most_common(1)
    backends = Counter(picked.backend for picked in choices.calls)
    used = Counter(map(ran, choices.calls, proof.calls))
    if shapes.outside:
        backends[FRAMEWORK] += len(shapes.outside)
        used[catalog.AUTO] += len(shapes.outside)
    # convolutions that cannot be swapped: in subclasses, or outside of layers
    unswappable = list[Convolution]()
    for call, picked in zip(shapes.convolution_calls, choices.calls, strict=True):
        if not picked.swappable:
            unswappable += call.convolutions
    uncovered = _shares_text([*unswappable, *missed], shapes)
    return AlgorithmCells(
        backend=joined(backends),
        algorithm_used=joined(used),
        algorithm_evidence=proof.source.value,
        algorithm_coverage_pct=_share_of_work(shapes, as_asked[: len(choices.calls)], missed),
        algorithm_coverage_time_pct=_share_of_time(algorithm, shapes, as_asked, means),
        algorithm_uncovered=uncovered or unforeseen(algorithm, shapes, proof.outside),
        conv_calls=used.total(),
        conv_fallbacks=sum(picked.fallback for picked in choices.calls) + len(missed),
        fallback_reason=commonest[0][0] if commonest else None,
        workspace_bytes=max(workspaces, default=None),
    )


def unforeseen(algorithm: Algorithm, shapes: Shapes, seen: Sequence[str]) -> str | None:
    """Return a message about convolutions that only the profiler saw; None without any."""
    if not seen or shapes.outside or left_to_framework(algorithm, ""):
        return None
    return f"the profiler saw {', '.join(seen)}"


def is_absent(algorithm: Algorithm, choices: Sequence[LayerChoice]) -> bool:
    """Say whether a point asks for an explicit algorithm, and no convolution runs one.

    A map may name some for layers that the network does not have.
    """
    open_ones = {*choice.FRAMEWORK_CHOICES}
    if any(picked.used not in open_ones for picked in choices):
        return False
    if isinstance(algorithm, str):
        return algorithm not in open_ones
    wanted = {picked.requested for picked in choices} or {*algorithm.values()}
    return not wanted <= open_ones


def joined(counted: Counter[str]) -> str | None:
    """Return names joined by `+`, the commonest first; None without any."""
    return "+".join(name for name, _ in counted.most_common()) or None


def _share_of_work(
    shapes: Shapes, as_asked: Sequence[bool], missed: Sequence[Convolution]
) -> float | None:
    total = shapes.convolution_flops
    met = total
    for conv in missed:
        if not conv.counted:
            return 0.0  # a lower bound
        met -= conv.flops
    for call, is_met in zip(shapes.convolution_calls, as_asked, strict=True):
        if not is_met:
            met -= call.convolution_flops
    return 100 * met / total if total else None


def _share_of_time(
    algorithm: Algorithm,
    shapes: Shapes,
    as_asked: Sequence[bool],
    means: tuple[Sequence[float], Sequence[float]] | None,
) -> float | None:
    """Return the share of time as wanted; None if a convolution has no layer row of its own."""
    layers = [call for call in shapes.calls if call.conv is None and call.convolutions]
    if means is None or len(means[1]) != len(layers):
        return None
    work_of_layers = sum(call.convolution_flops for call in layers)
    if work_of_layers != sum(conv.flops for conv in shapes.outside):
        return None
    is_training = len(as_asked) > len(shapes.convolutions)
    if layers and is_training:  # their backward pass has no row
        return None
    times = [*means[0], *means[1]]
    met = [*as_asked, *(left_to_framework(algorithm, call.layer) for call in layers)]
    total = sum(times)
    as_wanted = sum(ms for ms, is_met in zip(times, met, strict=True) if is_met)
    return 100 * as_wanted / total if total else None


def _shares_text(missed: Sequence[Convolution], shapes: Shapes) -> str | None:
    """Return shares of work with operator and layer, unknown ones first, then by size."""
    total = shapes.convolution_flops
    work = Counter[str]()
    for conv in missed:
        name = f"{conv.operator} ({conv.layer})" if conv.layer else conv.operator
        work[name] += conv.flops
    counted = all(conv.counted for conv in missed)
    by_size = sorted(work.items(), key=lambda item: item[1] or total, reverse=True)
    shown = []
    for name, flops in by_size:
        share = "unknown share"
        if flops and counted:
            share = f"{100 * flops / total:.3g} %"
        shown.append(f"{share} {name}")
    if len(shown) > _SHOWN:
        shown[_SHOWN:] = [f"and {len(shown) - _SHOWN} more"]
    return "; ".join(shown) or None


def ran(picked: LayerChoice, proof: Evidence) -> str:
    """Return the algorithm that a call ran, for a forward call of the library's choice by kernels.

    The kernels of a backward call belong to two directions, so their names prove neither.
    """
    chooses = picked.used in catalog.CHOOSING and not picked.backward
    if chooses and proof.seen and proof.seen.computing:
        return recognise(proof.seen.kernels).name
    return picked.used


def call_cells(choices: Sequence[LayerChoice], proofs: Sequence[Evidence]) -> list[LayerAlgorithm]:
    """Return, for each convolution call, the cells on its algorithm and the evidence."""
    cells = []
    for picked, proof in zip(choices, proofs, strict=True):
        cells.append(
            LayerAlgorithm(
                backend=picked.backend,
                algorithm_used=ran(picked, proof),
                algorithm_evidence=cell(proof),
                fallback_reason=picked.reason,
                workspace_bytes=picked.workspace_bytes,
                plan=picked.plan,
                plan_notes=picked.plan_notes,
                kernel_ms=proof.seen.kernel_ms if proof.seen else None,
            )
        )
    return cells


CHECK: Final = AlgorithmCheck
