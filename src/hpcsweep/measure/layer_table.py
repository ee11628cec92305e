"""Makes the layer rows of a point, and the columns about its layer pass.

`about` has the cells about algorithms, one entry per convolution, in call order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcsweep.catalog import columns
from hpcsweep.measure.timing import stats
from hpcsweep.measure.work import call_cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcsweep.catalog.columns import Row
    from hpcsweep.measure.shape_pass import LayerCall
    from hpcsweep.measure.timing.isolated import Isolated
    from hpcsweep.measure.timing.lanes import Lanes
    from hpcsweep.measure.timing.layer_timer import LayerTimes
    from hpcsweep.measure.timing.stats import Summary
    from hpcsweep.point import Point

OTHER: Final = "__other__"
HOOK_OVERHEAD_PCT: Final = 5.0
_SHARED: Final = ("model", "algorithm", "device", "batch_size", "input_size", "gpu", "dtype")


class LayerTable:
    """The layer pass of a point: one summary per call, and one for the rest of the pass."""

    @classmethod
    def of(cls, lanes: Lanes, times: Sequence[Sequence[float]]) -> LayerTable | None:
        """Summarise the times of all lanes; None where layers are not timed."""
        if not lanes.parts:
            return None
        timed, pass_times = lanes.timed(), lanes.pass_times(times)
        return cls(timed, pass_times, times[0], lanes.parts, lanes.event_floor_ms)

    def __init__(
        self,
        timed: LayerTimes,
        pass_times: Sequence[float],
        clean_times: Sequence[float],
        parts: int = 1,
        event_floor_ms: float | None = None,
    ) -> None:
        """Summarise the times of the layer lane; each clean pass ran next to a layer pass."""
        self._timed, self._pass_times, self._clean_times = timed, pass_times, clean_times
        self._about: Row = {"layer_pass_parts": parts, "event_floor_ms": event_floor_ms}
        timed_calls = filter(None, timed.times)
        self._sums = [sum(parts) for _, *parts in zip(pass_times, *timed_calls, strict=True)]
        rest = [total - part for total, part in zip(pass_times, self._sums, strict=True)]
        self._whole, self._rest = stats.summarise(pass_times), stats.summarise(rest)
        self._of_calls = [stats.summarise(times) if times else None for times in timed.times]

    @property
    def starved(self) -> bool:
        """Whether the device had to wait for the host in the layer passes."""
        return self._timed.starved

    def rows(
        self, point: Point, about: Iterable[Row], others_ms: Sequence[float | None] = ()
    ) -> list[Row]:
        """Return the layer rows in call order, `__other__` last; calls without times have none."""
        shared, calls = _shared_cells(point, self._timed.timer), self._timed.calls
        rows = _rows(shared, calls, self._of_calls, self._whole, about)
        # of a network that ran other layers while it was profiled, it is not known which is which
        others = [row for row, call in zip(rows, calls, strict=True) if call.conv is None]
        if len(others) == len(others_ms):
            for row, kernel_ms in zip(others, others_ms, strict=True):
                row["kernel_ms"] = kernel_ms
        for row in rows[len(calls) - self._timed.backward :]:
            row["direction"] = "backward"
        last = {"layer": OTHER, "op": OTHER, "call_index": len(rows), "direction": None}
        timed = [row for row, times in zip(rows, self._timed.times, strict=True) if times]
        return [*timed, {**shared, **_times(self._rest, self._whole), **last}]

    @property
    def complete(self) -> bool:
        """Whether every call was timed."""
        return None not in self._of_calls

    def convolution_means(self) -> list[float]:
        """Return the means of the convolution calls, in order."""
        pairs = zip(self._timed.calls, self._of_calls, strict=True)
        return [summary.mean for call, summary in pairs if summary and call.conv is not None]

    def other_convolution_means(self) -> list[float]:
        """Return the means of the layers that convolve and are no such call, in order."""
        pairs = zip(self._timed.calls, self._of_calls, strict=True)
        return [one.mean for call, one in pairs if one and not call.conv and call.convolutions]

    def overall_cells(self) -> Row:
        """Return the columns that compare the layer pass with the clean pass.

        Each layer pass is compared with the clean pass that ran next to it. The columns have the
        median of these ratios: a disturbance from outside spoils single pairs, but moves a mean.
        """
        return {
            "layer_pass_mean_ms": self._whole.mean,
            **self._about,
            "hook_overhead_pct": 100 * (_paired_ratio(self._pass_times, self._clean_times) - 1),
            "layer_sum_over_total": _paired_ratio(self._sums, self._clean_times),
            "other_pct": 100 * self._rest.mean / self._whole.mean,
        }


class IsolatedTable:
    """Convolutions that were timed alone; calls of equal work share a time."""

    starved = False
    complete = True

    def __init__(self, alone: Isolated, clean: Summary) -> None:
        """Take the times of distinct convolutions, and the clean pass that they are shares of."""
        self._alone, self._of_calls, self._clean = alone, alone.times, clean

    def rows(
        self, point: Point, about: Iterable[Row], _others_ms: Sequence[float | None] = ()
    ) -> list[Row]:
        """Return one row per convolution call, in call order; `call_index` counts convolutions."""
        shared = _shared_cells(point, self._alone.timer)
        rows = _rows(shared, self._alone.calls, self._of_calls, self._clean, about)
        return [row | {"cold": cold} for row, cold in zip(rows, self._alone.cold, strict=True)]

    def convolution_means(self) -> list[float]:
        """Return the means of the convolution calls, in order."""
        return [summary.mean for summary in self._of_calls]

    def other_convolution_means(self) -> list[float]:
        """Return nothing: only convolution calls are timed."""
        return []

    def overall_cells(self) -> Row:
        """Return what isolated convolutions say about the pass: their sum over it."""
        total = sum(summary.median for summary in self._of_calls)
        return {"hook_overhead_pct": None, "layer_sum_over_total": total / self._clean.median}


def _rows(
    shared: Row,
    calls: Iterable[LayerCall],
    summaries: Iterable[Summary | None],
    whole: Summary,
    about: Iterable[Row],
) -> list[Row]:
    algorithms = iter(about)
    return [
        {
            **shared,
            **(_times(summary, whole) if summary else {}),
            "call_index": index,
            **call_cells(call),
            **(next(algorithms) if call.conv is not None else {}),
        }
        for index, (call, summary) in enumerate(zip(calls, summaries, strict=True))
    ]


def _shared_cells(point: Point, timer: str) -> Row:
    """Return the cells that all layer rows of a point share."""
    cells = columns.axis_cells(point.axes)
    shared: Row = {name: cells.get(name) for name in _SHARED}
    return shared | {"point_id": point.point_id, "layer_timer": timer, "direction": "forward"}


def _times(summary: Summary, whole: Summary) -> Row:
    return {**summary.layer_row(), "percentage": 100 * summary.mean / whole.mean}


def _paired_ratio(times: Sequence[float], clean_times: Sequence[float]) -> float:
    """Return the median over passes of a time over that of the clean pass next to it."""
    return stats.median([a / b for a, b in zip(times, clean_times, strict=True)])
