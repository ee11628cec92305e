"""What a study of points that do nothing costs with hpcsweep and with its peers.

::

    python -m benchmarks.peers                              # everything, in about ten minutes
    python -m benchmarks.peers small kill --only exca hpcsweep
    python -m benchmarks.peers large --points 5000 --limit-s 120

Every tool gets an environment of its own (made once, in `--environments`), runs the same points
with two processes, and ends with one table. The tables are Markdown:

    small  200 points; runs take turns, up to three of each tool (one where a run takes long)
    large  20,000 points, once
    kill   100 points of 20 ms: the tool and all that it started get SIGKILL when half of them ran,
           and what its documentation says goes on from there

CPU is that of all descendants; memory is the peak of the process tree (PSS, every 100 ms); files
are all that is left in the folder. A run that takes longer than the limit of its part is ended with
all that it started, and its line says how many points it had done until then: its other figures are
those of this part of the study.
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import hpcsweep
from benchmarks.markdown import print_head, print_row
from benchmarks.peers import watching
from benchmarks.peers.tools import STUDIES, TOOLS, Study, Tool
from benchmarks.peers.watching import Cost

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hpcsweep" / "peers"
_KILLED_POINT = 0.02  # seconds
_TIRING = 5.0  # seconds: what takes longer runs once
_STARTING = "tool | wall s, median (range) | points/s | CPU s | CPU ms per point | MiB | files"
_GOING_ON = "tool | goes on with | points when killed | rows in the end | points that ran twice | s"


@dataclass(frozen=True)
class Part:
    """A part of the benchmark: its points, runs at most, and seconds for a run."""

    points: int
    runs: int
    limit: float


_PARTS: Final = {
    "small": Part(200, 3, 120),
    "large": Part(20_000, 1, 45),
    "kill": Part(100, 1, 120),
}
_Run = tuple[Cost, int] | str
"""What a run cost and how many points it did; or what was wrong with it."""


def main() -> int:
    """Print the tables; return 1 if hpcsweep did not do all that it should."""
    given = _arguments()
    tools = [tool for tool in TOOLS if any(name in tool.name for name in given.only)]
    for tool in tools:
        _install(tool, given.environments)
    print(f"2 processes; {platform.machine()}, {os.cpu_count()} CPUs, "
          f"Python {platform.python_version()}")  # fmt: skip
    good = True
    begin = time.monotonic()
    for name in given.parts:
        usual = _PARTS[name]
        part = Part(
            given.points or usual.points, given.runs or usual.runs, given.limit_s or usual.limit
        )
        print(f"\n{name}: {part.points:,} points, at most {part.limit:g} s for a run\n")
        good &= (_killed if name == "kill" else _measured)(tools, part, given.environments)
    print(f"\n{time.monotonic() - begin:.0f} s in all")
    return int(not good)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*_PARTS], help=f"of {', '.join(_PARTS)}")
    parser.add_argument("--points", type=int, help="instead of each part's own")
    parser.add_argument("--runs", type=int, help="of each tool at most")
    parser.add_argument("--limit-s", type=float, help="seconds for one run")
    parser.add_argument("--only", nargs="+", default=[""], help="tools whose names contain these")
    parser.add_argument("--environments", type=Path, default=_CACHE)
    given = parser.parse_args()
    if unknown := set(given.parts) - set(_PARTS):
        parser.error(f"no such part: {', '.join(unknown)}")
    return given


def _install(tool: Tool, environments: Path) -> None:
    folder = environments / tool.environment
    if not tool.packages:  # ours: compiled as pip leaves the others
        compileall.compile_dir(Path(hpcsweep.__file__).parent, quiet=1)
    if not tool.packages or (folder / "complete").exists():
        return
    print(f"installing {' '.join(tool.packages)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *tool.packages]
    subprocess.run(pip, check=True)
    (folder / "complete").touch()


def _env(study: Study) -> dict[str, str]:
    return {
        "STUDY_OUT": str(study.out),
        "STUDY_POINTS": str(study.points),
        "STUDY_SLEEP": str(study.seconds),
        "PYTHONPATH": str(STUDIES),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(study.out / "home"),  # some keep state there
    }


def _measured(tools: list[Tool], part: Part, environments: Path) -> bool:
    """Print what the study costs from nothing to the table."""
    found: dict[str, list[_Run]] = {tool.name: [] for tool in tools}
    for _ in range(part.runs):
        for tool in tools:
            runs = found[tool.name]
            if not runs or (not isinstance(runs[-1], str) and runs[-1][0].wall < _TIRING):
                runs.append(_run(tool, part, environments))
    print_head(_STARTING)
    for name, runs in found.items():
        print_row(name, *_figures(runs))
    return all(not isinstance(run, str) and run[0].complete for run in found.get("hpcsweep", ()))


def _run(tool: Tool, part: Part, environments: Path) -> _Run:
    with tempfile.TemporaryDirectory(prefix="peers-") as out:
        study = Study(part.points, 0.0, Path(out), environments / tool.environment / "bin")
        try:
            cost = watching.run(tool.commands(study), study.out, _env(study), part.limit)
        except subprocess.CalledProcessError as error:
            log = (study.out / "log.txt").read_text(errors="replace").strip().splitlines()
            return f"failed with {error.returncode}: {log[-1] if log else ''}"
        if not cost.complete:
            return cost, sum(tool.calls(study).values())
        rows = tool.rows(study)
        return (cost, rows) if rows == part.points else f"{rows} rows instead of {part.points}"


def _figures(runs: list[_Run]) -> list[str]:
    if wrong := [run for run in runs if isinstance(run, str)]:
        return wrong[:1]
    good = [run for run in runs if not isinstance(run, str)]
    costs = [cost for cost, _ in good]
    points = good[0][1]
    wall, cpu, memory, files = (
        statistics.median(getattr(cost, name) for cost in costs)
        for name in ("wall", "cpu", "memory", "files")
    )
    return [
        _wall([cost.wall for cost in costs]) if costs[0].complete
        else f"**ended after {wall:.0f} s, {points:,} points**",
        f"{points / wall:,.1f}",
        f"{cpu:.2f}",
        f"{1000 * cpu / points:.2f}" if points else "",
        f"{memory:.0f}",
        f"{files:.0f}",
    ]  # fmt: skip


def _wall(walls: list[float]) -> str:
    range_ = f" ({min(walls):.2f} to {max(walls):.2f})" if len(walls) > 1 else ""
    return f"{statistics.median(walls):.2f}{range_}"


def _killed(tools: list[Tool], part: Part, environments: Path) -> bool:
    """Print what is there after a kill at half way, and after the tool went on."""
    print_head(_GOING_ON)
    good = True
    for tool in tools:
        with tempfile.TemporaryDirectory(prefix="peers-") as out:
            programs = environments / tool.environment / "bin"
            study = Study(part.points, _KILLED_POINT, Path(out), programs)
            killed, ended = _resumed(tool, study, part.limit)
            calls = tool.calls(study)
            rows = tool.rows(study)
        twice = sum(calls.values()) - len(calls)
        print_row(tool.name, tool.how, killed, rows, twice, ended)
        good &= tool.name != "hpcsweep" or (rows == part.points and twice <= 2)
    return good


def _resumed(tool: Tool, study: Study, limit: float) -> tuple[int, str]:
    """Return how many points there were when it was killed, and how it went on."""
    half = study.points // 2
    env = _env(study)
    watching.run_and_kill(
        tool.commands(study), study.out, env, lambda: len(tool.calls(study)) >= half, limit
    )
    killed = len(tool.calls(study))
    try:
        cost = watching.run(tool.resume(study), study.out, env, limit)
    except subprocess.CalledProcessError as error:
        return killed, f"failed with {error.returncode}"
    return killed, f"{cost.wall:.1f}" if cost.complete else f"**ended after {cost.wall:.0f} s**"


if __name__ == "__main__":
    sys.exit(main())
