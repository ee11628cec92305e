"""Which node is slow: the times of points on each node against those on the others.

Each node is compared with the mean of the others, as logarithms, over the points that both have.
The node that stands out most, by its gap and its number of points, is judged first. If it differs,
the next one is judged without it: so one slow node makes no other one look fast.

What varies decides, as in `verdicts`: the visits, where each node has three or more; else the
points, each of which is one more look at the same two machines. What a job does to all its points
cannot be told from its node then: so a gap counts only beyond what good visits vary by.

Of nodes that do not differ one is called different in at most `verdicts.WRONG` of the tables: the
share is divided by the number of nodes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pandas as pd
import scipy  # its parts are loaded where they are used: they take as long as the rest
from numpy.typing import NDArray

from hpcsweep import catalog
from hpcsweep.analysis import dataset, formats, reliability, verdicts
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.plain_rows import cells
from hpcsweep.catalog.columns import DOUBTFUL, FOREIGN, MUST_AGREE, TOLD_FLAGS
from hpcsweep.errors import UsageError
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

Numbers: TypeAlias = NDArray[np.float64]  # one for each node

SLOWER: Final = "slower"
FASTER: Final = "faster"
_NODE: Final = "node"
_FEW: Final = 3  # points: fewer may agree by chance, as with `verdicts.VISITS`
# heat and clocks of the device are what is looked for: such rows are not left out
_OF_DEVICE: Final = frozenset(flag.name for flag in TOLD_FLAGS if flag.cause == "device")
# what may explain a slow node: a median of each node, where there are numbers
_TELLING: Final = {
    "sm_clock_mhz_mean": "MHz", "temp_c_end": "deg C", "power_mean_w": "W",
    "control_ms": "control ms",
}  # fmt: skip
_SAME: Final = ("device_name", *MUST_AGREE)  # what may explain it where nodes have others
_READ: Final = frozenset({_NODE, *_TELLING, *_SAME, "workload"})


def read_nodes(sweep_dir: SweepDir, *, where: str = "", metric: str = "median_ms") -> View:
    """Read a sweep's table of nodes; `UsageError` where no two nodes measured the same points."""
    found = view_of(sweep_dir, where, metric)
    if found is None:
        each = sweep_dir.command("submit", "--each-node")
        raise UsageError(f"{sweep_dir.name}: no points of several nodes; `{each}` measures them")
    return found


def view_of(sweep_dir: SweepDir, where: str, metric: str) -> View | None:
    """Return a table with a row per node; None where no two nodes measured the same points.

    Without `--each-node` these must be some points: a visit of one of them may be anywhere.
    """
    data = dataset.read_dataset(sweep_dir, where, {metric, *_READ})
    is_rate = formats.is_rate(metric)
    if not (is_rate or formats.is_time(metric)) or metric not in data.rows:
        return None
    rows = data.rows[cells(data.rows, _NODE, None).notna()]
    if rows.empty or (rows[_NODE] == rows[_NODE].iloc[0]).all():  # one node, as in most tables
        return None
    kept = rows[_sound(rows)]
    parts = []
    for gpu, own in kept.groupby("gpu", sort=True):
        found = judged(_times(own, metric, is_rate=is_rate)).reset_index()
        asked = bool(cells(own, catalog.ON_NODE, None).notna().any())
        if len(found) > 1 and (asked or found["points"].max() >= _FEW):
            slowest_first = found.sort_values("ratio", ascending=False)
            parts.append(slowest_first.assign(gpu=gpu).join(_told(own), on=_NODE))
    if not parts:
        return None
    table = pd.concat(parts, ignore_index=True)
    table.insert(0, "gpu", table.pop("gpu"))
    title = f"{formats.label(metric)} of each node, against the other nodes"
    return View(
        title=f"{data.sweep_dir.name}: {title}", frame=table, texts=_texts(table), left=3,
        notes=_notes(kept, rows),
    )  # fmt: skip


def _sound(rows: pd.DataFrame) -> pd.Series[bool]:
    """Return which rows are valid, but for noise, which is in the interval, and the device's."""
    doubts = DOUBTFUL - _OF_DEVICE - {"very_noisy"}
    if reliability.is_of_command(rows):
        doubts -= {FOREIGN}
    return ~reliability.flagged(rows, doubts)


def _times(rows: pd.DataFrame, metric: str, *, is_rate: bool) -> pd.DataFrame:
    """Return the columns of rows that `judged` wants."""
    same = {catalog.VISIT, catalog.ON_NODE}
    axes = [axis for axis in dataset.axes_in(rows) if axis not in same]
    logs = verdicts.log(pd.to_numeric(rows[metric], errors="coerce"))
    times = pd.DataFrame({"log": -logs if is_rate else logs})
    times["point"] = rows.groupby(axes, dropna=False, sort=False).ngroup()
    times["node"] = rows[_NODE]
    times["visit"] = cells(rows, catalog.VISIT, 1)
    return times.dropna(subset="log")


def judged(times: pd.DataFrame) -> pd.DataFrame:
    """Judge each node against the others.

    `times` has a row per `point`, `node` and `visit` with `log`, the logarithm of the time. The
    result has a row per node that shares points with others, by its name: the number of these
    `points`, the `ratio` of its time to that of the others, its interval `low` to `high`, and the
    `verdict`: `SLOWER`, `FASTER`, or nothing. Ratio and interval are NaN where all others differ.
    """
    means = times.pivot_table(index="point", columns="node", values="log", sort=False)
    means = means[means.notna().sum(axis=1) > 1].dropna(axis=1, how="all")
    nodes = [*means.columns]
    if not nodes:
        return pd.DataFrame(columns=[_NODE, "points", "ratio", "low", "high", "verdict"])
    varies = _between_visits(times[times["node"].isin(nodes)])
    points = means.notna().sum().to_numpy()
    rest = np.ones(len(nodes), dtype=bool)
    gaps, halves = _against(means, rest, varies)
    while rest.sum() > 1:
        # of two nodes both stand out alike, but for rounding: then the slower one does
        score = np.where(rest, np.abs(gaps) * np.sqrt(points), 0.0).round(9)
        first = max(range(len(nodes)), key=lambda place: (score[place], gaps[place]))
        if abs(gaps[first]) <= halves[first]:
            break
        rest[first] = False
        gaps, halves = _against(means, rest, varies)
    words = np.where(rest, "", np.where(gaps > 0, SLOWER, FASTER))
    found = {
        "points": points, "ratio": np.exp(gaps), "low": np.exp(gaps - halves),
        "high": np.exp(gaps + halves), "verdict": words,
    }  # fmt: skip
    return pd.DataFrame(found, index=pd.Index(nodes, name=_NODE))


def _between_visits(times: pd.DataFrame) -> tuple[float, float, pd.Series[int]]:
    """Return the variance between visits of a node, its degrees of freedom, visits by node."""
    own = times["log"] - times.groupby(["node", "point"])["log"].transform("mean")
    shifts = own.groupby([times["node"], times["visit"]]).mean()
    by_node = shifts.groupby(level="node", sort=False)
    visits = by_node.size()
    df = float((visits - 1).sum())
    variance = float((shifts**2).sum()) / df if df else 0.0
    return variance, df, visits


def _against(
    means: pd.DataFrame,
    rest: NDArray[np.bool_],
    varies: tuple[float, float, pd.Series[int]],
) -> tuple[Numbers, Numbers]:
    """Return the gap of each node to the mean of the `rest`, and half of its interval."""
    logs = means.to_numpy()
    there = ~np.isnan(logs) & rest
    total = np.where(there, logs, 0.0).sum(axis=1, keepdims=True)
    others = there.sum(axis=1, keepdims=True) - there
    mean = (total - np.where(there, logs, 0.0)) / np.where(others, others, np.nan)
    gaps = logs - mean
    counted = (~np.isnan(gaps)).sum(axis=0).astype(float)
    counted[counted == 0] = np.nan
    gap = np.nansum(gaps, axis=0) / counted
    variance, df, visits = varies
    of_node = visits.reindex(means.columns).to_numpy(dtype=float)
    both = 1 + 1 / np.maximum(rest.sum() - rest, 1)  # the variance of a node, and of the others
    share = 1 - verdicts.WRONG / len(of_node) / 2
    of_job = scipy.special.ndtri(share) * verdicts.STEADY * np.sqrt(both)
    if of_node.min() >= verdicts.VISITS:
        error = np.sqrt(variance * both / of_node.min())
        return gap, np.hypot(scipy.special.stdtrit(df, share) * error, of_job)
    df = np.maximum(counted - 1, 1)
    error = np.sqrt(np.nansum((gaps - gap) ** 2, axis=0) / df / counted)
    half = np.hypot(scipy.special.stdtrit(df, share) * error, of_job)
    return gap, np.where(counted >= _FEW, half, verdicts.OF_ONCE)


def _told(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what may explain a slow node, a row per node; nothing that all have alike."""
    told: dict[str, pd.Series[Any]] = {}
    by_node = rows.groupby(_NODE)
    for name in _TELLING:
        if name in rows and rows[name].notna().any():
            told[name] = by_node[name].median()
    of_device = reliability.flagged(rows, _OF_DEVICE).groupby(rows[_NODE]).sum()
    if of_device.any():
        told["throttled"] = of_device
    for name in _SAME:
        if name in rows and len(rows[name].dropna().unique()) > 1:
            told[name] = by_node[name].agg(lambda texts: ", ".join(sorted(texts.dropna().unique())))
    return pd.DataFrame(told)


def _texts(table: pd.DataFrame) -> pd.DataFrame:
    """Return what people read of the table."""
    texts = pd.DataFrame(formats.texts(table, ["gpu", _NODE]), table.index)
    texts["verdict"] = [_words(row) for _, row in table.iterrows()]
    texts["points"] = table["points"].map(str)
    for name, head in _TELLING.items():
        if name in table:
            texts[head] = table[name].map("{:.4g}".format)
    for name in ("throttled", *_SAME):
        if name in table:
            texts[formats.label(name)] = table[name].map(str)
    return texts


def _words(row: pd.Series[Any]) -> str:
    """Return the verdict about a node."""
    ratio, low, high = (100 * (row[end] - 1) for end in ("ratio", "low", "high"))
    if math.isnan(ratio):
        return "the others differ from it"
    if row["verdict"] == FASTER:
        return f"faster by {-ratio:.1f} % ({-high:.1f} to {-low:.1f})"
    if row["verdict"]:
        return f"slower by {ratio:.1f} % ({low:.1f} to {high:.1f})"
    return f"no difference shown ({low:+.1f} to {high:+.1f} %)"


def _notes(kept: pd.DataFrame, rows: pd.DataFrame) -> Sequence[str]:
    """Return what the verdicts rest on, and what was left out."""
    visits = kept.groupby(_NODE)[catalog.VISIT].nunique().min()
    rests_on = f"{visits} visits on each node"
    if visits < verdicts.VISITS:
        rests_on = "the points as repeats: what a job did to all of its points counts as its node's"
        rests_on += "; `measure: {repeats: 3}` tells more"
    share = f"{100 * verdicts.WRONG:.0f} %"
    notes = [
        f"from {rests_on}",
        f"of equal nodes, one is called different in at most {share} of tables",
    ]
    if len(kept) < len(rows):
        out = rows[~rows.index.isin(kept.index)]
        why = ", ".join(reliability.doubts(out)) or "not valid"
        notes.append(f"{count(len(out), 'row')} left out ({why})")
    return notes
