"""CPU seconds and memory of a million points: load the sweep, count, make all points with ids.

Run ``python benchmarks/expansion.py``; each shape is measured in a process of its own. Budget: 5 s
and 100 MB.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

ALGORITHMS = ["auto", "autotune", "implicit_gemm", "implicit_precomp_gemm", "gemm", "direct"]
ALGORITHMS += ["fft", "fft_tiling", "winograd", "winograd_nonfused"]

SHAPES = {
    "short inner axis": {
        "model": ["resnet50", "resnet152"],
        "input_size": {"start": 224, "stop": 723, "step": 1},
        "batch_size": {"start": 1, "stop": 100, "step": 1},
        "algorithm": ALGORITHMS,
        "gpu": ["l40"],
    },
    "long inner axis": {
        "model": ["resnet50"],
        "algorithm": ALGORITHMS,
        "input_size": {"start": 224, "stop": 100_223, "step": 1},
    },
    "one axis": {"model": ["resnet50"], "seed": {"start": 0, "stop": 999_999, "step": 1}},
    "long inner axis, one exclude": {
        "model": ["resnet50"],
        "algorithm": ALGORITHMS,
        "input_size": {"start": 224, "stop": 100_223, "step": 1},
    },
}


def main() -> None:
    """Print one line per shape."""
    for name, axes in SHAPES.items():
        exclude = [{"input_size": {"gt": 100_000}}] if "exclude" in name else []
        sweep = {"workload": "inference", "axes": axes, "exclude": exclude}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "million.yaml"
            path.write_text(json.dumps(sweep))
            done = subprocess.run(
                [sys.executable, __file__, str(path)], check=True, capture_output=True, text=True
            )
        print(f"{name:30s} {done.stdout.strip()}", flush=True)


def measure(path: str) -> None:
    """Print what one sweep takes."""
    started = time.process_time()
    from hpcsweep.spec import expansion, sweep_file  # noqa: PLC0415 - part of what is measured

    sweep = sweep_file.load(path)
    loaded = time.process_time()
    found = expansion.expand(sweep)
    points = len(found)
    counted = time.process_time()
    deque(found, maxlen=0)
    made = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{points:9,d} points  load {loaded - started:5.2f} s  count {counted - loaded:5.2f} s  "
        f"points and ids {made - counted:5.2f} s  peak {peak:4.0f} MiB"
    )


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
