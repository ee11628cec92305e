"""What a call works on: its bytes, operations and sizes, which follow from its shape alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]
Flags = NDArray[np.bool_]

ITEM_BYTES: Final = {"float64": 8.0, "float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
# the columns of a shape; what a table does not state is 1, as of an operator without filters
SIZES: Final = [
    "batch_size", "groups", "in_channels", "out_channels", "in_h", "in_w", "out_h", "out_w",
    "kernel_h", "kernel_w", "stride_h", "dilation_h",
]  # fmt: skip


def amounts(calls: pd.DataFrame) -> pd.DataFrame:
    """Return the work of calls, a row for each: sizes, `flops`, and bytes in, out and of weights.

    `channels` and `filters` are those of one group, `pixels` are outputs of a channel, and `inner`
    is the length of the sum of one output value.
    """
    work = calls[SIZES].fillna(1.0).astype(float)
    item = calls["dtype"].astype("category").map(ITEM_BYTES).astype(float).fillna(4.0)
    work["flops"] = calls["flops"].astype(float).fillna(0.0)
    work["bytes_min"] = calls["bytes_min"].astype(float).fillna(0.0)
    work["weight_bytes"] = calls["params"].astype(float).fillna(0.0) * item
    work["channels"] = work["in_channels"] / work["groups"]
    work["filters"] = work["out_channels"] / work["groups"]
    work["kernel"] = work["kernel_h"] * work["kernel_w"]
    work["pixels"] = work["batch_size"] * work["out_h"] * work["out_w"]
    work["inner"] = work["channels"] * work["kernel"]
    moved = (work["bytes_min"] - work["weight_bytes"]).clip(lower=0.0)
    work["out_bytes"] = np.minimum(work["pixels"] * work["out_channels"] * item, moved)
    # a window is read per output: what of the input is skipped costs nothing
    ops = calls["op"].astype("category")
    pools = [op for op in ops.cat.categories if op.startswith(("maxpool", "avgpool"))]
    work["in_bytes"] = (moved - work["out_bytes"]).mask(ops.isin(pools), 0.0)
    return work


def groups(rows: pd.DataFrame, names: Iterable[str]) -> dict[tuple[Any, ...], Integers]:
    """Return the places of the rows that share their values of some columns, by these values."""
    places: dict[Any, Any] = rows.groupby(list(names), sort=False, observed=True).indices
    return {key if isinstance(key, tuple) else (key,): found for key, found in places.items()}
