"""The whole prediction: layer calls by their law, networks as their sum.

A network takes the time of its layers and of what happens between them (additions, Python), which
is modelled from the calls, bytes and input of the network. Where the same network was measured with
other sizes, what the sum was wrong by there is taken off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from hpcsweep.forecast import physics, terms
from hpcsweep.forecast.layer_law import Law
from hpcsweep.forecast.terms import Floats
from hpcsweep.forecast.training_data import Measured, convolve

_REACH: Final = 0.5  # of a network's other sizes and batches; 1 is a factor of two
_PRIOR: Final = 0.1  # the weight of no correction
_OWN_NETWORKS: Final = 3  # of a GPU: with fewer, costs are in proportion as on others
_SLOWER: Final = 10.0  # at most
_SMALL: Final = 1e-9
_WORK_KEY: Final = [
    "gpu", "setting", "dtype", "direction", "op", "algorithm", "unique_key", "batch_size",
]  # fmt: skip
_FALLBACK_KEY: Final = [
    "gpu", "algorithm", "kernel_h", "kernel_w", "stride_h", "dilation_h", "grouped",
]  # fmt: skip
_MACHINE: Final = ("gpu", "setting")
_NETWORK: Final = ["gpu", "setting", "dtype", "model", "algorithm"]


@dataclass(frozen=True)
class Forecast:
    """What was learnt; `times` and `totals` answer."""

    fallbacks: Mapping[tuple[object, ...], str]
    law: Law
    between: Mapping[tuple[object, ...], Floats]  # by GPU, and of all
    measured: Measured

    def times(self, calls: pd.DataFrame) -> pd.DataFrame:
        """Return calls with their predicted `ms`, what they will run, and whether they multiply."""
        number = calls.groupby(_WORK_KEY, sort=False, observed=True, dropna=False).ngroup()
        _, first, back = np.unique(number, return_index=True, return_inverse=True)
        once = calls.iloc[first]
        once = physics.prepared(once.assign(ran=_ran(once, self.fallbacks)))
        cells = once.assign(ms=self.law.times(once))[["ran", "multiplies", "ms"]]
        return calls.assign(**cells.iloc[back].set_index(calls.index))

    def totals(self, points: pd.DataFrame, calls: pd.DataFrame) -> Floats:
        """Return the times of networks from the predicted times of their calls."""
        return self._sums(points, calls) * np.exp(self._errors_nearby(points))

    def _sums(self, points: pd.DataFrame, calls: pd.DataFrame) -> Floats:
        """Return the times of the calls of networks, and of what happens between them."""
        work = _work(points, calls)
        ms = _of_calls(points, calls)
        for gpu, places in terms.groups(points, _MACHINE).items():
            ms[places] += work[places] @ self.between.get(gpu, self.between[()])
        return ms

    def _errors_nearby(self, points: pd.DataFrame) -> Floats:
        """Return the log error at other sizes of the same network, as far as they are near."""
        nearby = np.zeros(len(points))
        asked = terms.groups(points, _NETWORK)
        known = self.measured.points
        there = {key: some for key, some in terms.groups(known, _NETWORK).items() if key in asked}
        if not there:
            return nearby
        seen = self.measured.of(known.iloc[np.concatenate([*there.values()])])
        said = self._sums(seen.points, self.times(seen.calls))
        errors = np.log(seen.points["total_ms"] / said)
        for key, some in there.items():
            rows = known.iloc[some]
            places = asked[key]
            apart = np.zeros((len(places), len(rows)))
            for name in ("input_size", "batch_size"):
                wanted = np.log2(points[name].to_numpy(float)[places])
                apart += (wanted[:, None] - np.log2(rows[name].to_numpy(float))) ** 2
            weights = np.exp(-apart / _REACH**2)
            sums = weights @ errors[rows.index].to_numpy(float)
            nearby[places] = sums / (weights.sum(axis=1) + _PRIOR)
        return nearby


def fit(measured: Measured) -> Forecast:
    """Return what measured points teach."""
    calls = measured.calls
    every = measured.every_call.reset_index(drop=True)
    law = Law(physics.distinct(physics.prepared(every)))
    return Forecast(_fallbacks(calls), law, _fit_between(measured.points, calls), measured)


def _fallbacks(calls: pd.DataFrame) -> dict[tuple[object, ...], str]:
    """Return what convolutions ran, by GPU, request and filter."""
    convolutions = _grouped(calls[calls["algorithm_used"].notna()])
    return {
        key: str(used.astype(str).mode().iloc[0])
        for key, used in convolutions.groupby(_FALLBACK_KEY, observed=True)["algorithm_used"]
    }


def _ran(calls: pd.DataFrame, fallbacks: Mapping[tuple[object, ...], str]) -> pd.Series[str]:
    """Return what each call will run: what such calls ran; `-` for what is no convolution."""
    convolves = calls["kernel_h"].notna() & convolve(calls)
    keys = _grouped(calls).loc[convolves, _FALLBACK_KEY].itertuples(index=False, name=None)
    wanted = calls.loc[convolves, "algorithm"].astype(str)
    ran = pd.Series("-", calls.index, dtype=object)
    pairs = zip(keys, wanted, strict=True)
    ran[convolves] = np.array([fallbacks.get(key, asked) for key, asked in pairs], object)
    return ran


def _grouped(calls: pd.DataFrame) -> pd.DataFrame:
    return calls.assign(grouped=calls["groups"].fillna(1) > 1)


def _fit_between(points: pd.DataFrame, calls: pd.DataFrame) -> dict[tuple[object, ...], Floats]:
    """Return what is outside the layers on each GPU: per pass, call, megabyte and input pixel.

    A pass that begins on the host copies its input first. A GPU with few networks has the usual
    costs, as much higher or lower as its own networks show.
    """
    total = points["total_ms"].to_numpy(float)
    work = _work(points, calls)
    rest = (total - _of_calls(points, calls)) / total
    if points.empty:  # what others measured has no networks
        return {(): np.zeros(work.shape[1])}
    machines = terms.groups(points, _MACHINE)
    found = {
        gpu: _costs(work[some], total[some], rest[some])
        for gpu, some in machines.items()
        if points["model"].iloc[some].nunique() >= _OWN_NETWORKS
    }
    usual = np.mean([*found.values()], axis=0) if found else _costs(work, total, rest)
    for gpu, some in machines.items():
        if gpu not in found:
            said = work[some] @ usual / total[some]
            slower = rest[some] @ said / max(said @ said, _SMALL)
            found[gpu] = usual * np.clip(slower, 1 / _SLOWER, _SLOWER)
    return {(): usual, **found}


def _costs(work: Floats, total: Floats, rest: Floats) -> Floats:
    return np.asarray(nnls(work / total[:, None], rest)[0])


def _of_calls(points: pd.DataFrame, calls: pd.DataFrame) -> Floats:
    """Return the times of the calls of each point."""
    sums = calls["ms"].groupby(calls["point_id"], observed=True).sum()
    return sums.reindex(points.index).fillna(0.0).to_numpy(float, copy=True)


def _work(points: pd.DataFrame, calls: pd.DataFrame) -> Floats:
    """Return the pass, calls, megabytes out and megapixels in of points, a row for each."""
    moved = terms.amounts(calls)["out_bytes"] * 1e-6
    by_point = moved.groupby(calls["point_id"], observed=True).agg(["size", "sum"])
    sums = by_point.reindex(points.index).fillna(0.0)
    pixels = points["batch_size"].to_numpy(float) * points["input_size"].to_numpy(float) ** 2
    return np.column_stack([np.ones(len(sums)), sums, pixels * 1e-6])
