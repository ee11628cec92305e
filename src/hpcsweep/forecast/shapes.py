"""The layer calls of points: from rows of the same network, or from a shape pass.

A shape pass needs torch, but neither a GPU nor arithmetic. It is made only for a network, size or
batch that no measured point had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

import pandas as pd

from hpcsweep.catalog import columns
from hpcsweep.forecast.tables import SETTINGS, WORK, Measured
from hpcsweep.point import Point

_SAME: Final = ("model", "input_size", "batch_size", "dtype")  # and the setting: width, channels
_COLUMNS: Final = ("layer", "call_index", "op", "unique_key", "direction", *WORK)


def calls_of(points: Iterable[Point], measured: Measured) -> dict[tuple[Any, ...], pd.DataFrame]:
    """Return the calls of every network, size, batch and dtype; `key_of` says which is whose."""
    rows = measured.points.reset_index()
    first = rows.groupby([*_SAME, "setting"], observed=True)["point_id"].first().to_dict()
    by_point = measured.calls.groupby("point_id", observed=True)
    network = lru_cache(maxsize=1)(_network)  # points of one network follow each other
    calls: dict[tuple[Any, ...], pd.DataFrame] = {}
    for point in points:
        key = key_of(point)
        if key not in calls and key in first:
            calls[key] = by_point.get_group(first[key])[list(_COLUMNS)]
        elif key not in calls:
            calls[key] = _shape_pass(point, network)
    return calls


def key_of(point: Point) -> tuple[Any, ...]:
    """Return what the shapes of a point's calls depend on."""
    setting = ",".join(columns.cell(point.axes[name]) for name in SETTINGS)
    return (*(point.axes[name] for name in _SAME), setting)


def _network(model: str, dtype: str, memory_format: str, channels: int) -> Any:  # noqa: ANN401
    import torch  # noqa: PLC0415 - most predictions need no shape pass

    from hpcsweep.measure import models  # noqa: PLC0415 - it needs torch

    network = models.build_float32(model, enliven=False, channels=channels)
    network = network.to(dtype=getattr(torch, dtype))
    return network.to(memory_format=models.LAYOUTS[memory_format])


def _shape_pass(point: Point, network: Callable[[str, str, str, int], Any]) -> pd.DataFrame:
    """Return the calls that a shape pass finds, as the columns of layer rows."""
    import torch  # noqa: PLC0415 - most predictions need no shape pass

    from hpcsweep.measure import models, shape_pass, work  # noqa: PLC0415 - they need torch

    axes, shape = point.axes, models.image_shape(point.axes)
    model = network(axes["model"], axes["dtype"], axes["memory_format"], shape[0])
    image = torch.empty(axes["batch_size"], *shape, dtype=getattr(torch, axes["dtype"]))
    image = image.to(memory_format=models.LAYOUTS[axes["memory_format"]])
    rows = [
        {**work.call_cells(call), "call_index": index, "direction": "forward",
         "batch_size": axes["batch_size"]}
        for index, call in enumerate(shape_pass.shape_pass(model, image).calls)
    ]  # fmt: skip
    return pd.DataFrame(rows).reindex(columns=list(_COLUMNS))
