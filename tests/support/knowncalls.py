"""Convolution calls of random shapes, and how far a law is off on them."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hpcsweep.forecast import physics
from hpcsweep.forecast.layer_law import Law


def convolutions(
    number: int, seed: int, gpu: str = "v100", algorithm: str = "gemm"
) -> pd.DataFrame:
    """Return calls of random shapes, without times."""
    random = np.random.default_rng(seed)
    sizes, channels, filters = (2 ** random.uniform(lo, hi, number)
                                for lo, hi in ((3, 7), (3, 9), (3, 9)))  # fmt: skip
    side, c, k = (np.ceil(one) for one in (sizes, channels, filters))
    kernel = random.choice([1.0, 3.0], number)
    params = c * k * kernel**2
    calls = pd.DataFrame({
        "batch_size": 1.0, "in_channels": c, "out_channels": k, "in_h": side, "in_w": side,
        "out_h": side, "out_w": side, "kernel_h": kernel, "kernel_w": kernel, "stride_h": 1.0,
        "dilation_h": 1.0, "groups": 1.0, "params": params, "flops": 2 * params * side**2,
        "bytes_min": 4 * (side**2 * (c + k) + params), "op": "conv2d", "direction": "forward",
        "gpu": gpu, "dtype": "float32", "setting": "", "model": "some", "algorithm": algorithm,
        "algorithm_used": algorithm, "unique_key": [f"{seed} {n}" for n in range(number)],
    })  # fmt: skip
    return physics.prepared(calls)


def off(law: Law, calls: pd.DataFrame) -> float:
    """Return the median error of a law at calls with a time."""
    return float(np.median(np.abs(law.times(calls) / calls["ms"] - 1)))
