"""The layer calls of points: from rows of the same network, or from a shape pass.

A shape pass needs torch, but neither a GPU nor arithmetic. It is made only for a network, size or
batch that no measured point had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from hpcsweep.catalog import columns
from hpcsweep.forecast.tables import SETTINGS, WORK

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcsweep.forecast.tables import Measured
    from hpcsweep.point import Point

_SAME: Final = ("model", "input_size", "batch_size", "dtype")  # and the setting: width, channels
_COLUMNS: Final = ("layer", "call_index", "op", "unique_key", "direction", *WORK)


def calls_of(points: Iterable[Point], measured: Measured) -> dict[tuple[Any, ...], pd.DataFrame]:
    """Return the calls of every network, size, batch and dtype; `key_of` says which is whose."""
    rows = measured.points.reset_index()
    first = rows.groupby([*_SAME, "setting"], observed=True)["point_id"].first().to_dict()
    by_point = measured.calls.groupby("point_id", observed=True)
    found: dict[tuple[Any, ...], pd.DataFrame] = {}
    network = _Network()
    for point in points:
        key = key_of(point)
        if key in found:
            continue
        known = first.get(key)
        found[key] = (
            network.calls(point) if known is None else by_point.get_group(known)[list(_COLUMNS)]
        )
    return found


def key_of(point: Point) -> tuple[Any, ...]:
    """Return what the shapes of a point's calls depend on."""
    setting = ",".join(columns.cell(point.axes[name]) for name in SETTINGS)
    return (*(point.axes[name] for name in _SAME), setting)


class _Network:
    """The last network that a shape pass needed: points of one network follow each other."""

    def __init__(self) -> None:
        self._name: tuple[Any, ...] = ()
        self._model: Any = None

    def calls(self, point: Point) -> pd.DataFrame:
        """Return the calls that a shape pass finds, as the columns of layer rows."""
        import torch  # noqa: PLC0415 - most predictions need no shape pass

        from hpcsweep.measure import models, shape_pass, work  # noqa: PLC0415 - they need torch

        axes = point.axes
        dtype, layout = getattr(torch, axes["dtype"]), models.LAYOUTS[axes["memory_format"]]
        batch, shape = axes["batch_size"], models.image_shape(axes)
        if self._name != (axes["model"], dtype, layout, shape[0]):
            plain = models.build_float32(axes["model"], enliven=False, channels=shape[0])
            self._model = plain.to(dtype=dtype).to(memory_format=layout)
            self._name = (axes["model"], dtype, layout, shape[0])
        image = torch.empty(batch, *shape, dtype=dtype).to(memory_format=layout)
        found = shape_pass.shape_pass(self._model, image)
        rows = [
            {**work.call_cells(call), "call_index": index, "direction": "forward",
             "batch_size": batch}
            for index, call in enumerate(found.calls)
        ]  # fmt: skip
        return pd.DataFrame(rows).reindex(columns=list(_COLUMNS))
