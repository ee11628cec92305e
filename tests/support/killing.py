"""Kills what a local submission started, again and again, and counts what is left of the points.

The driver of `test_kill.py`. Every process of a run is found by a mark
in its environment, so nothing else on the machine is ever touched.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import processmarks
from hpcsweep.store import row_reader
from hpcsweep.store.collect import collector
from hpcsweep.store.folders import SweepDir
from waiting import wait_for

MARK = "HPCSWEEP_TEST_MARK"
TARGETS = ("worker", "supervisor", "submit", "everything")
COMMAND = (sys.executable, "-c", "from hpcsweep.cli import run; run()")


@dataclass
class Outcome:
    """What a series of kills left."""

    points: int
    merged: int
    ok: int
    damaged: int
    extra_rows: int
    kills: Counter = field(default_factory=Counter)
    slowest_end: float = 0.0  # seconds that a process outlived its submit, at most

    @property
    def good(self) -> bool:
        """Say whether every promise was kept."""
        whole = self.merged == self.ok == self.points and self.damaged == 0
        return whole and self.extra_rows <= self.worker_losses

    @property
    def worker_losses(self) -> int:
        """Return how many workers lost the point that they were measuring, at most."""
        return (
            self.kills["worker"]
            + 2 * (self.kills["submit"] + self.kills["everything"])
            + (self.kills["supervisor"])
        )


def command(results: Path, *arguments: str) -> list[str]:
    """Return the argument list of one hpcsweep call."""
    return [*COMMAND, "--results", str(results), *arguments]


def marked(mark: str) -> dict[int, str]:
    """Return pid to role of every process of a run."""
    found = {}
    for pid in map(int, processmarks.marked(f"{MARK}={mark}")):  # a zombie has no environment
        with suppress(OSError):  # it has ended
            found[pid] = _role(Path(f"/proc/{pid}/cmdline").read_bytes())
    return found


def _role(words: bytes) -> str:
    if b"hpcsweep.node.worker" in words:
        return "worker"
    return "supervisor" if b"hpcsweep.node.supervisor" in words else "submit"


def kill(pid: int) -> None:
    """Kill with SIGKILL; gone already is fine."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def torment(folder: Path, spec: Path, points: int, rounds: int, seed: int) -> list[Outcome]:
    """Submit, kill at a random moment, submit again ... until `rounds` kills were done.

    A sweep that came to its end in spite of them is counted, and the next one begins.
    """
    rng = random.Random(seed)
    outcomes: list[Outcome] = []
    while sum(sum(outcome.kills.values()) for outcome in outcomes) < rounds:
        left = rounds - sum(sum(outcome.kills.values()) for outcome in outcomes)
        results = folder / f"results-{len(outcomes)}"
        outcomes.append(_one_sweep(results, spec, points, left, rng))
    return outcomes


def _one_sweep(results: Path, spec: Path, points: int, rounds: int, rng: random.Random) -> Outcome:
    kills: Counter[str] = Counter()
    slowest = 0.0
    while sum(kills.values()) < rounds:
        mark = uuid.uuid4().hex
        process = _submit(results, spec, mark)
        _let_it_work(mark, rng)
        target = rng.choice(TARGETS)
        struck = _strike(process.pid, mark, target, rng)
        kills[target] += struck
        process.wait(120)
        slowest = max(slowest, _gone_after(mark))
        if not struck:
            break  # it came to its end first
    done = _submit(results, spec, uuid.uuid4().hex)
    if done.wait(300) != 0:
        raise AssertionError(f"the last submit ended with {done.returncode}")
    return _count(SweepDir(results / spec.stem), points, kills, slowest)


def _submit(results: Path, spec: Path, mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(results, "submit", str(spec), "--cluster", "local", "--workers", "2"),
        env={**os.environ, MARK: mark},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _let_it_work(mark: str, rng: random.Random) -> None:
    """Wait for a worker, or for the end of the run, then for a random moment."""
    found = wait_for(
        "worker, or end of all",
        lambda: marked(mark),
        enough=lambda found: not found or "worker" in found.values(),
    )
    if found:
        time.sleep(rng.uniform(0, 0.8))


def _strike(submit: int, mark: str, target: str, rng: random.Random) -> bool:
    found = marked(mark)
    if target == "everything":
        for pid in found:
            kill(pid)
        return bool(found)
    chosen = [pid for pid, role in found.items() if role == target]
    if target == "submit" and submit not in found:
        return False
    if not chosen:
        return False
    kill(rng.choice(chosen))
    return True


def _gone_after(mark: str) -> float:
    """Return how long after its submit the last process of a run was gone."""
    begin = time.monotonic()
    try:
        wait_for("end of all", lambda: marked(mark), enough=lambda left: not left)
    finally:
        for pid in marked(mark):
            kill(pid)
    return time.monotonic() - begin


def _count(run: SweepDir, points: int, kills: Counter[str], slowest: float) -> Outcome:
    report = collector.collect(run)
    keys = [key for shard in run.shards() for key in row_reader.read_rows([shard])]
    distinct = {key["point_id"] for key in keys}
    good = {key["point_id"] for key in keys if key["status"] == "ok"}
    rows = run.overall.read_text().splitlines()[1:]
    return Outcome(
        points=points,
        merged=len(rows),
        ok=len(good),
        damaged=len(report.left_out) + len(report.unreadable),
        extra_rows=len(keys) - len(distinct),
        kills=kills,
        slowest_end=slowest,
    )
