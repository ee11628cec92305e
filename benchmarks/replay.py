"""`submit --until-error`, answered by a table of times instead of a machine.

The rounds are planned by the code that a sweep uses; only measuring is replaced.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcsweep.forecast import curves, groups, next_round
from hpcsweep.forecast.groups import Group
from hpcsweep.forecast.past_rows import Known
from hpcsweep.point import Point
from hpcsweep.store.rounds import Round

_AXES = ("model", "algorithm", "batch_size", "input_size")
_MOST = 60  # rounds
Floats = NDArray[np.float64]


def rounds(table: pd.DataFrame, target: float) -> pd.DataFrame:
    """Return how each group (network, algorithm, device) ended, and what it is really off by."""
    found = []
    for _, rows in table.groupby(["device", "model", "algorithm"]):
        points = _points(rows)
        ms = dict(zip((p.point_id for p in points), rows["median"], strict=True))
        (group,) = groups.groups_of(points)
        times: dict[str, float] = {}
        done: list[Round] = []
        for _ in range(_MOST):
            plan = next_round.plan(
                [group],
                Known(ms=times, tried=times.keys()),
                done,
                target=target,
                seconds_left=np.inf,
                seconds=lambda _: 1.0,  # of which there is no end
            )
            if not plan.points:
                break
            times |= {name: ms[name] for name in plan.points}
            done.append(Round(points=tuple(plan.points)))
        wrong = _wrong(group, times, ms)
        found.append({
            "group": group.name, "device": rows["device"].iloc[0], "sizes": len(times),
            "why": plan.why[group.name],
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
        table = pd.DataFrame({"median": rows.groupby("input_size")["mean_ms"].sum()})
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
        times = {group.ids[place]: ms[group.ids[place]] for place in chosen}
        found.append(_wrong(group, times, ms).mean())
    return np.array(found)


def _points(rows: pd.DataFrame) -> list[Point]:
    return [
        Point("inference", {name: getattr(row, name) for name in _AXES}, point_id=str(row.Index))
        for row in rows.itertuples()
    ]


def _wrong(group: Group, times: dict[str, float], ms: dict[str, float]) -> Floats:
    """Return the relative errors of lines at the points that have no time."""
    seen = group.among(times)
    true = np.array([ms[name] for name in group.ids])
    said = curves.between(group.places[seen], true[seen], group.places[~seen])
    return np.asarray(np.abs(said / true[~seen] - 1))
