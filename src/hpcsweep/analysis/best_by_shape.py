"""Chooses the algorithm of each convolution of a network by its shape, from times of other rows.

The rows may be a vendor's, such as MIOpen's find-db, or those of other networks: equal shapes are
equal work. So a GPU that is not here has a map without a measurement. Nothing confirms it: a time
has no spread, and was taken alone, not inside of the network.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import best, dataset
from hpcsweep.analysis.formats import View
from hpcsweep.catalog.limits import IMPOSSIBLE
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import UsageError
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

_TIMES: Final = ("median_ms", "mean_ms", "min_ms")
_BIAS: Final = re.compile(r"_(?:no)?bias(?=_)")  # is added apart, and find-db has none
_WORK: Final = ["key", "algorithm"]


@dataclass(frozen=True)
class BestByShape:
    """The fastest algorithm of each convolution call: a row per call, NaN where none is known."""

    sweep_dir: SweepDir
    axes: Mapping[str, Any]
    gpu: str
    calls: pd.DataFrame

    def view(self) -> View:
        """Return a row per shape, in the order of its first call."""
        calls = self.calls.assign(algorithm=self.calls["algorithm"].fillna(catalog.AUTO))
        table = calls.groupby("key", sort=False).agg(
            layer=("layer", "first"), calls=("layer", "size"), algorithm=("algorithm", "first"),
            solver=("solver", "first"), ms=("ms", "first"), next=("next", "first"),
            next_ms=("next_ms", "first"), unique_key=("unique_key", "first"),
        ).reset_index(drop=True)  # fmt: skip
        texts = table[["layer", "calls", "algorithm", "ms", "next", "next_ms"]].astype(object)
        texts["calls"] = [*map(str, table["calls"])]
        for name in ("ms", "next_ms"):
            texts[name] = ["-" if math.isnan(ms) else f"{ms:.3f}" for ms in table[name]]
        size = dataset.labelled(self.axes, self.axes)
        return View(
            title=f"{size} on {self.gpu}, by the times of {self.sweep_dir.name}: unconfirmed",
            frame=table, texts=texts.fillna("-"), left=1, notes=self._summary(),
            record={"source": self.sweep_dir.name, "gpu": self.gpu, "axes": dict(self.axes),
                    "confirmed": False, "map": self.map()},
        )  # fmt: skip

    def map(self) -> dict[str, str]:
        """Return layer to algorithm; a layer with calls of several choices goes by their shapes."""
        calls = self.calls.fillna({"algorithm": catalog.AUTO}).assign(config=0)
        return best.maps_of(calls, catalog.AUTO).get(0, {})

    def sweep_file(self) -> str:
        """Return a sweep that measures the map beside the default."""
        always = {"model", "input_size", "batch_size"}
        written = {
            name: value for name, value in self.axes.items()
            if name in always or value != catalog.AXES[name].default
        }  # fmt: skip
        name = best.map_name(map(str, written.values()))
        head = (
            f"The fastest algorithm of each convolution by the times of {self.sweep_dir.name}",
            f"({self.gpu}). Unconfirmed: no network with this map was measured. Its gain has no",
            "interval, and may be a loss: this sweep measures the map beside the default.",
        )
        maps = {name: self.map()}
        return best.sweep_file(head, f"{name}_by_shape", catalog.AUTO, maps, {name: written})

    def _summary(self) -> list[str]:
        timed = self.calls.dropna(subset="ms")
        rest = len(self.calls) - len(timed)
        every = count(len(self.calls), "convolution")
        shapes = count(self.calls["key"].nunique(), "shape")
        lines = [f"{every} of {shapes}, {len(timed)} with a time: {timed['ms'].sum():.3f} ms"]
        if rest:
            shapes = count(self.calls["key"].nunique() - timed["key"].nunique(), "shape")
            lines.append(f"{count(rest, 'call')} of {shapes} without a time keep {catalog.AUTO}")
        return lines


def best_of_shapes(
    sweep_dir: SweepDir,
    axes: Mapping[str, Any],
    convolutions: Sequence[tuple[str, ConvShape]],
    where: str,
) -> BestByShape:
    """Return the fastest algorithm of each convolution call by the times that a sweep has.

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
    return BestByShape(sweep_dir, axes, gpus[0], calls.join(first, "key").join(second, "key"))


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
