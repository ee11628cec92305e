"""Kills a 200-point no-op sweep fifty times at random moments: nothing may be lost.

    python benchmarks/kill.py [--rounds 50] [--points 200] [--seed 0]

Points last 20 ms. In each round a worker, a supervisor, the submit command or everything that it
started gets SIGKILL, then the same command is typed again. Exits 1 when a point is missing, there
twice or damaged, when more rows than killed workers are extra, or when a process outlived its
submit by more than 2 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
from killing import torment

SPEC = """\
workload: noop
axes:
  model: [a, b]
  input_size: {{start: 1, stop: {half}, num: {half}}}
measure: {{sleep_ms: 20}}
"""


def main() -> int:
    """Run the series and print what it left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "kill.yaml"
        spec.write_text(SPEC.format(half=options.points // 2))
        sweeps = torment(Path(folder), spec, options.points // 2 * 2, options.rounds, options.seed)
    print("sweep  kills  points  merged  ok   damaged  measured twice (allowed)  outlived submit")
    for number, found in enumerate(sweeps):
        print(
            f"{number:<5}  {sum(found.kills.values()):<5}  {found.points:<6}  {found.merged:<6}  "
            f"{found.ok:<3}  {found.damaged:<7}  {found.extra_rows} ({found.worker_losses})"
            f"{'':<18}  {found.slowest_end:.2f} s"
        )
    print(f"kills: {dict(sum((found.kills for found in sweeps), Counter()))}")
    return 0 if all(found.good for found in sweeps) else 1


if __name__ == "__main__":
    sys.exit(main())
