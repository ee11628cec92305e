"""Gives hpcsweep files and answers that nobody meant for it, and counts what it does.

::

    python -m benchmarks.hostile [--inputs 100000] [--seed 1] [--only NAME,...] [--jobs 2]
    python -m benchmarks.hostile --only journal --replay FILE

Inputs are sweeps, profiles, configuration files, what Slurm's programs print, shards, manifests,
journals, chunk files, tables, exports of profilers: real ones that were mutated. Each is given to
the commands that read it, in this process' children, which are forked with everything loaded.
An input is `accepted`, or `refused` by an error of hpcsweep's own, of a line or two; all else is
unexpected, as is more than 5 s of CPU or 500 MB resident. What was unexpected is kept as a file,
for `--replay`.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from benchmarks.hostile import place as places
from benchmarks.hostile import watch
from benchmarks.hostile.targets import TARGETS

_KEPT = 3  # inputs of one fault


@dataclass
class Sum:
    """What became of the inputs of one target."""

    refused: int = 0
    inputs: int = 0
    unexpected: int = 0
    seconds: float = 0.0
    megabytes: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: watch.Verdict) -> bool:
        """Count a verdict; return whether its input is worth keeping."""
        wrong = bool(verdict.wrong) or verdict.costly
        self.inputs += 1
        self.refused += verdict.refused and not wrong
        self.unexpected += wrong
        self.seconds = max(self.seconds, verdict.seconds)
        self.megabytes = max(self.megabytes, verdict.megabytes)
        fault = verdict.wrong.strip().splitlines()[-1][:60] if verdict.wrong else "costly"
        self.faults[fault] += wrong
        return wrong and self.faults[fault] <= _KEPT

    def __str__(self) -> str:
        accepted = self.inputs - self.refused - self.unexpected
        return (
            f"{self.inputs:8,} {accepted:9,} {self.refused:8,} {self.seconds:8.2f} "
            f"{self.megabytes:8.0f} {self.unexpected:10,}"
        )


def main() -> int:
    """Print a line per target, and the sum."""
    given = _arguments()
    names = [*filter(None, given.only.split(","))] or [*TARGETS]
    if given.replay:
        return _replay(names, given.replay)
    sums = {name: Sum() for name in names}
    began = time.perf_counter()
    whole = sum(TARGETS[name].share for name in names)
    each = {name: -(-given.inputs * TARGETS[name].share // whole) for name in names}
    parts = [part for name in names for part in watch.batches(name, given.seed, each[name])]
    random.Random(given.seed).shuffle(parts)
    with watch.workplace() as folder, contextlib.suppress(KeyboardInterrupt):  # tells what it did
        watch.load_everything(folder / "first", names)
        for batch, verdict in watch.verdicts(folder, parts, given.jobs):
            if sums[batch.target].add(verdict):
                _keep(given.keep, folder, batch, verdict)
    print(f"{'':18s}  inputs  accepted  refused  worst s worst MB unexpected")
    total = Sum()
    for name, one in sums.items():
        print(f"{name:18s}{one}")
        for key in ("inputs", "refused", "unexpected"):
            setattr(total, key, getattr(total, key) + getattr(one, key))
        total.seconds = max(total.seconds, one.seconds)
        total.megabytes = max(total.megabytes, one.megabytes)
    print(f"{'all':18s}{total}\nseed {given.seed}, {time.perf_counter() - began:.0f} s")
    return int(bool(total.unexpected))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help=", ".join(TARGETS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, default=Path(tempfile.gettempdir()) / "hostile-inputs")
    parser.add_argument("--replay", type=Path, help="give one file to the target of --only")
    return parser.parse_args()


def _keep(kept: Path, folder: Path, batch: watch.Batch, verdict: watch.Verdict) -> None:
    """Write an input that was not taken as it should be, and say why."""
    kept.mkdir(parents=True, exist_ok=True)
    path = kept.absolute() / f"{batch.target}-{batch.seed}-{verdict.number}"
    place = places.Place(folder / "first")
    path.write_bytes(watch.drawn(TARGETS[batch.target], place, batch.seed, verdict.number))
    took = f"{verdict.seconds:.1f} s, {verdict.megabytes:.0f} MB"
    print(f"{path}: {took}: {verdict.wrong.strip()[-900:]}\n", flush=True)


def _replay(names: list[str], file: Path) -> int:
    data = file.read_bytes()
    with watch.workplace() as folder:
        place = places.enter(folder)
        verdict = watch.judged(TARGETS[names[0]], place, data)
    print(verdict.wrong or verdict)
    return int(bool(verdict.wrong) or verdict.costly)


if __name__ == "__main__":
    sys.exit(main())
