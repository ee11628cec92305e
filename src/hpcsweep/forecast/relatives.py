"""What GPUs with many rows say of one with few: each by its own trees, combined by what fits.

Forty convolutions of a new GPU do not tell where its times make steps, but those of its relatives
do. Each relative says what a call would take on it; the mean of these, weighted by how alike the
own times are, is the guess, and their differences are what its error is learnt from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcsweep.forecast import terms
from hpcsweep.forecast.learner import Shapes, Trees
from hpcsweep.records import dataclass

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

FEWEST: Final = 300  # convolutions of a GPU that tells others something
_SHARPNESS: Final = 4.0  # a relative that is wrong by twice as much counts a sixteenth


@dataclass(frozen=True)
class Relatives:
    """The trees of each GPU, and how alike the times of another one are to its."""

    shapes: Shapes
    trees: Mapping[str, Trees]
    weights: Floats

    @classmethod
    def fit(cls, shapes: Shapes, trees: Mapping[str, Trees], own: pd.DataFrame) -> Relatives:
        """Return relatives of the GPU of some convolutions with a time."""
        equal = cls(shapes, trees, np.ones(len(trees)))
        wrong = np.log(own["ms"].to_numpy(float))[:, None] - equal._each(own)
        spread = np.abs(wrong - np.median(wrong, axis=0)).mean(axis=0)
        worth = np.maximum(spread, 1e-6) ** -_SHARPNESS
        return cls(shapes, trees, worth / worth.sum())

    def guess(self, calls: pd.DataFrame) -> Floats:
        """Return the logarithms of the milliseconds, but for a factor."""
        return np.asarray(self._each(calls) @ self.weights)

    def places(self, calls: pd.DataFrame) -> Floats:
        """Return where calls lie for a process: work, the algorithm, and how relatives differ."""
        amounts, each = terms.Amounts(calls), self._each(calls)
        works, moves = np.log(amounts.flops + 1), np.log(amounts.bytes_min + 1)
        ran = self.shapes.code(calls, "ran")
        large = amounts.kernel_h * amounts.kernel_w > 1
        return np.column_stack([
            *(ran == code for code in self.shapes.codes["ran"].values()),
            works, moves, works - moves, large, each - each.mean(axis=1, keepdims=True),
        ])  # fmt: skip

    def _each(self, calls: pd.DataFrame) -> Floats:
        """Return what calls would take on each relative."""
        return np.column_stack([
            on_it.pipe(self.shapes.roofline) + trees.of(on_it)
            for on_it, trees in ((calls.assign(gpu=gpu), of) for gpu, of in self.trees.items())
        ])  # fmt: skip
