"""What many rows teach of convolutions beyond physics: boosted trees, and a Gaussian process.

Both learn the logarithm of the factor by which a simple guess is wrong. Trees find steps (tiles,
solvers that change) in many rows; a process of few rows knows how far each one reaches. Where few
rows of a GPU do not tell where its times make steps, the trees of its relatives do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from threadpoolctl import threadpool_limits

from hpcsweep.catalog import gpus
from hpcsweep.forecast import terms
from hpcsweep.forecast.terms import Floats, Sheets

if TYPE_CHECKING:
    import pandas as pd

OfCalls = Callable[["pd.DataFrame"], Floats]

NAMES: Final = ("ran", "direction", "dtype", "op", "setting")  # columns whose values are coded
_FLOOR_MS: Final = 0.01  # a launch: no guess is below it
_MULTIPLES: Final = (4, 8, 16, 32, 64)
_TILES: Final = (32, 128)
# rows, passes, leaves of a tree, fewest rows of a leaf: more rows bear more trees
_SIZES: Final = ((30_000, 500, 48, 12), (3_000, 300, 24, 20), (0, 200, 12, 6))
MOST: Final = 60_000  # rows that trees learn from; more take time, and add little
_FOR_KERNEL: Final = 400  # rows that choose how far a row reaches
_APART: Final = 3.0  # between two algorithms, in standard deviations
_QUARTER: Final = 0.25  # the weight of a relative whose sheet differs by a factor of two
_LEAST_DISTANCE: Final = 0.1  # two cards of one chip
_SHARPNESS: Final = 4.0  # a relative that is wrong by twice as much counts a sixteenth


@dataclass(frozen=True)
class CallFeatures:
    """How calls become numbers: the codes of names, and what the devices can do."""

    codes: Mapping[str, Mapping[str, int]]
    reached: Sheets

    @classmethod
    def of(cls, calls: pd.DataFrame) -> CallFeatures:
        """Return what calls with a time fix."""
        values = {name: sorted(calls[name].astype(str).unique()) for name in NAMES}
        codes = {name: {text: code for code, text in enumerate(of)} for name, of in values.items()}
        return cls(codes, terms.reached(calls))

    def code(self, calls: pd.DataFrame, name: str) -> Floats:
        """Return the code of each call's name; NaN for one that was never seen."""
        return calls[name].astype(str).map(dict(self.codes[name])).to_numpy(float)

    def roofline(self, calls: pd.DataFrame) -> Floats:
        """Return the logarithm of the milliseconds at the peaks of each call's device."""
        return np.asarray(self._features(calls)[:, -1])

    def features(self, calls: pd.DataFrame) -> Floats:
        """Return the columns that trees split: sizes as logarithms, steps, names, the device."""
        coded = [self.code(calls, name) for name in NAMES]
        return np.column_stack([self._features(calls), *coded])

    def places(self, calls: pd.DataFrame) -> Floats:
        """Return where calls lie for a process: logarithms of sizes; algorithms apart."""
        a = terms.Amounts(calls)
        log = np.log2
        channels = a.in_channels / a.groups
        filters = a.out_channels / a.groups
        ran = self.code(calls, "ran")
        sizes = [
            log(a.batch_size), log(channels), log(filters), log(a.groups), log(a.out_h * a.out_w),
            log(a.kernel_h * a.kernel_w), calls["stride_h"].fillna(1).to_numpy(float),
            log(a.flops + 1), log(a.bytes_min + 1), log((a.flops + 1) / (a.bytes_min + 1)),
            channels % 4 == 0, filters % 16 == 0,
        ]  # fmt: skip
        apart = [_APART * (ran == code) for code in self.codes["ran"].values()]
        return np.column_stack([np.asarray(column, float) for column in (*sizes, *apart)])

    def _features(self, calls: pd.DataFrame) -> Floats:
        a = terms.Amounts(calls)
        log = np.log2
        tflops, gbs = terms.sheets(calls, self.reached).T
        channels = a.in_channels / a.groups
        filters = a.out_channels / a.groups
        moved = a.bytes_min + 1
        area = a.out_h * a.out_w
        # ms
        works = a.flops / tflops * 1e-9
        moves = moved / gbs * 1e-6
        columns = [
            log(a.batch_size), log(a.in_channels), log(a.in_h), log(a.in_w), log(a.out_channels),
            log(area), log(a.pixels), log(a.inner), log(a.flops + 1), log(moved),
            log((a.flops + 1) / moved), log(channels), log(filters), log(a.groups),
            log(a.weight_bytes + 1), log(a.in_bytes + 1), log(a.out_bytes + 1), a.kernel_h,
            a.kernel_w, calls["stride_h"].fillna(1), calls["dilation_h"].fillna(1),
            *(log(np.ceil(a.pixels / t) * np.ceil(filters / t) * a.groups) for t in _TILES),
            *(size % by == 0 for by in _MULTIPLES for size in (channels, filters)),
            a.pixels % 64 == 0, area % 64 == 0,
            log(np.ceil(a.out_h / 2) * np.ceil(a.out_w / 2) * 4 / area),
            np.log(works + 1e-9), np.log(moves),
            np.log(np.maximum(works, moves) + _FLOOR_MS),
        ]  # fmt: skip
        return np.column_stack([np.asarray(column, float) for column in columns])


@dataclass(frozen=True)
class Trees:
    """Gradient-boosted trees for the median of log factors."""

    shapes: CallFeatures
    learner: Any

    @classmethod
    def fit(
        cls, shapes: CallFeatures, calls: pd.DataFrame, wrong: Floats, most: int = MOST
    ) -> Trees:
        """Return what log factors of calls teach; of more than `most` some, drawn at random."""
        drawn = np.arange(len(calls))
        if len(calls) > most:
            drawn = np.random.default_rng(0).choice(drawn, most, replace=False)
        passes, leaves, fewest = next(one[1:] for one in _SIZES if len(drawn) >= one[0])
        learner = HistGradientBoostingRegressor(
            loss="absolute_error", max_iter=passes, learning_rate=0.06 if passes < 300 else 0.1,
            max_leaf_nodes=leaves, min_samples_leaf=min(fewest, max(1, len(drawn) // 8)),
            max_features=0.5, l2_regularization=1.0, early_stopping=False, random_state=0,
        )  # fmt: skip
        with threadpool_limits(limits=1):
            # without weights, which would cost as much time as all the rest
            learner.fit(shapes.features(calls.iloc[drawn]), wrong[drawn])
        return cls(shapes, learner)

    def of(self, calls: pd.DataFrame) -> Floats:
        """Return the log factor of each call."""
        with threadpool_limits(limits=1):
            return np.asarray(self.learner.predict(self.shapes.features(calls)))


@dataclass(frozen=True)
class Process:
    """A Gaussian process: near calls are wrong alike, and far ones as all of them are."""

    places: OfCalls
    centre: Floats
    scale: Floats
    learner: Any

    @classmethod
    def fit(
        cls, places: OfCalls, calls: pd.DataFrame, wrong: Floats, like: Process | None = None
    ) -> Process:
        """Return what the log factors of a few calls teach; how far each reaches may be known."""
        plain = places(calls)
        centre = plain.mean(axis=0)
        scale = plain.std(axis=0)
        scale[scale < 1e-9] = 1.0
        near = (plain - centre) / scale
        with threadpool_limits(limits=1), warnings.catch_warnings():
            # a kernel at the end of its range is no fault
            warnings.simplefilter("ignore", ConvergenceWarning)
            kernel = like.learner.kernel_ if like else _kernel(near, wrong)
            learner = GaussianProcessRegressor(kernel, optimizer=None, normalize_y=True)
            learner.fit(near, wrong)
        return cls(places, centre, scale, learner)

    def of(self, calls: pd.DataFrame) -> Floats:
        """Return the log factor of each call."""
        places = (self.places(calls) - self.centre) / self.scale
        with threadpool_limits(limits=1):
            return np.asarray(self.learner.predict(places))


@dataclass(frozen=True)
class Way:
    """A simple guess, and what was learnt of the factor by which it is wrong."""

    guess: OfCalls
    learnt: Trees | Process
    calls: int  # that taught it

    def __call__(self, calls: pd.DataFrame) -> Floats:
        """Return the logarithms of the milliseconds of convolutions."""
        return self.guess(calls) + self.learnt.of(calls)


@dataclass(frozen=True)
class Relatives:
    """What GPUs with many rows say of another one, each in its own way.

    The weighted mean of what a call would take by each, had the roofline changed as the sheets do,
    is the guess; their differences are what its error is learnt from.
    """

    shapes: CallFeatures
    ways: Mapping[str, Way]
    weights: Floats = field(default_factory=lambda: np.ones(1))

    def alike(self, own: pd.DataFrame) -> Relatives:
        """Return them weighted by how alike the times of a GPU's own convolutions are."""
        wrong = np.log(own["ms"].to_numpy(float))[:, None] - self._each(own)
        spread = np.abs(wrong - np.median(wrong, axis=0)).mean(axis=0)
        return self._weighted(np.maximum(spread, 1e-6) ** -_SHARPNESS)

    def of_sheet(self, gpu: str) -> Relatives:
        """Return them weighted by how alike their sheets are to that of a GPU without a row."""
        return self._weighted(_QUARTER ** np.array([_distance(gpu, name) for name in self.ways]))

    def nearest(self, gpu: str) -> float:
        """Return how far the sheet of a GPU is from the nearest of theirs."""
        return max(min(_distance(gpu, name) for name in self.ways), _LEAST_DISTANCE)

    def guess(self, calls: pd.DataFrame) -> Floats:
        """Return the logarithms of the milliseconds."""
        return np.asarray(self._each(calls) @ self.weights)

    def places(self, calls: pd.DataFrame) -> Floats:
        """Return where calls lie for a process: work, the algorithm, and how relatives differ."""
        amounts = terms.Amounts(calls)
        each = self._each(calls)
        works = np.log(amounts.flops + 1)
        moves = np.log(amounts.bytes_min + 1)
        ran = self.shapes.code(calls, "ran")
        large = amounts.kernel_h * amounts.kernel_w > 1
        return np.column_stack([
            *(ran == code for code in self.shapes.codes["ran"].values()),
            works, moves, works - moves, large, each - each.mean(axis=1, keepdims=True),
        ])  # fmt: skip

    def _weighted(self, worth: Floats) -> Relatives:
        if not worth.any():
            worth = np.ones(len(worth))
        return replace(self, weights=worth / worth.sum())

    def _each(self, calls: pd.DataFrame) -> Floats:
        """Return what calls would take by each relative."""
        on = {gpu: calls.assign(gpu=gpu) for gpu in self.ways}
        logs = [way(on[gpu]) - self.shapes.roofline(on[gpu]) for gpu, way in self.ways.items()]
        return np.column_stack(logs) + self.shapes.roofline(calls)[:, None]


def _distance(gpu: str, other: str) -> float:
    """Return how many factors of two are between two sheets; infinity where one is missing.

    They are between the peaks, the bandwidths, and the rates of double precision, which tell chips
    for computing from those for graphics.
    """
    pair = [gpus.sheet(gpu), gpus.sheet(other)]
    rates = [
        (of.peak("float32") or of.fp32_tflops, of.bandwidth_gbs, of.fp64_tflops / of.fp32_tflops)
        for of in pair
        if of
    ]
    if len(rates) < len(pair):
        return np.inf
    return float(np.abs(np.log2(rates[0]) - np.log2(rates[1])).sum())


def _kernel(places: Floats, wrong: Floats) -> Any:  # noqa: ANN401 - scikit-learn's
    kernel = ConstantKernel(1.0, (0.05, 20.0)) * Matern(5.0, (0.5, 50.0), nu=1.5)
    kernel += WhiteKernel(0.05, (1e-4, 1.0))
    some = np.random.default_rng(0).permutation(len(places))[:_FOR_KERNEL]
    tried = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    return tried.fit(places[some], wrong[some]).kernel_
