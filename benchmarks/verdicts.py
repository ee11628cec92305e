"""How often verdicts are wrong, and what they find, under noise that the code does not assume.

::

    python -m benchmarks.verdicts [--repetitions 400]

Everything here is drawn: passes with 1 % of noise inside a visit, and one of several models of what
lies between visits. The times go through the program's own functions. It prints, for each model,

* how often one of 2, 4 or 8 equal algorithms has a star after 3 visits (of 12 configurations),
* how often `compare` calls one of equal rows different, with 2, 3 and 5 runs on a side,
* how often `best` takes one of 6 equal rivals in a layer, by rival, and how often the interval of
  the gain holds the truth where every third layer has a rival that is 20 % faster,

what 1, 3 and 5 visits find of a true difference of 2, 5 and 10 %, and how often the 90 % interval
of `predict` holds the times of a new network: learnt from 2, 3, 4, 5, 6, 8 and 12 networks, and
from 8 on a machine whose state, with its controls, shifts by 5, 10 and 20 %. The exit code is 1
where more than 5 % are wrong, or an interval from five networks or more holds less than 85 %, give
or take what so few repetitions can tell.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import pandas as pd

from hpcsweep.analysis import best_layers, verdicts
from hpcsweep.forecast import intervals

PASSES: Final = 20
INSIDE: Final = 0.01
ROWS: Final = 12
LAYERS = 53
RIVALS = 6
_RANK: Final = 6  # of 20 passes: the interval of the median is from the 6th to the 15th

Floats = np.ndarray
# from a source and a shape (rows, candidates, visits), in the order of time: noise of each pass
Model = Callable[[np.random.Generator, tuple[int, int, int]], Floats]


def _between(scale: float) -> Model:
    return lambda source, shape: source.normal(0, scale, (*shape, 1))


def _autocorrelated(source: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Draw passes each of which keeps nine tenths of what the one before was off."""
    steps = source.normal(0, INSIDE * math.sqrt(1 - 0.9**2), (math.prod(shape) * PASSES))
    off = np.empty_like(steps)
    last = 0.0
    for place, step in enumerate(steps):
        last = 0.9 * last + step
        off[place] = last
    return _in_order(source, shape, off.reshape(-1, PASSES))


def _in_order(source: np.random.Generator, shape: tuple[int, int, int], off: Floats) -> Floats:
    """Return what lies one after the other as rows, candidates and visits.

    As a chunk measures them: a visit after the other, of each the rows at random, of each row the
    candidates at random.
    """
    rows, names, visits = shape
    row = np.argsort(source.random((visits, rows)), axis=-1)
    name = np.argsort(source.random((visits, rows, names)), axis=-1)
    place = (np.arange(visits)[:, None, None] * rows + row[..., None]) * names + name
    return off[place].transpose(1, 2, 0, 3)


def _drift(source: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Draw a machine that gets 5 % slower, or faster, from the first point to the last."""
    slope = source.choice([-0.05, 0.05])
    return _in_order(source, shape, slope * np.linspace(0, 1, math.prod(shape))[:, None])


def _sticking(source: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Draw times that stick to one of two values, 3 % apart, for some hundred passes."""
    flips = source.random(math.prod(shape) * PASSES) < 1 / 200
    return _in_order(source, shape, 0.03 * (np.cumsum(flips) % 2).reshape(-1, PASSES))


def _uneven(source: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Draw rows of which a sixth is ten times noisier."""
    scale = np.where(np.arange(shape[0]) < max(1, shape[0] // 6), 0.1, 0.01)
    return source.normal(0, 1, (*shape, 1)) * scale[:, None, None, None]


def _disturbed(source: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Draw visits of which one in ten takes up to some times as long."""
    hit = source.random((*shape, 1)) < 0.1
    return source.normal(0, 0.01, (*shape, 1)) + hit * source.exponential(0.5, (*shape, 1))


def _wave(source: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Draw a machine whose speed goes up and down by 3 %, once in 3 to 40 points."""
    places = np.arange(math.prod(shape)) / source.uniform(3, 40) + source.random()
    return _in_order(source, shape, 0.03 * np.sin(2 * np.pi * places)[:, None])


def _walking(source: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Draw a machine whose speed walks at random, by 0.5 % from a point to the next."""
    return _in_order(source, shape, np.cumsum(source.normal(0, 0.005, math.prod(shape)))[:, None])


def _one_noisy(source: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Draw algorithms of which one is ten times noisier."""
    scale = np.full(shape[1], 0.005)
    scale[source.integers(shape[1])] = 0.05
    return source.normal(0, 1, (*shape, 1)) * scale[:, None, None]


def _shared(source: np.random.Generator, shape: tuple[int, int, int]) -> Floats:
    """Draw 1 % that all layers of an algorithm share in a visit, and 0.3 % of their own."""
    return source.normal(0, 0.01, (1, *shape[1:], 1)) + source.normal(0, 0.003, (*shape, 1))


MODELS: Final[Mapping[str, Model]] = {
    "0.5 % between points": _between(0.005),
    "1 % between points": _between(0.01),
    "3 % between points": _between(0.03),
    "passes autocorrelated 0.9": _autocorrelated,
    "drift of 5 %": _drift,
    "two values that stick": _sticking,
    "heavy tails (t of 2)": lambda s, shape: 0.01 * s.standard_t(2, (*shape, 1)),
    "a sixth of the rows 10x": _uneven,
    "one visit in ten disturbed": _disturbed,
    "a wave of 3 %": _wave,
    "a random walk": _walking,
    "skewed": lambda s, shape: s.exponential(0.03, (*shape, 1)),
    "one algorithm 10x": _one_noisy,
}


def main() -> int:
    """Print the tables; return 1 where verdicts are wrong too often."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=400)
    repetitions = parser.parse_args().repetitions
    most = 0.05 + 2 * math.sqrt(0.05 * 0.95 / repetitions)
    wrong = [_false_verdicts(name, MODELS[name], repetitions, most) for name in MODELS]
    source = np.random.default_rng(1)
    changed, held = (_layers(source, _shared, by, repetitions)[n] for n, by in ((0, 0.0), (1, 0.2)))
    print(f"1 % that the layers of a run share: best\t{changed:.1%}\t{held:.0%}", flush=True)
    wrong.append(changed > most)
    for visits in (1, 3, 5):
        found = [f"{_power(visits, by, repetitions):.0%}" for by in (0.02, 0.05, 0.1)]
        print(f"{visits} visits, 1 % between points: of 2, 5, 10 % found\t" + "\t".join(found))
    least = 0.85 - 2 * math.sqrt(0.85 * 0.15 / repetitions)
    narrow = [_predicted(name, NETWORKS[name], repetitions, least) for name in NETWORKS]
    return int(any(wrong) or any(narrow))


def _false_verdicts(name: str, model: Model, repetitions: int, most: float) -> bool:
    """Print the shares of a model; return whether one is too large."""
    source = np.random.default_rng(1)
    stars = [_starred(source, model, names, repetitions) for names in (2, 4, 8)]
    rows = [_differing(source, model, runs, repetitions) for runs in (2, 3, 5)]
    changed, _ = _layers(source, model, 0.0, repetitions)
    _, held = _layers(source, model, 0.2, repetitions)
    shares = [*stars, *rows, changed]
    print("\t".join([name, *(f"{share:.1%}" for share in shares), f"{held:.0%}"]), flush=True)
    return max(shares) > most


# what networks are off by, of which a prediction knows nothing
NETWORKS: Final[Mapping[str, Callable[[np.random.Generator, int], Floats]]] = {
    "normal": lambda source, many: source.normal(0, 0.1, many),
    "heavy tails (t of 2)": lambda source, many: 0.07 * source.standard_t(2, many),
    "one in five off by 40 %": lambda source, many: 0.4 * (source.random(many) < 0.2),
    "skewed": lambda source, many: source.exponential(0.12, many),
    "two kinds": lambda source, many: source.choice([-0.1, 0.2], many),
    "only their sizes differ": lambda _source, many: np.zeros(many),
}
LEARNT: Final = (2, 3, 4, 5, 6, 8, 12)
SHIFTS: Final = (0.05, 0.1, 0.2)


def _predicted(
    name: str,
    networks: Callable[[np.random.Generator, int], Floats],
    repetitions: int,
    least: float,
) -> bool:
    """Print how often the interval of `predict` holds; return whether one is too narrow."""
    source = np.random.default_rng(3)
    held = {many: _held(source, networks, many, 0.0, repetitions) for many in LEARNT}
    shifted = [_held(source, networks, 8, by, repetitions) for by in SHIFTS]
    cells = [f"{share:.0%}" for share in [*held.values(), *shifted]]
    print("\t".join([f"predict: networks {name}", *cells]), flush=True)
    return min([*shifted, *(share for many, share in held.items() if many >= 5)]) < least


def _held(
    source: np.random.Generator,
    networks: Callable[[np.random.Generator, int], Floats],
    many: int,
    shift: float,
    repetitions: int,
) -> float:
    """Return the share of the times of a new network, measured after a shift, that are held.

    Each network has 3 to 24 sizes, whose errors walk from one to the next. What is learnt knows the
    mean of the others.
    """
    shares = []
    for _ in range(repetitions):
        own = networks(source, many + 1)
        own = own - np.append((own[:-1].sum() - own[:-1]) / (many - 1), own[:-1].mean())
        sizes = [_walk(source, int(source.integers(3, 25))) for _ in own]
        rows = pd.DataFrame({
            "model": np.repeat(np.arange(many), [len(of) for of in sizes[:-1]]),
            "total_ms": np.exp(np.concatenate([own[of] + sizes[of] for of in range(many)])),
        })  # fmt: skip
        rows = rows.assign(
            fold=rows["model"], multiplies=True, unlike=0.0, ms=rows["total_ms"], prediction=1.0
        )
        controls = np.exp(source.normal(0, 0.02, len(rows)))
        now = np.exp(source.normal(np.log1p(shift), 0.02, 12))
        widths = intervals.calibrate(intervals.LeftOut("network", rows, rows))
        widths = widths.shifted(intervals.shift(controls.tolist(), now.tolist()))
        true = np.exp(own[-1] + sizes[-1]) * (1 + shift)
        shares.append(intervals.held(true, np.ones(len(true)), widths.total).mean())
    return float(np.mean(shares))


def _walk(source: np.random.Generator, sizes: int) -> Floats:
    steps = np.cumsum(source.normal(0, 0.03, sizes))
    return steps - steps.mean() + source.normal(0, 0.02, sizes)


def _visits(source: np.random.Generator, model: Model, shape: tuple[int, int, int]) -> pd.DataFrame:
    """Return rows, candidates and visits with the logarithm of the median, and its variance."""
    passes = model(source, shape) + source.normal(0, INSIDE, (*shape, PASSES))
    ordered = np.sort(passes, axis=-1)
    width = ordered[..., PASSES - _RANK] - ordered[..., _RANK - 1]
    index = pd.MultiIndex.from_product([range(n) for n in shape], names=["group", "name", "visit"])
    return index.to_frame(index=False).assign(
        log=np.median(passes, axis=-1).ravel(), within=(width.ravel() / (2 * 1.96)) ** 2,
        origin="", control=np.nan,
    )  # fmt: skip


def _fastest(rows: pd.DataFrame) -> list[verdicts.Lead]:
    """Return the fastest of each group of candidates."""
    groups: dict[int, dict[int, list[verdicts.VisitTime]]] = {}
    columns = ["group", "name", *verdicts.VisitTime._fields]
    for group, name, *cells in rows[columns].itertuples(index=False, name=None):
        of_group = groups.setdefault(group, {})
        of_group.setdefault(name, []).append(verdicts.VisitTime(*cells))
    leads = map(verdicts.fastest, groups.values())
    return [lead for lead in leads if lead]


def _starred(source: np.random.Generator, model: Model, names: int, repetitions: int) -> float:
    found: list[bool] = []
    while len(found) < repetitions:
        stars = _fastest(_visits(source, model, (ROWS, names, 3)))
        found += [one.sure for one in stars]
    return float(np.mean(found))


def _differing(source: np.random.Generator, model: Model, runs: int, repetitions: int) -> float:
    wrong = list[float]()
    for _ in range(repetitions):
        rows = _visits(source, model, (ROWS, 2, runs)).drop(columns="origin")
        pairs = rows.rename(columns={"group": "pair", "name": "side", "visit": "origin"})
        origin = pairs["origin"] + runs * pairs["side"]  # no run has both sides
        judged = verdicts.judge(pairs.assign(origin=origin, visit=""))
        wrong.append(float(judged["differs"].mean()))
    return float(np.mean(wrong))


def _layers(
    source: np.random.Generator, model: Model, gain: float, repetitions: int
) -> tuple[float, float]:
    """Return how often a rival is taken, and how often the interval holds the gain of the map.

    Every third layer has a rival that takes so much less than the default; layers differ in size.
    """
    changed = 0.0
    held = 0
    size = np.exp(np.linspace(0, 3, LAYERS))
    for _ in range(repetitions):
        rows = _visits(source, model, (LAYERS, RIVALS + 1, 3))
        faster = (rows["group"] % 3 == 0) & (rows["name"] == 1)
        log = rows["log"] + np.log(size)[rows["group"]] + np.where(faster, np.log1p(-gain), 0.0)
        names = np.array(["auto", *(f"rival {number}" for number in range(RIVALS))])
        times = pd.DataFrame({
            "config": 0, "call_index": rows["group"], "algorithm": names[rows["name"]],
            "visit": rows["visit"], "log": log, "within": rows["within"], "ms": np.exp(log),
            "layer": rows["group"].astype(str), "unique_key": "",
        })  # fmt: skip
        chosen = best_layers.choose(times, "auto")
        calls = chosen.calls
        none = pd.Series(dtype=float)
        predicted = best_layers.predicted(chosen, none, none, none).iloc[0]
        taken = np.where(calls["algorithm"] == names[1], gain * (calls["call_index"] % 3 == 0), 0.0)
        truth = 100 * float((size[calls["call_index"]] * taken).sum() / size.sum())
        changed += predicted["changed"] / (LAYERS * RIVALS)
        held += bool(predicted["gain_lo_pct"] - 1e-9 <= truth <= predicted["gain_hi_pct"] + 1e-9)
    return changed / repetitions, held / repetitions


def _power(visits: int, by: float, repetitions: int) -> float:
    """Return how many of the configurations with one faster of four algorithms have its star."""
    source = np.random.default_rng(2)
    found = list[bool]()
    while len(found) < repetitions:
        rows = _visits(source, MODELS["1 % between points"], (ROWS, 4, visits))
        rows["log"] += np.where(rows["name"] == 0, np.log1p(-by), 0.0)
        found += [one.sure and one.name == 0 for one in _fastest(rows)]
    return float(np.mean(found))


if __name__ == "__main__":
    sys.exit(main())
