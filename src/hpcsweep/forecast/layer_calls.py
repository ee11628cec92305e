"""The layer calls of points: those of measured rows, where a shape pass is not needed.

What a call works on follows from network, size, batch, type and setting. A shape pass tells it of
points that no row has: it needs torch, but neither a GPU nor arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import pandas as pd

from hpcsweep.catalog import Role, axes_with
from hpcsweep.errors import HpcsweepError, UsageError, first_line
from hpcsweep.forecast import training_data
from hpcsweep.forecast.training_data import Measured
from hpcsweep.point import Point

_SHAPED_BY: Final = ["model", "input_size", "batch_size", "dtype", "setting"]
_CELLS: Final = ["layer", "call_index", "op", "unique_key", "direction", *training_data.WORK]


def of_points(points: Sequence[Point], table: pd.DataFrame, measured: Measured) -> pd.DataFrame:
    """Return the calls of all points, with the cells of their rows in `table`.

    `UsageError` where a network does not take the image, or is not to be had.
    """
    rows = measured.points.reset_index().drop_duplicates(_SHAPED_BY)
    with_shapes = rows.set_index(_SHAPED_BY)["point_id"].to_dict()
    measured_calls = measured.calls.groupby("point_id", observed=True)
    found: dict[tuple[Any, ...], pd.DataFrame] = {}
    parts = []
    shapes = table[_SHAPED_BY].itertuples(index=False, name=None)
    for point, shape in zip(points, shapes, strict=True):
        if shape not in found and shape in with_shapes:
            found[shape] = measured_calls.get_group(with_shapes[shape])[_CELLS]
        elif shape not in found:
            found[shape] = _by_shape_pass(point)
        parts.append(found[shape].assign(point_id=point.point_id))
    calls = pd.concat(parts, ignore_index=True)
    return calls.join(table.drop(columns="batch_size"), on="point_id")


def _by_shape_pass(point: Point) -> pd.DataFrame:
    import torch  # noqa: PLC0415 - most predictions need no shape pass

    from hpcsweep.measure import model_builder, trials, work  # noqa: PLC0415 - they need torch
    from hpcsweep.measure.shape_pass import shape_pass  # noqa: PLC0415

    axes = point.axes
    shape = axes["batch_size"], *model_builder.image_shape(axes)
    image = torch.empty(shape, dtype=getattr(torch, axes["dtype"]))
    image = image.to(memory_format=model_builder.LAYOUTS[axes["memory_format"]])
    case = {name: axes.get(name) for name in axes_with(Role.NETWORK)}
    try:
        found = shape_pass(trials.network(point.workload, json.dumps(case)), image)
    except HpcsweepError:
        raise
    except Exception as error:  # whatever the network's author wrote
        size = f"input_size {axes['input_size']}, batch_size {axes['batch_size']}"
        raise UsageError(
            f"{axes['model']} at {size} cannot be predicted, since it does not run here: "
            f"{type(error).__name__}: {first_line(error)}; exclude it from the sweep"
        ) from error
    rows = []
    for call_index, call in enumerate(found.calls):
        cells = work.call_cells(call).filled()
        place = {"call_index": call_index, "direction": "forward"}
        rows.append(cells | place | {"batch_size": axes["batch_size"]})
    return pd.DataFrame(rows).reindex(columns=_CELLS)
