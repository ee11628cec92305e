"""Names what became slower than in another revision: a fixed set of runs, in interleaved pairs.

::

    python -m benchmarks.guard [--against REVISION] [--minutes 9] [--only WORD] [--record]

Without `--against` it is the revision of the last record in `results/reference/guard.json`, or the
parent. That revision is checked out beside this one and run by the same Python. Each round runs
each case three times: the other revision, this one, and the other again, in changing order; so a
machine that drifts drifts for all, and the A/A column says how small a difference can be believed.
Printed are ratios of wall and CPU seconds (children included), with a 95 % interval of their mean
over rounds (Student's t of the logarithms). Slower is what takes a tenth more and whose interval
lies above 1 while that of A/A does not. The exit code is 1 then. `--record` writes the seconds,
with the environment, to the file that the next run compares with.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Final

from scipy import stats

from benchmarks.guard.cases import CASES, Case, Run, Skipped
from benchmarks.markdown import print_head, print_row

ROOT: Final = Path(__file__).parents[2]
RECORD: Final = ROOT / "results" / "reference" / "guard.json"
SLOWER: Final = 1.1
ARMS: Final = ("other", "this", "again")
Cost = Mapping[str, float]  # wall and CPU seconds


@dataclass
class Costs:
    """What each arm cost in each round, of one case."""

    rounds: list[dict[str, Cost]] = field(default_factory=list)

    def median(self, arm: str, kind: str) -> float:
        """Return the median seconds of an arm."""
        return statistics.median(one[arm][kind] for one in self.rounds)

    def ratio(self, arm: str, kind: str) -> tuple[float, float, float]:
        """Return how much longer an arm took than the other revision, with a 95 % interval."""
        logs = [math.log(one[arm][kind] / one["other"][kind]) for one in self.rounds]
        mean = statistics.fmean(logs)
        if len(logs) < 2:
            return math.exp(mean), 0.0, math.inf
        half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        return math.exp(mean), math.exp(mean - half), math.exp(mean + half)

    def is_slower(self) -> bool:
        """Say whether this revision takes a tenth more, and not by chance."""
        for kind in ("wall_s", "cpu_s"):
            ratio, low, _ = self.ratio("this", kind)
            control, control_low, _ = self.ratio("again", kind)
            if ratio > SLOWER * max(1.0, control) and low > 1 and control_low <= 1:
                return True
        return False


def main() -> int:
    """Print the table; return 1 where a case became slower."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--against", default=_last_recorded() or "HEAD~1")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all of it; two rounds run")
    parser.add_argument("--only", default="", help="only the cases whose name has this word")
    parser.add_argument("--record", action="store_true", help="keep the seconds of this revision")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    cases = [case for case in CASES if options.only in case.name]
    with tempfile.TemporaryDirectory() as name, _checked_out(options.against, Path(name)) as other:
        trees = {"other": other, "this": ROOT}
        costs = _measured(cases, trees, Path(name), end)
    print(f"This revision beside {options.against}, {_environment()['machine']}\n")
    print_head("case | s before | s now | wall | CPU | A/A wall | A/A CPU | rounds")
    for case, found in costs.items():
        ratios = [
            _spelled(found.ratio(arm, k)) for arm in ("this", "again") for k in ("wall_s", "cpu_s")
        ]
        seconds = [f"{found.median(arm, 'wall_s'):.2f}" for arm in ("other", "this")]
        print_row(case, *seconds, *ratios, len(found.rounds))
    slower = [case for case, found in costs.items() if found.is_slower()]
    print(f"\nslower by more than a tenth: {', '.join(slower) or 'nothing'}")
    if options.record:
        _record(costs)
    return int(bool(slower))


def _measured(
    cases: Sequence[Case], trees: Mapping[str, Path], folder: Path, end: float
) -> dict[str, Costs]:
    """Run the cases twice, then those again, in turns, that are over by the end."""
    prepared = {case.name: _prepared(case, trees, folder) for case in cases}
    ready = {name: runs for name, runs in prepared.items() if runs}
    costs: dict[str, Costs] = defaultdict(Costs)
    took: dict[str, float] = {}
    for number in count():
        order = ARMS if number % 2 == 0 else ARMS[::-1]
        fits = [case for case in ready if number < 2 or time.monotonic() + took[case] < end]
        for case in fits:
            begin = time.monotonic()
            if number < 2 or begin + took[case] < end:
                seconds = {
                    arm: _cost(ready[case][arm], 3 * number + at) for at, arm in enumerate(order)
                }
                costs[case].rounds.append(seconds)
                took[case] = time.monotonic() - begin
        if not fits:
            break
        print(f"round {number + 1}: {len(fits)} cases", file=sys.stderr, flush=True)
    return dict(costs)


def _prepared(case: Case, trees: Mapping[str, Path], folder: Path) -> dict[str, Run]:
    """Return a case's run for each arm, or none where a revision cannot do it."""
    try:
        runs = {arm: case.prepare(tree, folder / arm) for arm, tree in trees.items()}
    except Skipped as why:
        print(f"{case.name}: left out: {why}", flush=True)
        return {}
    return {**runs, "again": runs["other"]}


def _cost(run: Run, number: int) -> Cost:
    """Run a prepared case once and return its wall and CPU seconds, those of children included."""
    before = os.times()
    begin = time.perf_counter()
    run(number)
    wall = time.perf_counter() - begin
    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    return {"wall_s": wall, "cpu_s": cpu}


@contextmanager
def _checked_out(revision: str, folder: Path) -> Iterator[Path]:
    """Check a revision out beside this one."""
    git = ("git", "-C", str(ROOT), "worktree")
    tree = folder / "tree"
    subprocess.run([*git, "add", "--quiet", "--detach", str(tree), revision], check=True)
    try:
        yield tree
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _spelled(ratio: tuple[float, float, float]) -> str:
    return f"{ratio[0]:.2f} [{ratio[1]:.2f}, {ratio[2]:.2f}]"


def _revision() -> str:
    git = ("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD")
    return subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()


def _last_recorded() -> str:
    """Return the revision of the last record where this repository has it."""
    if not RECORD.is_file():
        return ""
    revision = json.loads(RECORD.read_text())["revision"]
    known = ("git", "-C", str(ROOT), "cat-file", "-e", f"{revision}^{{commit}}")
    return (
        revision if subprocess.run(known, check=False, capture_output=True).returncode == 0 else ""
    )


def _environment() -> dict[str, str]:
    machine = f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}"
    return {"machine": machine, "python": platform.python_version()}


def _record(costs: Mapping[str, Costs]) -> None:
    seconds = {
        case: {kind: round(found.median("this", kind), 3) for kind in ("wall_s", "cpu_s")}
        for case, found in costs.items()
    }
    record = {"revision": _revision(), **_environment(), "seconds": seconds}
    RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
