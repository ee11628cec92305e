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

    The errors of the line are interpolated by linear radial functions. Along one axis these are
    straight lines between neighbours, and the error at the end beyond it.
    """
    measured, row = np.unique(places, axis=0, return_inverse=True)
    row = row.ravel()
    # visits of one place count as their geometric mean
    logs = np.bincount(row, np.log(ms)) / np.bincount(row)
    works = measured.sum(axis=1)
    largest = works.max()  # work counts in parts of the largest: `nnls` needs columns alike in size
    line = _line(np.exp2(works - largest), np.exp(logs))
    errors = logs - np.log(_terms(np.exp2(works - largest)) @ line)
    near = _NEIGHBOURS if len(measured) > _NEIGHBOURS else None
    # A plane has slopes of its own, unless all neighbours may lie on one line of it.
    has_slopes = near is None and np.linalg.matrix_rank(measured - measured[0]) > 1
    corrected = RBFInterpolator(measured, errors, near, kernel="linear", degree=int(has_slopes))
    said = _terms(np.exp2(wanted.sum(axis=1) - largest)) @ line
    return np.asarray(said * np.exp(corrected(wanted)))


def _line(works: Floats, ms: Floats) -> Floats:
    """Return the cost of the work and of a pass, none below 0: relative errors count.

    That of one place alone is the cost of the work, which comes first.
    """
    costs, _ = nnls(_terms(works) / ms[:, None], np.ones(len(ms)))
    return np.asarray(costs)


def _terms(works: Floats) -> Floats:
    return np.column_stack([works, np.ones(len(works))])


def outside(places: Floats, wanted: Floats) -> Flags:
    """Say which places lie beyond all measured ones, along some axis."""
    lows = places.min(axis=0, initial=np.inf)
    highs = places.max(axis=0, initial=-np.inf)
    return np.asarray(((wanted < lows) | (wanted > highs)).any(axis=1))
