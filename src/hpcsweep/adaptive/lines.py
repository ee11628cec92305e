"""Straight lines between measured points, on logarithms: the time of a size between two others.

Linear radial functions on a plane: with one axis these are the lines from point to point, and
beyond the last one the mean slope; with two axes the same idea.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.interpolate import RBFInterpolator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_NEIGHBOURS: Final = 64  # that bear on one place


def between(places: Floats, ms: Floats, wanted: Floats) -> Floats:
    """Return the times at `wanted` places from those at measured ones, of which there is one.

    Several times at one place count as their geometric mean.
    """
    known, back = np.unique(places, axis=0, return_inverse=True)
    logs = np.bincount(back.ravel(), np.log(ms)) / np.bincount(back.ravel())
    axes = known.shape[1]
    if len(known) == 1 or not axes:
        return np.full(len(wanted), float(np.exp(logs.mean())))
    near = _NEIGHBOURS if len(known) > _NEIGHBOURS else None
    on_a_line = np.linalg.matrix_rank(known - known[0]) < axes  # of a plane: it has no slope
    said = RBFInterpolator(known, logs, near, kernel="linear", degree=0 if on_a_line else 1)
    return np.asarray(np.exp(said(wanted)))


def outside(places: Floats, wanted: Floats) -> NDArray[np.bool_]:
    """Say which places lie beyond all measured ones, along some axis."""
    lows, highs = places.min(axis=0), places.max(axis=0)
    return np.asarray(((wanted < lows) | (wanted > highs)).any(axis=1))
