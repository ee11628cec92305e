"""What rows teach of convolutions beyond a guess: boosted trees of many, a Gaussian process of few.

Both learn the logarithm of the factor by which the guess is wrong. Trees find steps (tiles, solvers
that change); a process knows how far each of its rows reaches.
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

from hpcsweep.forecast import terms
from hpcsweep.forecast.devices import Devices
from hpcsweep.forecast.terms import Flags, Floats

if TYPE_CHECKING:
    import pandas as pd

Guess = Callable[["pd.DataFrame"], Floats]  # log milliseconds of calls

_NAMES: Final = ("ran", "direction", "dtype", "op", "setting")  # columns whose values are coded
# Rows; passes, what each adds, leaves of a tree, fewest rows of a leaf. Many rows bear large trees,
# of which fewer do. Of fewer rows large ones are of no use to other GPUs: 40 own shapes show it.
_SIZES: Final = (
    (30_000, 200, 0.15, 96, 12),
    (15_000, 80, 0.25, 48, 20),
    (3_000, 300, 0.1, 24, 20),
    (0, 200, 0.1, 12, 6),
)
_MOST: Final = 60_000  # rows that trees learn from; more take time, and add little
_FOR_KERNEL: Final = 400  # rows that choose how far a row reaches
_APART: Final = 3.0  # between two algorithms, in standard deviations


@dataclass(frozen=True)
class Features:
    """How calls become numbers: the codes of names, and what the devices can do."""

    codes: Mapping[str, Mapping[str, int]]
    devices: Devices

    @classmethod
    def of(cls, calls: pd.DataFrame, devices: Devices) -> Features:
        """Return what calls with a time fix."""
        codes = {}
        for name in _NAMES:
            values = sorted(calls[name].astype(str).unique())
            codes[name] = {value: code for code, value in enumerate(values)}
        return cls(codes, devices)

    def knows(self, calls: pd.DataFrame) -> Flags:
        """Say of which calls the algorithm was seen."""
        return calls["ran"].isin(self.codes["ran"]).to_numpy()

    def to_split(self, calls: pd.DataFrame) -> Floats:
        """Return the columns that trees split: sizes as logarithms, steps, names, the device."""
        work = terms.amounts(calls)
        more = work[["in_channels", "in_h", "in_w", "out_channels", "pixels", "inner"]]
        moved = work[["weight_bytes", "in_bytes", "out_bytes"]] + 1
        codes = [self._code(calls, name) for name in _NAMES]
        return np.column_stack([
            _sizes(work), np.log2(more), np.log2(moved), work["dilation_h"],
            self.devices.roofline(calls), *codes,
        ])  # fmt: skip

    def places(self, calls: pd.DataFrame) -> Floats:
        """Return where calls lie for a process: sizes; algorithms apart."""
        return np.column_stack([_sizes(terms.amounts(calls)), _APART * self.ran(calls)])

    def ran(self, calls: pd.DataFrame) -> Flags:
        """Say in which of the algorithms' columns each call's own one is."""
        return np.asarray(self._code(calls, "ran")[:, None] == np.arange(len(self.codes["ran"])))

    def _code(self, calls: pd.DataFrame, name: str) -> Floats:
        """Return the code of each call's name; NaN for one that was never seen."""
        return calls[name].astype("category").map(dict(self.codes[name])).to_numpy(float)


def _sizes(work: pd.DataFrame) -> Floats:
    """Return logarithms of sizes, and whether channels fill whole tiles."""
    sizes = np.log2(work[["batch_size", "channels", "filters", "groups", "kernel"]])
    pixels = np.log2(work["out_h"] * work["out_w"])
    flops = np.log2(work["flops"] + 1)
    moved = np.log2(work["bytes_min"] + 1)
    return np.column_stack([
        sizes, pixels, flops, moved, flops - moved, work["stride_h"], work["channels"] % 4 == 0,
        work["filters"] % 16 == 0,
    ])  # fmt: skip


def trees(features: Features, guess: Guess, calls: pd.DataFrame) -> Guess:
    """Return a guess that boosted trees correct as calls with a time teach; of very many, some."""
    some = calls.sample(min(len(calls), _MOST), random_state=0)
    passes, rate, leaves, fewest = next(one[1:] for one in _SIZES if len(some) >= one[0])
    learner = HistGradientBoostingRegressor(
        loss="absolute_error", max_iter=passes, learning_rate=rate, max_leaf_nodes=leaves,
        min_samples_leaf=fewest,
        max_features=0.5, l2_regularization=1.0, early_stopping=False, random_state=0,
    )  # fmt: skip
    with threadpool_limits(limits=1):
        learner.fit(features.to_split(some), _wrong_by(guess, some))
    return _corrected(guess, learner, features.to_split)


def process(guess: Guess, places: Guess, calls: pd.DataFrame) -> Guess:
    """Return a guess that a Gaussian process corrects: near calls are wrong alike."""
    kernel: Any = ConstantKernel(1.0, (0.05, 20.0)) * Matern(5.0, (0.5, 50.0), nu=1.5)
    kernel += WhiteKernel(0.05, (1e-4, 1.0))
    some = calls.sample(min(len(calls), _FOR_KERNEL), random_state=0)
    with threadpool_limits(limits=1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # an end of its range is no fault
        chosen = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
        make_pipeline(StandardScaler(), chosen).fit(places(some), _wrong_by(guess, some))
        learner = make_pipeline(
            StandardScaler(),
            GaussianProcessRegressor(chosen.kernel_, optimizer=None, normalize_y=True),
        )
        learner.fit(places(calls), _wrong_by(guess, calls))
    return _corrected(guess, learner, places)


def _corrected(guess: Guess, learner: Any, columns: Guess) -> Guess:  # noqa: ANN401 - sklearn's
    """Return a guess with what a learner says of how wrong it is."""

    def said(calls: pd.DataFrame) -> Floats:
        with threadpool_limits(limits=1):
            return guess(calls) + np.asarray(learner.predict(columns(calls)))

    return said


def _wrong_by(guess: Guess, calls: pd.DataFrame) -> Floats:
    """Return the logarithms of the factors by which calls with a time take longer than a guess."""
    return np.log(calls["ms"].to_numpy(float)) - guess(calls)
