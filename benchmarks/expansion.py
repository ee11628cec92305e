"""CPU seconds and memory of large sweeps: load the file, count, make all points with ids.

Run ``python benchmarks/expansion.py``; each shape is measured in a process of its own. A million
points without excludes: 5 s and 100 MB in all; hundreds of overlapping excludes: 5 s to the count.
"""

from __future__ import annotations

import json
import random
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


MOST = 1_000_000  # points that are made
NUMERIC = ("input_size", "batch_size", "seed")


def _ranges(number: int, names: tuple[str, ...], size: int) -> list[dict[str, object]]:
    """Return excludes of a tenth of each axis, at random places."""
    drawn = random.Random(1)
    begins = [{name: drawn.randint(1, size) for name in names} for _ in range(number)]
    return [
        {name: {"ge": a, "le": min(size, a + size // 10)} for name, a in one.items()}
        for one in begins
    ]


def _axes(names: tuple[str, ...], size: int) -> dict[str, object]:
    steps = {"start": 1, "stop": size, "step": 1}
    return {"model": ["resnet18"], **dict.fromkeys(names, steps)}


EXCLUDES = {
    "long inner axis, one exclude": [{"input_size": {"gt": 100_000}}],
    "1,000 ranges on two axes": _ranges(1000, NUMERIC[:2], 1000),
    "60 ranges on three axes": _ranges(60, NUMERIC, 200),
    "5 ranges on one axis": _ranges(5, NUMERIC[:1], 1_000_000),
}
SHAPES["1,000 ranges on two axes"] = _axes(NUMERIC[:2], 1000)
SHAPES["60 ranges on three axes"] = _axes(NUMERIC, 200)
SHAPES["5 ranges on one axis"] = _axes(NUMERIC[:1], 1_000_000)


def main() -> None:
    """Print one line per shape."""
    for name, axes in SHAPES.items():
        exclude = EXCLUDES.get(name, [])
        sweep = {"workload": "noop", "axes": axes, "exclude": exclude}
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
    if points <= MOST:
        deque(found, maxlen=0)
    made = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{points:9,d} points  load {loaded - started:5.2f} s  count {counted - loaded:5.2f} s  "
        f"points and ids {made - counted:5.2f} s  peak {peak:4.0f} MiB"
    )


if __name__ == "__main__":
    measure(sys.argv[1]) if len(sys.argv) > 1 else main()
