"""Every convolution algorithm of a network on this GPU: ``python benchmarks/gpu_algorithms.py``.

Writes ``results/reference/<gpu>/``: one row per algorithm and launch (`algorithms.csv`), every
layer (`layers.csv`), and what was claimed with what was found (`summary.md`, `environment.json`):

(a) in a CUDA graph, layers whose kernels are those of the framework's default are within 3 % of it;
(b) the error against float64 is below 1e-4, in float32 without TF32;
(c) the layer pass costs at most 5 % (eager) and 1 % (graph) over the clean pass;
(d) the medians of two runs of the same point are within 1 %;
(e) a sweep of 100 image sizes of one algorithm ends in under 3 minutes.

It ends by itself within `--seconds`. All files are written anew after each point, so that what was
found until then stays if it is cut off. A point that fails is told, and the next one is measured.
Nothing that it writes names the machine, its users or their folders.
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
from typing import TYPE_CHECKING, Any, Final

import torch

from hpcsweep import catalog
from hpcsweep.catalog import columns as records
from hpcsweep.errors import HpcsweepError
from hpcsweep.measure.bench import torch_bench
from hpcsweep.measure.bench_api import OutOfMemory, Unsupported
from hpcsweep.point import Point

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hpcsweep.measure.bench_api import Measured
    from hpcsweep.node.worker import Bench

HERE: Final = Path(__file__).parents[1]
LAUNCHES: Final = ("eager", "graph")
TWICE: Final = ("auto", "implicit_gemm")
LAYER_PASS: Final = {"eager": 1.05, "graph": 1.01}
SWEEP_SECONDS: Final = 180.0
WITHIN: Final = 0.03
# of the environment: what may be published
DEVICE: Final = (
    *("type", "name", "sm_count", "compute_capability", "vram_bytes", "l2_bytes", "ecc", "mig"),
    *("sm_clock_default_mhz", "sm_clock_max_mhz", "power_limit_default_mw"),
)
SOFTWARE: Final = ("torch", "torchvision", "torch_git", "cuda", "hip", "cudnn")
ROW: Final = ("device_name", "driver_version", "hpcsweep_version")

# what a point may end with
FAILURES: Final = (Unsupported, OutOfMemory, HpcsweepError, RuntimeError, MemoryError)

Claim = tuple[str, str, "bool | None"]


@dataclass
class Found:
    """What was measured by (algorithm, launch, run), and what failed."""

    bench: Bench
    gpu: str
    model: str
    iterations: int
    launches: tuple[str, ...]
    ends: float
    done: dict[tuple[str, str, int], Measured] = field(default_factory=dict)
    failed: dict[tuple[str, str, int], str] = field(default_factory=dict)
    sweep: list[float] = field(default_factory=list)

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self.ends - time.monotonic()

    def measure(self, algorithm: str, launch: str, run: int) -> None:
        """Measure one point and keep it, or why it failed."""
        key = algorithm, launch, run
        axes, settings = {"algorithm": algorithm, "launch": launch}, {"iterations": self.iterations}
        try:
            self.done[key] = one = self.bench.measure(self.point(axes, settings))
        except FAILURES as error:
            self.failed[key] = _reason(error)
            print(f"{algorithm:22} {launch:5}    FAILED: {self.failed[key]}", flush=True)
            return
        row = one.row
        print(
            f"{algorithm:22} {launch:5} {row['median_ms']:9.3f} ms"
            f"  error {_scientific(row['max_rel_error'])}"
            f"  hooks {row.get('hook_overhead_pct') or 0:+.2f} %"
            f"  covers {row['algorithm_coverage_pct'] or 0:5.1f} %  {row['flags']}",
            flush=True,
        )

    def point(self, axes: dict[str, Any], settings: dict[str, Any]) -> Point:
        """Return a point of the network."""
        values = catalog.axis_defaults("inference") | {"model": self.model, "gpu": self.gpu}
        measure = catalog.setting_defaults("inference") | settings
        return Point("inference", values | axes, measure, "0" * 16)

    def pairs(self) -> list[tuple[Measured, Measured]]:
        """Return the points that were measured twice."""
        keys = ((name, launch) for name, launch, run in self.done if run)
        both = ((self.done.get((*key, 0)), self.done[(*key, 1)]) for key in keys)
        return [(first, second) for first, second in both if first]


def main() -> None:
    """Measure, compare with the claims, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet152")
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--sizes", type=int, default=100, help="of the sweep of claim (e); 0: none")
    parser.add_argument("--seconds", type=float, default=540.0, help="begin nothing after these")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "reference")
    parser.add_argument("--gpu", default="gpu", help="name of the folder, and of the axis gpu")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, to try this script")
    chosen = parser.parse_args()
    if not (torch.cuda.is_available() or chosen.rehearse):
        raise SystemExit("this needs a GPU that this torch supports")
    ends = time.monotonic() + chosen.seconds
    gpu = "cpu" if chosen.rehearse else chosen.gpu
    launches = LAUNCHES[:1] if chosen.rehearse else LAUNCHES
    bench = torch_bench("inference", {"gpu": gpu})
    found = Found(bench, gpu, chosen.model, chosen.iterations, launches, ends)
    folder = chosen.out / gpu
    for key in plan(launches):
        if found.left > 0 and healthy():
            found.measure(*key)
            write(folder, found, claims(found, chosen.sizes))
    sweep(found, chosen.sizes)
    write(folder, found, claims(found, chosen.sizes))
    print(f"\n{(folder / 'summary.md').read_text()}\nwritten to {folder}")


def plan(launches: Iterable[str]) -> list[tuple[str, str, int]]:
    """Return algorithm, launch and run of each point, in order."""
    found = []
    for launch in launches:
        found += [(name, launch, 0) for name in catalog.ALGORITHMS]
        found += [(name, launch, 1) for name in TWICE]
    return found


def healthy() -> bool:
    """Say whether the GPU still answers; after some errors only a new process helps."""
    if not torch.cuda.is_available():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"the GPU answers no more: {_reason(error)}", flush=True)
        return False
    return True


def sweep(found: Found, count: int) -> None:
    """Measure one algorithm at so many image sizes, layers included, as long as there is time."""
    print(f"\n{count} image sizes, implicit_precomp_gemm, 20 iterations", flush=True)
    for i in range(count):
        if found.left <= 0 or not healthy():
            print(f"cut off after {i} sizes", flush=True)
            return
        began = time.monotonic()
        # from both ends of the sizes in turns, so that a part of them stands for the whole
        place = i // 2 if i % 2 == 0 else count - 1 - i // 2
        size = int(224 + place * (512 - 224) / max(count - 1, 1))
        axes = {"input_size": size, "algorithm": "implicit_precomp_gemm"}
        try:
            found.bench.measure(found.point(axes, {"energy": False}))  # as the shipped sweep
        except FAILURES as error:
            print(f"{size}: FAILED: {_reason(error)}", flush=True)
            return
        found.sweep.append(time.monotonic() - began)


def claims(found: Found, sizes: int) -> list[Claim]:
    """Return each claim, what was found, and whether it holds; None where too little is known."""
    told = [same_kernels(found), default_against_itself(found), errors(found)]
    told += [layer_pass(found, launch) for launch in found.launches]
    told.append(two_runs(found))
    return [*told, *([sweep_time(found, sizes)] if sizes else [])]


def same_kernels(found: Found) -> Claim:
    """Return claim (a)."""
    claim = "(a) layers of the default's kernels: within 3 % of it"
    launch = found.launches[-1]
    default = _convolutions(found, ("auto", launch, 0))
    if not default:
        return claim, "not measured", None
    ours, theirs, explicit = [], [], 0
    for name in (n for n in catalog.ALGORITHMS if n not in {"auto", "autotune"}):
        for mine, its in zip(_convolutions(found, (name, launch, 0)), default, strict=False):
            if mine["algorithm_used"] != name:
                continue
            explicit += 1
            kernels = _kernels(mine["algorithm_evidence"])
            if kernels and kernels == _kernels(its["algorithm_evidence"]):
                ours.append(mine["median_ms"])
                theirs.append(its["median_ms"])
    if not ours:
        return claim, f"none of {explicit} explicit convolutions ran the default's kernels", None
    share = 100 * len(ours) / explicit
    text, holds = _agreement(ours, theirs)
    return claim, f"{len(ours)} of {explicit} convolutions ({share:.0f} %): {text}", holds


def default_against_itself(found: Found) -> Claim:
    """Return the control of claim (a): what the default's layers differ by in a second run."""
    claim = "(a) control: layers of the default's second run: within 3 % of the first"
    both = [_convolutions(found, ("auto", found.launches[-1], run)) for run in (0, 1)]
    if not all(both):
        return claim, "not measured", None
    first, second = ([row["median_ms"] for row in rows] for rows in both)
    text, holds = _agreement(second, first)
    return claim, text, holds


def _agreement(ours: list[float], theirs: list[float]) -> tuple[str, bool]:
    """Say how many times are within 3 % of others, and whether all are."""
    apart = [abs(a / b - 1) for a, b in zip(ours, theirs, strict=True)]
    within = sum(x <= WITHIN for x in apart)
    ratio = sum(ours) / sum(theirs)
    text = f"{within} of {len(apart)} within 3 % ({100 * within / len(apart):.0f} %)"
    return f"{text}, worst {100 * max(apart):.1f} %, sums {ratio:.3f}", within == len(apart)


def errors(found: Found) -> Claim:
    """Return claim (b)."""
    claim = "(b) relative error under 1e-4"
    known = {key: one.row["max_rel_error"] for key, one in found.done.items()}
    known = {key: error for key, error in known.items() if error is not None}
    if not known:
        return claim, "not measured", None
    worst = max(known, key=lambda key: known[key])
    holds = all(error < 1e-4 for error in known.values())  # not a number fails, too
    return claim, f"largest {known[worst]:.1e} ({worst[0]}, {worst[1]})", holds


def layer_pass(found: Found, launch: str) -> Claim:
    """Return claim (c) of a launch: the median over the algorithms."""
    most = LAYER_PASS[launch]
    claim = f"(c) layer pass over clean pass, {launch}: at most {most}"
    rows = (one.row for (_, way, _), one in found.done.items() if way == launch)
    costs = [row.get("hook_overhead_pct") for row in rows]
    ratios = [1 + cost / 100 for cost in costs if cost is not None]
    if not ratios:
        return claim, "not measured", None
    cost = statistics.median(ratios)
    return claim, f"median {cost:.3f}, worst {max(ratios):.3f}", cost <= most


def two_runs(found: Found) -> Claim:
    """Return claim (d)."""
    claim = "(d) medians of two runs within 1 %"
    pairs = [[one.row["median_ms"] for one in pair] for pair in found.pairs()]
    apart = [abs(second / first - 1) for first, second in pairs]
    if not apart:
        return claim, "not measured", None
    return claim, f"{len(apart)} pairs, worst {100 * max(apart):.2f} %", max(apart) <= 0.01


def sweep_time(found: Found, count: int) -> Claim:
    """Return claim (e); of a sweep that was cut off, what the whole would have taken."""
    claim = f"(e) {count} sizes in under {SWEEP_SECONDS:.0f} s"
    if not found.sweep:
        return claim, "not measured", None
    total = statistics.mean(found.sweep) * count
    text = f"{total:.0f} s, {1000 * statistics.median(found.sweep):.0f} ms a size"
    if len(found.sweep) < count:
        text = f"{len(found.sweep)} sizes in {sum(found.sweep):.0f} s; all would take {text}"
    return claim, text, total < SWEEP_SECONDS


def _convolutions(found: Found, key: tuple[str, str, int]) -> list[dict[str, Any]]:
    done = found.done.get(key)
    return [row for row in done.layers if row["op"] == "conv2d"] if done else []


def _kernels(evidence: str) -> list[str]:
    """Return the kernels in a cell: what is no operator of torch or of ours, no library's call."""
    words = evidence.partition("profiler: ")[2].split()
    return [w for w in words if not re.match(r"(aten|hpcsweep)::|(cudnn|miopen)Convolution\w*:", w)]


def write(folder: Path, found: Found, told: list[Claim]) -> None:
    """Write tables, claims and the environment."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {**one.row, "algorithm": name, "launch": launch, "run": run, "model": found.model}
        for (name, launch, run), one in found.done.items()
    ]
    columns = ("model", "algorithm", "launch", "run")
    rest = [c for c in records.OVERALL_COLUMNS if c not in columns and any(c in r for r in rows)]
    _table(folder / "algorithms.csv", [*columns, *rest], rows)
    layers = [
        {**row, "launch": launch}
        for (_, launch, run), one in found.done.items()
        if not run
        for row in one.layers
    ]
    kept = [c for c in records.LAYER_COLUMNS if any(r.get(c) is not None for r in layers)]
    _table(folder / "layers.csv", ["launch", *kept], layers)
    environment = published(found.bench.environment())
    (folder / "environment.json").write_text(json.dumps(environment, indent=1, default=str) + "\n")
    (folder / "summary.md").write_text(summary(found, told, environment))


def published(environment: dict[str, Any]) -> dict[str, Any]:
    """Return what may be published of an environment: the device and the software's versions."""
    kept = {"device": DEVICE, "software": SOFTWARE, "row": ROW}
    return {
        part: {name: environment[part][name] for name in names if name in environment[part]}
        for part, names in kept.items()
    }


def summary(found: Found, told: list[Claim], environment: dict[str, Any]) -> str:
    """Return the claims and the times as Markdown."""
    device, software = environment["row"], environment["software"]
    versions = ", ".join(f"{name} {software.get(name)}" for name in ("torch", "cuda", "cudnn"))
    versions += f", driver {device.get('driver_version')}"
    lines = [
        f"# {found.model} at 224, batch 1, float32 without TF32, {found.iterations} iterations",
        "",
        f"{device.get('device_name')}, {versions}. Made by `python benchmarks/gpu_algorithms.py`.",
        "",
        "| claim | found | verdict |",
        "| --- | --- | --- |",
        *(f"| {claim} | {what} | {_verdict(holds)} |" for claim, what, holds in told),
        "",
        f"| algorithm | {' | '.join(f'{x} ms' for x in found.launches)} | covers % | error |",
        "| --- " * (3 + len(found.launches)) + "|",
    ]
    for name in catalog.ALGORITHMS:
        ways = [found.done.get((name, launch, 0)) for launch in found.launches]
        times = " | ".join(f"{one.row['median_ms']:.3f}" if one else "-" for one in ways)
        known = next((one.row for one in ways if one), None)
        covers = f"{known['algorithm_coverage_pct'] or 0:.0f}" if known else "-"
        error = _scientific(known["max_rel_error"]) if known else "-"
        lines.append(f"| {name} | {times} | {covers} | {error} |")
    failures = [f"* {' '.join(map(str, key))}: {why}" for key, why in found.failed.items()]
    return "\n".join([*lines, *(["", "Failed:", "", *failures] if failures else []), ""])


def _reason(error: BaseException) -> str:
    """Return the first line of what an exception says, without folders."""
    text = str(error).strip() or type(error).__name__
    return re.sub(r"(?:/[^/\s:]+)+/", "", text.splitlines()[0])


def _scientific(error: float | None) -> str:
    return "-" if error is None else f"{error:.1e}"


def _verdict(holds: bool | None) -> str:  # noqa: FBT001
    return {True: "PASS", False: "FAIL", None: "-"}[holds]


def _table(path: Path, columns: list[str], rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([records.cell(row.get(column)) for column in columns] for row in rows)


if __name__ == "__main__":
    main()
