"""Whether outputs and convolutions agree with float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hpcsweep.catalog.record import Check, Flag, cell


@dataclass(frozen=True, kw_only=True)
class Numerics:
    """The errors of the outputs, and of all convolution calls, over what rounding explains."""

    max_rel_error: float | None = cell(
        "largest error of an output over its largest value in float64"
    )
    error_over_bound: float | None = cell(
        "largest error, of outputs and convolutions, over its bound"
    )
    numerics_reason: str | None = cell(
        "what is `inaccurate`, `unverified` or `partly_checked`, and why"
    )


@dataclass(frozen=True, kw_only=True)
class LayerNumerics:
    """The error of one convolution call on its own input."""

    max_rel_error: float | None = cell("error against float64; only with `numerics: layers`")
    error_over_bound: float | None = cell(
        "largest error of a value over what rounding explains of it"
    )


INACCURATE: Final = Flag(
    "inaccurate",
    "an output or a convolution is further from float64 than rounding explains",
    doubt=True,
    lasting=True,
)
UNVERIFIED: Final = Flag(
    "unverified",
    "an output or a convolution could not be compared with float64",
    doubt=True,
    lasting=True,
)
UNCHECKED: Final = Flag("unchecked", "`numerics: false`: nothing was compared with float64")
PARTLY_CHECKED: Final = Flag(
    "partly_checked",
    "no memory to compare every image with float64, or outputs without a value: "
    "`numerics_reason` says which; the rest was compared",
)
CHECK: Final = Check(
    finds="wrong results, of the network or of an algorithm",
    costs="a pass, and one in float64; `numerics: false` leaves it out",
    overall=Numerics,
    layers=LayerNumerics,
    flags=(INACCURATE, UNVERIFIED, UNCHECKED, PARTLY_CHECKED),
)
