"""What a device can do: its data sheet, or the best rates that were seen where it has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hpcsweep.catalog import gpus
from hpcsweep.forecast import terms

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_BEST: Final = 0.95  # of the rates of calls: the device is at its peak there


class Sheet(NamedTuple):
    """10^12 operations and 10^9 bytes in a second; the clock in MHz."""

    tflops: float = 10.0
    gbs: float = 1000.0
    clock_mhz: float = 1500.0


Sheets = dict[tuple[str, str], Sheet]  # by GPU and dtype


def of(calls: pd.DataFrame, known: Mapping[tuple[str, str], Sheet]) -> Sheets:
    """Return the sheet of each GPU and dtype of calls; `known` ones, from rows, come after it."""
    return {(gpu, dtype): _stated(gpu, dtype) or known.get((gpu, dtype)) or Sheet()
            for gpu, dtype in terms.groups(calls, ("gpu", "dtype"))}  # fmt: skip


def seen(calls: pd.DataFrame) -> Sheets:
    """Return what calls with a time tell of devices that are in no table."""
    found: Sheets = {}
    flops, moved = calls["flops"].to_numpy(float), calls["bytes_min"].to_numpy(float)
    ms = calls["ms"].to_numpy(float)
    for (gpu, dtype), places in terms.groups(calls, ("gpu", "dtype")).items():
        if _stated(gpu, dtype) is None:
            rates = (np.nanquantile(np.nan_to_num(of[places] / ms[places]), _BEST)
                     for of in (flops, moved))  # fmt: skip
            tflops, gbs = (float(rate) for rate in rates)
            found[gpu, dtype] = Sheet(max(tflops * 1e-9, 1e-3), max(gbs * 1e-6, 1e-2))
    return found


def columns(calls: pd.DataFrame, sheets: Mapping[tuple[str, str], Sheet]) -> Floats:
    """Return the figures of each call's device, a row for each call."""
    found = np.empty((len(calls), len(Sheet._fields)))
    for key, places in terms.groups(calls, ("gpu", "dtype")).items():
        found[places] = sheets.get(key, Sheet())
    return found


def _stated(name: str, dtype: str) -> Sheet | None:
    gpu = gpus.sheet(str(name))
    if gpu is None:
        return None
    return Sheet(gpu.peak(str(dtype)) or gpu.fp32_tflops, gpu.bandwidth_gbs, gpu.clock_mhz)
