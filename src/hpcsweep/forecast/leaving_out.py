"""Predicts what was measured as if it had not been: a network, sizes, an algorithm, a GPU.

The error of a prediction is what it is wrong by there. Random rows would not do: the same layer
at the next size is in the training data then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pandas as pd

from hpcsweep.forecast import baselines, model
from hpcsweep.forecast.intervals import KINDS, OWN
from hpcsweep.records import dataclass, replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

    from hpcsweep.forecast.model import Forecast
    from hpcsweep.forecast.tables import Measured


_SIZE_FOLDS: Final = 4
_MOST_FOLDS: Final = 12


@dataclass(frozen=True)
class Left:
    """What was left out and predicted: `total_ms` or `ms` are measured, `said` is predicted.

    `fold` says what was left out together; the other columns are those of the baselines.
    """

    kind: str
    points: pd.DataFrame
    calls: pd.DataFrame

    @property
    def folds(self) -> list[str]:
        return list(dict.fromkeys(self.points["fold"]))


def leave_out(
    measured: Measured, kind: str, *, compare: bool = False, like: Forecast | None = None
) -> Left | None:
    """Return what a model says of each part, having seen the others; None if there is one part.

    `like` is what all parts teach, if somebody knows; it spares each fit some choices.
    """
    points, calls = [], []
    for name, out in _folds(measured.points, kind):
        train, test = measured.of(measured.points[~out]), measured.of(measured.points[out])
        if kind == "gpu":  # others may have measured the one that is left out
            train = replace(train, foreign=None)
        said = _said(train, test, compare=compare, like=like)
        points.append(said.points.assign(fold=name))
        calls.append(said.layers.assign(fold=name))
    if not points:
        return None
    return Left(kind, pd.concat(points), pd.concat(calls, ignore_index=True))


def _folds(points: pd.DataFrame, kind: str) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    column = points[KINDS[kind]]
    values = sorted(column.unique())
    if kind == "size":  # every fourth size, so that sizes on both sides are there
        number = column.map({value: place for place, value in enumerate(values)})
        folds = min(_SIZE_FOLDS, len(values) // 2)
        chosen = [(f"sizes {part + 1}", number % folds == part) for part in range(folds)]
    else:
        folds = min(_MOST_FOLDS, len(values))
        parts = [values[part::folds] for part in range(folds)]
        chosen = [(", ".join(map(str, part)), column.isin(part)) for part in parts]
    if folds > 1:
        for name, out in chosen:
            yield name, out.to_numpy(bool)


def _said(train: Measured, test: Measured, *, compare: bool, like: Forecast | None) -> Measured:
    learnt = model.fit(train, like=like)
    calls = test.calls
    said = learnt.times(calls)
    totals = test.points.assign(**{OWN: learnt.totals(test.points, said)})
    layers = said.assign(ms=calls["ms"], **{OWN: said["ms"]})
    if compare:
        for name, rival in baselines.ALL.items():
            times, sums = rival(train, test)
            layers[name], totals[name] = times, sums
    return type(test)(totals, layers)
