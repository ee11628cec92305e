"""The time of a layer call: physics for all, and for convolutions what learns from rows beside it.

Several ways answer for a convolution: physics with its correction by neighbours, trees on a
roofline, trees on plain physics, and where a GPU has few rows a Gaussian process, on the roofline
and on what the other GPUs say. Of few rows each way counts by how wrong it was at parts (networks,
or shapes) that were left out; of many the mean of all but physics does as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcsweep.forecast import physics, residual, terms
from hpcsweep.forecast.learner import Process, Shapes, Trees

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from hpcsweep.forecast.physics import Physics
    from hpcsweep.forecast.residual import Residual

    Floats = NDArray[np.float64]
    Chosen = NDArray[np.bool_]

Logs = Callable[["pd.DataFrame"], "NDArray[np.float64]"]  # log ms of convolutions

_FEWEST: Final = 300  # convolutions from which anything but physics learns
_FEWEST_OWN: Final = 40  # of a GPU, where others have so many
_FEW: Final = 1_500  # of a GPU: so many a process can hold
_FOLDS: Final = 3
_FOLDS_TRIED: Final = 2  # more take time, and tell little more
_MANY: Final = 30_000  # where trees need no help of physics
_TRIED: Final = 3_000  # convolutions by which the ways are compared
_SHARPNESS: Final = 4.0  # a way that is wrong by twice as much counts a sixteenth
_HEAVIEST: Final = 100.0  # a call of a GPU that has few of them, among those of others
_RELATIVES: Final = 3.0  # times as many rows of other GPUs: then they say more than the own ones


@dataclass(frozen=True)
class Way:
    """A simple guess, and what was learnt of the factor by which it is wrong."""

    guess: Logs
    learnt: Trees | Process

    def __call__(self, calls: pd.DataFrame) -> Floats:
        """Return the logarithms of the milliseconds of convolutions."""
        return self.guess(calls) + self.learnt.of(calls)


@dataclass(frozen=True)
class Law:
    """What was learnt of layer calls; `times` answers."""

    physics: Physics
    residual: Residual
    ways: Mapping[str, Mapping[str, Way]]  # by GPU, and for any other one by ""
    weights: Mapping[str, Mapping[str, float]]

    def times(self, calls: pd.DataFrame) -> tuple[Floats, NDArray[np.int8]]:
        """Return milliseconds of calls, and the level of the physics behind each."""
        plain, level = self.physics.times(calls)
        floor = physics.roofline(calls)
        found = np.log(np.maximum(plain * np.exp(self.residual.of(calls)), floor))
        for gpu, places in _by_gpu(calls):
            name = gpu if gpu in self.ways else ""
            ways, weights = self.ways.get(name, {}), self.weights.get(name, {})
            if ways and len(places):
                rows = calls.iloc[places]
                found[places] *= weights["physics"]
                for way, says in ways.items():
                    found[places] += weights[way] * says(rows)
        return np.maximum(np.exp(found), floor), level


def fit(calls: pd.DataFrame, *, quick: bool = False, like: Law | None = None) -> Law:
    """Return what distinct calls with a time (`ms`) teach; `quick`: to physics alone.

    How much each way counts, and how far a call reaches, may be known from a fit of more calls.
    """
    law = _learnt(calls, len(calls) + 1 if quick else _FEWEST, like)
    convolves = _convolutions(calls)
    if not law.ways or convolves.sum() > _TRIED:  # of many the mean does as well
        return law
    weights = _weights(law, like) if like else _compared(calls[convolves], law)
    return Law(law.physics, law.residual, law.ways, weights)


def _weights(law: Law, like: Law) -> dict[str, dict[str, float]]:
    """Return the weights of another fit for the ways that this one has."""
    found = {}
    for gpu, equal in law.weights.items():
        known = like.weights.get(gpu, {})
        total = sum(known.get(name, 0.0) for name in equal)
        found[gpu] = {n: known.get(n, 0.0) / total for n in equal} if total > 0 else {**equal}
    return found


def _learnt(calls: pd.DataFrame, fewest: int, like: Law | None = None) -> Law:
    """Return all ways; none counts but physics as long as nobody compared them."""
    law = physics.fit(calls)
    correction = residual.fit(calls, law.times(calls)[0])
    known = calls[_convolutions(calls)]
    ways = _ways(known, like) if len(known) >= fewest else {}
    weights = {gpu: {"physics": 0.0, **dict.fromkeys(of, 1 / len(of))} for gpu, of in ways.items()}
    return Law(law, correction, ways, weights)


def _ways(calls: pd.DataFrame, like: Law | None) -> dict[str, dict[str, Way]]:
    """Return what answers for the convolutions of each GPU."""
    shapes, ms = Shapes.of(calls), np.log(calls["ms"].to_numpy(float))
    plain = physics.fit(calls, plain=True)
    gpus = dict(_by_gpu(calls))
    most = max(map(len, gpus.values()))
    weights = np.ones(len(calls))
    for places in gpus.values():
        weights[places] = min(_HEAVIEST, most / len(places))
    roof = Way(shapes.roofline, Trees.fit(shapes, calls, ms - shapes.roofline(calls), weights))
    every: dict[str, Way] = {"roofline": roof}
    if _FEW < len(calls) < _MANY:
        base = _log_of(plain)
        every["terms"] = Way(base, Trees.fit(shapes, calls, ms - base(calls), weights))
    found: dict[str, dict[str, Way]] = {"": {"roofline": roof}}
    for gpu, places in gpus.items():
        found[gpu] = dict(every)
        if _FEWEST_OWN <= len(places) <= _FEW:
            own, theirs = calls.iloc[places], np.setdiff1d(np.arange(len(calls)), places)
            guesses: dict[str, Logs] = {"process": shapes.roofline}
            if len(theirs) >= _RELATIVES * len(places):
                others = calls.iloc[theirs]
                rest = ms[theirs] - shapes.roofline(others)
                trees = Trees.fit(shapes, others, rest, np.ones(len(others)))
                guesses["relatives"] = Way(shapes.roofline, trees)
            known = like.ways.get(gpu, {}) if like else {}
            for name, guess in guesses.items():
                before = known[name].learnt if name in known else None
                reach = before if isinstance(before, Process) else None
                process = Process.fit(shapes, own, ms[places] - guess(own), reach)
                found[gpu][name] = Way(guess, process)
    return found


def _log_of(law: Physics) -> Logs:
    return lambda calls: np.asarray(np.log(law.times(calls)[0]))


def _compared(calls: pd.DataFrame, law: Law) -> dict[str, dict[str, float]]:
    """Return how much each way counts on each GPU, by its errors at parts that were left out."""
    drawn = np.random.default_rng(0).permutation(len(calls))
    some = calls.iloc[np.sort(drawn[:_TRIED])]
    part = _parts(some)
    wrong: dict[str, dict[str, list[Floats]]] = {}
    for fold in range(_FOLDS_TRIED):
        out = part == fold
        if not out.any() or (~out).sum() < _FEWEST_OWN:
            continue
        learnt, asked = _learnt(some[~out], _FEWEST_OWN, law), some[out]
        plain = Law(learnt.physics, learnt.residual, {}, {})
        for gpu, places in _by_gpu(asked):
            rows = asked.iloc[places]
            said = {"physics": lambda each, of=plain: np.log(of.times(each)[0])}
            for name, way in (said | dict(learnt.ways.get(gpu, {}))).items():
                error = np.abs(way(rows) - np.log(rows["ms"].to_numpy(float)))
                wrong.setdefault(gpu, {}).setdefault(name, []).append(error)
    found = {}
    for gpu, ways in law.ways.items():
        errors = {name: float(np.mean(np.concatenate(one)))
                  for name, one in wrong.get(gpu, {}).items()}  # fmt: skip
        typical = float(np.mean([*errors.values()])) if errors else 1.0
        names = ("physics", *ways)
        worth = {name: max(errors.get(name, typical), 1e-6) ** -_SHARPNESS for name in names}
        total = sum(worth.values())
        found[gpu] = {name: value / total for name, value in worth.items()}
    return found


def _parts(calls: pd.DataFrame) -> NDArray[np.int_]:
    """Return the fold of each call: whole networks stay together, else shapes."""
    networks = len(set(calls["model"])) > 1
    number = calls.groupby("model" if networks else "unique_key", observed=True).ngroup()
    names = np.random.default_rng(0).permutation(number.max() + 1)
    return np.asarray(names[number.to_numpy(int)] % _FOLDS)


def _convolutions(calls: pd.DataFrame) -> Chosen:
    return np.asarray(calls["multiplies"].to_numpy(bool) & (calls["kernel_h"].to_numpy(float) > 0))


def _by_gpu(calls: pd.DataFrame) -> list[tuple[str, NDArray[np.intp]]]:
    """Return the places of the convolutions of each GPU."""
    convolves = _convolutions(calls)
    return [(str(gpu), places[convolves[places]])
            for (gpu,), places in terms.groups(calls, ("gpu",)).items()]  # fmt: skip
