"""Whole points of a network through the product's own bench, and a sweep of sizes."""

from __future__ import annotations

import csv
import os
import time
from typing import TYPE_CHECKING, Any, Final

import torch

from benchmarks import pairs
from benchmarks.gpu import environment
from benchmarks.gpu.lab import alone
from benchmarks.point_cost import WATCHED, Stages
from hpcsweep import catalog
from hpcsweep.catalog import columns
from hpcsweep.measure.measure_point import on_device, torch_bench
from hpcsweep.measure.timing import loop, stats
from hpcsweep.point import Point

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from benchmarks.gpu.lab import Lab, Options
    from hpcsweep.catalog.columns import Row
    from hpcsweep.measure.bench_api import Bench

    Plan = dict[str, tuple[str, str, int]]  # algorithm, launch and run, by key

# a second and a half each, and `resources` holds the counter against power
_WITH_ENERGY: Final = ("auto eager 0", "auto graph 0")
_POINTS: Final = "algorithms.csv"
_LAYERS: Final = "layers.csv"
_OF_SWEEP: Final = "implicit_precomp_gemm"
QUICK: Final = {"evidence": False, "numerics": False, "layers": False}
# what claims and people look at; the tables hold whole rows
_KEPT: Final = (
    *("median_ms", "ci95_lo_ms", "ci95_hi_ms", "iqr_rel", "host_ms", "call_rel_error"),
    *("algorithm_coverage_pct", "algorithm_evidence", "hook_overhead_pct", "layer_sum_over_total"),
    *("layer_pass_parts", "event_floor_ms", "sm_clock_pass_mhz"),
    *("mem_peak_bytes", "sm_clock_mhz_mean", "flags", "valid", "throttle_reasons", "launch_bound"),
    *("waited_pct", "stolen_pct", "control_shift_pct", "energy_j", "energy_method"),
)
# of each row: what would name the machine
_PRIVATE: Final = {"device_uuid", "node", "started_at"}


def network(lab: Lab) -> None:
    """Measure the network with every algorithm, eager and as a graph, some of them twice.

    An algorithm that covers nothing of an eager pass gets no graph. The parts of a point's cost are
    those of `point_cost`: seconds of each, without what is inside.
    """
    stages = Stages(time.perf_counter)
    for watched in WATCHED:
        stages.watch(*watched)
    bench = bench_of()
    if not lab.record.found:
        _forget_tables(lab.record.folder)
    names = lab.options.algorithms
    for planned in (lambda: plan(names), lambda: graphs(names, lab.record.found)):
        for key, (algorithm, launch, run) in lab.each(planned()):
            with lab.entry(key) as facts:
                stages.take()
                axes = {"algorithm": algorithm, "launch": launch}
                one = point(lab.options, axes, {"energy": key in _WITH_ENERGY})
                row, layers = _in_its_place(one, bench)
                facts["cost_s"] = {name: round(s, 4) for name, s in stages.take().items()}
                facts.update({name: row.get(name) for name in _KEPT})
                if lab.record.folder and not run:
                    _append(lab.record.folder, row, layers, axes)


def plan(algorithms: Sequence[str]) -> Plan:
    """Return what is measured in any case; what tells most comes first."""
    first = [("auto", "eager", 0), ("auto", "eager", 1), ("implicit_gemm", "eager", 0)]
    first += [("implicit_gemm", "graph", 0), ("auto", "graph", 0)]
    return _keyed([*first, *((name, "eager", 0) for name in algorithms)])


def graphs(algorithms: Sequence[str], found: Mapping[str, Mapping[str, Any]]) -> Plan:
    """Return the graphs of the algorithms that cover something, and what is measured again."""
    covering = [
        name
        for name in algorithms
        if found.get(f"{name} eager 0", {}).get("algorithm_coverage_pct")
    ]
    again = [("auto", "graph", 1), ("implicit_gemm", "eager", 1), ("implicit_gemm", "graph", 1)]
    return _keyed([*((name, "graph", 0) for name in covering), *again])


def _keyed(points: Iterable[tuple[str, str, int]]) -> Plan:
    return {f"{name} {launch} {run}": (name, launch, run) for name, launch, run in points}


def _in_its_place(one: Point, bench: Bench) -> tuple[Row, list[Row]]:
    """Return the rows of a point; torch tunes only what it has not asked plans for already.

    So what autotunes is measured in a process of its own.
    """
    if one.axes["algorithm"] != catalog.AUTOTUNE:
        measured = bench.measure(one)
        return measured.row, measured.layers
    return alone(_measured_alone, one)


def _measured_alone(one: Point) -> tuple[Row, list[Row]]:
    """Return the rows of a point; the process that waits for them is no stranger on the GPU."""
    bench = on_device("inference", "cuda", environment.driver(os.getppid()))
    measured = bench.measure(one)
    return measured.row, measured.layers


def point(options: Options, axes: dict[str, Any], settings: dict[str, Any] | None = None) -> Point:
    """Return a point of the network."""
    values = catalog.axis_defaults("inference") | {"model": options.model, "gpu": "gpu"}
    values |= {"input_size": options.size}
    measure = catalog.setting_defaults("inference")
    measure |= {"iterations": options.iterations, "energy": False}
    return Point("inference", values | axes, measure | (settings or {}), "0" * 16)


def bench_of() -> Bench:
    """Return the product's bench for the device."""
    return torch_bench("inference", {"gpu": "gpu"})


def sizes(lab: Lab) -> None:
    """Measure one algorithm at many image sizes as the shipped sweep does: layers included.

    What a worker does once, such as building the network, is no part of a size.
    """
    bench = bench_of()
    settings = {"iterations": min(20, lab.options.iterations)}
    bench.measure(point(lab.options, {"algorithm": _OF_SWEEP}, {**settings, **QUICK}))
    for key, size in lab.each({str(size): size for size in lab.options.sizes}):
        with lab.entry(key) as facts:
            began = time.monotonic()
            axes = {"input_size": size, "algorithm": _OF_SWEEP}
            measured = bench.measure(point(lab.options, axes, settings))
            facts["seconds"] = time.monotonic() - began
            facts["median_ms"] = measured.row["median_ms"]


def tuning(lab: Lab) -> None:
    """Time the default, `autotune` after it in this process, and `autotune` in one of its own.

    Where torch asks its plans before it tunes, the second is the default again.
    """
    name = catalog.AUTOTUNE
    default, tuned = (point(lab.options, {"algorithm": one}) for one in (catalog.AUTO, name))
    benches = [on_device("inference", "cuda") for _ in range(2)]
    for key, _ in lab.each({"in turns": name}):
        with lab.entry(key) as facts, torch.inference_mode():
            both = zip(benches, (default, tuned), strict=True)
            here = [pairs.clean_lane(one, bench) for bench, one in both]
            with pairs.elsewhere(tuned, "cuda") as alone:
                done = loop.collect([*here, alone], loop.Fixed(lab.options.iterations))
            medians = [*map(stats.median, done.times)]
            facts.update(zip(("auto_ms", "after_auto_ms", "alone_ms"), medians, strict=True))


def pass_times(bench: Bench, options: Options) -> dict[str, Any]:
    """Return the network's pass without layers, evidence and numerics: eager and as a graph."""
    found = {}
    for launch in ("eager", "graph"):
        row = bench.measure(point(options, {"launch": launch}, QUICK)).row
        found[f"{launch}_ms"] = row["median_ms"]
    return found


def _append(folder: Path, row: Row, layers: Iterable[Row], axes: Row) -> None:
    """Add a point's rows to the tables beside the step's file."""
    public = [name for name in columns.OVERALL_COLUMNS if name not in _PRIVATE]
    _table(folder / _POINTS, public, [row | axes])
    of_layers = [name for name in columns.LAYER_COLUMNS if name not in _PRIVATE]
    names = list(dict.fromkeys(["launch", *of_layers]))
    _table(folder / _LAYERS, names, [layer | axes for layer in layers])


def _forget_tables(folder: Path | None) -> None:
    if folder is not None:
        for name in (_POINTS, _LAYERS):
            (folder / name).unlink(missing_ok=True)


def _table(path: Path, names: Sequence[str], rows: Iterable[dict[str, Any]]) -> None:
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if new:
            writer.writerow(names)
        writer.writerows([columns.cell(row.get(name)) for name in names] for row in rows)
