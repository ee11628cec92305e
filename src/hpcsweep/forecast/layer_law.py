"""The time of a layer call: what physics knows, and for convolutions what rows teach beyond it.

A GPU with many rows has trees of its own. One with few corrects what other GPUs say of it, or the
mean of physics and roofline if they have no more rows, as far as its own rows reach. One without a
row takes what the others say. Which way serves which number of rows was found by leaving out
(`docs/prediction.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from hpcsweep.forecast import learner, physics, terms
from hpcsweep.forecast.devices import Devices
from hpcsweep.forecast.learner import Features, Guess
from hpcsweep.forecast.other_gpus import OtherGpus
from hpcsweep.forecast.terms import Flags, Floats, Integers

if TYPE_CHECKING:
    import pandas as pd

_FEWEST: Final = 20  # convolutions of a GPU that correct a guess
_MANY: Final = 1_500  # that tell where its times make steps; more than a process can hold
_FILTER: Final = ["in_channels", "out_channels", "kernel_h", "kernel_w", "stride_h", "groups"]
_FEW_FILTERS: Final = 100  # one or two networks have so many, at however many sizes
_RICH: Final = 2.0  # times as many rows of other GPUs: then they say more than the own ones


class Law:
    """What was learnt of layer calls; what rows teach of a GPU, when it is asked for first."""

    def __init__(self, calls: pd.DataFrame) -> None:
        """Learn from distinct calls with a time (`ms`)."""
        convolutions = calls[_are_convolutions(calls)]
        self._devices = Devices.of(convolutions)
        self._physics = physics.fit(calls, self._devices)
        self._features = Features.of(convolutions, self._devices)
        self._rows = {gpu: convolutions.iloc[places] for gpu, places in _by_gpu(convolutions)}
        self._alone: dict[str, Guess] = {}
        self._best: dict[str, Guess] = {}

    def times(self, calls: pd.DataFrame) -> Floats:
        """Return milliseconds of calls."""
        logs = self._physics.logs(calls)
        # of another algorithm, physics knows more
        learnt = _are_convolutions(calls) & self._features.knows(calls)
        for gpu, every in _by_gpu(calls):
            places = every[learnt[every]]
            if len(places):
                if gpu not in self._best:
                    self._best[gpu] = self._best_of(gpu)
                logs[places] = self._best[gpu](calls.iloc[places])
        return np.maximum(np.exp(logs), physics.roofline(calls))

    def _best_of(self, gpu: str) -> Guess:
        """Return what is said best of the convolutions of a GPU."""
        own = self._rows.get(gpu)
        helpers = [
            name for name, rows in self._rows.items() if name != gpu and len(rows) >= _FEWEST
        ]
        if own is None or len(own) < _FEWEST:
            by_physics = self._physics.logs
            return self._others(helpers).of(gpu, by_physics) if helpers else by_physics
        theirs = sum(len(self._rows[name]) for name in helpers)
        is_few = len(own) <= _MANY or len(own[_FILTER].drop_duplicates()) <= _FEW_FILTERS
        if is_few and theirs >= _RICH * len(own):
            some = own.sample(min(len(own), _MANY), random_state=0)
            return self._others(helpers).corrected_by(some)
        return self._of_own_rows(gpu)

    def _others(self, names: list[str]) -> OtherGpus:
        return OtherGpus(self._features, {name: self._of_own_rows(name) for name in names})

    def _of_own_rows(self, gpu: str) -> Guess:
        """Return what the rows of a GPU teach of it."""
        if gpu not in self._alone:
            own = self._rows[gpu]
            law = physics.fit(own, self._devices)

            def between(calls: pd.DataFrame) -> Floats:
                """Return the mean with the roofline: a law of few rows errs beyond them."""
                return (law.logs(calls) + self._devices.roofline(calls)) / 2

            self._alone[gpu] = (
                learner.trees(self._features, law.logs, own)
                if len(own) > _MANY
                else learner.process(between, self._features.places, own)
            )
        return self._alone[gpu]


def _are_convolutions(calls: pd.DataFrame) -> Flags:
    return np.asarray(calls["multiplies"].to_numpy(bool) & (calls["kernel_h"].to_numpy(float) > 0))


def _by_gpu(calls: pd.DataFrame) -> list[tuple[str, Integers]]:
    """Return the places of the calls of each GPU."""
    return [(str(gpu), places) for (gpu,), places in terms.groups(calls, ("gpu",)).items()]
