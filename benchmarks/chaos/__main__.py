"""Injects faults into sweeps until enough were injected; nothing may be lost or doubled.

::

    python -m benchmarks.chaos [--faults 500] [--where local sbatch submitit] [--seed 0]

Each sweep has points of some milliseconds and meets some faults, one after the other; then it is
submitted and collected without a fault. Half of the faults strike sweeps on this machine, the
others sweeps on the tests' real Slurm, through both launchers. What there is: `faults.py`,
`hosts.py` and `on_slurm.py`. Some need root, and so does Slurm: without root, or where containers
cannot be made, only the others happen. `cc` is needed.

A reader of its own counts: every point must stand in the table exactly once; a row that was whole
on disk must stay there; every row of the table must be one of them, and all must be where copies of
the sweep were imported. Rows beyond one per point are told. A traceback or an error that a command
did not expect, in its output or in any log, and a command or job that hangs, is a failure, too.

Everything happens in a pid and mount namespace of its own: whatever ends the benchmark ends all
that it started, and unmounts all that it mounted.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

from benchmarks.chaos import faults, on_slurm, slurm_place, story
from benchmarks.chaos.disk import Disk
from benchmarks.chaos.place import Place
from hpcsweep.errors import EXIT_INTERRUPTED
from lab import why_not

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.chaos.on_slurm import Cluster
    from benchmarks.chaos.story import Told

_WHERE: Final = ("local", "sbatch", "submitit")
_INSIDE: Final = "CHAOS_INSIDE"
# bash waits for whatever is left to the first process of the namespace
_ALONE: Final = (
    "unshare", "--pid", "--mount", "--propagation=private", "--fork", "--kill-child",
    "--mount-proc", "bash", "-c", '"$@"; exit $?', "bash",
)  # fmt: skip


@dataclass
class Sum:
    """What all sweeps told, by where they ran."""

    kinds: dict[str, Counter[str]] = field(default_factory=dict)
    totals: dict[str, Counter[str]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def add(self, where: str, told: Told) -> None:
        """Count a sweep."""
        with self.lock:
            for struck in told.struck:
                self.kinds.setdefault(struck.kind, Counter())[where] += 1
            totals = self.totals.setdefault(where, Counter())
            totals.update(told.counts())
            if told.wrong:
                print("\n  ".join([f"{told.name}: {told.case()}", *told.wrong]), flush=True)
            print(f"{told.name}: {totals['faults']} faults so far", file=sys.stderr, flush=True)

    def faults(self, where: str) -> int:
        """Return how many there were at one place."""
        with self.lock:
            return self.totals.get(where, Counter())["faults"]

    def show(self) -> int:
        """Print the tables; return how many sweeps broke a promise."""
        places = [where for where in _WHERE if where in self.totals]
        names = list(dict.fromkeys(name for one in self.totals.values() for name in one))
        _print_table("", places, {name: self._of(name) for name in names})
        _print_table("fault", places, dict(sorted(self.kinds.items())))
        return self._of("broken").total()

    def _of(self, name: str) -> Counter[str]:
        return Counter({where: one[name] for where, one in self.totals.items()})


def _print_table(title: str, places: Sequence[str], rows: dict[str, Counter[str]]) -> None:
    print(f"| {title} | {' | '.join([*places, 'sum'])} |")
    print(f"| --- |{' ---: |' * (len(places) + 1)}")
    for name, counts in rows.items():
        cells = [str(counts[where]) for where in places]
        print(f"| {' | '.join([name, *cells, str(counts.total())])} |")
    print(flush=True)


def main() -> int:
    """Let all sweeps meet their faults, and print the sum."""
    given = _arguments()
    _go_on_alone()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    found = Sum()
    began = time.monotonic()
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="chaos-", ignore_cleanup_errors=True)
        folder = Path(stack.enter_context(temporary))
        library = faults.build(folder)
        where = _where(given.where)
        cluster = None
        if set(where) - {"local"}:
            cluster = stack.enter_context(on_slurm.running())
        lanes = [(name, number) for name in where for number in range(given.at_once)]
        runs = _Lanes(given, folder, library, cluster, found, where)
        pool = ThreadPoolExecutor(len(lanes))
        try:
            list(pool.map(lambda one: runs.run(*one), lanes))
        except (KeyboardInterrupt, SystemExit):
            found.show()
            with suppress(OSError):
                stack.close()
            os._exit(EXIT_INTERRUPTED)  # the threads go on for long; what they started ends now
    minutes = (time.monotonic() - began) / 60
    print(f"--faults {given.faults} --seed {given.seed}: {minutes:.0f} minutes\n")
    return int(bool(found.show()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--where", nargs="+", choices=_WHERE, default=[*_WHERE])
    parser.add_argument("--points", type=int, default=60)
    parser.add_argument("--at-once", type=int, default=2, help="sweeps of each kind at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="copy results that broke a promise here")
    return parser.parse_args()


def _go_on_alone() -> None:
    """Run on in namespaces of this program's own, if they can be made."""
    if os.environ.get(_INSIDE) or os.geteuid():
        return
    if subprocess.run([*_ALONE, "true"], capture_output=True, check=False).returncode:
        return
    words = [*_ALONE, sys.executable, "-m", "benchmarks.chaos", *sys.argv[1:]]
    os.execvpe(words[0], words, {**os.environ, _INSIDE: "1"})


def _where(wanted: list[str]) -> list[str]:
    reason = why_not() or ("" if os.environ.get(_INSIDE) else "no containers can be made here")
    if reason and wanted != ["local"]:
        print(f"only on this machine: {reason}")
        return ["local"]
    return wanted


@dataclass
class _Lanes:
    given: argparse.Namespace
    folder: Path
    library: Path
    cluster: Cluster | None
    found: Sum
    where: list[str]

    def run(self, where: str, lane: int) -> None:
        """Let one sweep after the other meet faults, until there were enough."""
        weights = {name: 2 if name == "local" else 1 for name in self.where}
        share = self.given.faults * weights[where] / sum(weights.values())
        number = 0
        while self.found.faults(where) < share:
            rng = random.Random(f"{self.given.seed} {where} {lane} {number}")
            folder = self.folder / f"{where}-{lane}-{number}"
            folder.mkdir()
            place = self._place(where, folder, rng)
            try:
                told = story.tell(place, rng)
                if told.wrong and self.given.keep:
                    shutil.copytree(place.results, self.given.keep / folder.name)
            finally:
                if place.disk:
                    place.disk.unmount()
                shutil.rmtree(folder, ignore_errors=True)
            self.found.add(where, told)
            number += 1

    def _place(self, where: str, folder: Path, rng: random.Random) -> Place:
        disk = (
            Disk(folder / "disk").mount()
            if os.environ.get(_INSIDE) and rng.random() < 0.7
            else None
        )
        if where == "local" or self.cluster is None:
            return Place(folder, self.library, self.given.points, disk)
        partition = rng.choice(("gpu", "low", "lowcancel"))
        return slurm_place.SlurmPlace(
            folder, self.library, self.given.points, disk, where,
            cluster=self.cluster, partition=partition,
        )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
