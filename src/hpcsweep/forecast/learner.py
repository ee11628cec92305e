"""What many rows teach of convolutions beyond physics: boosted trees, and a Gaussian process.

Both learn the logarithm of the factor by which a simple guess is wrong. Trees find steps (tiles,
solvers that change) in many rows; a process of few rows knows how far each one reaches. Where few
rows of a GPU do not tell where its times make steps, the trees of its relatives do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from hpcsweep.catalog import gpus
from hpcsweep.forecast import physics, terms
from hpcsweep.forecast.physics import Physics
from hpcsweep.forecast.terms import Floats, Sheets

if TYPE_CHECKING:
    import pandas as pd

OfCalls = Callable[["pd.DataFrame"], Floats]

NAMES: Final = ("ran", "direction", "dtype", "op", "setting")  # columns whose values are coded
_FLOOR_MS: Final = 0.01  # a launch: no guess is below it
# rows, passes, leaves of a tree, fewest rows of a leaf: more rows bear more trees
_SIZES: Final = ((30_000, 500, 48, 12), (3_000, 300, 24, 20), (0, 200, 12, 6))
_MOST: Final = 60_000  # rows that trees learn from; more take time, and add little
_FOR_KERNEL: Final = 400  # rows that choose how far a row reaches
_APART: Final = 3.0  # between two algorithms, in standard deviations
_QUARTER: Final = 0.25  # the weight of a relative whose sheet differs by a factor of two
# physics is worth a relative at a distance of four, and no more than all relatives
_OF_PHYSICS: Final = _QUARTER**4


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
        amounts = terms.Amounts(calls)
        tflops, gbs = terms.sheets(calls, self.reached).T
        works = amounts.flops / tflops * 1e-9
        moves = (amounts.bytes_min + 1) / gbs * 1e-6
        return np.asarray(np.log(np.maximum(works, moves) + _FLOOR_MS))

    def features(self, calls: pd.DataFrame) -> Floats:
        """Return the columns that trees split: sizes as logarithms, steps, names, the device."""
        a = terms.Amounts(calls)
        return np.column_stack([
            self.sizes(calls), np.log2(np.column_stack([
                a.in_channels, a.in_h, a.in_w, a.out_channels, a.pixels, a.inner,
                a.weight_bytes + 1, a.in_bytes + 1, a.out_bytes + 1,
            ])),
            calls["dilation_h"].fillna(1), self.roofline(calls),
            *(self.code(calls, name) for name in NAMES),
        ])  # fmt: skip

    def places(self, calls: pd.DataFrame) -> Floats:
        """Return where calls lie for a process: sizes; algorithms apart."""
        ran = self.code(calls, "ran")
        apart = [_APART * (ran == code) for code in self.codes["ran"].values()]
        return np.column_stack([self.sizes(calls), *apart])

    def sizes(self, calls: pd.DataFrame) -> Floats:
        """Return logarithms of sizes, and whether channels fill whole tiles."""
        a = terms.Amounts(calls)
        channels = a.in_channels / a.groups
        filters = a.out_channels / a.groups
        amounts = [
            a.batch_size, channels, filters, a.groups, a.out_h * a.out_w, a.kernel_h * a.kernel_w,
            a.flops + 1, a.bytes_min + 1, (a.flops + 1) / (a.bytes_min + 1),
        ]  # fmt: skip
        return np.column_stack([
            np.log2(np.column_stack(amounts)), calls["stride_h"].fillna(1), channels % 4 == 0,
            filters % 16 == 0,
        ])  # fmt: skip


@dataclass(frozen=True)
class Trees:
    """Gradient-boosted trees for the median of the factor by which plain physics is wrong."""

    shapes: CallFeatures
    law: Physics
    learner: Any
    calls: int  # that taught it

    @classmethod
    def fit(cls, shapes: CallFeatures, calls: pd.DataFrame) -> Trees:
        """Return what calls with a time teach; of very many some, drawn at random."""
        law = physics.fit(calls, plain=True)  # it extrapolates
        some = calls.sample(min(len(calls), _MOST), random_state=0)
        passes, leaves, fewest = next(one[1:] for one in _SIZES if len(some) >= one[0])
        learner = HistGradientBoostingRegressor(
            loss="absolute_error", max_iter=passes, learning_rate=0.06 if passes < 300 else 0.1,
            max_leaf_nodes=leaves, min_samples_leaf=min(fewest, max(1, len(some) // 8)),
            max_features=0.5, l2_regularization=1.0, early_stopping=False, random_state=0,
        )  # fmt: skip
        with threadpool_limits(limits=1):
            learner.fit(shapes.features(some), _log_ms(some) - np.log(law.times(some)))
        return cls(shapes, law, learner, len(calls))

    def __call__(self, calls: pd.DataFrame) -> Floats:
        """Return the logarithms of the milliseconds of convolutions."""
        with threadpool_limits(limits=1):
            factors = self.learner.predict(self.shapes.features(calls))
        return np.asarray(np.log(self.law.times(calls)) + factors)


@dataclass(frozen=True)
class Process:
    """A guess and a Gaussian process: near calls are wrong alike, far ones as all of them are."""

    guess: OfCalls
    places: OfCalls
    learner: Any

    @classmethod
    def fit(cls, guess: OfCalls, places: OfCalls, calls: pd.DataFrame) -> Process:
        """Return what a few calls teach of how wrong a guess is."""
        kernel = ConstantKernel(1.0, (0.05, 20.0)) * Matern(5.0, (0.5, 50.0), nu=1.5)
        kernel += WhiteKernel(0.05, (1e-4, 1.0))
        with threadpool_limits(limits=1), warnings.catch_warnings():
            # a kernel at the end of its range is no fault
            warnings.simplefilter("ignore", ConvergenceWarning)
            for some in (calls.sample(min(len(calls), _FOR_KERNEL), random_state=0), calls):
                is_whole = some is calls
                learner = GaussianProcessRegressor(
                    kernel, optimizer=None if is_whole else "fmin_l_bfgs_b", normalize_y=True,
                    random_state=0,
                )  # fmt: skip
                scaled = make_pipeline(StandardScaler(), learner)
                scaled.fit(places(some), _log_ms(some) - guess(some))
                kernel = learner.kernel_
        return cls(guess, places, scaled)

    def __call__(self, calls: pd.DataFrame) -> Floats:
        """Return the logarithms of the milliseconds of convolutions."""
        with threadpool_limits(limits=1):
            return self.guess(calls) + np.asarray(self.learner.predict(self.places(calls)))


@dataclass(frozen=True)
class Relatives:
    """What GPUs with many rows say of another one: their factors, on its own roofline."""

    shapes: CallFeatures
    trees: Mapping[str, Trees]

    def on(self, gpu: str) -> tuple[float, OfCalls]:
        """Return how much they count beside physics on a GPU without a row, and what they say.

        They count by how alike their sheets are to its sheet; without one physics has no units.
        """
        worth = _QUARTER ** np.array([_distance(gpu, name) for name in self.trees])
        total = worth.sum()
        weights = worth / total if total else np.full(len(worth), 1 / len(worth))
        share = max(total / (total + _OF_PHYSICS), 0.5) if total else 1.0
        return share, lambda calls: self.shapes.roofline(calls) + self._each(calls) @ weights

    def guess(self, own: pd.DataFrame) -> OfCalls:
        """Return their mean time, which rows of its own correct.

        Their sheets differ from its sheet; how much of that counts (none, where all times are those
        of copies) is what its own rows show.
        """
        mean, apart = self._mean(own)
        apart -= apart.mean()
        slope = float(np.clip(apart @ (_log_ms(own) - mean) / max(apart @ apart, 1e-9), 0.0, 1.0))
        return lambda calls: np.asarray(np.array([1.0, slope]) @ self._mean(calls))

    def _mean(self, calls: pd.DataFrame) -> Floats:
        """Return the mean logarithm of their times, and how far its roofline is from theirs."""
        roofline = self.shapes.roofline(calls)
        theirs = np.mean(
            [self.shapes.roofline(calls.assign(gpu=gpu)) for gpu in self.trees], axis=0
        )
        return np.array([theirs + self._each(calls).mean(axis=1), roofline - theirs])

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

    def _each(self, calls: pd.DataFrame) -> Floats:
        on = {gpu: calls.assign(gpu=gpu) for gpu in self.trees}
        logs = [of(on[gpu]) - self.shapes.roofline(on[gpu]) for gpu, of in self.trees.items()]
        return np.column_stack(logs)


def _log_ms(calls: pd.DataFrame) -> Floats:
    return np.log(calls["ms"].to_numpy(float))


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
