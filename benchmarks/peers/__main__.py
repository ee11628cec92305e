"""What a study of points that do nothing costs with hpcsweep and with its peers.

::

    python -m benchmarks.peers [--points 200] [--runs 3] [--limit 600] [--kill] [--only NAME ...]

Every tool gets an environment of its own (made once, in `--environments`), runs the same points
with two processes, and ends with one table. Runs are interleaved; of each figure the median is
shown, of the wall time also minimum and maximum. CPU is that of all descendants that were waited
for; memory is the peak of the process tree (PSS, every 100 ms); files are all that is left in the
folder. A run that takes longer than `--limit` seconds is ended and told.

With `--kill` points last 20 ms, the tool and everything that it started gets SIGKILL when half of
them ran, and what its documentation says goes on from there: rows in the table then, and points
that ran twice.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.peers import watching
from benchmarks.peers.tools import STUDIES, TOOLS, Study, Tool
from benchmarks.peers.watching import Cost

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hpcsweep" / "peers"
_KILLED_POINT = 0.02  # seconds


def main() -> int:
    """Print a line per tool."""
    given = _arguments()
    tools = [tool for tool in TOOLS if any(name in tool.name for name in given.only)]
    for tool in tools:
        _install(tool, given.environments)
    print(f"{given.points} points, 2 processes; {platform.machine()}, {os.cpu_count()} CPUs, "
          f"Python {platform.python_version()}")  # fmt: skip
    if given.kill:
        return _killed(tools, given)
    costs: dict[str, list[Cost | str]] = {tool.name: [] for tool in tools}
    for _ in range(given.runs):
        for tool in tools:
            if not any(isinstance(cost, str) for cost in costs[tool.name]):
                costs[tool.name].append(_cost(tool, given))
    print("tool\twall s (min to max)\tCPU s\tCPU ms/point\tMiB\tfiles")
    for name, found in costs.items():
        print("\t".join([name, *_figures(found, given.points)]))
    return int(any(isinstance(cost, str) for cost in costs.get("hpcsweep", ())))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600, help="seconds for one run")
    parser.add_argument("--kill", action="store_true")
    parser.add_argument("--only", nargs="+", default=[""], help="tools whose names contain these")
    parser.add_argument("--environments", type=Path, default=_CACHE)
    return parser.parse_args()


def _install(tool: Tool, environments: Path) -> None:
    folder = environments / tool.environment
    if not tool.packages or (folder / "complete").exists():
        return
    print(f"installing {' '.join(tool.packages)}", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", *tool.packages]
    subprocess.run(pip, check=True)
    (folder / "complete").touch()


def _study(tool: Tool, given: argparse.Namespace, out: str, seconds: float) -> Study:
    programs = given.environments / tool.environment / "bin"
    return Study(given.points, seconds, Path(out), programs)


def _env(study: Study) -> dict[str, str]:
    return {
        "STUDY_OUT": str(study.out),
        "STUDY_POINTS": str(study.points),
        "STUDY_SLEEP": str(study.seconds),
        "PYTHONPATH": str(STUDIES),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(study.out / "home"),  # some keep state there
    }


def _cost(tool: Tool, given: argparse.Namespace) -> Cost | str:
    """Return what one run cost, or why it has no figures."""
    with tempfile.TemporaryDirectory(prefix="peers-") as out:
        study = _study(tool, given, out, 0.0)
        try:
            cost = watching.run(tool.commands(study), study.out, _env(study), given.limit)
        except watching.TooLongError:
            return f"ended after {given.limit:.0f} s, {sum(tool.calls(study).values())} points"
        except subprocess.CalledProcessError as error:
            log = (study.out / "log.txt").read_text(errors="replace").strip().splitlines()
            return f"failed with {error.returncode}: {log[-1] if log else ''}"
        rows = tool.rows(study)
        return cost if rows == given.points else f"{rows} rows instead of {given.points}"


def _figures(found: list[Cost | str], points: int) -> list[str]:
    if told := [cost for cost in found if isinstance(cost, str)]:
        return told[:1]
    costs = [cost for cost in found if isinstance(cost, Cost)]
    walls = [cost.wall for cost in costs]
    cpu = statistics.median(cost.cpu for cost in costs)
    return [
        f"{statistics.median(walls):.2f} ({min(walls):.2f} to {max(walls):.2f})",
        f"{cpu:.2f}",
        f"{1000 * cpu / points:.2f}",
        f"{statistics.median(cost.memory for cost in costs):.0f}",
        f"{statistics.median(cost.files for cost in costs):.0f}",
    ]


def _killed(tools: list[Tool], given: argparse.Namespace) -> int:
    """Print what is there after a kill at half way, and after the tool went on."""
    print("tool\tpoints when killed\trows in the end\tpoints that ran twice")
    good = True
    for tool in tools:
        if tool.resume is None:
            print(f"{tool.name}\t\tno way to go on: starts over")
            continue
        with tempfile.TemporaryDirectory(prefix="peers-") as out:
            study = _study(tool, given, out, _KILLED_POINT)
            shown = _resumed(tool, study)
        print("\t".join([tool.name, *map(str, shown)]), flush=True)
        good &= tool.name != "hpcsweep" or (shown[1] == given.points and shown[2] <= 2)
    return int(not good)


def _resumed(tool: Tool, study: Study) -> tuple[int, int, int]:
    half = study.points // 2
    env = _env(study)
    watching.run_and_kill(
        tool.commands(study), study.out, env, lambda: len(tool.calls(study)) >= half
    )
    killed = len(tool.calls(study))
    assert tool.resume is not None
    watching.run(tool.resume(study), study.out, env, limit=600)
    calls = tool.calls(study)
    return killed, tool.rows(study), sum(calls.values()) - len(calls)


if __name__ == "__main__":
    sys.exit(main())
