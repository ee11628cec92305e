"""Predicts what was measured as if it had not been: a network, sizes, an algorithm, a GPU.

The error of a prediction is what it is wrong by there. Random rows would not do: the same layer
at the next size is in the training data then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

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
    """What was left out: `total_ms` or `ms` are measured, `prediction` and baselines are said.

    `fold` says what was left out together.
    """

    kind: str
    points: pd.DataFrame
    calls: pd.DataFrame

    def parts(self) -> Iterator[tuple[str, Left, Left]]:
        """Yield the name of each fold, what was left out in it, and what in the others."""
        for fold in self.points["fold"].unique():
            of_points, of_calls = self.points["fold"] == fold, self.calls["fold"] == fold
            yield (
                fold,
                Left(self.kind, self.points[of_points], self.calls[of_calls]),
                Left(self.kind, self.points[~of_points], self.calls[~of_calls]),
            )


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
        learnt = model.fit(train, like=like)
        said = learnt.times(test.calls)
        totals = {OWN: learnt.totals(test.points, said)}
        times: dict[str, Any] = {OWN: said["ms"], "ms": test.calls["ms"]}
        for rival in baselines.ALL if compare else ():
            times[rival], totals[rival] = baselines.times(rival, train, test)
        points.append(test.points.assign(fold=name, **totals))
        calls.append(said.assign(fold=name, **times))
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
