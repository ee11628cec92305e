"""What everybody needs to know of an algorithm whose name a sweep may ask for: a row of a table.

How it computes is in `conv/reference`; the kernels by which it is known are in
`conv/proof/kernels`. The names are cuDNN's (cudnnConvolutionFwdAlgo_t), and those of choices that
are left to the framework or to a library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hpcsweep.catalog.record import packaged

# how an algorithm adds up an output: its rounding, and the fewest products, follow from that
PLAIN: Final = "plain"  # a product for each filter tap, as convolution is defined
FFT: Final = "fft"
WINOGRAD: Final = "winograd"


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One algorithm, or a choice that is left to others."""

    name: str
    doc: str
    place: int  # of its colour and marker, for ever; a new one takes the next
    sums: str = ""  # empty where nothing is known of it, as of a choice
    # Seconds of the reference on a CPU over those of the framework's own: medians over twelve
    # networks and twelve sizes (results/reference/prediction), some of ResNet-18 at 112 pixels.
    cpu_factor: float = 1.0
    cudnn: int | None = None  # cudnnConvolutionFwdAlgo_t
    miopen: int | None = None  # miopenConvAlgorithm_t: one numbering for all directions
    tensor_cores: bool = False  # may use them in cuDNN's forward calls, by NVIDIA's guide
    notes: frozenset[str] = frozenset()  # of cuDNN on engines, of which its own have one


def _number(text: str) -> int | None:
    return int(text) if text else None


ALGORITHMS: Final[Mapping[str, Algorithm]] = {
    row["name"]: Algorithm(
        name=row["name"],
        doc=row["doc"],
        place=int(row["place"]),
        sums=row["sums"],
        cpu_factor=float(row["cpu_factor"]),
        cudnn=_number(row["cudnn"]),
        miopen=_number(row["miopen"]),
        tensor_cores=row["tensor_cores"] == "true",
        notes=frozenset(row["notes"].split()),
    )
    for row in packaged("algorithms.csv")
}


def adding(sums: str) -> frozenset[str]:
    """Return the algorithms that add up an output in one way."""
    return frozenset(name for name, algorithm in ALGORITHMS.items() if algorithm.sums == sums)
