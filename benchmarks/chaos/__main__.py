"""Injects faults into local sweeps until enough were injected; nothing may be lost or doubled.

::

    python -m benchmarks.chaos [--faults 500] [--points 60] [--seed 0] [--keep DIR]

Each sweep has points of 20 ms and meets some faults, one after the other: kills and stops of its
processes, errors of single system calls (a small library in C, so `cc` is needed), closed and full
outputs, limits on files, clocks that are off, a results folder that is renamed away, two commands
at once. Then it is submitted and collected without a fault. A reader of its own counts: every
point must stand in the table exactly once, and every row that was whole on disk counts as measured;
rows beyond one per point are told. A traceback, or a command that hangs, is a failure, too. For
Slurm see `benchmarks/disasters.py`.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from benchmarks.chaos import faults, reading

SPEC = """\
workload: noop
axes: {{model: [a], input_size: {{start: 1, stop: {points}, num: {points}}}}}
measure: {{sleep_ms: 20}}
"""
_AT_ONCE = (1, 6)  # faults that a sweep meets
_PER_FAULT = 2  # points that may be measured again: one of each worker


def main() -> int:
    """Print a line per sweep that broke a promise, and the sum."""
    given = _arguments()
    rng = random.Random(given.seed)
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        library = faults.build(folder)
        while total["faults"] < given.faults:
            place = _place(folder, library, total["sweeps"], given.points)
            total.update(_one_sweep(place, rng, given))  # keeps what is zero
            if sys.stderr.isatty():
                print(f"\r{dict(total)}", end="", file=sys.stderr)
            shutil.rmtree(place.results, ignore_errors=True)
    print(", ".join(f"{count} {name}" for name, count in total.items()))
    return int(bool(total["broken"]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="copy results that broke a promise here")
    return parser.parse_args()


def _place(folder: Path, library: Path, number: int, points: int) -> faults.Place:
    spec = folder / "chaos.yaml"
    spec.write_text(SPEC.format(points=points))
    results = folder / f"results-{number}"
    results.mkdir()
    return faults.Place(spec, results, library)


def _one_sweep(place: faults.Place, rng: random.Random, given: argparse.Namespace) -> Counter[str]:
    """Let a sweep meet some faults, finish it, and count."""
    told: list[str] = []
    wrong: list[str] = []
    for _ in range(rng.randint(*_AT_ONCE)):
        fault = rng.choice(faults.FAULTS)
        try:
            what, said = fault(place, rng)
            told.append(what)
            wrong += [f"{what}: {said.strip()[-500:]}"] if "Traceback" in said else []
        except faults.HangsError as error:
            wrong.append(f"hangs: {error}")
    twice = 0
    try:
        twice = _finished(place, given.points, wrong)
    except Exception:  # noqa: BLE001 - whatever it is, the next sweep counts, too
        wrong.append(traceback.format_exc(limit=2))
    if twice > _PER_FAULT * len(told):
        wrong.append(f"{twice} points were measured twice")
    if wrong:
        print("\n  ".join([f"{place.results.name}: {'; '.join(told)}", *wrong]), flush=True)
        if given.keep:
            shutil.copytree(place.results, given.keep / place.results.name)
    return Counter(
        {"sweeps": 1, "faults": len(told), "points": given.points, "measured twice": twice,
         "broken": int(bool(wrong))}
    )  # fmt: skip


def _finished(place: faults.Place, points: int, wrong: list[str]) -> int:
    """Submit and collect without a fault; return how many rows are beyond one per point."""
    before = reading.measured(place.sweep)
    for words in (place.submit(), place.collect()):
        child = faults.start(words, "the last one")
        said = faults.end(child, "the last one", " ".join(words))
        if child.returncode:
            wrong.append(f"{words[-1]} ended with {child.returncode}: {said.strip()[-500:]}")
    measured, merged = reading.measured(place.sweep), reading.merged(place.sweep)
    if lost := set(before) - set(merged):
        wrong.append(f"{len(lost)} points were measured and are not in the table")
    if len(merged) != points or max(merged.values()) != 1:
        wrong.append(f"{len(merged)} points in the table, {sum(merged.values())} rows")
    return sum(measured.values()) - len(measured)


if __name__ == "__main__":
    sys.exit(main())
