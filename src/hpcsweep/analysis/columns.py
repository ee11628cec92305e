"""What the name of a column says: its unit, and whether more of it is better."""

from __future__ import annotations

from typing import Final

_TIMES: Final = {"_ms": "ms", "_s": "s"}
_RATES: Final = {"_gbs": "GB/s", "_tflops": "TFLOP/s", "_ips": "images/s", "_sps": "samples/s"}
_SUFFIXES: Final = {**_TIMES, **_RATES, "_j": "J", "_bytes": "bytes", "_pct": "%", "_mhz": "MHz"}
_UNITS: Final = {
    "input_size": "pixels",
    "input_width": "pixels",
    "batch_size": "images",
    "throughput": "images/s",
    "flops": "FLOP",
    "macs": "multiply-adds",
    "bytes_min": "bytes",
    "arith_intensity": "FLOP/byte",
}


def label(column: str) -> str:
    """Return a column's name for a reader, with its unit in brackets where it has one."""
    name, unit = column, _UNITS.get(column)
    if column.startswith("pct_"):
        name, unit = column.removeprefix("pct_"), "%"
    elif suffix := next((s for s in _SUFFIXES if not unit and column.endswith(s)), None):
        name, unit = column.removesuffix(suffix), _SUFFIXES[suffix]
    words = name.replace("_", " ")
    return f"{words} ({unit})" if unit else words


def is_time(column: str) -> bool:
    """Tell whether a column is a time: less is faster."""
    return column.endswith(tuple(_TIMES))


def is_rate(column: str) -> bool:
    """Tell whether a column is a rate: more is faster."""
    return column.endswith(tuple(_RATES)) or column.startswith("throughput")
