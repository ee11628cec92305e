"""Whether convolutions, and what was done to the network, compute what they should."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog.record import Cells, CheckRecord, Flag, cell


class NumericsCells(Cells):
    """The errors of convolution calls and of transformed points, over what rounding explains."""

    call_rel_error: float | None = cell(
        "largest error of a convolution call over its largest value: of an explicit algorithm "
        "against the framework's own, of the first call of a shape against float64"
    )
    plain_rel_error: float | None = cell(
        "compiled, NHWC, TF32, graphs, training: largest deviation of an output or gradient from "
        "those of an eager, contiguous pass of the same weights, over its largest value"
    )
    error_over_bound: float | None = cell(
        "largest error, of outputs and convolutions, over its bound"
    )
    numerics_reason: str | None = cell("what is `inaccurate` or `partly_checked`, and why")


class LayerNumerics(Cells):
    """The error of one convolution call on its own input."""

    max_rel_error: float | None = cell("error against float64; only with `numerics: layers`")
    error_over_bound: float | None = cell(
        "largest error of a value over what rounding explains of it"
    )


# A doubt: what computes something else may take any time.
INACCURATE: Final = Flag(
    "inaccurate",
    "a convolution call, or an output or gradient of a compiled, transposed, replayed or trained "
    "network, is further from what it should be than rounding explains",
    doubt=True,
    lasting=True,
)
# No doubts: somebody wanted it so, or the rest was compared, and nothing was wrong.
UNCHECKED: Final = Flag("unchecked", "`numerics: false`: no results were compared")
PARTLY_CHECKED: Final = Flag(
    "partly_checked",
    "some results could not be compared: random or chosen by rounding, not finite, or no memory "
    "for it; `numerics_reason` says which; the rest was compared",
)
RECORD: Final = CheckRecord(
    finds="wrong results, of an algorithm or of what was done to the network",
    costs="a pass with the framework's convolutions beside those of an explicit algorithm; two "
    "passes of a point that is not plainly eager; `numerics: false` leaves it out",
    overall=NumericsCells,
    layers=LayerNumerics,
    flags=(INACCURATE, UNCHECKED, PARTLY_CHECKED),
)
