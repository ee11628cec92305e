"""What `submit --until-error` leaves out, and how far off it is there.

``python benchmarks/until_error.py [FOLDER]`` lets it choose among 100 sizes of one network with two
algorithms. Afterwards it measures all of them, in another folder and shuffled, and compares. Points
that both runs measured tell how much of a difference is the machine's own (A/A). Killed anywhere,
it goes on. ``--keep FOLDER`` writes the table and both times of each point.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from hpcsweep.store.folders import SweepDir
from hpcsweep.text import aligned

if TYPE_CHECKING:
    from collections.abc import Iterable

SWEEP = """\
name: {name}
workload: inference
axes:
  model: [squeezenet1_1]
  input_size: [{sizes}]
  algorithm: [auto, gemm]
  num_threads: [1]
measure: {{warmup: 3, iterations: 40, layers: false, evidence: false, numerics: false,
          energy: false}}
"""
SIZES = range(32, 232, 2)
TARGET = 3.0
MOST = 15  # points of each algorithm
KEYS = ["algorithm", "input_size"]
HEADS = ("algorithm", "measured", "held-out error", "true error of the others", "mean",
         "allowed", "in 90 % interval", "")  # fmt: skip


def main() -> None:
    """Measure what is missing, then print what was said of the sizes that were left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("results/until_error"))
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the figures there")
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    shuffled = random.Random(0).sample(SIZES, len(SIZES))
    told = submit(chosen.folder, "some", SIZES, "--until-error", f"{TARGET:g}%")
    submit(chosen.folder, "all", shuffled)
    table = both(chosen.folder)
    errors = held_out(told)
    same = off(table[table["basis"] == "measured"])
    noise = float(same.median())
    groups = table.groupby(KEYS[0])
    rows = pd.read_csv(chosen.folder / "some" / "overall.csv")["algorithm"].value_counts()
    lines = aligned(
        [
            HEADS,
            *(
                row(str(name), part, errors[str(name)], int(rows[name]), noise)
                for name, part in groups
            ),
        ]
    )
    lines.append(
        f"A/A: {len(same)} points that both runs measured differ by {noise:.1f} % (median)"
    )
    print("\n".join(lines))
    if chosen.keep:
        keep(chosen.keep, table, [*told, "", *lines], SweepDir(chosen.folder / "all"))


def submit(folder: Path, name: str, sizes: Iterable[object], *more: str) -> list[str]:
    """Measure a sweep of these sizes, and collect it; return the end of what submit said."""
    spec = folder / f"{name}.yaml"
    spec.write_text(SWEEP.format(name=name, sizes=", ".join(map(str, sizes))))
    base = [sys.executable, "-m", "hpcsweep", "--results", str(folder)]
    words = [*base, "submit", str(spec), "--cluster", "local", *more]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    print(done.stdout)
    subprocess.run([*base, "collect", name], check=True)
    lines = done.stdout.splitlines()
    first = [place for place, line in enumerate(lines) if "target" in line and "measured" in line]
    return lines[first[-1] : -2] if first else []


def both(folder: Path) -> pd.DataFrame:
    """Return each point as predicted or measured in rounds, and the time that it really takes."""
    said = pd.read_csv(folder / "some" / "predicted.csv").set_index("point_id")
    true = pd.read_csv(folder / "all" / "overall.csv").set_index("point_id")
    true = true[(true["status"] == "ok") & true["valid"]]
    columns = [*KEYS, "median_ms", "predicted_lo_ms", "predicted_hi_ms", "basis"]
    return (
        said[columns].join(true["median_ms"].rename("true_ms"), how="inner").reset_index(drop=True)
    )


def held_out(told: list[str]) -> dict[str, str]:
    """Return the errors that the summary of the rounds names, by algorithm."""
    found = [line.split("  ") for line in told if line.startswith("  squeeze")]
    cells = [[cell.strip() for cell in line if cell.strip()] for line in found]
    return {words[0].split()[-1]: words[2] for words in cells}


def off(part: pd.DataFrame) -> pd.Series[float]:
    """Return by how many percent the times of points differ from the true ones."""
    return 100 * (part["median_ms"] / part["true_ms"] - 1).abs()


def row(name: str, part: pd.DataFrame, held: str, measured: int, noise: float) -> tuple[str, ...]:
    """Return one line of the table: what was measured, and what the rest is off by."""
    rest = part[part["basis"] != "measured"]
    held_in = rest["true_ms"].between(rest["predicted_lo_ms"], rest["predicted_hi_ms"]).mean()
    error = float(off(rest).median())
    allowed = max(TARGET, 1.5 * noise)
    good = error <= allowed and measured <= MOST
    cells = (error, float(off(rest).mean()), allowed)
    return (name, f"{measured} of {len(SIZES)}", held, *(f"{cell:.1f} %" for cell in cells),
            f"{100 * held_in:.0f} %", "ok" if good else "NOT OK")  # fmt: skip


def keep(folder: Path, table: pd.DataFrame, lines: list[str], run: SweepDir) -> None:
    """Write the table, the times, and the machine that they were measured on."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "table.txt").write_text("\n".join(lines) + "\n")
    table.to_csv(folder / "points.csv", index=False, float_format="%.6g")
    found = json.loads(run.shards()[0].env.read_text())
    host = ("system", "cpu_model", "cpu_count", "cpu_cache_bytes", "cpu_capability",
            "load_average", "memory_limit_bytes")  # fmt: skip
    kept = {
        "python": found["python"],
        "host": {name: found["host"][name] for name in host},
        "software": {name: found["software"][name] for name in ("torch", "torchvision", "mkldnn")},
    }
    (folder / "environment.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
