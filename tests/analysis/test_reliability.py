"""What makes a row doubtful, and a call one that fell back."""

from __future__ import annotations

import pandas as pd

from hpcsweep.analysis import reliability


def test_what_the_framework_chose_fell_back_from_nothing_and_a_reason_is_one():
    """Whatever algorithm its kernels were recognised as; a reason is told."""
    rows = pd.DataFrame(
        {
            "algorithm": ["auto", "auto", "autotune", "gemm", "gemm", "gemm", "gemm", "auto"],
            "algorithm_used": ["auto", "winograd", "gemm", "gemm", "gemm", "fft", None, "unknown"],
            "fallback_reason": [None, None, "no tuner", None, "stride", None, None, ""],
        }
    )
    wanted = [False, False, True, False, True, True, False, False]
    assert list(reliability.fell_back(rows)) == wanted
    assert not reliability.fell_back(rows[["algorithm"]]).any()
