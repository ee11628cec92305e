"""The product as people use it: a sweep by its commands, a point that does not fit, its tests."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree as ET

import torch

from benchmarks.gpu import ROOT, points
from hpcsweep.measure.bench_api import OutOfMemory

if TYPE_CHECKING:
    from benchmarks.gpu.lab import Lab

_SPARED: Final = 24 << 20  # bytes that the point may have
# what telemetry owes every row of an NVIDIA GPU
TELEMETRY: Final = (
    *("sm_clock_mhz_mean", "sm_clock_mhz_min", "gpu_util_pct", "power_limit_w"),
    *("temp_c_start", "temp_c_end", "driver_version"),
)
_KEPT: Final = (
    *("status", "status_reason", "algorithm", "launch", "valid", "flags", "median_ms"),
    *("algorithm_evidence", "algorithm_coverage_pct", "throttle_reasons", "energy_j"),
    *("energy_method", "seconds", *TELEMETRY),
)


def supervised(lab: Lab) -> None:
    """Measure a sweep by the commands: submit, its worker, collect; keep what its rows say."""
    with tempfile.TemporaryDirectory() as home:
        for key, text in lab.each({"sweep": _sweep(lab)}):
            with lab.entry(key) as facts:
                spec = Path(home, "proof.yaml")
                results = Path(home, "results")
                spec.write_text(json.dumps(text))
                said = [
                    _hpcsweep(lab, results, "submit", str(spec), "--cluster", "local"),
                    _hpcsweep(lab, results, "collect", "proof"),
                ]
                (table,) = results.rglob("overall.csv")
                details = table.with_name("details.csv")
                with table.open(newline="") as file, details.open(newline="") as more:
                    pairs = zip(csv.DictReader(file), csv.DictReader(more), strict=True)
                    rows = [{**rest, **row} for row, rest in pairs]
                facts["rows"] = [{n: row[n] for n in _KEPT if row.get(n)} for row in rows]
                facts["said"] = said[0][-400:]


def _sweep(lab: Lab) -> dict[str, Any]:
    """Return a sweep whose second point is the first one once more, in the same worker."""
    return {
        "name": "proof",
        "workload": "inference",
        "axes": {
            "model": [lab.options.model],
            "input_size": [lab.options.size],
            "algorithm": ["auto", "implicit_gemm"] if lab.options.energy else ["auto"],
            "launch": ["eager", "graph"],
        },
        "measure": {
            "iterations": lab.options.iterations,
            "energy": lab.options.energy,
            "repeats": 2,
        },
    }


def _hpcsweep(lab: Lab, results: Path, *words: str) -> str:
    command = (sys.executable, "-m", "hpcsweep", "--results", str(results), *words)
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=max(1.0, lab.left)
    )
    if done.returncode:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {done.stderr[-250:]}")
    return done.stdout


def memory(lab: Lab) -> None:
    """Measure a point on a GPU that is full, and the same point when it is not."""
    bench = points.bench_of()
    axes = points.point(lab.options, {"batch_size": 64}, points.QUICK)
    full: list[torch.Tensor] = []
    for key, spared in lab.each({"full": _SPARED, "free": None}):
        with lab.entry(key) as facts:
            if spared is not None:
                free = torch.cuda.mem_get_info()[0]
                full.append(torch.empty(free - spared, dtype=torch.uint8, device="cuda"))
            try:
                row = bench.measure(axes).row
                facts.update(outcome="measured", median_ms=row["median_ms"])
            except OutOfMemory as error:
                facts.update(outcome="out of memory", peak=error.peak, limit=error.limit)
            full.clear()


def tests(lab: Lab) -> None:
    """Run the tests that need a GPU, file by file."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text()]
    names = sorted(str(path.relative_to(ROOT)) for path in files)[: lab.options.test_files]
    for key, name in lab.each({name: name for name in names}):
        with lab.entry(key) as facts, tempfile.TemporaryDirectory() as home:
            report = Path(home, "report.xml")
            words = (f"--junitxml={report}", "-m", "gpu", "-q", "-p", "no:cacheprovider", name)
            command = (sys.executable, "-m", "pytest", *words)
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=max(1.0, lab.left)
            )
            if not report.exists():
                raise RuntimeError(f"pytest ended with {done.returncode}: {done.stdout[-250:]}")
            facts.update(counted(report))


def counted(report: Path) -> dict[str, Any]:
    """Return of pytest's report how many tests passed and were skipped, and which failed."""
    cases = list(ET.parse(report).getroot().iter("testcase"))
    bad = [one for one in cases if one.find("failure") is not None or one.find("error") is not None]
    skipped = [one for one in cases if one.find("skipped") is not None]
    return {
        "passed": len(cases) - len(bad) - len(skipped),
        "skipped": len(skipped),
        "failed": [str(one.get("name")) for one in bad],
    }
