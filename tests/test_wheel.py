"""The built wheel works installed elsewhere: templates, profiles and sweeps come with it.

Without an extra it plans, submits and collects; what more is needed is named with its extra.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import lightenv
from hpcsweep.errors import MissingDependency
from paths import ROOT

NOOP = "workload: noop\naxes: {model: [a, b]}\n"
NETWORK = "workload: inference\naxes: {model: [resnet18]}\n"
PROFILE = "gpu: v100\npartition: gpu\ntime: 30\n"
# What needs an extra, and which. `desk` has a collected sweep `noop`.
NEEDED = {
    "submit net.yaml --cluster local": "measure",
    "submit net.yaml --cluster v100.yaml": "measure",
    "submit net.yaml --cluster v100.yaml --dry-run": "measure",
    "verify net.yaml --cluster local": "measure",
    "submit net.yaml --cluster local --download": "measure",
    "submit noop.yaml --cluster submitit.yaml": "submitit",
    "layers noop": "analysis",
    "best noop": "analysis",
    "bundle noop": "analysis",
    "compare noop noop": "analysis",
    "plot noop": "analysis",
    "roofline --example": "analysis",
    "predict noop.yaml --from noop": "predict",
    "submit noop.yaml --cluster local --until-error 5%": "predict",
    "report noop --html page.html": "analysis",
    "plot noop --out plot.png": "plot",
    "roofline --example --out roofline.png": "plot",
    "collect noop --parquet": "parquet",
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory, light) -> Path:
    """Return a folder in which that one has measured a sweep and collected it."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "noop.yaml").write_text(NOOP)
    (folder / "net.yaml").write_text(NETWORK)
    (folder / "v100.yaml").write_text(PROFILE)
    (folder / "submitit.yaml").write_text(f"{PROFILE}launcher: submitit\n")
    done = light.run(folder, "submit", "noop.yaml", "--cluster", "local")
    assert (done.returncode, "2 ok" in done.stdout) == (0, True), done.stderr
    done = light.run(folder, "collect", "noop")
    assert (done.returncode, "2 points (2 ok)" in done.stdout) == (0, True), done.stderr
    return folder


def test_the_wheel_carries_what_the_commands_look_up(wheel):
    """Every file of the three folders, and the mark of a typed package."""
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("sweeps", "cluster_profiles", "jobs/templates", "jobs/apptainer"):
        for path in (ROOT / folder).glob("*.*"):
            assert f"hpcsweep/_data/{folder}/{path.name}" in names
    assert "hpcsweep/py.typed" in names


def test_without_an_extra_there_is_no_torch_and_no_table_library(light):
    """What stands in `packages` is all that there is."""
    names = {path.name.lower() for path in light.site.iterdir()}
    assert names.isdisjoint({"torch", "torchvision", "pandas", "numpy", "scipy", "matplotlib"})
    assert {"click", "pydantic", "jinja2"} <= names
    where = light.call(
        light.home, str(light.python), "-c", "import hpcsweep as h; print(h.__file__)"
    )
    assert where.stdout.startswith(str(light.site))


def test_shipped_sweeps_and_profiles_are_found_from_any_folder(light, tmp_path):
    """By name, and by the path that they have in a clone, as the help writes it."""
    for command, done in light.many(
        tmp_path,
        "expand quickstart --json",
        "expand sweeps/quickstart.yaml --json",
        "estimate sweeps/resnet152_gemm.yaml --cluster cluster_profiles/v100.yaml --json",
    ):
        assert done.returncode == 0, (command, done.stderr)
        assert json.loads(done.stdout), command


def test_points_are_read_without_a_table_library(light, desk):
    """`status` and `show` read shards; a report of single visits needs no statistics."""
    commands = ("status noop --json", "show noop --json", "report noop")
    (_, status), (_, shown), (_, reported) = light.many(desk, *commands)
    assert status.returncode == 0, status.stderr
    assert "2 ok" in reported.stdout, reported.stderr
    assert [point["status"] for point in json.loads(shown.stdout)["points"]] == ["ok", "ok"]


def test_what_is_missing_is_told_with_its_extra(light, desk):
    """In one line, with an exit code of its own, before anything is written."""
    for command, done in light.many(desk, *NEEDED):
        assert done.returncode == MissingDependency.exit_code, (command, done.stderr)
        (line,) = done.stderr.splitlines()
        assert f"pip install 'hpcsweep[{NEEDED[command]}]'" in line, command
    assert not (desk / "results" / "net").exists()


def test_python_code_is_told_too(light, desk):
    """As an exception of hpcsweep."""
    code = "import hpcsweep; hpcsweep.load('noop')"
    done = light.call(desk, str(light.python), "-c", code)
    last = done.stderr.splitlines()[-1]
    assert "MissingDependency" in last
    assert "pip install 'hpcsweep[analysis]'" in last


def test_the_doctor_names_each_extra_and_what_stays_empty(light, desk):
    """Nothing of it is a failure: submitting works."""
    done = light.run(desk, "doctor", "--json")
    assert done.returncode == 0, done.stdout
    (machine,) = json.loads(done.stdout)["machines"]
    found = {one["what"]: one for one in machine["findings"]}
    assert "sm_clock_mhz_mean" in found["[nvidia]"]["detail"]
    assert found["[measure]"]["do"] == "pip install 'hpcsweep[measure]'"
    assert {one["level"] for one in found.values()} <= {"ok", "none", "warn"}


def test_a_worker_without_torch_refuses_the_chunk_and_names_the_extra(light, desk):
    """A job may have another Python than the one that submitted it."""
    code = "import sys; from hpcsweep.node import worker; sys.exit(worker.main(sys.argv[1:]))"
    wanted = {"HPCSWEEP_WORKLOAD": "inference", "HPCSWEEP_RUN": "{}", "PATH": os.environ["PATH"]}
    mine, its = socket.socketpair()
    command = [light.python, "-c", code, str(its.fileno())]
    with mine, its:
        worker = subprocess.Popen(command, cwd=desk, env=wanted, pass_fds=[its.fileno()])
        its.close()  # only the worker holds it
        hello = json.loads(mine.makefile().readline())
        assert worker.wait(60) == MissingDependency.exit_code
    assert "pip install 'hpcsweep[measure]'" in hello["refused"]


@pytest.mark.slow
def test_from_pypi_the_light_install_is_small(tmp_path, wheel):
    """Under 100 MB in an empty environment; it plans and measures a no-op."""
    made = lightenv.empty(tmp_path / "env")
    pip = [sys.executable, "-m", "pip", f"--python={made.python}", "install", "--quiet"]
    subprocess.run([*pip, wheel], check=True, capture_output=True, timeout=300)
    size = sum(path.stat().st_size for path in made.site.rglob("*") if path.is_file()) / 1e6
    assert size < 100
    shutil.copyfile(ROOT / "sweeps" / "quickstart.yaml", tmp_path / "mine.yaml")
    assert made.run(tmp_path, "expand", "mine.yaml").returncode == 0
    (tmp_path / "noop.yaml").write_text(NOOP)
    assert made.run(tmp_path, "submit", "noop.yaml", "--cluster", "local").returncode == 0
