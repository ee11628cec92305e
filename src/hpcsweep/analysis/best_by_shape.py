"""Chooses the algorithm of each convolution of a network by its shape, from times of other rows.

The rows may be a vendor's, such as MIOpen's find-db, or those of other networks: equal shapes are
equal work. So a GPU that is not here has a map without a measurement. Nothing confirms it: a time
has no spread, and was taken alone, not inside of the network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import dataset
from hpcsweep.analysis.best import Best, map_name, maps_of
from hpcsweep.analysis.formats import View
from hpcsweep.catalog.limits import IMPOSSIBLE
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import UsageError
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

_TIMES: Final = ("median_ms", "mean_ms", "min_ms")
_BIAS: Final = re.compile(r"_(?:no)?bias(?=_)")  # is added apart, and find-db has none
_WORK: Final = ["key", "algorithm"]
_ALWAYS: Final = ("model", "input_size", "batch_size")  # written into the sweep file


def best_of_shapes(
    sweep_dir: SweepDir,
    axes: Mapping[str, Any],
    convolutions: Sequence[tuple[str, ConvShape]],
    where: str,
) -> Best:
    """Return the map of the fastest algorithms of a network by the times that a sweep has.

    `axes` name the network and its input, `convolutions` are its calls (layer, shape) in order.
    `UsageError` where the rows are of several GPUs, or none is of these shapes.
    """
    data = dataset.read_dataset(sweep_dir, where)
    gpus = sorted(set(data.rows["gpu"].dropna()))
    if len(gpus) != 1:
        raise UsageError(
            f"{sweep_dir.name} has times of {', '.join(gpus) or 'no GPU'}: --where gpu=NAME "
            "chooses one"
        )
    keys = [(layer, shape.unique_key) for layer, shape in convolutions]
    calls = pd.DataFrame(keys, columns=["layer", "unique_key"])
    calls["key"] = calls["unique_key"].str.replace(_BIAS, "", regex=True)
    possible = data.rows[~dataset.flagged(data.rows, {IMPOSSIBLE})]
    ranked = _ranked(data.of_layers(possible), set(calls["key"]))
    if ranked.empty:
        raise UsageError(
            f"{sweep_dir.layers}: no time of any of the {count(calls['key'].nunique(), 'shape')} "
            f"of {axes['model']}"
        )
    first, second = (ranked.groupby("key").nth(place).set_index("key") for place in (0, 1))
    second = second.rename(columns={"algorithm": "next", "ms": "next_ms"})[["next", "next_ms"]]
    calls = calls.join(first, "key").join(second, "key")
    calls = calls.fillna({"algorithm": catalog.AUTO}).assign(config=0)
    written = {
        name: value for name, value in axes.items()
        if name in _ALWAYS or value != catalog.AXES[name].default
    }  # fmt: skip
    name = map_name(map(str, written.values()))
    chosen = maps_of(calls, catalog.AUTO).get(0, {})
    return Best(
        view=_view(sweep_dir.name, axes, gpus[0], calls, chosen),
        default=catalog.AUTO, maps={name: chosen}, axes={name: written}, name=f"{name}_by_shape",
        head=(
            f"The fastest algorithm of each convolution by the times of {sweep_dir.name}",
            f"({gpus[0]}). Unconfirmed: no network with this map was measured. Its gain has no",
            "interval, and may be a loss: this sweep measures the map beside the default.",
        ),
    )  # fmt: skip


def _ranked(rows: pd.DataFrame, keys: set[str]) -> pd.DataFrame:
    """Return time and solver of each shape and algorithm, of its fastest solver; fastest first."""
    rows = rows[(rows["op"] == "conv2d") & (rows["direction"] == "forward")]
    rows = rows.assign(
        key=rows["unique_key"].str.replace(_BIAS, "", regex=True),
        ms=dataset.first_known(rows, *[name for name in _TIMES if name in rows]),
        solver=rows["algorithm_evidence"].fillna("").str.removeprefix("solver "),
    )
    rows = rows[rows["key"].isin(keys) & rows["algorithm"].isin(catalog.ALGORITHMS)]
    rows = rows[~dataset.fell_back(rows)].dropna(subset="ms")
    # of repeated measurements the median, of several solvers of an algorithm the fastest
    medians = rows.groupby([*_WORK, "solver"])["ms"].median().reset_index()
    return medians.sort_values("ms").drop_duplicates(_WORK)


def _view(
    source: str, axes: Mapping[str, Any], gpu: str, calls: pd.DataFrame, chosen: dict[str, str]
) -> View:
    """Return a row per shape, in the order of its first call."""
    by_shape = calls.groupby("key", sort=False)
    names = ["layer", "algorithm", "solver", "ms", "next", "next_ms", "unique_key"]
    table = by_shape[names].first().reset_index(drop=True)
    table.insert(1, "calls", by_shape.size().to_numpy())
    texts = table[["layer", "calls", "algorithm", "ms", "next", "next_ms"]].astype(object)
    texts["calls"] = [*map(str, table["calls"])]
    for name in ("ms", "next_ms"):
        texts[name] = ["-" if math.isnan(ms) else f"{ms:.3f}" for ms in table[name]]
    size = dataset.labelled(axes, axes)
    return View(
        title=f"{size} on {gpu}, by the times of {source}: unconfirmed",
        frame=table, texts=texts.fillna("-"), left=1, notes=_notes(calls, table),
        record={"source": source, "gpu": gpu, "axes": dict(axes), "confirmed": False,
                "map": chosen},
    )  # fmt: skip


def _notes(calls: pd.DataFrame, shapes: pd.DataFrame) -> list[str]:
    """Return lines on what has a time, what has none, and what has no rival."""
    timed = calls.dropna(subset="ms")
    every = f"{count(len(calls), 'convolution')} of {count(len(shapes), 'shape')}"
    lines = [f"{every}, {len(timed)} with a time: {timed['ms'].sum():.3f} ms"]
    if rest := len(calls) - len(timed):
        untimed = count(int(shapes["ms"].isna().sum()), "shape")
        lines.append(f"{count(rest, 'call')} of {untimed} without a time keep {catalog.AUTO}")
    if alone := int((shapes["ms"].notna() & shapes["next_ms"].isna()).sum()):
        lines.append(f"{count(alone, 'shape')} with times of one algorithm: no rival to compare")
    return lines
