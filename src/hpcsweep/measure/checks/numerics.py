"""The numerics check: convolution calls of a pass, and what was done to the network.

Each explicit call is compared with the framework's own, each distinct convolution with float64 (see
`numerics`), and a pass that is not a plain eager one with one that is (see `transformed`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch

from hpcsweep.catalog.checks.numerics import (
    INACCURATE,
    PARTLY_CHECKED,
    UNCHECKED,
    LayerNumerics,
    NumericsCells,
)
from hpcsweep.conv import swap
from hpcsweep.measure import call_errors, model_builder, rounding, transformed
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.network import Network, Times
from hpcsweep.measure.rounding import Exactness

_SHOWN: Final = 3  # messages in a row


class NumericsCheck(PointCheck):
    """Runs the pass once more, and others beside it; leaves the network with plain layers."""

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Compare what the sweep wants to be compared."""
        point = network.point
        if not point.measure["numerics"]:
            return Finding(cells=NumericsCells(), flags={UNCHECKED: True})
        tf32 = point.axes["tf32"] and self.rig.device.type == "cuda"
        whole = point.measure["numerics"] == "layers"
        calls, outputs = self._compare(network, choices, times, tf32=tf32, whole=whole)
        verdicts = [*outputs, *calls]
        return Finding(
            cells=cells(calls, outputs),
            flags={
                INACCURATE: any(map(rounding.is_wrong, verdicts)),
                PARTLY_CHECKED: any(map(rounding.is_partial, verdicts)),
            },
            layers=[
                LayerNumerics(
                    max_rel_error=call.error if whole else None, error_over_bound=call.excess
                )
                for call in calls
            ],
        )

    def _compare(
        self, network: Network, choices: Choices, times: Times, *, tf32: bool, whole: bool
    ) -> tuple[Sequence[Exactness], Sequence[Exactness]]:
        """Compare the convolution calls of a pass, then the pass itself if it is transformed."""
        model = network.model
        calls = call_errors.Convolutions(choices.calls, tf32=tf32, whole=whole)
        # some layers of a training are called at random
        missing = None if network.learns else "its call did not come"
        (image,) = model_builder.make_inputs(network.point, self.rig.device.torch_device)
        try:
            with torch.no_grad(), model_builder.seeded(network.point), calls.compared(model):
                network.forward(image)
        except Exception as error:  # noqa: BLE001 - the times are there, whatever it raises
            missing = rounding.why_not(error)
        # Without dropout more can be compared; but in another mode torch would compile anew.
        if network.learns and network.point.axes["compile"] == "none":
            model.eval()
        outputs = list[Exactness]()
        if transformed.is_transformed(network, tf32=tf32):
            outputs = transformed.verdicts(network, times, tf32=tf32)
        swap.restore(model)
        return calls.verdicts(missing), outputs


def cells(calls: Sequence[Exactness], outputs: Sequence[Exactness]) -> NumericsCells:
    """Return the columns on all comparisons."""
    verdicts = [*outputs, *calls]
    wrong = sorted(filter(rounding.is_wrong, verdicts), key=rounding.severity, reverse=True)
    doubts = [*wrong, *filter(rounding.is_partial, verdicts)]
    more = f"; {len(doubts) - _SHOWN} more" if len(doubts) > _SHOWN else ""
    return NumericsCells(
        call_rel_error=_largest(calls),
        plain_rel_error=_largest(outputs),
        error_over_bound=max((v.excess for v in verdicts if v.excess is not None), default=None),
        numerics_reason="; ".join(v.message for v in doubts[:_SHOWN]) + more or None,
    )


def _largest(verdicts: Sequence[Exactness]) -> float | None:
    errors = [verdict.error for verdict in verdicts if verdict.error is not None]
    return math.nan if any(map(math.isnan, errors)) else max(errors, default=None)


CHECK: Final = NumericsCheck
