"""Peaks of GPUs, for rooflines and shares of the peak, and what cuDNN asks of NVIDIA's.

The table `gpus.csv` has dense figures, at boost clocks. Vendors often print rates with 2:4
sparsity, which are twice as high, or rates of a whole module (an MI250 is two devices to a
framework). Neither is in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from hpcsweep.catalog.record import packaged


@dataclass(frozen=True)
class Gpu:
    """One device as a framework sees it; None means that it has no such unit.

    TF32, FP16 and BF16 are tensor (matrix) rates. `pattern` matches the device's own name; `short`
    is the `gpu` value of the shipped profiles, for the devices that have one; `chip` is AMD's name
    of the chip with its number of compute units, as MIOpen's databases are named.
    """

    name: str
    short: str
    vendor: str
    pattern: str
    chip: str
    fp64_tflops: float
    fp64_matrix_tflops: float | None
    fp32_tflops: float
    fp32_matrix_tflops: float | None
    tf32_tflops: float | None
    fp16_tflops: float
    bf16_tflops: float | None
    bandwidth_gbs: float
    l2_mb: float
    clock_mhz: float  # boost
    tdp_w: float | None  # None: two devices share the module's
    source: str

    def peak(self, dtype: str, *, tf32: bool = False) -> float | None:
        """Return the dense peak of a dtype's convolutions in TFLOP/s, None if it is unknown."""
        if dtype == "float32" and tf32 and self.tf32_tflops is not None:
            return self.tf32_tflops
        return {
            "float64": self.fp64_matrix_tflops or self.fp64_tflops,
            "float32": self.fp32_matrix_tflops or self.fp32_tflops,
            "float16": self.fp16_tflops,
            "bfloat16": self.bf16_tflops,
        }.get(dtype)


def _gpu(cells: Mapping[str, str]) -> Gpu:
    values: dict[str, Any] = dict(cells)
    for name, text in cells.items():
        if name.endswith(_FIGURES):
            values[name] = float(text) if text else None
    return Gpu(**values)


_FIGURES: Final = ("_tflops", "_gbs", "_mb", "_mhz", "_w")
# The first pattern that matches is taken, so special names stand before general ones.
DEVICES: Final = tuple(map(_gpu, packaged("gpus.csv")))

# The devices by the `gpu` values of the shipped profiles; used where no device is at hand.
GPUS: Final[Mapping[str, Gpu]] = {gpu.short: gpu for gpu in DEVICES if gpu.short}

# A slice of a GPU (NVIDIA's MIG) in the words of sites: a100_3g.20gb, a100l.2g.20gb, mig-1g_5gb
_SLICE: Final = re.compile(r"\d+g[._-]?\d+gb|(?<![a-z])mig(?![a-z])", re.IGNORECASE)
# ROCm names both modules "AMD Instinct MI250X/MI250"; the number of compute units differs.
_CDNA2_UNITS: Final = {110: "MI250X GCD", 104: "MI250 GCD"}


def vendor(short: str) -> str:
    """Return `nvidia` or `amd` for a profile's `gpu`, or an empty text for an unknown name."""
    if short in GPUS:
        return GPUS[short].vendor
    return "amd" if re.match(r"mi\d", short) else ""  # AMD's Instinct line


@cache
def sheet(name: str) -> Gpu | None:
    """Return the entry for a `gpu` value, a table's name, AMD's chip or a device's own name."""
    lower = name.lower()
    if lower in GPUS:
        return GPUS[lower]
    for gpu in DEVICES:
        if lower and lower in {gpu.name.lower(), as_value(gpu.name), gpu.chip}:
            return gpu
    return by_device_name(name)


def by_label(label: str) -> str | None:
    """Return the `gpu` value for a site's word: ``tesla_v100``, ``gpul40s``, ``a100_80gb``.

    A slice of a device has none, nor has what only looks alike: GH200, A100X, V100S, MI250X.
    """
    text = label.lower()
    if is_slice(text):
        return None
    for short in sorted(GPUS, key=len, reverse=True):  # the longest first: l40s before l40
        if re.search(rf"(?<!g){short}(?![0-9x]|s(?!xm))", text):
            return short
    return None


def is_slice(text: str) -> bool:
    """Say whether a site's word, a device's name or a pattern for it means a slice of a GPU."""
    return _SLICE.search(text) is not None


def by_file_name(name: str) -> str | None:
    """Return the `gpu` value that a file's name tells, also of a device without a profile: T4."""
    value = by_label(name)
    if value:
        return value
    entry = by_device_name(name.replace("_", " ").upper())
    return as_value(entry.name) if entry and not entry.short else None


def label(device_name: str, maker: str = "nvidia") -> str:
    """Return the `gpu` value of rows for a device's own name; empty if it gets none.

    A GPU that no shipped profile has is called by the last word of its name, one of AMD's Instinct
    line by its model. AMD's others have none: most are displays, on which no framework computes.
    """
    for short in GPUS:
        if re.search(name_pattern(short), device_name):
            return short
    if maker == "amd":
        models = re.findall(r"\bMI\d+\w*", device_name)
        return str(models[0]).lower() if models else ""
    return next(reversed(device_name.lower().split()), "")


def name_pattern(short: str) -> str:
    """Return a regular expression for the device names that belong to a `gpu` value."""
    return rf"\b{short.upper()}\b"


def by_device_name(device_name: str, units: int | None = None) -> Gpu | None:
    """Return the entry of the device with this name, or None.

    `units` is the device's number of multiprocessors (compute units). A slice of a device (MIG)
    has no entry.
    """
    if "MIG" in device_name:
        return None
    either = re.search(r"MI250X ?/ ?MI250", device_name) is not None
    for gpu in DEVICES:
        if either and gpu.name == _CDNA2_UNITS.get(units or 0):
            return gpu
        if not either and re.search(gpu.pattern, device_name):
            return gpu
    return None


def product(device_name: str) -> str:
    """Return one `gpu` value for all names of a product: of the table, else its own name."""
    entry = by_device_name(device_name)
    if entry is None:
        return as_value(device_name)
    return entry.short or as_value(entry.name)


def of_text(text: str) -> str:
    """Return the `gpu` value for what another program calls a device: Tesla V100-DGXS-32GB."""
    entry = sheet(text)
    if entry is None:
        return by_label(text) or as_value(text)
    return entry.short or as_value(entry.name)


def as_value(text: str) -> str:
    """Return a text as a value of `gpu`: a plain name, without features (gfx90a:xnack-)."""
    name = text.partition(":")[0].lower()
    return re.sub(r"[^a-z0-9_.-]+", "-", name).strip("-.")[:64]


@cache
def _sheets() -> dict[str, dict[str, Any]]:
    """Return what cuDNN asks of each device whose data sheet is known, from `cudnn_devices.json`.

    The figures of a compute capability are from a table in the CUDA programming guide.
    """
    text = Path(__file__).with_name("cudnn_devices.json").read_text(encoding="utf-8")
    record = json.loads(text)
    return {gpu: {**record["every"], **own} for gpu, own in record["devices"].items()}


def known_to_cudnn() -> tuple[str, ...]:
    """Return the `gpu` values that have a data sheet."""
    return tuple(_sheets())


def cudnn_properties(gpu: str) -> dict[str, Any] | None:
    """Return what cuDNN asks of a `gpu` to say what it can do there; None without a data sheet.

    `hpcsweep doctor` on a node with a GPU writes the true properties beside the profile, which win.
    """
    return _sheets().get(gpu)
