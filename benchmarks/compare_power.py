"""How much noise between runs `compare` bears: slowdowns found, and equal runs called different.

::

    python benchmarks/compare_power.py [--repetitions 400] [--rows 12]

Draws the times of two sides from a machine whose runs are known to differ: each row by itself and
all rows of a run together, each by the share that stands in the table. The verdicts are those of
`hpcsweep compare`. For every noise and number of runs on a side it prints how many comparisons of
equal runs call a row different (at most 5 % may), and how many rows are called SLOWER where all
rows, or one row alone, take a tenth longer.
"""

from __future__ import annotations

import argparse
from itertools import product

import numpy as np
import pandas as pd

from hpcsweep.analysis import verdicts

NOISES = (0.005, 0.01, 0.02, 0.05)
RUNS = (1, 2, 3, 5)
FACTOR = 1.1


def main() -> None:
    """Print a line per noise and number of runs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--rows", type=int, default=12)
    given = parser.parse_args()
    heads = ["noise", "runs", "equal, but called different", "all +10 % found", "one +10 % found"]
    print("\t".join(heads))
    for noise, runs in product(NOISES, RUNS):
        shares = _shares(noise, runs, given.rows, given.repetitions)
        print("\t".join([f"{noise:.1%}", str(runs), *(f"{share:.0%}" for share in shares)]))


def _shares(noise: float, runs: int, rows: int, repetitions: int) -> tuple[float, float, float]:
    """Return wrong comparisons, rows found of all that are slower, and of one that is slower."""
    source = np.random.default_rng([runs, round(noise * 1e4)])
    wrong = every = single = 0.0
    for number in range(repetitions):
        equal = _drawn(source, noise, runs, rows)
        second = equal["side"] == 1
        slower = equal.assign(log=equal["log"] + np.log(FACTOR) * second)
        row = second & (equal["key"] == number % rows)
        one = equal.assign(log=equal["log"] + np.log(FACTOR) * row)
        wrong += _differs(equal).any()
        every += _differs(slower).mean()
        single += _differs(one)[number % rows]
    return wrong / repetitions, every / repetitions, single / repetitions


def _drawn(source: np.random.Generator, noise: float, runs: int, rows: int) -> pd.DataFrame:
    """Return logarithms of times, of two sides with so many runs."""
    run, key = (of.ravel() for of in np.mgrid[: 2 * runs, :rows])
    log = source.normal(0, noise, key.size) + np.repeat(source.normal(0, noise, 2 * runs), rows)
    return pd.DataFrame(
        {"key": key, "side": run // runs, "run": run % runs, "log": log, "within": 0.0}
    )


def _differs(table: pd.DataFrame) -> np.ndarray:
    judged = verdicts.judge(table)
    return np.zeros(1) if judged is None else judged.differs


if __name__ == "__main__":
    main()
