"""Makes a map of algorithms from the layers of a collected sweep: the fastest for each convolution.

There is a map for each configuration: GPU, dtype, network and size. It is written as a sweep file
that measures each map beside the default. `best_layers` chooses.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import best_layers, dataset
from hpcsweep.analysis.formats import View
from hpcsweep.errors import UsageError
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

ByName = Mapping[str, Mapping[str, Any]]  # of a map

_ALWAYS: Final = ("gpu", "dtype", "model", "input_size", "batch_size")
_TIMES: Final = ("median_ms", "mean_ms")
_OF_GAIN: Final = 1.96
_TENTH: Final = 0.1
_HIDDEN: Final = {"algorithm", *dataset.REPEATS}


@dataclass(frozen=True)
class Best:
    """One row per configuration, which `keys` tell apart; the map of each by its name.

    `axes` are those of each configuration that are not default, as a sweep file writes them.
    """

    sweep_dir: SweepDir
    default: str
    table: pd.DataFrame
    keys: tuple[str, ...]
    maps: dict[str, dict[str, str]]
    axes: dict[str, dict[str, Any]]
    notes: tuple[str, ...]

    def view(self) -> View:
        """Return the predictions as a table."""
        table = self.table
        texts = dataset.texts(self.table, self.keys)
        texts["changed"] = [f"{row.changed} of {row.layers}" for row in table.itertuples()]
        texts[self.default] = [f"{ms:.3f}" for ms in table["default_ms"]]
        texts["predicted"] = [f"{ms:.3f}" for ms in table["predicted_ms"]]
        columns = ("changed", "gain_pct", "gain_lo_pct", "gain_hi_pct")
        texts["gain"] = [
            f"{gain:.1f} % ({low:.1f} to {high:.1f})" if changed else "-"
            for changed, gain, low, high in zip(*(table[name] for name in columns), strict=True)
        ]
        texts["map"] = [each if self.maps[each] else "-" for each in table["map"]]
        name = self.sweep_dir.name
        return View(
            title=f"{name}: the fastest algorithm of each convolution, ms of one pass",
            frame=table, texts=pd.DataFrame(texts), left=len(self.keys),
            notes=[self._summary(), *self.notes],
            record={"sweep": self.sweep_dir.name, "default": self.default, "maps": self.maps},
        )  # fmt: skip

    def sweep_file(self) -> str:
        """Return a sweep that measures every map beside the default."""
        name = self.sweep_dir.name
        head = (
            f"The fastest algorithm of each convolution of {name}, beyond the noise.",
            f"A layer that a map does not name keeps {self.default}.",
        )
        return sweep_file(head, f"{name}_best", self.default, self.maps, self.axes)

    def _summary(self) -> str:
        chosen = Counter(name for layers in self.maps.values() for name in layers.values())
        if not chosen:
            return f"no layer has an algorithm that beats {self.default} beyond the noise"
        tally = ", ".join(f"{name} {number}" for name, number in chosen.most_common())
        return f"layers that change: {tally}; the others keep {self.default}"


def sweep_file(
    head: Sequence[str], name: str, default: str, layers_of: ByName, axes_of: ByName
) -> str:
    """Return a sweep that measures each map of layers to algorithms beside the default.

    Maps and the axes of their points have the same names; `head` are lines of comment.
    """
    every = layers_of.items()
    chosen = {name: json.dumps({**of, "default": default}) for name, of in every if of}
    first: dict[str, str] = {}  # of equal maps, the name of the first
    for map_name, text in chosen.items():
        first.setdefault(text, map_name)
    maps = [f"  {map_name}: &{map_name} {text}" for text, map_name in first.items()]
    points = []
    for map_name, axes in axes_of.items():
        cells = [f"{axis}: {json.dumps(value)}" for axis, value in axes.items()]
        mapped = [f"*{first[chosen[map_name]]} "] if map_name in chosen else []
        points += [
            f"  - {{{', '.join([*cells, f'algorithm: {algorithm}'])}}}"
            for algorithm in (default, *mapped)
        ]
    return "\n".join([
        *(f"# {line}" for line in head),
        f"name: {name}",
        "workload: inference",
        *(["maps:", *maps] if maps else []),
        "include:",
        *points,
        "",
    ])  # fmt: skip


def best_of_sweep(
    sweep_dir: SweepDir, *, where: str = "", over: str = catalog.AUTO, everything: bool = False
) -> Best:
    """Return the best map of each configuration over the default algorithm `over`.

    `UsageError` where nothing was collected or chosen, or no layer was timed under the default, or
    it is a training sweep.
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
    points, left_out = data.chosen(where, everything=everything, noise=True)
    calls = best_layers.per_layer(data, points, over)
    points = points[[name for name in points if name in {*catalog.AXES, *_TIMES, "point_id"}]]
    points = points.assign(config=dataset.configurations(points))
    first = points.groupby("config", as_index=False).first()
    first = first[first["config"].isin(calls["config"])].reset_index(drop=True)
    varying = dataset.varying_axes(first, _HIDDEN)
    keys = tuple(axis for axis in catalog.AXES if axis in {*_ALWAYS, *varying} and axis in first)
    rows = [row for _, row in first.iterrows()]
    names = [map_name(dataset.format_value(key, row[key]) for key in keys) for row in rows]
    chosen = maps_of(calls, over)
    maps = dict(zip(names, [chosen.get(config, {}) for config in first["config"]], strict=True))
    whole = _medians(points, dataset.first_known(points, *_TIMES))
    layers = _medians(points, points["point_id"].map(_sums(data, points)))
    off = _off(whole, layers, over)
    table = predicted(calls, whole[over], layers[over], off).reindex(first["config"])
    table = pd.concat([first[list(keys)], table.reset_index(drop=True)], axis=1)
    # a gain whose interval holds a loss was not shown, so nothing of it is pinned
    loses = (table["changed"] > 0) & ~(table["gain_lo_pct"] > 0)
    maps |= {name: {} for name, may_lose in zip(names, loses, strict=True) if may_lose}
    if loses.any():
        which = count(int(loses.sum()), "configuration")
        left_out += [f"{which} without a map: the interval of what it would gain holds a loss"]
    several = len(set(first["gpu"])) > 1
    axes = [_written_axes(row, with_gpu=several) for row in rows]
    if rest := points["config"].nunique() - len(first):
        left_out += [f"{count(rest, 'configuration')} without layers under the default"]
    axes_of = dict(zip(names, axes, strict=True))
    return Best(sweep_dir, over, table.assign(map=names), keys, maps, axes_of, tuple(left_out))


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
    calls: pd.DataFrame, times: pd.Series[float], layers: pd.Series[float], off: pd.Series[float]
) -> pd.DataFrame:
    """Return what each map is predicted to gain, with a 95 % interval.

    Layers are timed one by one. Where they sum to more than the network, they save as much less.
    `off` is how far such a sum was off for whole networks of one algorithm, as a share of the time.
    """
    changed = calls.assign(changed=calls["saving_ms"] > 0, root=np.sqrt(calls["shared"]))
    grouped = changed.groupby("config")
    sums = grouped[["saving_ms", "own", "default_ms"]].sum()
    # half of what the layers of an algorithm share is the default's, and so of all algorithms
    roots = changed.groupby(["config", "algorithm"])["root"].sum().groupby("config")
    common = roots.agg(lambda of: ((of**2).sum() + of.sum() ** 2) / 2)
    variance = sums["own"] + common
    whole = times.reindex(sums.index).fillna(sums["default_ms"])
    per_cent = 100 / pd.concat([whole, layers, sums["default_ms"]], axis=1).max(axis=1)
    gain = sums["saving_ms"] * per_cent
    of_model = off.reindex(sums.index).fillna(0.0) * gain
    half = np.hypot(_OF_GAIN * np.sqrt(variance) * per_cent, _OF_GAIN * of_model)
    return pd.DataFrame({
        "layers": grouped.size(), "changed": grouped["changed"].sum(), "default_ms": whole,
        "predicted_ms": whole * (1 - gain / 100), "gain_pct": gain,
        "gain_lo_pct": gain - half, "gain_hi_pct": gain + half,
    })  # fmt: skip


def _off(whole: pd.DataFrame, layers: pd.DataFrame, over: str) -> pd.Series[float]:
    """Return how far gains by the layers' sums are from those of whole networks, by configuration.

    Every algorithm was measured both ways. It is the root of the mean square of the relative
    errors, of algorithms that differ from the default by a tenth or more.
    """
    names = [name for name in whole if name in catalog.ALGORITHMS and name != over]
    gain, of_sums = (1 - of[names].div(of[over], axis=0) for of in (whole, layers))
    errors = ((of_sums - gain) / of_sums).where(of_sums.abs() >= _TENTH)
    return errors.pow(2).mean(axis=1).pow(0.5)


def _written_axes(row: pd.Series[Any], *, with_gpu: bool) -> dict[str, Any]:
    left_out = _HIDDEN if with_gpu else {*_HIDDEN, "gpu"}
    values = {}
    for name in catalog.axes_of("inference"):
        value = None if name in left_out else dataset.to_json(name, row.get(name))
        if value is not None:
            values[name] = value == "true" if catalog.AXES[name].kind == "bool" else value
    return {name: value for name, value in values.items() if value != catalog.AXES[name].default}
