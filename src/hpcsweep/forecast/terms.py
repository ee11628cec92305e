"""What the time of a layer call is made of: terms that cannot be negative, from its shape alone.

Every term is an amount of work (bytes, operations, calls) in a unit that takes about a
microsecond to a millisecond; the fit finds what a unit costs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hpcsweep.catalog import gpus

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pandas as pd
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Places = NDArray[np.intp]

ITEM_BYTES: Final = {"float64": 8.0, "float32": 4.0, "float16": 2.0, "bfloat16": 2.0}
_MEGA: Final = 1e-6
_GIGA: Final = 1e-9
_UNITS: Final = (
    *("call", "byte", "byte", "byte", "flop"),
    *("flop", "flop", "flop", "byte", "call", "byte", "flop", "byte", "flop"),
)  # of the terms, in order
PLAIN: Final = 5  # of them: a constant, bytes and operations
_TILES: Final = (16, 128)
_FFT_FLOPS: Final = 5.0  # n log2 n, the usual count


def matrix(calls: pd.DataFrame) -> Floats:
    """Return one row of terms per call; only products have those beyond the plain ones."""
    amounts = Amounts(calls)
    plain = amounts.plain()
    found = np.column_stack([*plain, *amounts.products()])
    found[amounts.flops == 0, len(plain) :] = 0.0
    return found


def of_peaks(calls: pd.DataFrame) -> Floats:
    """Return how much longer a unit of each term takes on a call's GPU than on a standard one.

    The standard one has 10 TFLOP/s and 1000 GB/s; a device that is in no table counts as that.
    """
    scale = np.ones((len(calls), len(_UNITS)))
    for (name, dtype), places in groups(calls, ("gpu", "dtype")).items():
        gpu = gpus.sheet(str(name))
        if gpu is not None:
            peak = gpu.peak(str(dtype)) or gpu.fp32_tflops
            units = {"byte": 1000.0 / gpu.bandwidth_gbs, "flop": 10.0 / peak, "call": 1.0}
            scale[places] = [units[unit] for unit in _UNITS]
    return scale


def groups(calls: pd.DataFrame, names: Iterable[str]) -> dict[tuple[Any, ...], Places]:
    """Return the places of the rows that share their values of some columns, by these values."""
    found: dict[Any, Any] = calls.groupby(list(names), sort=False, observed=True).indices
    return {key if isinstance(key, tuple) else (key,): rows for key, rows in found.items()}


class Amounts:
    """The work of calls, column by column."""

    def __init__(self, calls: pd.DataFrame) -> None:
        self.item = calls["dtype"].astype(str).map(ITEM_BYTES).fillna(4.0).to_numpy(float)
        self.batch_size = _column(calls, "batch_size", 1.0)
        self.in_channels = _column(calls, "in_channels", 1.0)
        self.out_channels = _column(calls, "out_channels", 1.0)
        self.in_h, self.in_w = _column(calls, "in_h", 1.0), _column(calls, "in_w", 1.0)
        self.out_h, self.out_w = _column(calls, "out_h", 1.0), _column(calls, "out_w", 1.0)
        self.kernel_h = _column(calls, "kernel_h", 1.0)
        self.kernel_w = _column(calls, "kernel_w", 1.0)
        self.groups = _column(calls, "groups", 1.0)
        self.flops, self.bytes_min = _column(calls, "flops", 0.0), _column(calls, "bytes_min", 0.0)
        self.weight_bytes = _column(calls, "params", 0.0) * self.item
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
        """Return what particular algorithms do beside that; the fit gives others no time for it."""
        return [
            *(self.tiles(tile) * _GIGA for tile in _TILES),
            self.waves(),
            self.patch_bytes() * _MEGA,
            self.groups.astype(float) * 1e-2,
            *self.winograd(),
            self.spectra() * _GIGA,
        ]

    @property
    def pixels(self) -> Floats:
        return self.batch_size * self.out_h * self.out_w

    @property
    def inner(self) -> Floats:
        """Return the length of the sums of one output value."""
        return self.in_channels / self.groups * self.kernel_h * self.kernel_w

    def tiles(self, tile: int) -> Floats:
        """Return operations when pixels and channels are filled up to whole tiles."""
        out = _up(self.out_channels / self.groups, tile)
        return 2.0 * self.groups * _up(self.pixels, tile) * out * _up(self.inner, 8)

    def waves(self) -> Floats:
        """Return how often all units of a large GPU are filled with tiles of 128 x 128."""
        tiles = np.ceil(self.pixels / 128) * np.ceil(self.out_channels / self.groups / 128)
        return np.ceil(tiles * self.groups / 128) * _up(self.inner, 8) * 1e-3

    def patch_bytes(self) -> Floats:
        """Return the bytes of all patches (im2col)."""
        return self.pixels * self.inner * self.groups * self.item

    def winograd(self) -> list[Floats]:
        """Return bytes of transformed tiles, products, and bytes of transformed filters, F(2)."""
        points = (self.kernel_h + 1) * (self.kernel_w + 1)
        tiles = self.batch_size * np.ceil(self.out_h / 2) * np.ceil(self.out_w / 2)
        pairs = self.in_channels * self.out_channels / self.groups
        return [
            tiles * points * (self.in_channels + self.out_channels) * self.item * _MEGA,
            2.0 * tiles * points * pairs * _GIGA,
            points * pairs * self.item * _MEGA,
        ]

    def spectra(self) -> Floats:
        """Return the operations of the Fourier transforms and of the products of spectra."""
        area = (self.in_h + self.kernel_h) * (self.in_w + self.kernel_w)
        pairs = self.in_channels * self.out_channels / self.groups
        images = self.batch_size * (self.in_channels + self.out_channels) + pairs
        return _FFT_FLOPS * area * np.log2(area) * images + 4.0 * self.batch_size * area * pairs


def _up(value: Floats, tile: int) -> Floats:
    return np.ceil(value / tile) * tile


def _column(calls: pd.DataFrame, name: str, missing: float) -> Floats:
    return calls[name].fillna(missing).to_numpy(float)
