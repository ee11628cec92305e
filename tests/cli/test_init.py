"""`init` on a machine without Slurm; tests/on_slurm/test_init.py has it on a cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcsweep.errors import PointsFailed, Refused

ALONE = {"PATH": "/nowhere"}  # no sbatch


@pytest.fixture
def home(tmp_path_factory, monkeypatch):
    """Return the configuration folder of a person who begins."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    monkeypatch.delenv("HPCSWEEP_CLUSTER")
    return folder / "hpcsweep"


def test_it_ends_with_the_row_of_a_point(desk, home):
    """Measured on this machine, anew each time; `submit` then needs no profile."""
    for times in (1, 2):
        done = desk.run("init", "--noop", "--json", **ALONE)
        assert done.returncode == 0, done.stderr
        record = json.loads(done.stdout)
        assert (record["cluster"], record["row"]["status"]) == ("local", "ok")
        assert len(desk.rows("init")) == times
    assert desk.sweep("init").overall.is_file()
    desk.spec("workload: noop\naxes: {model: [a]}\n")
    assert desk.run("submit", "sweep.yaml").returncode == 0
    told = desk.run("config").stdout
    assert ["submit.cluster", "local", f"{home}/config.toml:1"] in [
        line.split() for line in told.splitlines()
    ]


@pytest.mark.slow
def test_a_network_is_measured_where_torch_is(desk, home):
    """The row has a time."""
    done = desk.run("init", "--json", **ALONE)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)["row"]
    assert row["model"] == "resnet18"
    assert float(row["median_ms"]) > 0


def test_what_a_person_configured_is_kept(desk, home):
    """One key is set, in its place; comments and tables stay."""
    home.mkdir()
    before = "# mine\nresults = 'out'\ncluster = 'old'\n\n[submit]\nsample = 3\n"
    (home / "config.toml").write_text(before)
    arguments = ("init", "--cluster", "local", "--wait", "0")
    done = desk.run(*arguments, **ALONE)
    assert done.returncode == 0, done.stderr
    after = before.replace("'old'", '"local"')
    assert (home / "config.toml").read_text() == after
    (home / "config.toml").write_text("[submit]\ncluster = 'x'\n")
    assert desk.run(*arguments, **ALONE).returncode == 0
    assert (home / "config.toml").read_text() == "cluster = \"local\"\n[submit]\ncluster = 'x'\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sweeps/init.yaml", "name: init\nworkload: noop\naxes: {model: [mine]}\n"),
        ("cluster_profiles/schema.json", '{"title": "mine"}\n'),
    ],
)
def test_a_file_of_a_person_is_never_replaced(desk, home, name, text):
    """What an earlier run wrote is; a link in place of the configuration stays one."""
    (real := desk.folder / "mine.toml").write_text("# mine\n")
    (desk.folder / "hpcsweep.toml").symlink_to(real)
    arguments = ("init", "--noop", "--project")
    assert [desk.run(*arguments, **ALONE).returncode for _ in range(2)] == [0, 0]
    assert (desk.folder / "hpcsweep.toml").is_symlink()
    assert real.read_text() == 'cluster = "local"\n# mine\n'
    (desk.folder / name).write_text(text)
    done = desk.run(*arguments, **ALONE)
    assert (done.returncode, (desk.folder / name).read_text()) == (2, text)
    assert name in done.stderr


def test_the_default_that_is_set_is_kept_unless_another_one_is_named(desk, home):
    """A profile that is no name of a folder's is kept by its path."""
    mine = desk.spec("launcher: local\nworkers: 2\n", "mine.yaml")
    arguments = ("init", "--wait", "0")
    for more in (("--cluster", "mine.yaml"), ()):
        done = desk.run(*arguments, *more, **ALONE)
        assert done.returncode == 0, done.stderr
        assert (home / "config.toml").read_text() == f'cluster = "{mine}"\n'
    assert desk.run(*arguments, "--cluster", "local", **ALONE).returncode == 0
    assert (home / "config.toml").read_text() == 'cluster = "local"\n'


def test_the_files_of_a_project_lie_in_its_folder(desk, home):
    """Schemas for editors are those that the program ships."""
    done = desk.run("init", "--project", "--noop", **ALONE)
    assert done.returncode == 0, done.stderr
    assert (desk.folder / "hpcsweep.toml").read_text() == 'cluster = "local"\n'
    shipped = Path(__file__).parents[2] / "sweeps" / "schema.json"
    assert (desk.folder / "sweeps" / "schema.json").read_text() == shipped.read_text()
    assert not home.exists()


def test_a_profile_that_does_not_fit_is_no_default(desk, home):
    """Nothing is written, and what to do is told."""
    done = desk.run("init", "--cluster", "v100", **ALONE)
    assert done.returncode == Refused.exit_code
    assert "no sbatch on this machine's PATH" in done.stdout
    assert "no profile fits" in done.stderr
    assert not home.exists()
    assert not desk.results.exists()


@pytest.mark.slow
def test_a_point_without_a_row_is_told_with_where_to_look(desk, home):
    """Here the worker refuses the machine; the exit code is that of failed points."""
    desk.spec("launcher: local\ngpu_name: nothing\n", "odd.yaml")
    done = desk.run("init", "--cluster", "odd.yaml", **ALONE)
    assert done.returncode == PointsFailed.exit_code, done.stdout
    assert "hpcsweep logs init" in done.stderr


def test_without_torch_here_it_ends_with_the_environment_of_the_nodes(desk, home, monkeypatch):
    """What it names next can work: a `next` that fails teaches nothing."""
    monkeypatch.setattr("hpcsweep.extras.lacking", lambda name: ["torch"] * (name == "measure"))
    told = desk.run("init", "--noop", **ALONE).stdout.splitlines()[-1]
    assert told.startswith("next: pip install 'hpcsweep[measure]' in the environment of the jobs;")


def test_programs_of_slurm_that_know_no_cluster_are_no_dead_end(desk, home, tmp_path):
    """As on a machine where somebody installed them, and nothing else."""
    for name in ("sbatch", "sinfo", "scontrol"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'fatal: no configuration' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    refused = desk.run("init", "--wait", "0", PATH=path)
    assert refused.returncode == 7
    assert "`hpcsweep init --cluster local` sets up this machine alone" in refused.stderr
    words = ("init", "--cluster", "local", "--wait", "0")
    done = desk.run(*words, PATH=path)
    assert (done.returncode, "scontrol" in done.stdout) == (0, False), done.stdout
