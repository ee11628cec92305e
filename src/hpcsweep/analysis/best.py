"""Makes a map of algorithms from the layers of a collected sweep: the fastest for each convolution.

There is a map for each configuration: GPU, dtype, network and size. It is written as a sweep file
that measures each map beside the default. `best_layers` chooses; `best_by_shape` makes the same
from the times of other networks.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd
import scipy  # its parts are loaded where they are used: they take as long as the rest

from hpcsweep import catalog
from hpcsweep.analysis import best_layers, dataset, merged, verdicts
from hpcsweep.analysis.formats import View
from hpcsweep.errors import UsageError
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

_ALWAYS: Final = ("gpu", "dtype", "model", "input_size", "batch_size")
_TIMES: Final = ("median_ms", "mean_ms")
_TENTH: Final = 0.1
_HIDDEN: Final = {"algorithm", *dataset.REPEATS}


@dataclass(frozen=True)
class Best:
    """Maps of layers to algorithms by name, empty where the default stays, and what tells why.

    `axes` are those of the points of each map, as a sweep file writes them. The sweep that measures
    the maps is called `name`, and begins with the lines of `head`.
    """

    view: View
    default: str
    maps: Mapping[str, Mapping[str, str]]
    axes: Mapping[str, Mapping[str, Any]]
    name: str
    head: tuple[str, ...]

    def sweep_file(self) -> str:
        """Return a sweep that measures every map beside the default."""
        texts = {
            name: json.dumps({**layers, "default": self.default})
            for name, layers in self.maps.items()
            if layers
        }
        anchors: dict[str, str] = {}  # of equal maps, the name of the first
        for name, text in texts.items():
            anchors.setdefault(text, name)
        points = []
        for name, axes in self.axes.items():
            algorithms = [self.default]
            if name in texts:
                algorithms.append(f"*{anchors[texts[name]]} ")
            cells = [f"{axis}: {json.dumps(value)}" for axis, value in axes.items()]
            points += [f"  - {{{', '.join([*cells, f'algorithm: {a}'])}}}" for a in algorithms]
        lines = [f"# {line}" for line in self.head]
        lines += [f"name: {self.name}", "workload: inference"]
        if anchors:
            lines.append("maps:")
        lines += [f"  {name}: &{name} {text}" for text, name in anchors.items()]
        return "\n".join([*lines, "include:", *points, ""])


def best_of_sweep(
    sweep_dir: SweepDir, *, where: str = "", over: str = catalog.AUTO, everything: bool = False
) -> Best:
    """Return the best map of each configuration over the default algorithm `over`.

    `UsageError` where nothing was collected or chosen, no layer was timed under the default or
    under another algorithm in the same configuration, or it is a training sweep.
    """
    data = dataset.read_dataset(sweep_dir)
    if data.is_of_command:
        raise UsageError(
            f"{sweep_dir.name}: commands have no convolutions to choose for; `hpcsweep report "
            f"{sweep_dir.name} --metric COLUMN` compares what they said"
        )
    if data.trains:
        raise UsageError(
            f"{sweep_dir.name}: a training sweep, and best chooses by forward passes alone, which "
            "say nothing of gradients; measure the networks in an inference sweep"
        )
    points, notes = data.chosen(where, everything=everything, noise=True)
    chosen = best_layers.per_layer(data, points, over)
    calls = chosen.calls
    if not calls["tried"].any():
        raise UsageError(_without_rival(data, points, where, over))
    points = points.assign(config=dataset.configurations(points))
    every = points.drop_duplicates("config")
    first = every[every["config"].isin(calls["config"])].reset_index(drop=True)
    varying = dataset.varying_axes(first, _HIDDEN)
    keys = [axis for axis in catalog.AXES if axis in {*_ALWAYS, *varying} and axis in first]
    whole = _medians(points, dataset.first_known(points, *_TIMES))
    layers = _medians(points, points["point_id"].map(_sums(data, points)))
    off = _off(whole, layers, over)
    table = predicted(chosen, whole[over], layers[over], off).reindex(first["config"])
    table = pd.concat([first[keys], table.reset_index(drop=True)], axis=1)
    # a gain whose interval holds a loss was not shown, so nothing of it is pinned
    loses = (table["changed"] > 0) & ~(table["gain_lo_pct"] > 0)
    of_configs = maps_of(calls, over)
    with_gpu = len(set(first["gpu"])) > 1
    names = []
    maps: dict[str, Mapping[str, str]] = {}
    axes = {}
    for (_, row), may_lose in zip(first.iterrows(), loses, strict=True):
        name = map_name(dataset.format_value(key, row[key]) for key in keys)
        names.append(name)
        maps[name] = {} if may_lose else of_configs.get(row["config"], {})
        axes[name] = _written_axes(row, with_gpu=with_gpu)
    table["map"] = names
    alone = table["gain_pct"].isna().sum()
    lines = {
        "without a map: the interval of what it would gain holds a loss": loses.sum(),
        "in which no other algorithm was timed: no rival to compare": alone,
        "without layers under the default": len(every) - len(first),
    }
    for line, number in lines.items():
        if number:
            notes.append(f"{count(int(number), 'configuration')} {line}")
    name = sweep_dir.name
    view = View(
        title=f"{name}: the fastest algorithm of each convolution, ms of one pass",
        frame=table, texts=_texts(table, keys, maps, over), left=len(keys),
        notes=[_summary(maps, over), *notes],
        record={"sweep": name, "default": over, "maps": maps},
    )  # fmt: skip
    head = (
        f"The fastest algorithm of each convolution of {name}, beyond the noise.",
        f"A layer that a map does not name keeps {over}.",
    )
    return Best(view, over, maps, axes, f"{name}_best", head)


def _without_rival(data: dataset.Dataset, points: pd.DataFrame, where: str, over: str) -> str:
    """Say why nothing could be compared with the default: what became of other algorithms."""
    meeting = merged.select(data.rows, data.conditions(where))
    stages = (  # the first that still has another algorithm says where the next one lost it
        (points, f"%s ran in no layer that {over} ran in the same configuration"),
        (meeting, "%s are unreliable; --unreliable takes them"),
        (data.rows, "--where leaves out %s"),
        (data.failed, "no point with %s was measured"),
    )
    why = "the sweep has no other algorithm"
    for rows, text in stages:
        names = set(dataset.cells(rows, "algorithm").dropna().astype(str)) - {over}
        names = set(filter(catalog.is_algorithm, names))
        if names:
            why = text % ", ".join(sorted(names))
            break
    return f"{data.sweep_dir.name}: no rival to compare with {over}: {why}"


def _texts(
    table: pd.DataFrame, keys: list[str], maps: Mapping[str, Mapping[str, str]], default: str
) -> pd.DataFrame:
    """Return the predictions as people read them."""
    texts = dataset.texts(table, keys)
    texts["changed"] = [f"{row.changed} of {row.layers}" for row in table.itertuples()]
    texts[default] = [f"{ms:.3f}" for ms in table["default_ms"]]
    texts["predicted"] = [f"{ms:.3f}" for ms in table["predicted_ms"]]
    texts["gain"] = [
        f"{row.gain_pct:.1f} % ({row.gain_lo_pct:.1f} to {row.gain_hi_pct:.1f})"
        if row.changed
        else "-"
        for row in table.itertuples()
    ]
    texts["map"] = [name if maps[name] else "-" for name in table["map"]]
    return pd.DataFrame(texts)


def _summary(maps: Mapping[str, Mapping[str, str]], default: str) -> str:
    chosen = Counter(algorithm for layers in maps.values() for algorithm in layers.values())
    if not chosen:
        return f"no layer has an algorithm that beats {default} beyond the noise"
    tally = ", ".join(f"{algorithm} {number}" for algorithm, number in chosen.most_common())
    return f"layers that change: {tally}; the others keep {default}"


def map_name(words: Iterable[str]) -> str:
    """Return the name of a map, which YAML takes as an anchor."""
    return "best_" + re.sub(r"\W+", "-", "_".join(words)).strip("-")


def maps_of(calls: pd.DataFrame, over: str) -> dict[int, dict[str, str]]:
    """Return layer to algorithm, by configuration; `over` is kept by what is not named.

    A layer that is called twice, with several choices, goes by the shapes of its calls.
    """
    choices = calls.groupby(["config", "layer"])["algorithm"].transform("nunique")
    named = calls["layer"].where(choices == 1, calls["unique_key"]).astype(str)
    changed = calls.assign(named=named)[calls["algorithm"] != over]
    maps: dict[int, dict[str, str]] = defaultdict(dict)
    for row in changed.itertuples():
        maps[row.config][row.named] = row.algorithm
    return maps


def _medians(points: pd.DataFrame, values: pd.Series[float]) -> pd.DataFrame:
    """Return a row per configuration and a column per algorithm."""
    table = points.assign(value=values).pivot_table(
        index="config", columns="algorithm", values="value", aggfunc="median"
    )
    return table.reindex(columns=points["algorithm"].unique())


def _sums(data: dataset.Dataset, points: pd.DataFrame) -> pd.Series[float]:
    """Return what the layers of a forward pass sum to, by point."""
    rows = data.of_layers(points)
    rows = rows[(rows["layer"] != "__other__") & ~dataset.gradients(rows)]
    rows = rows[dataset.cells(rows, "layer_timer") != "plans"]
    return dataset.first_known(rows, *_TIMES).groupby(rows["point_id"]).sum()


def predicted(
    chosen: best_layers.LayerChoices,
    times: pd.Series[float],
    layers: pd.Series[float],
    off: pd.Series[float],
) -> pd.DataFrame:
    """Return what each map is predicted to gain, with a 95 % interval; NaN where nothing was tried.

    Layers are timed one by one. Where they sum to more than the network, they save as much less.
    The interval is that of the visits' own gains; of a single visit it is as wide as two visits may
    differ. It reaches lower by what so many rivals gain by chance. `off` is how far such a sum was
    off for whole networks of one algorithm, as a share of the gain.
    """
    calls = chosen.calls
    grouped = calls.groupby("config")
    sums = grouped[["changed", "default_ms", "tried", "luck_ms"]].sum()
    whole = times.reindex(sums.index).fillna(sums["default_ms"])
    per_cent = 100 / pd.concat([whole, layers, sums["default_ms"]], axis=1).max(axis=1)
    gains = chosen.gains.reindex(sums.index).mul(sums["default_ms"] * per_cent, axis=0)
    gain = gains.mean(axis=1).fillna(0.0)
    visits = gains.notna().sum(axis=1)
    student = scipy.special.stdtrit((visits - 1).clip(lower=1), 0.975)
    changed_ms = calls["ms"].where(calls["changed"], 0.0).groupby(calls["config"]).sum()
    once = verdicts.OF_MEAN * math.sqrt(2) * verdicts.ONCE * changed_ms * per_cent
    of_visits = (student * gains.std(axis=1, ddof=1) / np.sqrt(visits)).fillna(once)
    of_model = verdicts.OF_MEAN * off.reindex(sums.index).fillna(0.0) * gain
    half = np.hypot(of_visits, of_model)
    luck = (sums["luck_ms"] * per_cent).where(sums["changed"] > 0, 0.0)
    table = pd.DataFrame(
        {
            "layers": grouped.size(),
            "changed": sums["changed"],
            "default_ms": whole,
            "predicted_ms": whole * (1 - gain / 100),
            "gain_pct": gain,
            "gain_lo_pct": gain - half - luck,
            "gain_hi_pct": gain + half,
        }
    )
    told = ["gain_pct", "gain_lo_pct", "gain_hi_pct"]
    return table.assign(**table[told].where(sums["tried"] > 0))


def _off(whole: pd.DataFrame, layers: pd.DataFrame, over: str) -> pd.Series[float]:
    """Return how far gains by the layers' sums are from those of whole networks, by configuration.

    Every algorithm was measured both ways. It is the root of the mean square of the relative
    errors, of algorithms that differ from the default by a tenth or more: those of smaller ones
    are noise over nothing.
    """
    names = [name for name in whole if name in catalog.ALGORITHMS and name != over]
    gain, of_sums = (1 - times[names].div(times[over], axis=0) for times in (whole, layers))
    errors = ((of_sums - gain) / of_sums).where(of_sums.abs() >= _TENTH)
    return errors.pow(2).mean(axis=1).pow(0.5)


def _written_axes(row: pd.Series[Any], *, with_gpu: bool) -> dict[str, Any]:
    """Return the axes of a configuration that are not default, as a sweep file writes them."""
    left_out = _HIDDEN if with_gpu else {*_HIDDEN, "gpu"}
    values = {}
    for name in catalog.axes_of("inference"):
        axis = catalog.AXES[name]
        value = None if name in left_out else dataset.to_json(name, row.get(name))
        if value is not None and axis.kind == "bool":
            value = value == "true"
        if value is not None and value != axis.default:
            values[name] = value
    return values
