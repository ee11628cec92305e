"""What a column's name says: its unit, and whether more of it is better."""

from __future__ import annotations

from typing import Final

_SUFFIXES: Final = {
    "_ms": "ms",
    "_s": "s",
    "_j": "J",
    "_bytes": "bytes",
    "_gbs": "GB/s",
    "_tflops": "TFLOP/s",
    "_ips": "images/s",
    "_sps": "samples/s",
    "_pct": "%",
    "_mhz": "MHz",
}
_UNITS: Final = {
    "input_size": "pixels",
    "batch_size": "images",
    "throughput": "images/s",
    "flops": "FLOP",
    "macs": "multiply-adds",
    "bytes_min": "bytes",
    "arith_intensity": "FLOP/byte",
}
_TIMES: Final = ("_ms", "_s")
_RATES: Final = ("_gbs", "_tflops", "_ips", "_sps")


def label(column: str) -> str:
    """Return a column's name for a reader, with its unit in brackets where it has one."""
    if column.startswith("pct_"):
        return f"{_words(column.removeprefix('pct_'))} (%)"
    if column in _UNITS:
        return f"{_words(column)} ({_UNITS[column]})"
    for suffix, unit in _SUFFIXES.items():
        if column.endswith(suffix):
            return f"{_words(column.removesuffix(suffix))} ({unit})"
    return _words(column)


def is_time(column: str) -> bool:
    """Tell whether a column is a time: less is faster."""
    return column.endswith(_TIMES)


def is_rate(column: str) -> bool:
    """Tell whether a column is a rate: more is faster."""
    return column.endswith(_RATES) or column.startswith("throughput")


def _words(name: str) -> str:
    return name.replace("_", " ")
