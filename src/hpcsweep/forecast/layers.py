"""The time of a layer call: physics for all, and for convolutions what learns from rows beside it.

Trees on plain physics answer for the convolutions of a GPU with many rows. A few rows correct what
other GPUs say, or teach a Gaussian process; each of these ways, and physics, is weighted by how
wrong it was at parts (networks, or shapes) that were left out. A GPU without a row has what its
relatives say and the physics of all, weighted by their errors at each known GPU of its kind, as if
nobody had measured that one either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import pandas as pd

from hpcsweep.catalog import gpus
from hpcsweep.forecast import physics, terms
from hpcsweep.forecast.learner import MOST, CallFeatures, OfCalls, Process, Relatives, Trees, Way
from hpcsweep.forecast.physics import Physics, Residual
from hpcsweep.forecast.terms import Flags, Floats, Integers

_FEWEST: Final = 300  # convolutions from which anything but physics learns
_FEWEST_OWN: Final = 20  # of a GPU that others help, or of a part that judges
_FEW: Final = 1_500  # of a GPU: so many a process can hold
_FOLDS: Final = 3  # networks are left out in so many parts
_FOLDS_TRIED: Final = 2  # more take time, and tell little more
_SHARPNESS: Final = 3.0  # a way that is wrong by twice as much counts an eighth
_RICH: Final = 3.0  # times as many rows of other GPUs: then they say more than the own ones
_MOST_OF_PARTS: Final = 20_000  # rows that trees learn from when parts are left out
_MOST_LEFT_OUT: Final = 1_500  # rows of a GPU by which the ways of an unknown one are weighted
_DOUBLE: Final = (
    0.2  # of the rate of single precision: 1/2 of chips for computing, else 1/16 or less
)


@dataclass(frozen=True)
class LeftOutGpu:
    """The mean log errors at a GPU, as if nobody had measured it; how near the others are."""

    wrong: Mapping[str, float]
    nearest: float

    def error(self, way: str, nearest: float) -> float:
        """Return what a way is wrong by where the `nearest` relative is at another distance.

        Nearer relatives tell more; how much less farther ones tell is not assumed.
        """
        nearer = min(nearest / self.nearest, 1.0) if way == "relatives" else 1.0
        return self.wrong[way] * nearer


# from the convolutions of a GPU, and the ways of a fit of more of them
Learner = Callable[[pd.DataFrame, Mapping[str, Way]], dict[str, Way]]


@dataclass(frozen=True)
class Law:
    """What was learnt of layer calls; `times` answers."""

    physics: Physics
    residual: Residual
    ways: Mapping[str, Mapping[str, Way]] = field(default_factory=dict)  # by GPU
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    relatives: Relatives | None = None
    left_out: Mapping[str, LeftOutGpu] = field(default_factory=dict)

    def times(self, calls: pd.DataFrame) -> Floats:
        """Return milliseconds of calls."""
        floor = physics.roofline(calls)
        corrected = self.physics.times(calls) * np.exp(self.residual.of(calls))
        logs = np.log(np.maximum(corrected, floor))
        for gpu, places in _by_gpu(calls):
            weights, ways = self._of(gpu)
            if ways and len(places):
                rows = calls.iloc[places]
                logs[places] = sum(
                    weights[name] * (ways[name](rows) if name in ways else logs[places])
                    for name in weights
                )
        return np.maximum(np.exp(logs), floor)

    def _of(self, gpu: str) -> tuple[Mapping[str, float], Mapping[str, OfCalls]]:
        """Return how much each way counts on a GPU, and the ways beside physics."""
        if gpu in self.ways:
            return self.weights[gpu], self.ways[gpu]
        if self.relatives is None:
            return {}, {}
        alike = [of for name, of in self.left_out.items() if _kind(name) == _kind(gpu)]
        known = alike or list(self.left_out.values())
        # what was never compared counts alike; without a sheet, physics has no units
        names = ("relatives", "physics") if gpus.sheet(gpu) else ("relatives",)
        nearest = self.relatives.nearest(gpu)
        errors = {name: float(np.mean([of.error(name, nearest) for of in known] or 1.0))
                  for name in names}  # fmt: skip
        return _weights(errors), {"relatives": self.relatives.of_sheet(gpu).guess}


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
    ways: dict[str, dict[str, Way]] = {}
    weights: dict[str, Mapping[str, float]] = {}
    rows = {gpu: convolutions.iloc[places] for gpu, places in _by_gpu(convolutions)}
    seen = before.relatives.ways if before.relatives else {}
    trees = {
        gpu: seen[gpu]
        if gpu in seen and seen[gpu].calls == len(of)  # none of it is left out
        else _trees(shapes, of, most)
        for gpu, of in rows.items()
        if len(of) >= _FEWEST
    }
    for gpu, own in rows.items():
        rich = {name: of for name, of in trees.items() if name != gpu}
        if len(own) > _FEW:
            ways[gpu] = {"trees": trees[gpu]}
            weights[gpu] = {"physics": 0.0, "trees": 1.0}
            continue
        if len(own) >= _FEWEST_OWN and sum(of.calls for of in rich.values()) >= _RICH * len(own):
            learn: Learner = partial(_by_relatives, shapes, rich)
        elif gpu in trees:
            learn = partial(_alone, shapes)
        else:
            continue
        ways[gpu] = learn(own, before.ways.get(gpu, {}))
        weighed = before.weights.get(gpu, {})
        same = {"physics", *ways[gpu]} == weighed.keys()
        weights[gpu] = weighed if same else _compared(own, learn, ways[gpu])
    relatives = Relatives(shapes, trees) if trees else None
    left_out = before.left_out or _left_out(shapes, trees, rows)
    return replace(law, ways=ways, weights=weights, relatives=relatives, left_out=left_out)


def _physics(calls: pd.DataFrame) -> Law:
    law = physics.fit(calls)
    return Law(law, Residual.fit(calls, law.times(calls)))


def _by_relatives(
    shapes: CallFeatures, trees: Mapping[str, Way], own: pd.DataFrame, like: Mapping[str, Way]
) -> dict[str, Way]:
    """Return a process on what relatives say."""
    others = Relatives(shapes, trees).alike(own)
    return {"relatives": _process(others.guess, others.places, own, like.get("relatives"))}


def _alone(shapes: CallFeatures, own: pd.DataFrame, like: Mapping[str, Way]) -> dict[str, Way]:
    """Return trees, and a process on a roofline."""
    process = _process(shapes.roofline, shapes.places, own, like.get("process"))
    return {"trees": _trees(shapes, own, MOST), "process": process}


def _trees(shapes: CallFeatures, calls: pd.DataFrame, most: int) -> Way:
    """Return trees on plain physics."""
    law = physics.fit(calls, plain=True)

    def guess(asked: pd.DataFrame) -> Floats:
        return np.asarray(np.log(law.times(asked)))

    wrong = np.log(calls["ms"].to_numpy(float)) - guess(calls)
    return Way(guess, Trees.fit(shapes, calls, wrong, most), len(calls))


def _process(guess: OfCalls, places: OfCalls, calls: pd.DataFrame, like: Way | None) -> Way:
    wrong = np.log(calls["ms"].to_numpy(float)) - guess(calls)
    same = like.learnt if like and isinstance(like.learnt, Process) else None
    return Way(guess, Process.fit(places, calls, wrong, same), len(calls))


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
        said = {name: way(asked) for name, way in learn(train, ways).items()}
        said["physics"] = np.log(law.times(asked))
        true = np.log(asked["ms"].to_numpy(float))
        for name, logs in said.items():
            wrong.setdefault(name, []).append(np.abs(logs - true))
    errors = {name: float(np.mean(np.concatenate(of))) for name, of in wrong.items()}
    return _weights(dict.fromkeys(("physics", *ways), 1.0) | errors)


def _left_out(
    shapes: CallFeatures, trees: Mapping[str, Way], rows: Mapping[str, pd.DataFrame]
) -> dict[str, LeftOutGpu]:
    """Return how wrong relatives and physics are at each GPU that has a sheet, left out."""
    some = {
        gpu: rows[gpu].sample(min(len(rows[gpu]), _MOST_LEFT_OUT), random_state=0)
        for gpu in trees
        if gpus.sheet(gpu)
    }
    left_out = {}
    for gpu, asked in some.items() if len(some) > 1 else ():
        others = Relatives(shapes, {name: of for name, of in trees.items() if name != gpu})
        law = physics.fit(pd.concat([of for name, of in some.items() if name != gpu]))
        said = {"relatives": others.of_sheet(gpu).guess(asked), "physics": np.log(law.times(asked))}
        true = np.log(asked["ms"].to_numpy(float))
        wrong = {name: float(np.abs(logs - true).mean()) for name, logs in said.items()}
        left_out[gpu] = LeftOutGpu(wrong, others.nearest(gpu))
    return left_out


def _weights(errors: Mapping[str, float]) -> dict[str, float]:
    worth = {name: max(error, 1e-6) ** -_SHARPNESS for name, error in errors.items()}
    return {name: value / sum(worth.values()) for name, value in worth.items()}


def _kind(gpu: str) -> tuple[object, ...]:
    """Return what relatives have in common: a vendor, and chips for double precision or not."""
    sheet = gpus.sheet(gpu)
    return (sheet.vendor, sheet.fp64_tflops / sheet.fp32_tflops > _DOUBLE) if sheet else ()


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
