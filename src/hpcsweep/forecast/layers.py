"""The time of a layer call: physics for all, and for convolutions what learns from rows beside it.

What answers for the convolutions of a GPU depends on how many of its own were measured. Many teach
trees, on a roofline and on plain physics. A few, where other GPUs have many, correct what these
relatives say. Where there is nothing else, a few are told by physics, trees and a Gaussian process.
But of many rows, each way counts by how wrong it was at parts (networks, or shapes) left out.
For a GPU without a row of its own physics and trees on a roofline count alike: one errs where
algorithms gain by other means than the table of peaks says, the other where sizes are new.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Final

import numpy as np

from hpcsweep.forecast import physics, terms
from hpcsweep.forecast.learner import MOST, CallFeatures, OfCalls, Process, Relatives, Trees
from hpcsweep.forecast.physics import Physics, Residual
from hpcsweep.forecast.terms import Flags, Floats, Integers

if TYPE_CHECKING:
    import pandas as pd

_FEWEST: Final = 300  # convolutions from which anything but physics learns
_FEWEST_OWN: Final = 20  # of a GPU that others help, or of a part that judges
_FEW: Final = 1_500  # of a GPU: so many a process can hold
_MANY: Final = 3_000  # of a GPU: of more the mean of trees does as well as weights
_FOLDS: Final = 3  # networks are left out in so many parts
_FOLDS_TRIED: Final = 2  # more take time, and tell little more
_SHARPNESS: Final = 4.0  # a way that is wrong by twice as much counts a sixteenth
_RELATIVES: Final = 3.0  # times as many rows of other GPUs: then they say more than the own ones
_MOST_OF_PARTS: Final = 20_000  # rows that trees learn from when parts are left out
_UNKNOWN: Final = {"physics": 0.5, "roofline": 0.5}  # what counts for a GPU that nobody measured


@dataclass(frozen=True)
class Way:
    """A simple guess, and what was learnt of the factor by which it is wrong."""

    guess: OfCalls
    learnt: Trees | Process

    def __call__(self, calls: pd.DataFrame) -> Floats:
        """Return the logarithms of the milliseconds of convolutions."""
        return self.guess(calls) + self.learnt.of(calls)


# from the convolutions of a GPU, and the ways of a fit of more of them
Learner = Callable[["pd.DataFrame", Mapping[str, Way]], dict[str, Way]]


@dataclass(frozen=True)
class Law:
    """What was learnt of layer calls; `times` answers."""

    physics: Physics
    residual: Residual
    ways: Mapping[str, Mapping[str, Way]]  # by GPU, and for any other one by ""
    weights: Mapping[str, Mapping[str, float]]
    relatives: Mapping[str, Mapping[str, Trees]]  # of a GPU that others help

    def times(self, calls: pd.DataFrame) -> Floats:
        """Return milliseconds of calls."""
        floor = physics.roofline(calls)
        corrected = self.physics.times(calls) * np.exp(self.residual.of(calls))
        logs = np.log(np.maximum(corrected, floor))
        for gpu, places in _by_gpu(calls):
            name = gpu if gpu in self.ways else ""
            ways = self.ways.get(name, {})
            weights = self.weights.get(name, {})
            if ways and len(places):
                rows = calls.iloc[places]
                logs[places] *= weights["physics"]
                for way, says in ways.items():
                    logs[places] += weights[way] * says(rows)
        return np.maximum(np.exp(logs), floor)


def fit(calls: pd.DataFrame, *, quick: bool = False, like: Law | None = None) -> Law:
    """Return what distinct calls with a time (`ms`) teach; `quick`: to physics alone.

    How much each way counts, and what is costly to learn, may be that of a fit of more calls.
    """
    law = _physics(calls)
    convolutions = calls[_are_convolutions(calls)]
    if quick or len(convolutions) < _FEWEST:
        return law
    shapes = CallFeatures.of(convolutions)
    most = _MOST_OF_PARTS if like else MOST
    before = like or law
    roof = cache(lambda: _on(shapes.roofline, shapes, convolutions, most))
    ways: dict[str, dict[str, Way]] = {}
    weights: dict[str, Mapping[str, float]] = {"": _UNKNOWN}
    helped: dict[str, Mapping[str, Trees]] = {}
    rows = {gpu: convolutions.iloc[places] for gpu, places in _by_gpu(convolutions)}
    for gpu, own in rows.items():
        if len(own) > _MANY:
            ways[gpu] = {"roofline": roof(), "terms": _on(_terms(own), shapes, own, most)}
            weights[gpu] = {"physics": 0.0, "roofline": 0.5, "terms": 0.5}
            continue
        if rich := _rich(gpu, rows):
            fitted = before.relatives.get(gpu, {})
            helped[gpu] = {
                name: fitted[name]
                if name in fitted and fitted[name].calls == len(of)  # none of it is left out
                else _trees(shapes.roofline, shapes, of, most)
                for name, of in rich.items()
            }
            learn: Learner = partial(_by_relatives, shapes, helped[gpu])
        elif len(own) >= _FEWEST:
            learn = partial(_alone, shapes, most, few=len(own) <= _FEW)
        else:
            continue
        ways[gpu] = learn(own, before.ways.get(gpu, {}))
        weighed = before.weights.get(gpu, {})
        same = {"physics", *ways[gpu]} == weighed.keys()
        weights[gpu] = weighed if same else _compared(own, learn, ways[gpu])
    only = ways.get(gpu, {}) if len(rows) == 1 else {}
    ways[""] = {"roofline": only.get("roofline") or roof()}
    return replace(law, ways=ways, weights=weights, relatives=helped)


def _physics(calls: pd.DataFrame) -> Law:
    law = physics.fit(calls)
    return Law(law, Residual.fit(calls, law.times(calls)), {}, {}, {})


def _rich(gpu: str, rows: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return the rows of the GPUs that tell more of a GPU than its own rows do, by GPU."""
    own = len(rows[gpu])
    rich = {name: of for name, of in rows.items() if name != gpu and len(of) >= _FEWEST}
    enough = _FEWEST_OWN <= own <= _FEW and sum(map(len, rich.values())) >= _RELATIVES * own
    return rich if enough else {}


def _by_relatives(
    shapes: CallFeatures, trees: Mapping[str, Trees], own: pd.DataFrame, like: Mapping[str, Way]
) -> dict[str, Way]:
    """Return a process on what relatives say, by shapes and by what they say, and one without."""
    others = Relatives.fit(shapes, trees, own)
    return {
        "relatives": _process(others.guess, shapes.places, own, like.get("relatives")),
        "differences": _process(others.guess, others.places, own, like.get("differences")),
        "process": _process(shapes.roofline, shapes.places, own, like.get("process")),
    }


def _alone(
    shapes: CallFeatures, most: int, own: pd.DataFrame, like: Mapping[str, Way], *, few: bool
) -> dict[str, Way]:
    """Return trees on a roofline and on physics, and of few rows a process."""
    ways = {
        "roofline": _on(shapes.roofline, shapes, own, most),
        "terms": _on(_terms(own), shapes, own, most),
    }
    if few:
        ways["process"] = _process(shapes.roofline, shapes.places, own, like.get("process"))
    return ways


def _terms(calls: pd.DataFrame) -> OfCalls:
    law = physics.fit(calls, plain=True)
    return lambda asked: np.asarray(np.log(law.times(asked)))


def _on(guess: OfCalls, shapes: CallFeatures, calls: pd.DataFrame, most: int) -> Way:
    return Way(guess, _trees(guess, shapes, calls, most))


def _trees(guess: OfCalls, shapes: CallFeatures, calls: pd.DataFrame, most: int) -> Trees:
    return Trees.fit(shapes, calls, np.log(calls["ms"].to_numpy(float)) - guess(calls), most)


def _process(guess: OfCalls, places: OfCalls, calls: pd.DataFrame, like: Way | None) -> Way:
    wrong = np.log(calls["ms"].to_numpy(float)) - guess(calls)
    same = like.learnt if like and isinstance(like.learnt, Process) else None
    return Way(guess, Process.fit(places, calls, wrong, same))


def _compared(own: pd.DataFrame, learn: Learner, ways: Mapping[str, Way]) -> dict[str, float]:
    """Return how much each way counts on a GPU, by its errors at parts that were left out."""
    part = _parts(own)
    wrong: dict[str, list[Floats]] = {}
    for fold in range(_FOLDS_TRIED):
        train = own[part != fold]
        asked = own[part == fold]
        if len(train) < _FEWEST_OWN // 2 or asked.empty:
            continue
        law = _physics(train)
        true = np.log(asked["ms"].to_numpy(float))
        said = {name: way(asked) for name, way in learn(train, ways).items()}
        said["physics"] = np.log(law.times(asked))
        for name, logs in said.items():
            wrong.setdefault(name, []).append(np.abs(logs - true))
    errors = dict.fromkeys(("physics", *ways), 1.0)
    errors |= {name: float(np.mean(np.concatenate(of))) for name, of in wrong.items()}
    worth = {name: max(error, 1e-6) ** -_SHARPNESS for name, error in errors.items()}
    return {name: value / sum(worth.values()) for name, value in worth.items()}


def _parts(calls: pd.DataFrame) -> Integers:
    """Return the fold of each call: whole networks stay together, else shapes."""
    networks = len(set(calls["model"])) > 1
    number = calls.groupby("model" if networks else "unique_key", observed=True).ngroup()
    names = np.random.default_rng(0).permutation(number.max() + 1)
    return np.asarray(names[number.to_numpy(int)] % _FOLDS)


def _are_convolutions(calls: pd.DataFrame) -> Flags:
    return np.asarray(calls["multiplies"].to_numpy(bool) & (calls["kernel_h"].to_numpy(float) > 0))


def _by_gpu(calls: pd.DataFrame) -> list[tuple[str, Integers]]:
    """Return the places of the convolutions of each GPU."""
    convolves = _are_convolutions(calls)
    return [(str(gpu), places[convolves[places]])
            for (gpu,), places in terms.groups(calls, ("gpu",)).items()]  # fmt: skip
