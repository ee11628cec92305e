"""An axis of each role is added in one line; everything that asks for roles knows it then."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import hpcsweep
from hpcsweep.catalog import AXES, Role
from paths import ROOT

ROLES = [role.name.lower() for role in Role]
SWEEP = """
workload: noop
axes:
  model: [resnet18]
  algorithm: [auto, gemm]
"""
FOLLOW = """
import json, sys
from hpcsweep.measure.model_builder import ModelKey
from hpcsweep.point import Point
from hpcsweep.catalog import axis_defaults, sizes_of_inputs
from hpcsweep.node import job_limits
from hpcsweep.forecast.training_data import SETTINGS
from hpcsweep.store.chunk_file import Chunk
from hpcsweep.submit import packing, estimate



def measured_side_by_side(axes, name):
    # Points of one value stay together, whatever else tells them apart.
    points = tuple(
        Point("inference", {**axes, "batch_size": size, name: value}, {}, f"{size:07}{value}")
        for size in range(1, 9)
        for value in (1, 2)
    )
    order = [point.axes[name] for point in packing.arranged(Chunk(0, points, 1.0)).points]
    return order == sorted(order) or order == sorted(order, reverse=True)


facts = {}
for role in sys.argv[1:]:
    axes = {**axis_defaults("inference"), "model": "resnet18"}
    points = [Point("inference", {**axes, f"axis_of_{role}": value}) for value in (1, 2)]
    known = job_limits.OutOfMemoryPoints([points[0].axes])
    facts[role] = {
        "network in memory": ModelKey.of(points[0]) != ModelKey.of(points[1]),
        "network of the order": measured_side_by_side(axes, f"axis_of_{role}"),
"kind of an estimate": f"axis_of_{role}" in estimate.names_of_kind("inference"),
        "setting of a prediction": f"axis_of_{role}" in SETTINGS,
        "sampled": f"axis_of_{role}" in sizes_of_inputs(),
        "skipped after a smaller one": bool(known.why_skip(points[1].axes)),
    }
print(json.dumps(facts))
"""
# The axis's values make: a new one of what?
EXPECTED = {
    "network": {
        "network in memory", "network of the order", "kind of an estimate",
        "setting of a prediction",
    },
    "input": {"kind of an estimate", "setting of a prediction"},
    "amount": {"setting of a prediction"},
    "setting": {"kind of an estimate", "setting of a prediction"},
    "numbers": set(),
    "repetition": set(),
    "place": {"setting of a prediction"},
}  # fmt: skip


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Return the folder of a copy of the program with one more axis of each role."""
    folder = tmp_path_factory.mktemp("copy")
    source = Path(hpcsweep.__file__).parent
    shutil.copytree(source, folder / "hpcsweep", ignore=shutil.ignore_patterns("__pycache__"))
    with (folder / "hpcsweep" / "catalog" / "axes.csv").open("a") as file:
        for role in ROLES:
            file.write(f"axis_of_{role},int,1,,,inference training noop,{role},throw-away\n")
    return folder


def run(program, *command, cwd=None):
    """Run a Python command on the copy and return what it printed."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(program)},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_axis_has_a_role():
    """Nobody forgets it: the usual one is that of a setting."""
    assert all(axis.role for axis in AXES.values())
    assert {role for axis in AXES.values() for role in axis.role} == set(Role)


def test_a_new_axis_is_known_wherever_its_role_is_asked_for(program):
    """A missed one would be measured with another network."""
    facts = json.loads(run(program, "-c", FOLLOW, *ROLES))
    found = {role: {name for name, true in facts[role].items() if true} for role in ROLES}
    assert found == EXPECTED


def test_a_new_axis_is_in_ids_and_groups_and_labels(program, tmp_path):
    """Its default changes no id; repetitions are one row of a report, other values two."""
    axes = ("axis_of_network", "axis_of_repetition")
    (tmp_path / "demo.yaml").write_text(SWEEP + "".join(f"  {axis}: [1, 2]\n" for axis in axes))
    (tmp_path / "plain.yaml").write_text(SWEEP)
    shutil.copytree(ROOT / "cluster_profiles", tmp_path / "cluster_profiles")
    command = ("-c", "from hpcsweep.cli import run; run()")
    run(program, *command, "submit", "demo.yaml", "--cluster", "local", "--collect", cwd=tmp_path)
    shown = json.loads(run(program, *command, "show", "demo", "--json", cwd=tmp_path))
    expand = ("expand", "plain.yaml", "--cluster", "local", "--json")
    plain = json.loads(run(program, *command, *expand, cwd=tmp_path))
    old = {point["point_id"] for point in plain["expansions"][0]["points"]}
    ids = {point["point_id"]: {point[axis] for axis in axes} for point in shown["points"]}
    assert {point for point, values in ids.items() if values == {"1"}} == old
    assert len(ids) == 8
    report = json.loads(run(program, *command, "report", "demo", "--json", cwd=tmp_path))
    assert [row["axis_of_network"] for row in report["rows"]] == [1, 2]
