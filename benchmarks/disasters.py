"""What disasters cost sweeps on a real Slurm on this machine (as root).

    python benchmarks/disasters.py [--disasters 12] [--sweeps 3] [--seed 0] [--launcher sbatch]

In each round so many no-op sweeps run at once, on the lab's nodes in turn, in partitions that give
way; at a random moment one disaster strikes one of them or its node; then the same commands are
typed until nothing is missing, and the rounds' rows are counted. Kinds are drawn at random, each
once before any comes again. Exits 1 when a point is lost, or more than one point of a chunk was
measured twice, or an attempt wrote after a newer one had begun.

slurmctld is killed after it has saved its state, which it does within 5 s: what it forgets is
Slurm's affair.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))
import surviving
from lab import PATH, Lab, Options, why_not

if TYPE_CHECKING:
    from surviving import Left, Sweep

NODES = {"v100n1": "gpu2v100", "l40sn1": "gpul40s", "mi250n1": "mi250"}
SITES = [
    (node, f"partition: {partition}\nconstraint: {feature}\narray_throttle: 2\n")
    for partition in ("low", "lowcancel")
    for node, feature in NODES.items()
]


def main() -> int:
    """Start a cluster, let the disasters happen, print what they left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--disasters", type=int, default=12)
    parser.add_argument("--sweeps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--launcher", choices=["sbatch", "submitit"], default="sbatch")
    options = parser.parse_args()
    if reason := why_not():
        sys.exit(reason)
    rng = random.Random(options.seed)
    os.environ["PATH"] = PATH
    where = Path(tempfile.gettempdir()) / f"hpcsweep-lab-{uuid4().hex[:12]}"
    lab = Lab(where, Options(slurmd_timeout=8)).start()
    os.environ.update(lab.environment)
    print(f"{'disaster':<24} points  lost  twice  late  attempts  cut short  submits")
    try:
        with tempfile.TemporaryDirectory() as folder:
            rounds = [
                _round(lab, Path(folder) / str(number), kind, options, rng)
                for number, kind in enumerate(_kinds(options.disasters, rng))
            ]
    finally:
        lab.stop()
    everything = [left for found in rounds for left in found]
    _print_row("all", everything, "")
    return 0 if all(left.nothing_lost for left in everything) else 1


def _kinds(count: int, rng: random.Random) -> list[str]:
    drawn: list[str] = []
    while len(drawn) < count:
        drawn += rng.sample(list(KINDS), len(KINDS))
    return drawn[:count]


def _round(
    lab: Lab, folder: Path, kind: str, options: argparse.Namespace, rng: random.Random
) -> list[Left]:
    """Let one disaster strike while sweeps run, bring all to their end, and print a line."""
    folder.mkdir()
    count = options.sweeps
    launcher = f"launcher: {options.launcher}\n"
    homes = [SITES[number % len(SITES)] for number in range(count)]
    sweeps = [
        surviving.sweep(lab, folder / f"{number}", site + launcher, chunk=6, sleep_ms=300)
        for number, (_, site) in enumerate(homes)
    ]
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(lambda one: one.begin(), sweeps))
        time.sleep(rng.uniform(0, 1))
        struck = rng.randrange(count)
        KINDS[kind](lab, sweeps[struck], homes[struck][0], rng)
        said = list(pool.map(lambda one: one.finish(), sweeps))
        left = list(pool.map(lambda one: one.left(), sweeps))
    _print_row(kind, left, str(max(map(len, said))))
    return left


def _print_row(kind: str, found: list[Left], submits: str) -> None:
    points = sum(x.points for x in found)
    attempts = sum(x.attempts for x in found)
    cells = (
        f"{points:<6}  {points - sum(x.ok for x in found):<4}",
        f"{sum(sum(x.twice.values()) for x in found):<5}  {sum(len(x.late) for x in found):<4}",
        f"{attempts:<8}  {sum(x.interrupted for x in found):<9}  {submits}",
    )
    print(f"{kind:<24}", "  ".join(cells), flush=True)


def _kill_node(lab: Lab, one: Sweep, node: str, _rng: random.Random) -> None:
    lab.kill(node)
    one.wait("the loss", lambda: "down" in lab.run("sinfo", "-hn", node, "-o", "%T").stdout)
    lab.spawn(node)


def _requeue(lab: Lab, one: Sweep, _node: str, _rng: random.Random) -> None:
    for job in one.running()[:1]:
        lab.run("scontrol", "requeue", str(job.id), check=False)  # it may have ended just now


def _cancel(lab: Lab, one: Sweep, _node: str, _rng: random.Random) -> None:
    lab.run("scancel", *{str(job.id.job) for job in one.jobs()})


def _kill_submit(lab: Lab, one: Sweep, node: str, rng: random.Random) -> None:
    """Cancel the jobs, and kill the command that sends the rest, at any moment of it."""
    _cancel(lab, one, node, rng)
    one.wait("the end of the jobs", lambda: all(job.state.over for job in one.jobs()))
    submit = one.desk.start("submit", "s.yaml", "--cluster", "any")
    time.sleep(rng.uniform(0.2, 2.5))
    submit.kill()
    submit.communicate()


def _preempt(lab: Lab, _one: Sweep, node: str, _rng: random.Random) -> None:
    what = ("--output=/dev/null", "--exclusive", f"--nodelist={node}", "--wrap", "sleep 1")
    lab.run("sbatch", "--partition=all", *what)
    time.sleep(2)  # the scheduler's


def _kill_slurmctld(lab: Lab, one: Sweep, _node: str, _rng: random.Random) -> None:
    surviving.wait_for_saved_state(one)
    lab.kill("slurmctld")
    time.sleep(3)
    lab.spawn("slurmctld")


KINDS = {
    "a node is killed": _kill_node,
    "scontrol requeue": _requeue,
    "scancel": _cancel,
    "submit is killed": _kill_submit,
    "preemption": _preempt,
    "slurmctld is killed": _kill_slurmctld,
}


if __name__ == "__main__":
    sys.exit(main())
