"""How often `compare` is wrong: equal runs that it calls different, slowdowns that it misses.

::

    python benchmarks/compare_runs.py [--repetitions 20] [--runs 1] [--metric min_ms]

Each repetition measures one sweep of small networks twice (with `--runs`, so many times on each
side, in turns), each run in a process of its own, and compares the two. Then every time of the
second side is made a tenth longer, and it compares again; and then those of one row alone. At most
5 % of the comparisons of equal runs may have a row that is FASTER or SLOWER, and the slowdown of
all rows must be found every time. The exit code is 1 otherwise.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcsweep.analysis.compare import FASTER, SLOWER, Comparison, compare, read_side
from hpcsweep.catalog.columns import OVERALL_COLUMNS, axis_cells, cells
from hpcsweep.measure.bench import torch_bench

# loads torch before the fork, so that each run starts at once
from hpcsweep.measure.workloads.inference import Inference  # noqa: F401
from hpcsweep.spec import expansion, sweep_file

if TYPE_CHECKING:
    from hpcsweep.analysis.compare import Side
    from hpcsweep.point import Point

SWEEP = """\
name: small
workload: inference
axes:
  model: [squeezenet1_1, mobilenet_v3_small]
  input_size: [32, 48, 64, 80]
  num_threads: [1]
measure:
  {warmup: 10, iterations: 100, layers: false, evidence: false, numerics: false, energy: false}
"""
FACTOR = 1.1


def main() -> int:
    """Print one line per repetition, and what came of all."""
    arguments = _arguments()
    wrong = missed = missed_row = 0
    for number in range(arguments.repetitions):
        with tempfile.TemporaryDirectory() as folder:
            first, second = _both(Path(folder), arguments.runs)
        equal = _compared(first, second, arguments.metric)
        slower = _compared(first, _planted(second, arguments.metric), arguments.metric)
        row = second.rows.index[number % len(second.rows)]
        one = _compared(first, _planted(second, arguments.metric, row), arguments.metric)
        wrong += bool(equal.verdicts.get(FASTER, 0) + equal.verdicts.get(SLOWER, 0))
        missed += not _found(slower)
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
    return parser.parse_args()


def _both(folder: Path, runs: int) -> tuple[Side, Side]:
    """Measure both sides in turns, so that neither has the busier machine."""
    spec = folder / "small.yaml"
    spec.write_text(SWEEP)
    points = list(expansion.expand(sweep_file.load(spec), gpu="cpu"))
    names: list[list[str]] = [[], []]
    for number in range(2 * runs):
        results = folder / str(number)
        results.mkdir()
        child = multiprocessing.get_context("fork").Process(target=_run, args=(results, points))
        child.start()
        child.join()
        names[number % 2].append(str(results))
    first, second = (read_side(folder, "+".join(of), everything=True) for of in names)
    return first, second


def _run(folder: Path, points: list[Point]) -> None:
    """Measure the points, and write their rows."""
    bench = torch_bench("inference", {"gpu": "cpu"})
    with (folder / "overall.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(OVERALL_COLUMNS)
        for point in points:
            row = {**bench.measure(point).row, "point_id": point.point_id, "status": "ok"}
            table.writerow(cells({**axis_cells(point.axes), **row}, OVERALL_COLUMNS))


def _planted(side: Side, metric: str, row: int | None = None) -> Side:
    """Return a side whose times, or those of one row in all its runs, are a tenth longer."""
    rows = side.rows.copy()
    chosen = rows["point_id"].notna() if row is None else (
        rows["point_id"] == rows.loc[row, "point_id"]
    )  # fmt: skip
    rows.loc[chosen, metric] *= FACTOR
    return replace(side, rows=rows)


def _compared(first: Side, second: Side, metric: str) -> Comparison:
    copies = [replace(side, rows=side.rows.copy()) for side in (first, second)]
    return compare(*copies, metric=metric)


def _found(comparison: Comparison) -> bool:
    """Say whether the slowdown was found: by its rows, and on the whole."""
    judged = comparison.judged
    return judged is not None and judged.mean[1] > 1 and SLOWER in comparison.verdicts


def _mean(found: Comparison) -> str:
    if found.judged is None:
        return "mean unknown"
    ratio, low, high = found.judged.mean
    return f"{ratio:.3f} ({low:.3f} to {high:.3f})"


if __name__ == "__main__":
    sys.exit(main())
