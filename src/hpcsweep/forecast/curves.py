"""Times between measured sizes and batches: a line over the work, corrected where it is wrong.

A place has the binary logarithms of pixels, of the batch, or of both; their sum is that of the
work. It knows nothing of points or groups (`groups`).
"""

from __future__ import annotations

from typing import Final

import numpy as np
from scipy.interpolate import RBFInterpolator
from scipy.optimize import nnls

from hpcsweep.forecast.terms import Flags, Floats

# Measured places that bear on one: more change nothing, and take the cube of the time.
_NEIGHBOURS: Final = 64


def between(places: Floats, ms: Floats, wanted: Floats) -> Floats:
    """Return the times at `wanted` places from those at measured ones, of which there is one.

    The line has a cost of the work and one of a pass, none below 0, and the smallest squares of
    relative errors. These are interpolated by linear radial functions: along one axis, straight
    lines between neighbours, and the error at the end beyond it.
    """
    measured, row = np.unique(places, axis=0, return_inverse=True)
    row = row.ravel()
    # visits of one place count as their geometric mean
    logs = np.bincount(row, np.log(ms)) / np.bincount(row)
    number = len(measured)
    largest = measured.sum(axis=1).max()
    terms = _terms(measured, largest)
    relative = terms / np.exp(logs)[:, None]
    line, _ = nnls(relative, np.ones(number))
    errors = logs - np.log(terms @ line)
    near = None
    has_slopes = np.linalg.matrix_rank(measured - measured[0]) > 1  # as a plane has, of its own
    if number > _NEIGHBOURS:
        near = _NEIGHBOURS
        has_slopes = False  # all neighbours may lie on one line
    error = RBFInterpolator(measured, errors, near, kernel="linear", degree=int(has_slopes))
    on_line = _terms(wanted, largest) @ line
    return np.asarray(on_line * np.exp(error(wanted)))


def _terms(places: Floats, largest: float) -> Floats:
    """Return what the costs count: the work in parts of the largest, which is near 1, and 1.

    The work comes first: `nnls` gives it all that one place alone takes.
    """
    works = np.exp2(places.sum(axis=1) - largest)
    passes = np.ones(len(works))
    return np.column_stack([works, passes])


def outside(places: Floats, wanted: Floats) -> Flags:
    """Say which places lie beyond all measured ones, along some axis."""
    lows = places.min(axis=0, initial=np.inf)
    highs = places.max(axis=0, initial=-np.inf)
    beyond = (wanted < lows) | (wanted > highs)
    return np.asarray(beyond.any(axis=1))
