"""How often `compare` is wrong: equal runs that it calls different, slowdowns that it misses.

::

    python benchmarks/compare_runs.py [--repetitions 20] [--runs 1] [--metric min_ms] [--noop]

Each repetition measures one sweep of small networks (with `--noop`, of passes that sleep for 50
milliseconds: noise of the machine without torch) twice (with `--runs`, so many times on each
side, in turns) and compares the two. Then every time of the second side is made a tenth longer, and
it compares again; and then those of one row alone. At most 5 % of the comparisons of equal runs may
have a row that is FASTER or SLOWER, and the slowdown must be found every time. The exit code is 1
otherwise.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcsweep.analysis import sides
from hpcsweep.analysis.compare import FASTER, SLOWER, Comparison, compare
from hpcsweep.collect import workflow as collecting
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store.rundir import RunDir
from hpcsweep.submit import request, workflow

if TYPE_CHECKING:
    from hpcsweep.analysis.sides import Side

SWEEP = """\
name: small
workload: inference
axes:
  model: [squeezenet1_1, shufflenet_v2_x0_5]
  input_size: [32, 48, 64, 80]
  num_threads: [1]
measure:
  {warmup: 10, iterations: 60, layers: false, evidence: false, numerics: false, energy: false}
"""
NOOP = """\
name: small
workload: noop
axes:
  model: [a, b]
  input_size: [32, 48, 64, 80]
measure: {sleep_ms: 50}
"""
FACTOR = 1.1


def main() -> int:
    """Print one line per repetition, and what came of all."""
    arguments = _arguments()
    wrong = missed = missed_row = 0
    for number in range(arguments.repetitions):
        with tempfile.TemporaryDirectory() as folder:
            first, second = _both(Path(folder), NOOP if arguments.noop else SWEEP, arguments.runs)
            equal = _verdicts(first, second, arguments.metric)
            slower = _verdicts(first, _planted(second, arguments.metric), arguments.metric)
            row = second.rows.index[number % len(second.rows)]
            one = _verdicts(first, _planted(second, arguments.metric, row), arguments.metric)
        called = equal.verdicts.get(FASTER, 0) + equal.verdicts.get(SLOWER, 0)
        found = slower.judged is not None and slower.judged.mean[1] > 1
        wrong, missed = wrong + bool(called), missed + (not found)
        missed_row += not one.verdicts.get(SLOWER, 0)
        print(f"{number + 1:3}  {_mean(equal)}  equal: {equal.verdicts}  "
              f"all +10 %: {slower.verdicts}  one +10 %: {one.verdicts}", flush=True)  # fmt: skip
    total = arguments.repetitions
    print(f"{wrong} of {total} comparisons of equal runs call a row FASTER or SLOWER")
    print(f"{missed} of {total} miss a slowdown of 10 % of all rows, {missed_row} one of one row")
    return int(wrong > 0.05 * total or missed > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--runs", type=int, default=1, help="runs on each side")
    parser.add_argument("--metric", default="min_ms")
    parser.add_argument("--noop", action="store_true", help="sleep instead of computing")
    return parser.parse_args()


def _both(folder: Path, text: str, runs: int) -> tuple[Side, Side]:
    """Measure both sides in turns, so that neither has the busier machine."""
    spec = folder / "small.yaml"
    spec.write_text(text)
    asked = request.make(sweep_file.load(spec), profile.load("local"))
    names: list[list[str]] = [[], []]
    for number in range(2 * runs):
        results = folder / str(number)
        workflow.submit(results, asked, lambda _line: None)
        collecting.collect(RunDir(results / "small"))
        names[number % 2].append(str(results / "small"))
    first, second = (sides.read(folder, "+".join(of), everything=True) for of in names)
    return first, second


def _planted(side: Side, metric: str, row: int | None = None) -> Side:
    """Return a side whose times, or those of one row in all its runs, are a tenth longer."""
    rows = side.rows.copy()
    chosen = rows.index == rows.index if row is None else (
        rows["point_id"] == rows.loc[row, "point_id"]
    )  # fmt: skip
    rows.loc[chosen, metric] *= FACTOR
    return replace(side, rows=rows)


def _verdicts(first: Side, second: Side, metric: str) -> Comparison:
    return compare(
        replace(first, rows=first.rows.copy()), replace(second, rows=second.rows.copy()),
        metric=metric,
    )  # fmt: skip


def _mean(found: Comparison) -> str:
    if found.judged is None:
        return "mean unknown"
    ratio, low, high = found.judged.mean
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    sys.exit(main())
