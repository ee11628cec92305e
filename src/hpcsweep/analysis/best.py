"""Makes maps of algorithms: the fastest one for each convolution of a network.

`best_of_sweep` makes them from the layers of a collected sweep: `best_layers` chooses, and there is
a map for each configuration: GPU, dtype, network and size. `best_of_shapes` makes one for a network
that was not measured, from other rows: a vendor's, such as MIOpen's find-db, or those of other
networks, for equal shapes are equal work. Nothing confirms that: such a time has no spread, and was
taken alone, not inside of the network.

A map is written as a sweep file that measures it beside the default.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import best_layers, dataset, formats, reliability
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.plain_rows import cells
from hpcsweep.catalog.columns import IMPOSSIBLE
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import UsageError
from hpcsweep.store import named_file
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

Maps = Mapping[str, Mapping[str, str]]  # of layers to algorithms, by the name of the map

_ALWAYS: Final = ("gpu", "dtype", "model", "input_size", "batch_size")
_HIDDEN: Final = {"algorithm", *dataset.REPEATS}
_SUM: Final = b"# written by hpcsweep, checksum "


@dataclass(frozen=True)
class Best:
    """Maps of layers to algorithms by name, empty where the default stays, and what tells why.

    `axes` are those of the points of each map, as a sweep file writes them. The sweep that measures
    the maps is called `name`, and begins with the lines of `head`.
    """

    view: View
    default: str
    maps: Maps
    axes: Mapping[str, Mapping[str, Any]]
    name: str
    head: tuple[str, ...]

    def sweep_file(self) -> str:
        """Return a sweep that measures every map beside the default."""
        texts = {}
        anchors: dict[str, str] = {}  # of equal maps, the name of the first
        for name, layers in self.maps.items():
            if layers:
                texts[name] = json.dumps({**layers, "default": self.default})
                anchors.setdefault(texts[name], name)
        lines = [f"# {line}" for line in self.head]
        lines += [f"name: {self.name}", "workload: inference"]
        if anchors:
            lines.append("maps:")
        lines += [f"  {name}: &{name} {text}" for text, name in anchors.items()]
        lines.append("include:")
        for name, axes in self.axes.items():
            algorithms = [self.default]
            if name in texts:
                algorithms.append(f"*{anchors[texts[name]]} ")
            written = [f"{axis}: {json.dumps(value)}" for axis, value in axes.items()]
            for algorithm in algorithms:
                point = ", ".join([*written, f"algorithm: {algorithm}"])
                lines.append(f"  - {{{point}}}")
        return "\n".join([*lines, ""])


def write_sweep(path: Path, text: str) -> None:
    """Write a sweep with its checksum; `UsageError` where the file cannot be written.

    An earlier file is replaced unless a person edited it, which the checksum tells.
    """

    def is_unedited(before: bytes) -> bool:
        return before == _summed(before.rpartition(_SUM)[0])

    with named_file.writing(path, is_unedited) as file:
        file.write(_summed(text.encode()))


def _summed(text: bytes) -> bytes:
    # 64 bits: they tell slips and edits, not attacks
    return text + _SUM + hashlib.sha256(text).hexdigest()[:16].encode() + b"\n"


def best_of_sweep(
    sweep_dir: SweepDir, *, where: str = "", over: str = catalog.AUTO, unreliable: bool = False
) -> Best:
    """Return the best map of each configuration over the default algorithm `over`.

    `UsageError` where nothing was collected or chosen, no layer was timed under the default or
    under another algorithm in the same configuration, or it is a training sweep.
    """
    data = dataset.read_dataset(sweep_dir)
    _refuse_workload(data)
    points, notes = data.chosen(where, unreliable=unreliable, noise=True)
    chosen = best_layers.per_layer(data, points, over)
    calls = chosen.calls
    if not calls["tried"].any():
        raise UsageError(_without_rival(data, points, where, over))
    points = points.assign(config=dataset.configurations(points))
    every = points.drop_duplicates("config")
    first = every[every["config"].isin(calls["config"])].reset_index(drop=True)
    varying = dataset.varying_axes(first, _HIDDEN)
    keys = [axis for axis in catalog.AXES if axis in {*_ALWAYS, *varying} and axis in first]
    gains = best_layers.predicted_gains(data, points, chosen, over).reindex(first["config"])
    table = pd.concat([first[keys], gains.reset_index(drop=True)], axis=1)
    # a gain whose interval holds a loss was not shown, so nothing of it is pinned
    loses = (table["changed"] > 0) & ~(table["gain_lo_pct"] > 0)
    maps_by_config = maps_of(calls, over)
    with_gpu = len(first["gpu"].unique()) > 1
    names = []
    maps: dict[str, Mapping[str, str]] = {}
    axes = {}
    for (_, row), may_lose in zip(first.iterrows(), loses, strict=True):
        name = map_name(formats.format_value(key, row[key]) for key in keys)
        names.append(name)
        maps[name] = {} if may_lose else maps_by_config.get(row["config"], {})
        axes[name] = _written_axes(row, with_gpu=with_gpu)
    table["map"] = names
    unrivalled = table["gain_pct"].isna()
    counts = {
        "without a map: the interval of what it would gain holds a loss": loses.sum(),
        "in which no other algorithm was timed: no rival to compare": unrivalled.sum(),
        "without layers under the default": len(every) - len(first),
    }
    for line, number in counts.items():
        if number:
            notes.append(f"{count(int(number), 'configuration')} {line}")
    sweep = sweep_dir.name
    view = View(
        title=f"{sweep}: the fastest algorithm of each convolution, ms of one pass",
        frame=table, texts=_texts(table, keys, maps, over), left=len(keys),
        notes=[_summary(maps, over), *notes],
        record={"sweep": sweep, "default": over, "maps": maps},
    )  # fmt: skip
    head = (
        f"The fastest algorithm of each convolution of {sweep}, beyond the noise.",
        f"A layer that a map does not name keeps {over}.",
    )
    return Best(view, over, maps, axes, f"{sweep}_best", head)


def _refuse_workload(data: Dataset) -> None:
    name = data.sweep_dir.name
    if data.is_of_command:
        raise UsageError(
            f"{name}: commands have no convolutions to choose for; `hpcsweep report "
            f"{name} --metric COLUMN` compares what they said"
        )
    if data.trains:
        raise UsageError(
            f"{name}: a training sweep, and best chooses by forward passes alone, which "
            "say nothing of gradients; measure the networks in an inference sweep"
        )


def _without_rival(data: Dataset, points: pd.DataFrame, where: str, over: str) -> str:
    """Say why nothing could be compared with the default: what became of other algorithms."""
    stages = (  # the first that still has another algorithm says where the next one lost it
        (points, f"%s ran in no layer that {over} ran in the same configuration"),
        (data.where(where), "%s are unreliable; --unreliable takes them"),
        (data.rows, "--where leaves out %s"),
        (data.failed, "no point with %s was measured"),
    )
    why = "the sweep has no other algorithm"
    for rows, text in stages:
        names = set(cells(rows, "algorithm").dropna().astype(str)) - {over}
        algorithms = sorted(filter(catalog.is_algorithm, names))
        if algorithms:
            why = text % ", ".join(algorithms)
            break
    return f"{data.sweep_dir.name}: no rival to compare with {over}: {why}"


def _texts(table: pd.DataFrame, keys: list[str], maps: Maps, default: str) -> pd.DataFrame:
    """Return the predictions as people read them."""
    texts = pd.DataFrame(formats.texts(table, keys), table.index)
    texts["changed"] = table["changed"].map(str) + " of " + table["layers"].map(str)
    texts[default] = table["default_ms"].map("{:.3f}".format)
    texts["predicted"] = table["predicted_ms"].map("{:.3f}".format)
    gains = []
    for row in table.itertuples():
        gain = "-"
        if row.changed:
            gain = f"{row.gain_pct:.1f} % ({row.gain_lo_pct:.1f} to {row.gain_hi_pct:.1f})"
        gains.append(gain)
    texts["gain"] = gains
    texts["map"] = [name if maps[name] else "-" for name in table["map"]]
    return texts


def _summary(maps: Maps, default: str) -> str:
    chosen = Counter[str]()
    for layers in maps.values():
        chosen.update(layers.values())
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


def _written_axes(row: pd.Series[Any], *, with_gpu: bool) -> dict[str, Any]:
    """Return the axes of a configuration that are not default, as a sweep file writes them."""
    left_out = _HIDDEN if with_gpu else {*_HIDDEN, "gpu"}
    values = {}
    for name in catalog.axes_of("inference"):
        axis = catalog.AXES[name]
        value = formats.to_json(name, row.get(name))
        if value is None or name in left_out:
            continue
        if axis.kind == "bool":
            value = value == "true"
        if value != axis.default:
            values[name] = value
    return values


_SHAPE_TIMES: Final = ("median_ms", "mean_ms", "min_ms")  # imported rows may have the last alone
_BIAS: Final = re.compile(r"_(?:no)?bias(?=_)")  # is added apart, and find-db has none
_WORK: Final = ["key", "algorithm"]
_OF_SHAPES: Final = ("model", "input_size", "batch_size")  # always written into the sweep file


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
        has = f"{sweep_dir.name} has times of {', '.join(gpus) or 'no GPU'}"
        raise UsageError(f"{has}: --where gpu=NAME chooses one")
    keys = [(layer, shape.unique_key) for layer, shape in convolutions]
    calls = pd.DataFrame(keys, columns=["layer", "unique_key"])
    calls["key"] = calls["unique_key"].str.replace(_BIAS, "", regex=True)
    possible = data.rows[~reliability.flagged(data.rows, {IMPOSSIBLE})]
    ranked = _ranked(data.of_layers(possible), set(calls["key"]))
    if ranked.empty:
        shapes = count(calls["key"].nunique(), "shape")
        none = f"no time of any of the {shapes} of {axes['model']}"
        raise UsageError(f"{sweep_dir.layers}: {none}")
    by_key = ranked.groupby("key")
    first = by_key.nth(0).set_index("key")
    second = by_key.nth(1).set_index("key")[["algorithm", "ms"]]
    second = second.rename(columns={"algorithm": "next", "ms": "next_ms"})
    calls = calls.join(first, "key").join(second, "key")
    calls = calls.fillna({"algorithm": catalog.AUTO}).assign(config=0)
    defaults = {axis: catalog.AXES[axis].default for axis in axes}
    named = [axis for axis in axes if axis in _OF_SHAPES or axes[axis] != defaults[axis]]
    written = {axis: axes[axis] for axis in named}
    name = map_name(map(str, written.values()))
    chosen = maps_of(calls, catalog.AUTO).get(0, {})
    head = (
        f"The fastest algorithm of each convolution by the times of {sweep_dir.name}",
        f"({gpus[0]}). Unconfirmed: no network with this map was measured. Its gain has no",
        "interval, and may be a loss: this sweep measures the map beside the default.",
    )
    view = _view_of_shapes(sweep_dir.name, axes, gpus[0], calls, chosen)
    return Best(view, catalog.AUTO, {name: chosen}, {name: written}, f"{name}_by_shape", head)


def _ranked(rows: pd.DataFrame, keys: set[str]) -> pd.DataFrame:
    """Return time and solver of each shape and algorithm, of its fastest solver; fastest first."""
    rows = rows[(rows["op"] == "conv2d") & (rows["direction"] == "forward")].copy()
    rows["key"] = rows["unique_key"].str.replace(_BIAS, "", regex=True)
    rows["ms"] = dataset.first_known(rows, *_SHAPE_TIMES)
    rows["solver"] = rows["algorithm_evidence"].fillna("").str.removeprefix("solver ")
    rows = rows[rows["key"].isin(keys) & rows["algorithm"].isin(catalog.ALGORITHMS)]
    rows = rows[~reliability.fell_back(rows)].dropna(subset="ms")
    # of repeated measurements the median, of several solvers of an algorithm the fastest
    medians = rows.groupby([*_WORK, "solver"])["ms"].median().reset_index()
    return medians.sort_values("ms").drop_duplicates(_WORK)


def _view_of_shapes(
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
    size = formats.labelled(axes, axes)
    record = {"source": source, "gpu": gpu, "axes": dict(axes), "confirmed": False, "map": chosen}
    return View(
        title=f"{size} on {gpu}, by the times of {source}: unconfirmed",
        frame=table, texts=texts.fillna("-"), left=1, notes=_notes(calls, table), record=record,
    )  # fmt: skip


def _notes(calls: pd.DataFrame, shapes: pd.DataFrame) -> list[str]:
    """Return lines on what has a time, what has none, and what has no rival."""
    timed = calls.dropna(subset="ms")
    every = f"{count(len(calls), 'convolution')} of {count(len(shapes), 'shape')}"
    lines = [f"{every}, {len(timed)} with a time: {timed['ms'].sum():.3f} ms"]
    untimed = len(calls) - len(timed)
    if untimed:
        of_shapes = count(int(shapes["ms"].isna().sum()), "shape")
        calls_of = f"{count(untimed, 'call')} of {of_shapes}"
        lines.append(f"{calls_of} without a time keep {catalog.AUTO}")
    alone = int((shapes["ms"].notna() & shapes["next_ms"].isna()).sum())
    if alone:
        lines.append(f"{count(alone, 'shape')} with times of one algorithm: no rival to compare")
    return lines
