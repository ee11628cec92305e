"""The layer calls of points: those of measured rows, where a shape pass is not needed.

What a call works on follows from network, size, batch, type and setting. A shape pass tells it of
points that no row has: it needs torch, but neither a GPU nor arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

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
    by_id = {point.point_id: point for point in points}
    rows = measured.points.reset_index().drop_duplicates(_SHAPED_BY)
    with_shapes = rows.set_index(_SHAPED_BY)["point_id"].to_dict()
    measured_calls = measured.calls.groupby("point_id", observed=True)
    parts = []
    for point_id, *cells in table[_SHAPED_BY].drop_duplicates().itertuples(name=None):
        like = with_shapes.get(tuple(cells))
        calls = measured_calls.get_group(like) if like else _by_shape_pass(by_id[point_id])
        shape = dict(zip(_SHAPED_BY, cells, strict=True))
        parts.append(calls.reindex(columns=_CELLS).assign(**shape))
    return table.reset_index().merge(pd.concat(parts), on=_SHAPED_BY)


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
    if found.late:
        trials.network.cache_clear()  # the layers made now may fit images of this size only
    rows = []
    for call_index, call in enumerate(found.calls):
        place = {"call_index": call_index, "direction": "forward"}
        rows.append(work.call_cells(call).filled() | place)
    return pd.DataFrame(rows)
