"""Peaks of GPUs, for rooflines and shares of the peak: dense figures, at boost clocks.

Vendors often print rates with 2:4 sparsity, which are twice as high, or rates of a whole module
(an MI250 is two devices to a framework). Neither is in this table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Gpu:
    """One device as a framework sees it; None means that it has no such unit.

    TF32, FP16 and BF16 are tensor (matrix) rates. `pattern` matches the device's own name.
    """

    name: str
    pattern: str
    fp64_tflops: float
    fp64_matrix_tflops: float | None
    fp32_tflops: float
    fp32_matrix_tflops: float | None
    tf32_tflops: float | None
    fp16_tflops: float
    bf16_tflops: float | None
    bandwidth_gbs: float
    l2_mb: float
    tdp_w: float | None  # None: two devices share the module's
    source: str
    vendor: str = "nvidia"

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


_VOLTA: Final = "NVIDIA V100 datasheet; Volta whitepaper (L2)"
_ADA: Final = "NVIDIA L40 and L40S datasheets, dense rows; FP64 is 1/64 of FP32"
_AMPERE: Final = "NVIDIA A100 datasheet"
_HOPPER: Final = "NVIDIA H100 datasheet, halved where it states sparse figures"
_CDNA2: Final = "AMD MI250 and MI250X datasheets, one of the module's two GCDs; ROCm documentation"


def _nvidia(  # noqa: PLR0913 - a table's columns
    name: str,
    pattern: str,
    *,
    fp64: tuple[float, float | None],
    fp32: float,
    tf32: float | None,
    fp16: float,
    memory: tuple[float, float],
    tdp: float,
    source: str,
) -> Gpu:
    """Return an NVIDIA GPU: no FP32 matrix units, BF16 as fast as FP16 from Ampere on."""
    bf16 = None if tf32 is None else fp16
    return Gpu(name, pattern, *fp64, fp32, None, tf32, fp16, bf16, *memory, tdp, source)


def _gcd(name: str, pattern: str, *, vector: float, matrix: float, fp16: float) -> Gpu:
    """Return one of the two dies of a CDNA2 module: its own memory, L2 and half of the rates."""
    rates = (vector, matrix, vector, matrix, None, fp16, fp16)
    memory = (1638, 8)
    return Gpu(name, pattern, *rates, *memory, tdp_w=None, source=_CDNA2, vendor="amd")


# The first pattern that matches is taken, so special names stand before general ones.
# fmt: off
DEVICES: Final = (
    _nvidia("V100S PCIe", r"V100S", fp64=(8.2, None), fp32=16.4, tf32=None, fp16=130.0,
            memory=(1134, 6), tdp=250, source="NVIDIA V100S datasheet"),
    _nvidia("V100 PCIe", r"V100-PCIE", fp64=(7.0, None), fp32=14.0, tf32=None, fp16=112.0,
            memory=(900, 6), tdp=250, source=_VOLTA),
    _nvidia("V100 SXM2", r"V100-SXM2", fp64=(7.8, None), fp32=15.7, tf32=None, fp16=125.0,
            memory=(900, 6), tdp=300, source=_VOLTA),
    _nvidia("L40S", r"\bL40S\b", fp64=(1.43, None), fp32=91.6, tf32=183.0, fp16=362.05,
            memory=(864, 96), tdp=350, source=_ADA),
    _nvidia("L40", r"\bL40\b", fp64=(1.41, None), fp32=90.5, tf32=90.5, fp16=181.05,
            memory=(864, 96), tdp=300, source=_ADA),
    _nvidia("A100 PCIe 80GB", r"A100 80GB PCIe", fp64=(9.7, 19.5), fp32=19.5, tf32=156.0,
            fp16=312.0, memory=(1935, 40), tdp=300, source=_AMPERE),
    _nvidia("A100 PCIe 40GB", r"A100-PCIE-40GB", fp64=(9.7, 19.5), fp32=19.5, tf32=156.0,
            fp16=312.0, memory=(1555, 40), tdp=250, source=_AMPERE),
    _nvidia("A100 SXM4 80GB", r"A100-SXM4?-80GB", fp64=(9.7, 19.5), fp32=19.5, tf32=156.0,
            fp16=312.0, memory=(2039, 40), tdp=400, source=_AMPERE),
    _nvidia("A100 SXM4 40GB", r"A100-SXM4?-40GB", fp64=(9.7, 19.5), fp32=19.5, tf32=156.0,
            fp16=312.0, memory=(1555, 40), tdp=400, source=_AMPERE),
    _nvidia("H100 PCIe", r"\bH100 PCIe", fp64=(25.6, 51.2), fp32=51.2, tf32=378.0, fp16=756.0,
            memory=(2000, 50), tdp=350, source=_HOPPER),
    _nvidia("H100 SXM5", r"\bH100 (80GB HBM3|SXM5)", fp64=(33.5, 66.9), fp32=66.9, tf32=494.7,
            fp16=989.4, memory=(3350, 50), tdp=700, source=_HOPPER),
    _nvidia("H200 SXM", r"\bH200(?! NVL)", fp64=(33.5, 66.9), fp32=66.9, tf32=494.7, fp16=989.4,
            memory=(4800, 50), tdp=700, source="NVIDIA H200 datasheet; compute as H100 SXM5"),
    _gcd("MI250X GCD", r"MI250X", vector=23.9, matrix=47.9, fp16=191.5),
    _gcd("MI250 GCD", r"MI250(?!X)", vector=22.6, matrix=45.3, fp16=181.0),
)
# fmt: on

# ROCm names both modules "AMD Instinct MI250X/MI250"; the number of compute units differs.
_CDNA2_UNITS: Final = {110: "MI250X GCD", 104: "MI250 GCD"}

# The devices by the `gpu` values of the shipped profiles; used where no device is at hand.
GPUS: Final[Mapping[str, Gpu]] = {
    short: next(gpu for gpu in DEVICES if gpu.name == name)
    for short, name in {
        "v100": "V100 SXM2",
        "l40": "L40",
        "l40s": "L40S",
        "a100": "A100 SXM4 80GB",
        "h100": "H100 SXM5",
        "h200": "H200 SXM",
        "mi250": "MI250 GCD",
    }.items()
}


def vendor(short: str) -> str:
    """Return `nvidia` or `amd` for a profile's `gpu`, or an empty text for an unknown name."""
    if short in GPUS:
        return GPUS[short].vendor
    return "amd" if re.match(r"mi\d", short) else ""  # AMD's Instinct line


_SLICE: Final = re.compile(r"\d+g\.\d+gb")  # a MIG profile


def by_label(label: str) -> str | None:
    """Return the `gpu` value for a site's word: ``tesla_v100``, ``gpul40s``, ``a100_80gb``.

    A slice of a device has none, nor has what only looks alike: GH200, A100X, V100S, MI250X.
    """
    text = label.lower()
    if _SLICE.search(text):
        return None
    longest = sorted(GPUS, key=len, reverse=True)
    return next((s for s in longest if re.search(rf"(?<!g){s}(?![0-9x]|s(?!xm))", text)), None)


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
    if re.search(r"MI250X ?/ ?MI250", device_name):
        wanted = _CDNA2_UNITS.get(units or 0)
        return next((gpu for gpu in DEVICES if gpu.name == wanted), None)
    return next((gpu for gpu in DEVICES if re.search(gpu.pattern, device_name)), None)
