"""Which algorithm a convolution will run: what such calls ran, where the same one was requested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHAPE: Final = ["kernel_h", "kernel_w", "stride_h", "dilation_h", "grouped"]
_KEYS: Final = ["gpu", "algorithm", *_SHAPE]


def learn(calls: pd.DataFrame) -> dict[tuple[object, ...], str]:
    """Return what convolutions ran, by GPU, request and filter."""
    convolutions = _keyed(calls[calls["algorithm_used"].notna()])
    return {
        key: str(used.astype(str).mode().iloc[0])
        for key, used in convolutions.groupby(_KEYS, observed=True)["algorithm_used"]
    }


def ran(calls: pd.DataFrame, rules: Mapping[tuple[object, ...], str]) -> pd.Series[str]:
    """Return the algorithm of every call; `-` for a call that is no convolution."""
    keyed = _keyed(calls)
    convolves = keyed["kernel_h"].notna() & keyed["op"].astype(str).str.startswith("conv")
    rows = zip(*(keyed.loc[convolves, name] for name in _KEYS), strict=True)
    wanted = keyed.loc[convolves, "algorithm"].astype(str)
    found = [rules.get(key, asked) for key, asked in zip(rows, wanted, strict=True)]
    answer = pd.Series("-", calls.index, dtype=object)
    answer.loc[convolves] = np.array(found, dtype=object)
    return answer


def _keyed(calls: pd.DataFrame) -> pd.DataFrame:
    grouped = calls["groups"].fillna(1) > 1
    return calls.assign(grouped=grouped)
