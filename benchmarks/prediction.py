"""How far predictions are off on this machine: ``python benchmarks/prediction.py [FOLDER]``.

Measures twelve networks at twelve sizes with three algorithms, several times (`seed`), each round
after the other, and then leaves out networks, sizes and algorithms. The rounds of the same point
tell how much of the error is the machine's own (A/A). Killed anywhere, it goes on.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

from hpcsweep.analysis import dataset
from hpcsweep.analysis.output import COLOURS
from hpcsweep.forecast import check, intervals, training_data
from hpcsweep.store.folders import SweepDir

mpl.use("Agg")

from matplotlib import pyplot as plt

SWEEP = """\
name: cpu_networks
workload: inference
axes:
  model: [resnet18, vgg11, mobilenet_v2, googlenet, squeezenet1_1, resnet50, densenet121, alexnet,
          shufflenet_v2_x1_0, regnet_x_400mf, mnasnet1_0, efficientnet_b0]
  input_size: {{start: 64, stop: 240, num: 12}}
  algorithm: [auto, gemm, winograd]
  num_threads: [1]
  seed: [{seeds}]
measure: {{warmup: 2, iterations: 10, evidence: false, numerics: false, energy: false}}
"""


def main() -> None:
    """Measure what is missing, then print what was said of what was left out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("results/prediction"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--picture", type=Path, help="draw networks that were left out")
    parser.add_argument("--no-measure", action="store_true", help="take what is there")
    chosen = parser.parse_args()
    run = SweepDir(chosen.folder / "cpu_networks")
    chosen.folder.mkdir(parents=True, exist_ok=True)
    for rounds in range(1, chosen.rounds + 1) if not chosen.no_measure else ():
        spec = chosen.folder / "cpu_networks.yaml"
        spec.write_text(SWEEP.format(seeds=", ".join(map(str, range(rounds)))))
        hpcsweep(chosen.folder, "submit", str(spec), "--cluster", "local")
    hpcsweep(chosen.folder, "collect", "cpu_networks")
    measured = training_data.read_sweeps([run])
    if chosen.picture and (left := check.leave_out(measured, "network")):
        draw(left, chosen.picture)
    print(noise(run))
    print(check.check(measured).text())


def draw(left: intervals.LeftOut, path: Path) -> None:
    """Draw predicted over measured times of networks, each with its intervals."""
    figure, axes = plt.subplots(figsize=(7.2, 5.6), layout="constrained")
    for (fold, part, others), colour in zip(left.parts(), COLOURS, strict=False):
        true = part.points["total_ms"]
        said = part.points[intervals.OWN]
        width = intervals.calibrate(others).of_points(part.points)
        bars = [said - said / width, said * width - said]
        axes.errorbar(
            true, said, yerr=bars, fmt="o", ms=3, lw=0.4, color=colour,
            label=f"{fold}: {100 * (abs(said / true - 1)).median():.0f} %",
        )  # fmt: skip
    ends = [left.points["total_ms"].min(), left.points["total_ms"].max()]
    axes.plot(ends, ends, color="#3d3d3d", lw=1)
    axes.set(xscale="log", yscale="log", xlabel="measured (ms)", ylabel="predicted (ms)")
    axes.set_title("Each network predicted from the others; median error, 90 % intervals")
    axes.legend(fontsize=7)
    figure.savefig(path, dpi=90)


def hpcsweep(folder: Path, *words: str) -> None:
    """Run a command of the program in a folder of results."""
    subprocess.run([sys.executable, "-m", "hpcsweep", "--results", str(folder), *words], check=True)


def noise(run: SweepDir) -> str:
    """Say by how much two measurements of the same point differ, and of the same layer call."""
    data = dataset.read_dataset(run)
    points = data.rows.set_index("point_id")
    layers = data.layers().join(points["seed"], on="point_id")
    layers = layers[layers["layer"] != training_data.OTHER]
    same = ["model", "input_size", "algorithm"]
    told = [
        f"{what} {100 * np.median(np.abs(rows[1] / rows[0] - 1)):.1f} %"
        for what, table, keys in (
            ("totals", data.rows, same),
            ("layers", layers, [*same, "call_index"]),
        )
        for rows in [table.pivot_table(index=keys, columns="seed", values="median_ms").dropna()]
    ]
    return f"A/A, median difference of the first two rounds: {', '.join(told)}"


if __name__ == "__main__":
    main()
