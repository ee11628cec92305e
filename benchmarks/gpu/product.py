"""The product as people use it: a sweep by its commands, and its tests."""

from __future__ import annotations

import csv
import json
import sys
from typing import TYPE_CHECKING, Any, Final

from benchmarks.gpu import ROOT
from benchmarks.gpu.environment import PRETENDED

if TYPE_CHECKING:
    import pytest

    from benchmarks.gpu.lab import Lab

# what telemetry owes every row of an NVIDIA GPU
TELEMETRY: Final = (
    *("sm_clock_mhz_mean", "sm_clock_mhz_min", "gpu_util_pct", "power_limit_w"),
    *("temp_c_start", "temp_c_end", "driver_version"),
)
_KEPT: Final = (
    *("status", "status_reason", "algorithm", "launch", "valid", "flags", "median_ms"),
    *("algorithm_evidence", "algorithm_coverage_pct", "throttle_reasons"),
    *("seconds", *TELEMETRY),
)


def supervised(lab: Lab) -> None:
    """Measure a sweep by the commands: submit, its worker, collect; keep what its rows say.

    Its results stay beside the step's file, so that a sweep that was cut off goes on.
    """
    folder = lab.record.folder
    assert folder is not None
    spec = folder / "proof.yaml"
    results = folder / "results"
    for key, text in lab.each({"sweep": _sweep(lab)}):
        with lab.entry(key) as facts:
            spec.write_text(json.dumps(text))
            command = (sys.executable, "-m", "hpcsweep", "--results", str(results))
            lab.call(*command, "submit", str(spec), "--cluster", "local")
            lab.call(*command, "collect", "proof")
            (table,) = results.rglob("overall.csv")
            details = table.with_name("details.csv")
            with table.open(newline="") as file, details.open(newline="") as more:
                pairs = zip(csv.DictReader(file), csv.DictReader(more), strict=True)
                rows = [{**rest, **row} for row, rest in pairs]
            facts["rows"] = [{n: row[n] for n in _KEPT if row.get(n)} for row in rows]


def _sweep(lab: Lab) -> dict[str, Any]:
    """Return a sweep whose second point is the first one once more, in the same worker."""
    return {
        "name": "proof",
        "workload": "inference",
        "axes": {
            "model": [lab.options.model],
            "input_size": [lab.options.size],
            "launch": ["eager", "graph"],
        },
        "measure": {"iterations": lab.options.iterations, "repeats": 2},
    }


def tests(lab: Lab) -> None:
    """Run the tests that need a GPU, all in this process."""
    import pytest  # noqa: PLC0415 - the other steps need none

    place = ROOT / lab.options.tests
    files = [place] if place.is_file() else sorted(place.rglob("test_*.py"))
    names = [str(path) for path in files if "mark.gpu" in path.read_text()]
    words = ("-m", "gpu", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}")
    status = pytest.main([*words, *names], plugins=[_Results(lab)])
    if not lab.record.planned:
        raise RuntimeError(f"pytest ended with {status!r} before any test")


class _Results:
    """A plugin of pytest that keeps the result of each test in the step's file."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Leave out what an earlier call ran, and on a pretend GPU what needs a real one."""
        record = self._lab.record
        tests = session.items
        if record.environment["kind"] == PRETENDED:
            tests = [test for test in tests if not _needs_a_real_one(test)]
        record.plan(test.nodeid for test in tests)
        session.items = [test for test in tests if test.nodeid in record.missing]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Say of a test that takes the process along that it did; another call leaves it out."""
        self._lab.record.fail(nodeid, "did not end")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the outcome of a test's body, or what else did not pass."""
        if report.when == "call" or report.outcome != "passed":
            said = (line for line in report.longreprtext.splitlines() if line.startswith("E "))
            why = next(said, "") if report.failed else ""
            self._lab.record.put(report.nodeid, {"outcome": report.outcome, "why": why[:300]})

    def pytest_runtest_logfinish(self) -> None:
        """End when the time is over."""
        import pytest  # noqa: PLC0415

        if self._lab.left <= 0:
            pytest.exit("the time of this step is over", returncode=0)


def _needs_a_real_one(test: pytest.Item) -> bool:
    marker = test.get_closest_marker("gpu")
    return marker is not None and bool(marker.kwargs.get("real"))
