"""Names what became slower or larger than it was: a fixed set of runs, in interleaved pairs.

::

    python -m benchmarks.guard [--against REVISION] [--minutes 9] [--only WORD]
    python -m benchmarks.guard --record [--give-up WORD]

Each case is run beside the revision that holds its best figure in `results/reference/guard.json`,
so ten steps of 5 % are one of 60; a case that is not there, beside the parent. `--against` names
one for all, such as the last release. These revisions are checked out beside this one and run by
the same Python. Each round runs each case three times: the other revision, this one, and the other
again, in changing order; so a machine that drifts drifts for all, and the A/A column says how small
a difference can be believed. Printed are ratios of wall and CPU seconds (children included), with a
95 % interval of their mean over rounds (Student's t of the logarithms), and the MiB of the largest
process. Slower is what takes a tenth more and whose interval lies above 1 while that of A/A does
not; larger is what takes a tenth more memory. The exit code is 1 then.

`--record` makes this revision the one that holds a figure, where there was none or it is faster.
What was given up on purpose is named with `--give-up`, in the commit that gives it up.
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
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from benchmarks.guard.cases import CASES, Case, Run, Skipped
from benchmarks.markdown import print_head, print_row

ROOT: Final = Path(__file__).parents[2]
RECORD: Final = ROOT / "results" / "reference" / "guard.json"
SLOWER: Final = 1.1
ARMS: Final = ("other", "this", "again")
KINDS: Final = ("wall_s", "cpu_s", "mib")
Cost = Mapping[str, float]  # by kind


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
        from scipy import stats  # noqa: PLC0415 - a child's MiB begin with those of this process

        half = stats.t.ppf(0.975, len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
        return math.exp(mean), math.exp(mean - half), math.exp(mean + half)

    def is_faster(self) -> bool:
        """Say whether this revision takes less, and not by chance."""
        return self.ratio("this", "cpu_s")[2] < min(1.0, self.ratio("again", "cpu_s")[2])

    def is_slower(self) -> bool:
        """Say whether this revision takes a tenth more, and not by chance."""
        if self.median("this", "mib") > SLOWER * self.median("other", "mib"):
            return True
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
    parser.add_argument("--against", default="", help="one revision for all cases")
    parser.add_argument("--minutes", type=float, default=9.5, help="for all of it; two rounds run")
    parser.add_argument("--only", default="", help="only the cases whose name has this word")
    parser.add_argument("--record", action="store_true", help="keep figures that became better")
    parser.add_argument("--give-up", metavar="WORD", help="keep those of these cases in any case")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    cases = [case for case in CASES if options.only in case.name]
    known = json.loads(RECORD.read_text())["cases"]
    others = {
        case.name: options.against or known.get(case.name, {}).get("revision", "HEAD~1")
        for case in cases
    }
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        trees = {
            revision: stack.enter_context(_checked_out(revision, Path(name) / f"tree-{number}"))
            for number, revision in enumerate(dict.fromkeys(others.values()))
        }
        beside = {case.name: trees[others[case.name]] for case in cases}
        costs = _measured(cases, beside, Path(name), end)
    print(f"This revision beside the best on record, {_environment()['machine']}\n")
    head = "case | beside | s before | s now | MiB before | now"
    print_head(f"{head} | wall | CPU | A/A wall | A/A CPU | rounds")
    for case, found in costs.items():
        ratios = [
            _spelled(found.ratio(arm, k)) for arm in ("this", "again") for k in ("wall_s", "cpu_s")
        ]
        seconds = [f"{found.median(arm, 'wall_s'):.2f}" for arm in ("other", "this")]
        memory = [f"{found.median(arm, 'mib'):.0f}" for arm in ("other", "this")]
        print_row(case, others[case], *seconds, *memory, *ratios, len(found.rounds))
    slower = [case for case, found in costs.items() if found.is_slower()]
    print(f"\nslower or larger by more than a tenth: {', '.join(slower) or 'nothing'}")
    if options.record:
        _record(known, costs, options.give_up)
    return int(bool(slower))


def _measured(
    cases: Sequence[Case], beside: Mapping[str, Path], folder: Path, end: float
) -> dict[str, Costs]:
    """Run the cases twice, then those again, in turns, that are over by the end."""
    prepared = {case.name: _prepared(case, beside[case.name], folder) for case in cases}
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


def _prepared(case: Case, other: Path, folder: Path) -> dict[str, Run]:
    """Return a case's run for each arm, or none where a revision cannot do it."""
    trees = {"other": other, "this": ROOT}
    try:
        runs = {arm: case.prepare(tree, folder / arm) for arm, tree in trees.items()}
    except Skipped as why:
        print(f"{case.name}: left out: {why}", flush=True)
        return {}
    return {**runs, "again": runs["other"]}


def _cost(run: Run, number: int) -> Cost:
    """Run a prepared case once; return wall and CPU seconds, and the MiB of its largest process."""
    before = os.times()
    begin = time.perf_counter()
    mib = run(number)
    wall = time.perf_counter() - begin
    after = os.times()
    cpu = sum(after[2:4]) - sum(before[2:4])
    return {"wall_s": wall, "cpu_s": cpu, "mib": mib}


@contextmanager
def _checked_out(revision: str, tree: Path) -> Iterator[Path]:
    """Check a revision out beside this one."""
    git = ("git", "-C", str(ROOT), "worktree")
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


def _environment() -> dict[str, str]:
    machine = f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}"
    return {"machine": machine, "python": platform.python_version()}


def _record(
    known: dict[str, dict[str, Any]], costs: Mapping[str, Costs], given_up: str | None
) -> None:
    for case, found in costs.items():
        named = given_up is not None and given_up in case
        if case not in known or named or found.is_faster():
            figures = {kind: round(found.median("this", kind), 3) for kind in KINDS}
            known[case] = {"revision": _revision(), **figures}
            print(f"kept: {case}")
    RECORD.write_text(json.dumps({**_environment(), "cases": known}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
