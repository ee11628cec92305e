"""`submit --until-error`, answered by a table of times instead of a machine.

The rounds are planned by the code that a sweep uses; only measuring is replaced. A point that is
asked for twice has another time, drawn from the spread of its passes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcsweep.forecast import groups, next_round
from hpcsweep.forecast.groups import Group
from hpcsweep.forecast.past_rows import Known
from hpcsweep.point import Point
from hpcsweep.store.rounds import Round

_AXES = ("model", "algorithm", "batch_size", "input_size")
_PASSES = 20  # of a row
_OVERHEAD_S = 5.0  # of a point, beside its passes
_MOST = 60  # rounds
Floats = NDArray[np.float64]


def rounds(table: pd.DataFrame, target: float, seed: int = 0) -> pd.DataFrame:
    """Return how each group (network, algorithm, device) ended, and what it is really off by."""
    chance = np.random.default_rng(seed)
    found = []
    for _, rows in table.groupby(["device", "model", "algorithm"]):
        points = _points(rows)
        ms = dict(zip((p.point_id for p in points), rows["median"], strict=True))
        spread = dict(zip(ms, rows["std"] / rows["mean"] / _PASSES**0.5, strict=True))
        (group,) = groups.groups_of(points)
        times: dict[str, list[float]] = {}
        done: list[Round] = []
        for _ in range(_MOST):
            known = Known(times, {name: len(each) for name, each in times.items()})
            plan = next_round.plan(
                [group],
                known,
                done,
                target=target,
                seconds_left=np.inf,
                seconds=lambda point: _OVERHEAD_S + _PASSES * 1e-3 * ms[point.point_id],  # noqa: B023
            )
            if not plan.points:
                break
            for name in plan.points:
                again = chance.normal(0, spread[name]) if name in times else 0.0
                times.setdefault(name, []).append(ms[name] * (1 + again))
            done.append(Round(points=tuple(plan.new)))
        wrong = _wrong(group, times, ms)
        found.append({
            "group": group.name, "device": rows["device"].iloc[0], "sizes": len(times),
            "rows": sum(map(len, times.values())), "why": plan.why[group.name],
            "median": np.median(wrong), "mean": wrong.mean(),
        })  # fmt: skip
    return pd.DataFrame(found)


def sums(folder: Path, seed: int) -> pd.DataFrame:
    """Return networks of fewer layers: a third of those that the tables of layers have."""
    chance = np.random.default_rng(seed)
    found = []
    for path in sorted((folder / "predecessor/layers").glob("*.csv*")):
        rows = pd.read_csv(path)
        names = rows["layer"].unique()
        rows = rows[rows["layer"].isin(chance.choice(names, len(names) // 3, replace=False))]
        of_size = rows.assign(variance=rows["std_ms"] ** 2).groupby("input_size")
        ms = of_size["mean_ms"].sum()
        table = pd.DataFrame({"mean": ms, "median": ms, "std": of_size["variance"].sum() ** 0.5})
        where = {"model": rows["model"].iloc[0], "algorithm": rows["algorithm"].iloc[0]}
        device = path.name.partition(".")[0].rpartition("_")[2]
        found.append(table.reset_index().assign(**where, device=device, batch_size=1))
    return pd.concat(found, ignore_index=True)


def evenly(table: pd.DataFrame, sizes: int) -> Floats:
    """Return each group's mean error between lines through so many sizes at even distances."""
    found = []
    for _, rows in table.groupby(["device", "model", "algorithm"]):
        points = _points(rows.sort_values("input_size"))
        (group,) = groups.groups_of(points)
        ms = dict(zip(group.ids, rows.sort_values("input_size")["median"], strict=True))
        chosen = np.linspace(0, len(points) - 1, sizes).round().astype(int)
        times = {group.ids[place]: [ms[group.ids[place]]] for place in chosen}
        found.append(_wrong(group, times, ms).mean())
    return np.array(found)


def _points(rows: pd.DataFrame) -> list[Point]:
    return [
        Point("inference", {name: getattr(row, name) for name in _AXES}, point_id=str(row.Index))
        for row in rows.itertuples()
    ]


def _wrong(group: Group, times: dict[str, list[float]], ms: dict[str, float]) -> Floats:
    """Return the relative errors of lines at the points that have no time."""
    seen, rest = ([p for p in group.ids if (p in times) is has] for has in (True, False))
    places = group.places_of(seen), group.places_of(rest)
    said = groups.between(places[0], np.array([times[p][-1] for p in seen]), places[1])
    return np.asarray(np.abs(said / np.array([ms[p] for p in rest]) - 1))
