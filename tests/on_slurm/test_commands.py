"""Programs of the user's own on a real Slurm."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

from labtools import furnished, wait_for_the_end

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab

SPEC = """\
name: s
workload: command
axes: {lr: [0.1, 0.2, 0.3], text: [plain, "it's $(touch gone)"]}
run: python one.py {lr} {text} {out}
results: {csv: "{out}/end.csv"}
"""
SCRIPT = """\
import os, subprocess, sys, time
lr, text, out = sys.argv[1:]
subprocess.Popen(["sleep", "300"], start_new_session=True)
passes = [name for name in ("first", "second") if os.path.exists(name)]
for name in passes[:1]:
    os.remove(name)
while not passes and not os.path.exists("go"):
    time.sleep(0.05)  # until it is killed
if lr == "0.3":
    sys.exit("slurmstepd: error: Detected 1 oom_kill event in StepId=1.0.")
open(out + "/end.csv", "w").write(f"epoch,score,said\\n1,0,\\n2,{float(lr) * 10},\\"{text}\\"\\n")
"""


@pytest.mark.no_second_try
def test_a_program_is_killed_half_way_and_finished(cluster: Lab, tmp_path: Path):
    """Many runs in one job; what was cancelled is sent again; each point has one row."""
    folder = tmp_path / "it's a desk"
    desk = furnished(folder, SPEC)
    (folder / "one.py").write_text(SCRIPT)
    (folder / "first").touch()
    (folder / "second").touch()

    done = desk.run("submit", "s.yaml", "--cluster", "v100")
    assert done.returncode == 0, done.stderr
    cluster.wait_for("two rows", lambda: desk.rows("s"), enough=lambda found: len(found) == 2)
    cluster.run("scancel", "--user=root")
    wait_for_the_end(cluster)
    assert len(desk.rows("s")) == 2
    (folder / "go").touch()
    done = desk.run("submit", "s.yaml", "--cluster", "v100")
    assert done.returncode == 0, done.stderr
    wait_for_the_end(cluster)
    found = [row["point_id"] for row in desk.rows("s")]
    assert len(found) == len(set(found)) == 6
    assert desk.run("collect", "s").returncode == 0
    with desk.sweep("s").overall.open(newline="") as file:
        rows = [*csv.DictReader(file)]
    told = {(row["lr"], row["text"], row["status"], row["score"], row["said"]) for row in rows}
    text = "it's $(touch gone)"
    assert told == {
        ("0.1", "plain", "ok", "1", "plain"), ("0.1", text, "ok", "1", text),
        ("0.2", "plain", "ok", "2", "plain"), ("0.2", text, "ok", "2", text),
        ("0.3", "plain", "oom", "", ""), ("0.3", text, "oom", "", ""),
    }  # fmt: skip
    assert not (folder / "gone").exists()
