"""A table of torchvision's classifiers, which needs no torchvision: sizes, operations, parameters.

`benchmarks/model_table.py` writes it, as `models.csv`; a test compares it with torchvision.
Operations are those of one image of 224 x 224 pixels, which every network of a fixed size takes. A
multiply-add counts as two; only convolutions, matrix products and attention count (PyTorch's
`FlopCounterMode`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hpcsweep.catalog.record import packaged

REFERENCE_SIZE: Final = 224  # pixels: torchvision evaluates most of its classifiers at it


@dataclass(frozen=True)
class Model:
    """A network: its smallest (or only) image size, and its work at 224 pixels."""

    size: int
    flops: int
    params: int
    fixed: bool = False

    def takes(self, size: int) -> bool:
        """Say whether the network takes images of this height and width."""
        return size == self.size if self.fixed else size >= self.size

    @property
    def gflops(self) -> float:
        """Return 10^9 operations of one image of `REFERENCE_SIZE`."""
        return self.flops / 1e9


MODELS: Final[Mapping[str, Model]] = {
    row["name"]: Model(
        int(row["size"]), int(row["flops"]), int(row["params"]), fixed=bool(row["fixed"])
    )
    for row in packaged("models.csv")
}
