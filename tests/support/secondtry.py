"""Tells tests that fail by chance from those that fail: `pytest --second-try`.

What failed runs once more after everything else, alone in a process of its own, when nothing else
of the suite keeps the machine busy. What passes then is *flaky*: it is listed before the summary
and in tests/flaky.txt, and does not fail the run. That file has to be empty at a release, so a
flaky test is mended, not forgotten.

Tests marked `no_second_try` show that nothing measured is lost, doubled or cancelled. They get no
second try, since even a rare loss is one.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

MARK: Final = "no_second_try"
FLAKY: Final = Path("tests", "flaky.txt")
_MOST: Final = 12  # tests; where more fail, something is broken, and the run has no time to look
_SECONDS: Final = 300.0  # of one test; the longest takes one minute on a quiet machine


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--second-try`."""
    parser.addoption("--second-try", action="store_true", help="run what failed again, alone")


def pytest_configure(config: pytest.Config) -> None:
    """Begin to listen, in the process that reports."""
    if config.getoption("--second-try") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(SecondTry(config))


class SecondTry:
    """Runs what failed once more at the end of the run, and reports what passed then."""

    def __init__(self, config: pytest.Config) -> None:
        """Know of no flaky test yet."""
        self._config = config
        self._flaky = dict[str, Any]()  # the first failure of each, by its id

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Any:
        """Try again what failed, before the summary is written and the exit status is used."""
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            self._try_again()
            stats = self._stats()
            if not stats.get("failed") and not stats.get("error"):
                session.exitstatus = pytest.ExitCode.OK
        return (yield)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """List the flaky tests with what they saw at their first try."""
        if not self._flaky:
            return
        terminalreporter.section("passed at the second try")
        for nodeid, report in self._flaky.items():
            terminalreporter.line(f"{report.longrepr}")
            terminalreporter.line(f"flaky: {nodeid}")

    def _stats(self) -> dict[str, list[Any]]:
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        stats: dict[str, list[Any]] = reporter.stats
        return stats

    def _try_again(self) -> None:
        stats = self._stats()
        reports = [*stats.get("failed", ()), *stats.get("error", ())]
        # a module that cannot be imported has no test that could be run again
        if any(not isinstance(report, pytest.TestReport) for report in reports):
            return
        first = dict[str, Any]()
        for report in reports:
            first.setdefault(report.nodeid, report)
        if len(first) > _MOST:
            return
        slow_too = self._config.getoption("all", default=False)
        for nodeid, report in first.items():
            if passes_alone(nodeid, self._config.rootpath, slow_too):
                self._flaky[nodeid] = report
        for kind in ("failed", "error"):
            stats[kind] = [one for one in stats.get(kind, ()) if one.nodeid not in self._flaky]
        stats.setdefault("flaky", []).extend(self._flaky.values())
        note(self._config.rootpath / FLAKY, list(self._flaky))


def passes_alone(nodeid: str, root: Path, slow_too: object) -> bool:
    """Run one test in a process of its own; say whether it may run again, ran, and passed."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", nodeid]
    command += ["-m", f"not {MARK}", *(["--all"] if slow_too else [])]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return False
    # the status is 0, too, where the test is skipped
    last = done.stdout.strip().rpartition("\n")[2]
    return done.returncode == 0 and "1 passed" in last and "skipped" not in last


def note(path: Path, flaky: list[str]) -> None:
    """Add names to the file of flaky tests, each once."""
    if flaky and path.parent.is_dir():
        known = path.read_text().splitlines() if path.exists() else []
        path.write_text("".join(f"{name}\n" for name in dict.fromkeys([*known, *flaky])))
