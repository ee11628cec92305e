"""The numerics check: outputs and convolutions of the timed pass, against float64."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Final

import torch

from hpcsweep.catalog.checks import numerics as told
from hpcsweep.catalog.checks.numerics import LayerNumerics, Numerics
from hpcsweep.conv import swap
from hpcsweep.conv.proof.autograd_graph import tensors_in
from hpcsweep.measure import convolutions, numerics, rounding
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.machine.provenance import Rig
from hpcsweep.measure.network import Finding, Network, PointCheck, Times
from hpcsweep.measure.numerics import Float64Reference
from hpcsweep.measure.rounding import Arithmetic, Exactness

_REDUCED: Final = {"bf16": "bfloat16", "fp16": "float16"}  # mixed precision
_SHOWN: Final = 3  # messages in a row
_EMPTY: Final = "it has no values to compare"


class Check(PointCheck):
    """Runs the pass and the network in float64; leaves the network with plain layers."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self._reference = Float64Reference(rig.device.torch_device)

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Compare what the sweep wants to be compared."""
        if not network.point.measure["numerics"]:
            return Finding(cells=Numerics(), flags={told.UNCHECKED: True})
        outputs, calls = self._compare(network, choices, times)
        verdicts = [*outputs, *calls]
        layers = [
            LayerNumerics(max_rel_error=call.error, error_over_bound=call.excess) for call in calls
        ]
        return Finding(
            cells=cells(verdicts, outputs),
            flags={
                told.INACCURATE: any(map(rounding.is_wrong, verdicts)),
                told.UNVERIFIED: any(map(rounding.is_open, verdicts)),
                told.PARTLY_CHECKED: any(map(rounding.is_partial, verdicts)),
            },
            layers=layers,
        )

    def _compare(
        self, network: Network, choices: Choices, times: Times
    ) -> tuple[Sequence[Exactness], Sequence[Exactness]]:
        """Compare the outputs, and the convolution calls, of a pass."""
        point = network.point
        axes = point.axes
        tf32 = axes["tf32"] and self.rig.device.type == "cuda"
        whole = point.measure["numerics"] == "layers"
        calls = numerics.Convolutions(choices.calls, tf32=tf32, whole=whole)
        missing: str | None = "its call did not come"
        if network.learns:
            network.model.eval()
            missing = None  # in evaluation mode some layers are not called
            self._reference.drop()  # of weights that another training learned

        def run() -> object:
            with torch.no_grad():
                return network.output(times)

        with calls.compared(network.model):
            ran = rounding.if_it_fits(lambda: [run()])
        swap.restore(network.model)
        if ran is None:  # beside a graph, which keeps the memory of its own pass
            images = axes["batch_size"]
            skipped = rounding.no_memory(images, images)
            return [Exactness(subject="output", skipped=skipped)], calls.verdicts(None)
        (output,) = ran
        kind = self.rig.device.type
        how = [Arithmetic.of(picked, kind, tf32=tf32, casts=False) for picked in choices.calls]
        dtype = _REDUCED.get(axes.get("amp", ""), axes["dtype"])
        limit_of = partial(rounding.output_limit, network.shapes, how, dtype, tf32=tf32)
        reference = self._reference
        limit = limit_of()
        outputs = reference.verdicts(point, network.model, output, limit)
        if any(map(rounding.is_wrong, outputs)) and reference.coarsest:
            limit = limit_of(coarsest=reference.coarsest)
            outputs = reference.verdicts(point, network.model, output, limit)
        of_calls = calls.verdicts(missing)
        wrong = any(map(rounding.is_wrong, outputs))
        returned = [*tensors_in(output)]
        if returned and not any(tensor.numel() for tensor in returned):
            outputs = [numerics.left_to_calls(of_calls, _EMPTY)]
        elif wrong:
            explain = partial(numerics.explain_random, run, outputs, limit)
            if explained := rounding.if_it_fits(explain):
                outputs = explained
            else:
                algorithm = axes["algorithm"]
                backend = choices.backend
                convolutions.choose(
                    network.model, network.shapes, algorithm, point.measure, backend
                )
                outputs = reference.followed(point, network.model, output, limit)
                swap.restore(network.model)
        return reference.settled(outputs), of_calls


def cells(verdicts: Sequence[Exactness], outputs: Sequence[Exactness]) -> Numerics:
    """Return the columns on all comparisons, and on those of outputs."""
    wrong = sorted(filter(rounding.is_wrong, verdicts), key=rounding.severity, reverse=True)
    skipped = (v for v in verdicts if rounding.is_partial(v) and not rounding.is_wrong(v))
    doubts = [*wrong, *filter(rounding.is_open, verdicts), *skipped]
    more = f"; {len(doubts) - _SHOWN} more" if len(doubts) > _SHOWN else ""
    errors = [v.error for v in outputs if v.error is not None]
    return Numerics(
        max_rel_error=math.nan if any(map(math.isnan, errors)) else max(errors, default=None),
        error_over_bound=max((v.excess for v in verdicts if v.excess is not None), default=None),
        numerics_reason="; ".join(v.message for v in doubts[:_SHOWN]) + more or None,
    )
