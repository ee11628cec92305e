"""Turns what was measured of a point into its layer rows and the columns about the layer pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from hpcsweep.catalog import columns
from hpcsweep.measure.shape_pass import kernel_cells
from hpcsweep.measure.timing import isolated, stats
from hpcsweep.measure.timing.layer_timer import OTHER

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcsweep.catalog.columns import Row
    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.conv.proof.profiler_events import Evidence
    from hpcsweep.measure.shape_pass import Call
    from hpcsweep.measure.timing.isolated import Isolated
    from hpcsweep.measure.timing.layer_timer import Marks
    from hpcsweep.measure.timing.stats import Summary
    from hpcsweep.point import Point

_SHARED = ("model", "algorithm", "device", "batch_size", "input_size", "gpu", "dtype")
FORWARD: Final = "forward"
BACKWARD: Final = "backward"
HOOK_OVERHEAD_PCT = 5.0


class Timed(Protocol):
    """Layer calls of a pass, and their times in it."""

    @property
    def calls(self) -> tuple[Call, ...]:
        """Return the calls, in order."""
        ...

    @property
    def times(self) -> list[list[float]]:
        """Return the times of each call, pass by pass."""
        ...

    @property
    def marks(self) -> Marks:
        """Return what timed them."""
        ...

    def rest(self, pass_times: Sequence[float]) -> list[float]:
        """Return what the layers leave of each pass."""
        ...


class LayerTable:
    """The layer pass of a point: one summary per call, and one for the rest of the pass."""

    def __init__(self, timer: Timed, pass_times: Sequence[float]) -> None:
        """Summarise the times of the layer lane."""
        self._calls = timer.calls
        self._timer = timer.marks.timer
        self._pass_times, self._layer_times = pass_times, timer.times
        self.whole = stats.summarise(pass_times)
        self.of_calls = [stats.summarise(times) for times in timer.times]
        self.other = stats.summarise(timer.rest(pass_times))

    def rows(
        self, point: Point, choices: Sequence[LayerChoice], proofs: Sequence[Evidence]
    ) -> list[Row]:
        """Return the layer rows in call order, `__other__` last."""
        shared = _shared_cells(point, self._timer)
        convolutions = convolution_cells(self._calls, choices, proofs)
        rows = [
            {**shared, **self._times(summary), **_call_cells(index, call), **about}
            for index, (call, summary, about) in enumerate(
                zip(self._calls, self.of_calls, convolutions, strict=True)
            )
        ]
        last = {"layer": OTHER, "op": OTHER, "call_index": len(rows), "direction": None}
        return [*rows, {**shared, **self._times(self.other), **last}]

    def convolution_means(self) -> list[float]:
        """Return the means of the convolution calls, in order."""
        pairs = zip(self._calls, self.of_calls, strict=True)
        return [summary.mean for call, summary in pairs if call.conv is not None]

    def overall_cells(self, clean_times: Sequence[float]) -> Row:
        """Return the columns that hold the layer pass against the clean pass.

        Each layer pass is held against the clean pass that ran next to it, and the median of
        these ratios is told: a neighbour's burst falls on single pairs, but moves a mean.
        """
        layer_sums = [sum(layers) for layers in zip(*self._layer_times, strict=True)]
        return {
            "layer_pass_mean_ms": self.whole.mean,
            "hook_overhead_pct": 100 * (_paired_ratio(self._pass_times, clean_times) - 1),
            "layer_sum_over_total": _paired_ratio(layer_sums, clean_times),
            "other_pct": 100 * self.other.mean / self.whole.mean,
        }

    def _times(self, summary: Summary) -> Row:
        return {**summary.layer_row(), "percentage": 100 * summary.mean / self.whole.mean}


class IsolatedTable:
    """Convolutions that were timed alone, told for every call of equal work."""

    def __init__(self, alone: Isolated, clean: Summary) -> None:
        """Take the times of distinct convolutions, and the clean pass that they are shares of."""
        self._alone, self._clean = alone, clean

    def rows(
        self, point: Point, choices: Sequence[LayerChoice], proofs: Sequence[Evidence]
    ) -> list[Row]:
        """Return one row per convolution call, in call order; `call_index` counts convolutions."""
        calls = self._alone.calls
        shared = _shared_cells(point, isolated.TIMER)
        about = convolution_cells(calls, choices, proofs)
        return [
            {
                **shared,
                **summary.layer_row(),
                "percentage": 100 * summary.mean / self._clean.mean,
                **_call_cells(index, call),
                **cells,
            }
            for index, (call, summary, cells) in enumerate(
                zip(calls, self._alone.of_calls(), about, strict=True)
            )
        ]

    def convolution_means(self) -> list[float]:
        """Return the means of the convolution calls, in order."""
        return [summary.mean for summary in self._alone.of_calls()]

    def overall_cells(self, _clean_times: Sequence[float]) -> Row:
        """Return what isolated convolutions say about the pass: their sum over it."""
        total = sum(summary.median for summary in self._alone.of_calls())
        return {"hook_overhead_pct": None, "layer_sum_over_total": total / self._clean.median}


def _shared_cells(point: Point, timer: str) -> Row:
    """Return the cells that all layer rows of a point share."""
    cells = columns.axis_cells(point.axes)
    shared: Row = {name: cells.get(name) for name in _SHARED}
    return shared | {"point_id": point.point_id, "layer_timer": timer, "direction": FORWARD}


def _paired_ratio(times: Sequence[float], clean_times: Sequence[float]) -> float:
    """Return the median over passes of a time over that of the clean pass next to it."""
    return stats.median([a / b for a, b in zip(times, clean_times, strict=True)])


def convolution_cells(
    calls: Iterable[Call], choices: Sequence[LayerChoice], proofs: Sequence[Evidence]
) -> list[Row]:
    """Return the algorithm cells of every call; empty for what is no convolution."""
    chosen = iter(choices)
    proven = iter(proofs)
    return [
        _convolution_cells(next(chosen), next(proven, None)) if call.conv is not None else {}
        for call in calls
    ]


def _convolution_cells(choice: LayerChoice, proof: Evidence | None) -> Row:
    text = proof.text if proof else "none"
    if proof and proof.problem:
        text = f"mismatch ({proof.problem}); {text}"
    return {
        "backend": choice.backend,
        "algorithm_used": choice.used,
        "algorithm_evidence": text,
        "fallback_reason": choice.reason,
        "workspace_bytes": choice.workspace_bytes,
    }


def _call_cells(index: int, call: Call) -> Row:
    return {
        "layer": call.layer or call.op,
        "call_index": index,
        "params": call.params,
        "flops": call.flops,
        "bytes_min": call.bytes_min,
        **kernel_cells(call),
    }
