"""The time of a layer call: physics for all, and for convolutions what learns from rows beside it.

Trees answer for the convolutions of a GPU with many rows, a Gaussian process with fewer; a few rows
correct what other GPUs say. A GPU without a row has what its relatives say, and physics if none is
near. Which way serves which number of rows was found by leaving out (`docs/prediction.md`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcsweep.forecast import physics, terms
from hpcsweep.forecast.learner import CallFeatures, OfCalls, Process, Relatives, Trees
from hpcsweep.forecast.physics import Physics
from hpcsweep.forecast.terms import Flags, Floats, Integers

if TYPE_CHECKING:
    import pandas as pd

_FEWEST: Final = 300  # convolutions from which anything but physics learns
_FEWEST_OWN: Final = 20  # of a GPU that others help
_FEW: Final = 1_500  # of a GPU: so many a process can hold
_FILTER: Final = ["in_channels", "out_channels", "kernel_h", "kernel_w", "stride_h", "groups"]
_FEW_FILTERS: Final = 100  # one or two networks have so many, at however many sizes
_PARTS: Final = 3  # of own shapes, each left out
_SHARES: Final = (0.5, 0.75, 0.25, 1.0, 0.0)  # the first of equals counts
_RICH: Final = 2.0  # times as many rows of other GPUs: then they say more than the own ones


@dataclass(frozen=True)
class Law:
    """What was learnt of layer calls; `times` answers."""

    physics: Physics
    ways: Mapping[str, OfCalls] = field(default_factory=dict)  # of convolutions, by GPU
    relatives: Relatives | None = None

    def times(self, calls: pd.DataFrame) -> Floats:
        """Return milliseconds of calls."""
        logs = np.log(self.physics.times(calls))
        if self.relatives:
            seen = calls["ran"].isin(self.relatives.shapes.codes["ran"]).to_numpy()
            for gpu, every in _by_gpu(calls):
                places = every[seen[every]]  # of another algorithm, physics knows more
                if len(places):
                    way = self.ways.get(gpu)
                    share, way = (1.0, way) if way else self.relatives.on(gpu)
                    rest = (1 - share) * logs[places]
                    logs[places] = share * way(calls.iloc[places]) + rest
        return np.maximum(np.exp(logs), physics.roofline(calls))


def fit(calls: pd.DataFrame, like: Law | None = None) -> Law:
    """Return what distinct calls with a time (`ms`) teach.

    What is costly to learn may be that of a fit of more calls.
    """
    law = physics.fit(calls)
    convolutions = calls[_are_convolutions(calls)]
    if len(convolutions) < _FEWEST:
        return Law(law)
    shapes = CallFeatures.of(convolutions)
    rows = {gpu: convolutions.iloc[places] for gpu, places in _by_gpu(convolutions)}
    seen = like.relatives.trees if like and like.relatives else {}
    trees = {
        gpu: seen[gpu]
        if gpu in seen and seen[gpu].calls == len(own)  # none of it is left out
        else Trees.fit(shapes, own)
        for gpu, own in rows.items()
        if len(own) >= _FEWEST
    }
    ways: dict[str, OfCalls] = {}
    for gpu, own in rows.items():
        others = {name: of for name, of in trees.items() if name != gpu}
        helped = sum(of.calls for of in others.values()) >= _RICH * len(own)
        few = len(own) <= _FEW or len(own[_FILTER].drop_duplicates()) <= _FEW_FILTERS
        if few and helped and len(own) >= _FEWEST_OWN:
            ways[gpu] = _with_physics(Relatives(shapes, others), own)
        elif len(own) > _FEW:
            ways[gpu] = trees[gpu]
        elif gpu in trees:
            ways[gpu] = Process.fit(shapes.roofline, shapes.places, own)
    return Law(law, ways, Relatives(shapes, trees) if trees else None)


def _with_physics(relatives: Relatives, own: pd.DataFrame) -> OfCalls:
    """Return a mean of physics and of what relatives say, corrected by a GPU's few rows.

    The share of the relatives is the one that is least wrong at own shapes that are left out.
    """
    own = own.sample(min(len(own), _FEW), random_state=0)
    parts = own.groupby("unique_key", sort=False).ngroup().to_numpy() % _PARTS
    held = np.zeros((2, len(own)))
    for part in np.unique(parts):
        out = parts == part
        if not out.all():
            held[:, out] = _both(relatives, own[~out])(own[out])
    wrong = held - np.log(own["ms"].to_numpy(float))
    share = min(_SHARES, key=lambda each: float(np.abs(_mixed(wrong, each)).mean()))
    both = _both(relatives, own)
    return lambda calls: _mixed(both(calls), share)


def _both(relatives: Relatives, own: pd.DataFrame) -> OfCalls:
    """Return what corrected relatives (first row) and physics (second) say of calls, as logs."""
    law = physics.fit(own)
    process = Process.fit(relatives.guess(own), relatives.places, own)
    return lambda calls: np.array([process(calls), np.log(law.times(calls))])


def _mixed(both: Floats, share: float) -> Floats:
    return np.asarray(share * both[0] + (1 - share) * both[1])


def _are_convolutions(calls: pd.DataFrame) -> Flags:
    return np.asarray(calls["multiplies"].to_numpy(bool) & (calls["kernel_h"].to_numpy(float) > 0))


def _by_gpu(calls: pd.DataFrame) -> list[tuple[str, Integers]]:
    """Return the places of the convolutions of each GPU."""
    convolves = _are_convolutions(calls)
    return [(str(gpu), places[convolves[places]])
            for (gpu,), places in terms.groups(calls, ("gpu",)).items()]  # fmt: skip
