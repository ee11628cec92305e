"""Corrects physics by what nearby calls took, and leaves it alone where no call is near.

Calls are near each other if their shapes differ by small factors: a distance of 1 is a factor of
two in one amount. The correction is a mean of log errors of calls of the same kind, weighted by
distance, with one more call of error zero in it: far from everything that was seen, it vanishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
from sklearn.neighbors import NearestNeighbors

from hpcsweep.forecast import terms
from hpcsweep.forecast.physics import KIND
from hpcsweep.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_NEIGHBOURS: Final = 8
_REACH: Final = 0.5  # the distance at which a neighbour's weight is 1/e
_PRIOR: Final = 0.3  # the weight of no correction
_CLIP: Final = 1.5


@dataclass(frozen=True)
class _Seen:
    near: NearestNeighbors
    errors: Floats


@dataclass(frozen=True)
class Residual:
    """The log errors of physics at the calls that were seen, by kind."""

    seen: Mapping[tuple[object, ...], _Seen] = field(default_factory=dict)

    def of(self, calls: pd.DataFrame) -> Floats:
        """Return the log of the factor by which physics is wrong for each call."""
        found, shapes = np.zeros(len(calls)), features(calls)
        for key, places in terms.groups(calls, KIND).items():
            seen = self.seen.get(key)
            if seen is not None:
                found[places] = _mean(seen, shapes[places])
        return found


def fit(calls: pd.DataFrame, physics: Floats) -> Residual:
    """Return the corrections of distinct calls with a time (`ms`), given what physics says."""
    errors, shapes = np.log(calls["ms"].to_numpy(float) / physics), features(calls)
    seen: dict[tuple[object, ...], _Seen] = {}
    for key, places in terms.groups(calls, KIND).items():
        near = NearestNeighbors(n_neighbors=min(_NEIGHBOURS, len(places))).fit(shapes[places])
        seen[key] = _Seen(near, np.clip(errors[places], -_CLIP, _CLIP))
    return Residual(seen)


def _mean(seen: _Seen, shapes: Floats) -> Floats:
    distances, places = seen.near.kneighbors(shapes)
    weights = np.exp(-((distances / _REACH) ** 2))
    total: Any = (weights * seen.errors[places]).sum(axis=1)
    return np.asarray(total / (weights.sum(axis=1) + _PRIOR))


def features(calls: pd.DataFrame) -> Floats:
    """Return the shapes of calls as logarithms of amounts, base 2."""
    amounts = terms.Amounts(calls)
    columns = (
        amounts.in_bytes, amounts.out_bytes, amounts.weight_bytes, amounts.flops,
        amounts.in_channels, amounts.out_channels, amounts.pixels,
        amounts.kernel_h * amounts.kernel_w, amounts.groups,
    )  # fmt: skip
    return np.column_stack([np.log2(column + 1.0) for column in columns])
