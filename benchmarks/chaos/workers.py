"""Lets points misbehave in a worker, one after the other; each has its own time, or none.

::

    python -m benchmarks.chaos.workers [--points 300] [--seed 0]

Every point tells its own number as its time. Some forge replies, die, or leave threads, processes
and changed settings behind; the next network must get another process, and in the end none may be
left. A template forks the workers. Root is not needed. What a point may do is in
`tests/support/leaving.py`.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))

import psutil

import leaving
from caring import caring
from hpcsweep import processes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcsweep.node.protocol import Outcome

_HARMLESS: Final = ("nothing", "waits", "prints")
_CRASHES: Final = (
    *("forges", "half_a_line", "binary", "closes"),
    *("segfaults_with_a_child", "strike_here", "says_much_and_ends", "says_fatal_and_ends"),
)
_LEAVES: Final = (
    *("spins", "spins_unnamed", "plans", "keeps_a_child", "daemonises", "changes_folder"),
    *("lowers_a_limit", "sets_a_variable", "traces", "collects_nothing", "hears"),
    *("sets_an_alarm", "masks_files", "is_nice", "stops_the_clock", "redirects_output"),
)
_COPIES: Final = ("forks", "forks_in_c", "forges_late")  # these may have ended by then, or not


def main() -> int:
    """Measure the points and print what was wrong; return 1 where something was."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    wrong = list[str]()
    met = Counter[str]()
    processes.adopt_orphans()
    processes.python = leaving.worker
    with tempfile.TemporaryDirectory() as folder, caring(Path(folder), forks=True) as measure:
        seen = dict[object, str]()  # the networks of processes
        for number in range(1, given.points + 1):
            kinds = (_HARMLESS, _HARMLESS, _CRASHES, _LEAVES, _COPIES)
            act = rng.choice(rng.choice(kinds))
            met[act] += 1
            outcome = measure(act, number)
            found = _wrong(act, number, outcome, seen)
            seen[outcome.row.get("node")] = act
            wrong += [f"{number} {act}: {found}"] if found else []
    left = [str(child) for child in psutil.Process().children(recursive=True)]
    print("\n".join([*wrong, *left]))
    told = f"{given.points} points, {len(met)} kinds, {len(wrong)} wrong, {len(left)} left running"
    print(f"--points {given.points} --seed {given.seed}: {told}")
    return int(bool(wrong or left))


def _wrong(act: str, number: int, outcome: Outcome, seen: Mapping[object, str]) -> str:
    wanted = "crashed" if act in _CRASHES else "ok"
    if outcome.status != wanted:
        return f"{outcome.status} instead of {wanted}: {outcome.reason}"
    if wanted == "crashed":
        return ""
    if outcome.row["median_ms"] != number:
        return f"the time of {outcome.row['median_ms']}"
    before = seen.get(outcome.row.get("node"), act)
    return "" if before == act else f"in the process of {before}"


if __name__ == "__main__":
    sys.exit(main())
