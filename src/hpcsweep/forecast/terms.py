"""What the time of a layer call is made of: terms that cannot be negative, from its shape alone.

Every term is an amount of work (bytes, operations, calls) in a unit that takes about a
microsecond to a millisecond; the fit finds what a unit costs. A device's sheet says what it can do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcsweep.catalog import gpus

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Integers = NDArray[np.intp]
Flags = NDArray[np.bool_]
ITEM_BYTES: Final = {"float64": 8.0, "float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
_MEGA: Final = 1e-6
_GIGA: Final = 1e-9
# of the terms, in order
_UNITS: Final = ("call", "byte", "byte", "byte", "flop", "flop", "byte", "flop")
PLAIN: Final = 5  # of them: a constant, bytes and operations
_BEST: Final = 0.95  # of the rates of calls: the device is at its peak there


class Sheet(NamedTuple):
    """What a device can do: 10^12 operations and 10^9 bytes in a second."""

    tflops: float = 10.0
    gbs: float = 1000.0

    @classmethod
    def stated(cls, name: str, dtype: str) -> Sheet | None:
        """Return what the catalog says of a device; None where it has no sheet."""
        gpu = gpus.sheet(str(name))
        if gpu is None:
            return None
        return cls(gpu.peak(str(dtype)) or gpu.fp32_tflops, gpu.bandwidth_gbs)


Sheets = dict[tuple[Any, ...], Sheet]  # by GPU and dtype


def reached(calls: pd.DataFrame) -> Sheets:
    """Return the best rates of calls with a time (`ms`), of devices that no table has."""
    ms = calls["ms"].to_numpy(float)
    best = Sheets()
    rates = [np.nan_to_num(calls[name].to_numpy(float) / ms) for name in ("flops", "bytes_min")]
    for key, places in groups(calls, ("gpu", "dtype")).items():
        if Sheet.stated(*key) is None:
            flops, moved = (float(np.nanquantile(rate[places], _BEST)) for rate in rates)
            best[key] = Sheet(max(flops * 1e-9, 1e-3), max(moved * 1e-6, 1e-2))
    return best


def sheets(calls: pd.DataFrame, reached: Mapping[tuple[Any, ...], Sheet]) -> Floats:
    """Return what each call's device can do: as stated, as `reached`, or as a standard one."""
    rows = np.empty((len(calls), len(Sheet._fields)))
    for key, places in groups(calls, ("gpu", "dtype")).items():
        rows[places] = Sheet.stated(*key) or reached.get(key) or Sheet()
    return rows


def matrix(calls: pd.DataFrame) -> Floats:
    """Return one row of terms per call; only products have those beyond the plain ones."""
    amounts = Amounts(calls)
    rows = np.column_stack([*amounts.plain(), *amounts.products()])
    rows[amounts.flops == 0, PLAIN:] = 0.0
    return rows


def of_peaks(calls: pd.DataFrame) -> Floats:
    """Return how much longer a unit of each term takes on a call's GPU than on a standard one.

    The standard one has 10 TFLOP/s and 1000 GB/s; a device that is in no table counts as that.
    """
    tflops, gbs = sheets(calls, {}).T
    units = {"byte": 1000.0 / gbs, "flop": 10.0 / tflops, "call": np.ones(len(calls))}
    return np.column_stack([units[unit] for unit in _UNITS])


def groups(calls: pd.DataFrame, names: Iterable[str]) -> dict[tuple[Any, ...], Integers]:
    """Return the places of the rows that share their values of some columns, by these values."""
    places: dict[Any, Any] = calls.groupby(list(names), sort=False, observed=True).indices
    return {key if isinstance(key, tuple) else (key,): rows for key, rows in places.items()}


class Amounts:
    """The work of calls, column by column."""

    def __init__(self, calls: pd.DataFrame) -> None:
        def column(name: str, missing: float = 1.0) -> Floats:
            return calls[name].fillna(missing).to_numpy(float)

        self.item = calls["dtype"].astype(str).map(ITEM_BYTES).fillna(4.0).to_numpy(float)
        self.batch_size = column("batch_size")
        self.groups = column("groups")
        self.in_channels = column("in_channels")
        self.out_channels = column("out_channels")
        self.in_h = column("in_h")
        self.in_w = column("in_w")
        self.out_h = column("out_h")
        self.out_w = column("out_w")
        self.kernel_h = column("kernel_h")
        self.kernel_w = column("kernel_w")
        self.flops = column("flops", 0.0)
        self.bytes_min = column("bytes_min", 0.0)
        self.weight_bytes = column("params", 0.0) * self.item
        moved = np.maximum(self.bytes_min - self.weight_bytes, 0.0)
        out = self.batch_size * self.out_channels * self.out_h * self.out_w * self.item
        self.out_bytes = np.minimum(out, moved)
        # a window is read per output: what of the input is skipped costs nothing
        pools = calls["op"].astype(str).str.match(r"(max|avg)pool").to_numpy()
        self.in_bytes = np.where(pools, 0.0, moved - self.out_bytes)

    def plain(self) -> list[Floats]:
        """Return a constant, the bytes that must move, and the operations."""
        return [
            np.ones_like(self.flops),
            self.in_bytes * _MEGA,
            self.out_bytes * _MEGA,
            self.weight_bytes * _MEGA,
            self.flops * _GIGA,
        ]

    def products(self) -> list[Floats]:
        """Return waves of tiles, the bytes of all patches (im2col), and products of Winograd."""
        patches = self.pixels * self.inner * self.groups * self.item * _MEGA
        return [self._waves(), patches, self._winograd() * _GIGA]

    @property
    def pixels(self) -> Floats:
        return self.batch_size * self.out_h * self.out_w

    @property
    def inner(self) -> Floats:
        """Return the length of the sums of one output value."""
        return self.in_channels / self.groups * self.kernel_h * self.kernel_w

    def _waves(self) -> Floats:
        """Return how often all units of a large GPU are filled with tiles of 128 x 128."""
        tiles = np.ceil(self.pixels / 128) * np.ceil(self.out_channels / self.groups / 128)
        return np.ceil(tiles * self.groups / 128) * self.inner * 1e-3

    def _winograd(self) -> Floats:
        """Return the operations of the products of F(2): on whole tiles, for all pairs."""
        points = (self.kernel_h + 1) * (self.kernel_w + 1)
        tiles = self.batch_size * np.ceil(self.out_h / 2) * np.ceil(self.out_w / 2)
        return 2.0 * tiles * points * self.in_channels * self.out_channels / self.groups
