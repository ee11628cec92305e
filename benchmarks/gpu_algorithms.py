"""Every convolution algorithm of a network on this GPU: ``python benchmarks/gpu_algorithms.py``.

Writes ``results/reference/<gpu>/``: one row per algorithm and launch (`algorithms.csv`), every
layer (`layers.csv`), and what was claimed with what was found (`summary.md`, `environment.json`):

(a) in a CUDA graph, layers whose kernel is the framework's default are within 3 % of it;
(b) the error against float64 is below 1e-4, in float32 without TF32;
(c) the layer pass costs at most 5 % (eager) and 1 % (graph) over the clean pass;
(d) the medians of two runs of the same point are within 1 %;
(e) a sweep of 100 image sizes of one algorithm ends in under 3 minutes.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hpcsweep import catalog, records
from hpcsweep.measure.bench import torch_bench
from hpcsweep.point import Point

if TYPE_CHECKING:
    from hpcsweep.measure.outcome import Measured
    from hpcsweep.worker import Bench

HERE = Path(__file__).parents[1]
LAUNCHES = ("eager", "graph")


@dataclass
class Found:
    """Points by (algorithm, launch, run)."""

    bench: Bench
    gpu: str
    model: str
    iterations: int
    done: dict[tuple[str, str, int], Measured] = field(default_factory=dict)

    launches: tuple[str, ...] = LAUNCHES

    def measure(self, algorithm: str, launch: str, run: int = 0) -> Measured:
        """Measure one point and keep it."""
        one = self.bench.measure(
            self.point({"algorithm": algorithm, "launch": launch}, {"iterations": self.iterations})
        )
        self.done[algorithm, launch, run] = one
        row = one.row
        print(
            f"{algorithm:22} {launch:5} {row['median_ms']:9.3f} ms"
            f"  error {row['max_rel_error']:.1e}  hooks {row.get('hook_overhead_pct') or 0:+.2f} %"
            f"  covers {row['algorithm_coverage_pct'] or 0:5.1f} %  {row['flags']}",
            flush=True,
        )
        return one

    def twice(self) -> list[tuple[str, str]]:
        """Return the points that were measured twice: algorithm and launch."""
        return [(name, launch) for name, launch, run in self.done if run]

    def again(self, algorithm: str, launch: str) -> float:
        """Return the second median over the first."""
        first, second = (self.done[algorithm, launch, run].row["median_ms"] for run in (0, 1))
        return second / first

    def layer_pass(self, launch: str) -> float:
        """Return the median over the algorithms of the layer pass over the clean pass."""
        overheads = [
            done.row["hook_overhead_pct"]
            for (_, way, _), done in self.done.items()
            if way == launch and done.row.get("hook_overhead_pct") is not None
        ]
        return 1 + statistics.median(overheads) / 100 if overheads else float("nan")

    def point(self, axes: dict[str, Any], settings: dict[str, Any]) -> Point:
        """Return a point of the network."""
        values = catalog.axis_defaults("inference") | {"model": self.model, "gpu": self.gpu}
        measure = catalog.setting_defaults("inference") | settings
        return Point("inference", values | axes, measure, "0" * 16)


def main() -> None:
    """Measure, compare with the claims, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet152")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--sizes", type=int, default=100, help="of the sweep of claim (e); 0: none")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "reference")
    parser.add_argument("--gpu", default="gpu", help="name of the folder, and of the axis gpu")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, to try this script")
    chosen = parser.parse_args()
    if not (torch.cuda.is_available() or chosen.rehearse):
        raise SystemExit("this needs a GPU that this torch supports")
    gpu = "cpu" if chosen.rehearse else chosen.gpu
    launches = LAUNCHES[:1] if chosen.rehearse else LAUNCHES
    bench = torch_bench("inference", {"gpu": gpu})
    found = Found(bench, gpu, chosen.model, chosen.iterations, launches=launches)
    for launch in launches:
        for algorithm in catalog.ALGORITHMS:
            found.measure(algorithm, launch)
        found.measure("auto", launch, run=1)
        found.measure("implicit_gemm", launch, run=1)
    seconds = sweep(found, chosen.sizes) if chosen.sizes else None
    write(chosen.out / gpu, found, claims(found, seconds))


def sweep(found: Found, count: int) -> float:
    """Return the seconds of one algorithm at so many image sizes, layers included."""
    print(f"\n{count} image sizes, implicit_precomp_gemm, 20 iterations")
    began = time.monotonic()
    for i in range(count):
        size = int(224 + i * (512 - 224) / max(count - 1, 1))
        axes = {"input_size": size, "algorithm": "implicit_precomp_gemm"}
        found.bench.measure(found.point(axes, {}))
    return time.monotonic() - began


def claims(found: Found, seconds: float | None) -> list[tuple[str, str, bool | None]]:
    """Return each claim, what was found, and whether it holds."""
    ratios, explicit = default_kernels(found)
    worst = max((abs(r - 1) for r in ratios), default=0.0)
    within = sum(abs(r - 1) <= 0.03 for r in ratios)
    same = f"{within} of {len(ratios)} within 3 %, worst {100 * worst:.1f} %"
    error = max(d.row["max_rel_error"] for d in found.done.values())
    apart = max(abs(found.again(name, launch) - 1) for name, launch in found.twice())
    told: list[tuple[str, str, bool | None]] = [
        (
            "(a) same kernel as the default: within 3 %",
            f"{same}; {explicit} convolutions ran an explicit algorithm",
            bool(ratios) and within == len(ratios),
        ),
        ("(b) relative error under 1e-4", f"largest {error:.1e}", error < 1e-4),
        ("(d) two runs within 1 %", f"{100 * apart:.2f} %", apart <= 0.01),
    ]
    for launch, most in zip(found.launches, (1.05, 1.01), strict=False):
        cost = found.layer_pass(launch)
        told.append((f"(c) layer pass, {launch}: at most {most}", f"{cost:.3f}", cost <= most))
    if seconds is not None:
        told.append(("(e) 100 sizes in under 180 s", f"{seconds:.0f} s", seconds < 180))
    return sorted(told)


def default_kernels(found: Found) -> tuple[list[float], int]:
    """Return times over the default's of layers that ran its very kernels; and all explicit ones.

    In a CUDA graph where there are graphs, since times of an eager pass hold launches as well.
    """
    launch = found.launches[-1]
    default = _convolutions(found.done["auto", launch, 0])
    ratios, explicit = [], 0
    for name in (n for n in catalog.ALGORITHMS if n not in {"auto", "autotune"}):
        ours = _convolutions(found.done[name, launch, 0])
        for mine, theirs in zip(ours, default, strict=True):
            if mine["algorithm_used"] != name:
                continue
            explicit += 1
            kernels = _kernels(mine["algorithm_evidence"])
            if kernels and kernels == _kernels(theirs["algorithm_evidence"]):
                ratios.append(mine["median_ms"] / theirs["median_ms"])
    return ratios, explicit


def _convolutions(done: Measured) -> list[dict[str, Any]]:
    return [row for row in done.layers if row["op"] == "conv2d"]


def _kernels(evidence: str) -> list[str]:
    """Return the kernels in a cell: what is no operator of torch or of ours."""
    words = evidence.removeprefix("profiler: ").split()
    return [word for word in words if not re.match(r"(aten|hpcsweep)::", word)]


def write(folder: Path, found: Found, told: list[tuple[str, str, bool | None]]) -> None:
    """Write tables, claims and the environment."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {**d.row, "algorithm": name, "launch": launch, "run": run, "model": found.model}
        for (name, launch, run), d in found.done.items()
    ]
    layers = [
        {**row, "launch": launch} for (_, launch, run), d in found.done.items() if not run
        for row in d.layers
    ]  # fmt: skip
    columns = ("model", "algorithm", "launch", "run")
    rest = [c for c in records.OVERALL_COLUMNS if c not in columns and any(c in r for r in rows)]
    _table(folder / "algorithms.csv", [*columns, *rest], rows)
    kept = [c for c in records.LAYER_COLUMNS if any(r.get(c) is not None for r in layers)]
    _table(folder / "layers.csv", ["launch", *kept], layers)
    environment = found.bench.environment()
    (folder / "environment.json").write_text(json.dumps(environment, indent=1, default=str) + "\n")
    lines = [f"| {claim} | {what} | {_verdict(holds)} |" for claim, what, holds in told]
    device = environment.get("row", {})
    head = (
        f"# {found.model} at 224, batch 1, float32 without TF32, {found.iterations} iterations\n\n"
        f"{device.get('device_name')}, torch {device.get('torch_version')}, cuDNN "
        f"{device.get('cudnn_version')}, driver {device.get('driver_version')}. "
        "Made by `python benchmarks/gpu_algorithms.py`.\n\n"
        "| claim | found | holds |\n| --- | --- | --- |\n"
    )
    ways = " | ".join(f"{launch} ms" for launch in found.launches)
    times = ["", f"| algorithm | {ways} | covers % of FLOPs | error |"]
    times.append("| --- " * (3 + len(found.launches)) + "|")
    for name in catalog.ALGORITHMS:
        of_name = [found.done[name, launch, 0].row for launch in found.launches]
        medians = " | ".join(f"{row['median_ms']:.3f}" for row in of_name)
        covered, error = of_name[0]["algorithm_coverage_pct"] or 0, of_name[0]["max_rel_error"]
        times.append(f"| {name} | {medians} | {covered:.0f} | {error:.1e} |")
    text = head + "\n".join([*lines, *times]) + "\n"
    (folder / "summary.md").write_text(text)
    print("\n" + text)
    median = statistics.median(row["median_ms"] for row in rows)
    print(f"median over all rows {median:.3f} ms; written to {folder}")


def _verdict(holds: bool | None) -> str:  # noqa: FBT001
    return {True: "yes", False: "NO", None: "-"}[holds]


def _table(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([records.cell(row.get(column)) for column in columns] for row in rows)


if __name__ == "__main__":
    main()
