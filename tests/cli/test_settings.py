"""Configuration: files and variables set options, mistakes are told with their line."""

from __future__ import annotations

import json
import os

import click
import pytest

from hpcsweep import environment
from hpcsweep.cli import main, settings
from hpcsweep.spec import lookup

NOOP = "name: s\nworkload: noop\naxes: {model: [a, b]}\n"
# A line of a configuration file, and what is told of it.
MISTAKES = [
    ("resluts = 'x'", "resluts: unknown key, allowed are ", "did you mean 'results'?"),
    ("sample = 3", "sample: unknown key", "[expand] or [estimate] or [submit]"),
    ("cluster = 3", "cluster: found 3, needs text", ""),
    ("submit.sampel = 3", "submit.sampel: unknown key", "did you mean 'sample'?"),
    ("submit.sample = 0", "submit.sample: found 0, ", "x>=1"),
    ("submit.sample = 'few'", "submit.sample: found 'few', needs a whole number", ""),
    ("submit.max_gpu_hours = '1'", "submit.max_gpu_hours: found '1', needs a number", ""),
    (f"submit.max_gpu_hours = 1{'0' * 400}", "submit.max_gpu_hours: found 1000", "too large"),
    ("submit.doctor = 'no'", "submit.doctor: found 'no', needs true or false", ""),
    ("layers.format = 'pdf'", "layers.format: found 'pdf', 'pdf' is not one of", "md"),
    ("slurm_timeout = 0", "slurm_timeout: found 0, ", "1<=x<=3600"),
    ("slurm_timeout = '1m'", "slurm_timeout: found '1m', needs a whole number", ""),
    ("results = ", "not TOML: ", ""),
    ("submit.again = true", "submit.again: only the command line gives it", ""),
]


@pytest.fixture
def config(desk, tmp_path_factory, monkeypatch):
    """Write the user's file, which no other test sees; no variable is set."""
    home = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home))
    monkeypatch.delenv("HPCSWEEP_CLUSTER")

    def write(text):
        path = home / "hpcsweep" / "config.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write


def shown(desk, *words, **env):
    """Return value and source of each option that `config` shows."""
    done = desk.run(*words, "--json", **env)
    assert done.returncode == 0, done.stderr
    return {one["name"]: (one["value"], one["from"]) for one in json.loads(done.stdout)["settings"]}


@pytest.mark.parametrize(("line", "told", "advice"), MISTAKES, ids=lambda text: text[:20])
def test_a_mistake_is_told_with_file_line_key_and_suggestion(desk, config, line, told, advice):
    """As in sweeps; nothing is run."""
    desk.spec(f"# ours\n{line}\n", "hpcsweep.toml")
    done = desk.run("status")
    assert done.returncode == 2
    (said,) = done.stderr.splitlines()
    assert said.startswith(f"hpcsweep: hpcsweep.toml:2: {told}")
    assert advice in said


def test_all_mistakes_of_a_file_are_told_at_once(desk, config):
    """A line for each, with the path of the user's file."""
    path = config("resluts = 'x'\n[submit]\nsampel = 1\nsample = 'x'\n")
    lines = desk.run("status").stderr.removeprefix("hpcsweep: ").splitlines()
    assert [line.split(": ")[0] for line in lines] == [f"{path}:{line}" for line in (1, 3, 4)]


def test_help_needs_no_right_file(desk, config):
    """Nor does the version."""
    config("resluts = 'x'\n")
    assert desk.run("--help").returncode == desk.run("--version").returncode == 0


def test_each_source_goes_before_the_one_below_it(desk, config):
    """Command line, variable, project, user, default."""
    path = config("results = 'user'\n[submit]\nsample = 2\nworkers = 2\n")
    desk.spec("# ours\nsubmit.workers = 3\n", "hpcsweep.toml")
    found = shown(desk, "config", HPCSWEEP_RETRY_POINT="n1,n2")
    assert found["results"] == (str(path.parent / "user"), f"{path}:1")
    assert found["submit.sample"] == (2, f"{path}:3")
    assert found["submit.workers"] == (3, "hpcsweep.toml:2")
    assert found["retry.point"] == (["n1", "n2"], "environment: HPCSWEEP_RETRY_POINT")
    assert "submit.doctor" not in found
    assert shown(desk, "config", "--all")["submit.doctor"] == (True, "default")
    found = shown(desk, "--results", "mine", "config", HPCSWEEP_SUBMIT_WORKERS="4")
    assert found["results"] == ("mine", "command line")
    assert found["submit.workers"] == (4, "environment: HPCSWEEP_SUBMIT_WORKERS")


def test_the_nearest_folder_above_has_the_project_file(desk, config):
    """Its paths are relative to it, so results are found from any folder below."""
    (desk.folder / "below").mkdir()
    desk.spec("results = 'out'\n", "hpcsweep.toml")
    desk.spec(NOOP)
    assert desk.run("submit", "sweep.yaml", "--cluster", "local").returncode == 0
    assert (desk.folder / "out" / "s").is_dir()
    below = type(desk)(desk.folder / "below")
    assert below.run("collect", "s").returncode == 0
    desk.spec("", "hpcsweep.toml")  # without a folder in it they stand beside it
    assert f"{desk.results} has no results yet" in below.run("status", "none").stderr


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
def test_a_file_of_another_user_does_not_count(desk, config):
    """It may name folders and profiles as it likes."""
    path = desk.spec("results = 'theirs'\n", "hpcsweep.toml")
    assert shown(desk, "config")["results"][0] == "theirs"
    os.chown(path, 12345, -1)
    assert shown(desk, "config")["results"][0] == "results"


def test_results_beside_the_sweep_file_are_named_where_all_is_measured_anew(desk):
    """Without a project file each folder has its own results; a rehearsal says it, too."""
    desk.spec(NOOP)
    assert desk.run("submit", "sweep.yaml", "--cluster", "local").returncode == 0
    below = type(desk)(desk.folder / "below")
    below.folder.mkdir()
    for more in (("--dry-run",), ()):
        told = below.run("submit", "../sweep.yaml", "--cluster", "local", *more).stderr
        assert f"warning: {desk.results}/s has results of this sweep, here all" in told
    assert "has results" not in below.run("submit", "../sweep.yaml", "--cluster", "local").stderr


def test_commands_take_what_the_files_say(desk, config):
    """A default profile, a flag, a form, a list."""
    config("cluster = 'mine.yaml'\n[estimate]\nsample = 1\n")
    (desk.folder / "hpcsweep.toml").write_text("cluster = 'local'\n")
    desk.spec(NOOP)
    (told,) = json.loads(desk.run("estimate", "sweep.yaml", "--json").stdout)["estimates"]
    assert told["profile"] == "local"
    assert desk.run("submit", "sweep.yaml").returncode == 0
    desk.spec("[submit]\ncluster = ['local', 'nowhere']\n", "hpcsweep.toml")
    assert "nowhere: no such name" in desk.run("submit", "sweep.yaml").stderr


def test_a_profile_by_its_path_is_relative_to_the_file(desk, config):
    """As paths in profiles are."""
    path = config("cluster = 'here/mine.yaml'\n")
    found = shown(desk, "config")
    assert found["submit.cluster"] == ([str(path.parent / "here/mine.yaml")], f"{path}:1")


def test_a_form_of_output_is_one_option(layered_desk, config, monkeypatch):
    """`--json` on the command line still goes before it."""
    config("[layers]\nformat = 'csv'\n")
    assert "," in layered_desk.run("layers", "demo").stdout.splitlines()[0]
    assert json.loads(layered_desk.run("layers", "demo", "--json").stdout)
    assert json.loads(layered_desk.run("layers", "demo", HPCSWEEP_LAYERS_FORMAT="json").stdout)


def test_every_option_has_a_variable_of_its_own():
    """None is one that hpcsweep uses for something else."""
    found = [settings.variable(loc) for loc, _ in settings.options(main)]
    assert len(found) == len(set(found)) > 60
    others = {one for one in vars(environment).values() if isinstance(one, str)}
    assert set(found) & others == {environment.RESULTS, environment.DEBUG}


def test_each_variable_and_each_key_of_a_file_is_the_one_that_click_reads(desk, config):
    """By hand alone are those given that would begin something anew with every call."""
    by_hand = set()
    for loc, param in settings.options(main):
        group, ctx = main, click.Context(main, info_name="x", **main.context_settings)
        for name in loc[:-1]:
            group = group.commands[name]
            ctx = click.Context(group, info_name=name, parent=ctx)
        os.environ[settings.variable(loc)] = "given"
        try:
            if param.resolve_envvar_value(ctx) is None:
                by_hand.add(".".join(loc))
        finally:
            del os.environ[settings.variable(loc)]
    limits = {"submit.time", "submit.mem", "retry.time", "retry.mem"}
    assert by_hand == {"submit.again", "submit.join", "estimate.again", "rm.yes", *limits}


def test_a_wrong_value_of_a_variable_names_it(desk, config):
    """A person has not typed the option."""
    said = desk.run("expand", "sweep.yaml", HPCSWEEP_EXPAND_SAMPLE="few").stderr
    assert "'--sample': 'few' is not a valid" in said
    assert "(from HPCSWEEP_EXPAND_SAMPLE)" in said
    said = desk.run("expand", "sweep.yaml", "--sample", "x", HPCSWEEP_EXPAND_SAMPLE="1").stderr
    assert "HPCSWEEP" not in said


def test_the_table_names_the_files(desk, config):
    """And says where there is none."""
    assert "files: none" in desk.run("config").stdout
    path = config("cluster = 'local'\n")
    told = desk.run("config").stdout
    assert ["submit.cluster", "local", f"{path}:1"] in [line.split() for line in told.splitlines()]
    assert told.splitlines()[-1] == f"files: {path}"


def test_the_variables_of_sbatch_are_shown_and_those_that_do_not_count(desk, config):
    """Each with its name; the others with the reason."""
    env = {"SBATCH_ACCOUNT": "lab", "SBATCH_NO_REQUEUE": "", "SBATCH_WAIT": "1"}
    table = shown(desk, "config", **env)
    assert table["sbatch.account"] == ("lab", "environment: SBATCH_ACCOUNT")
    assert table["sbatch.no-requeue"] == (True, "environment: SBATCH_NO_REQUEUE")
    said = desk.run("config", **env).stdout
    assert "SBATCH_WAIT is not taken: cannot wait for the jobs" in said


def test_a_folder_that_is_gone_has_no_project_file(desk, config, monkeypatch):
    """Such as one that another window removed."""
    gone = desk.folder / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    os.rmdir(gone)  # noqa: PTH106
    assert list(lookup.config_files()) == []


@pytest.mark.parametrize("mode", [0o777, 0o1777])
@pytest.mark.parametrize("where", ["hpcsweep.toml", "cluster_profiles/mine.yaml"])
def test_nothing_is_taken_from_a_folder_that_others_may_write(desk, mode, where):
    """A line says so; what is there may be commands."""
    path = desk.folder / where
    path.parent.mkdir(exist_ok=True)
    path.write_text('results = "theirs"\n' if path.suffix == ".toml" else "extends: local\n")
    desk.folder.chmod(mode)
    done = desk.run("estimate", "quickstart", "--cluster", "mine")
    desk.folder.chmod(0o700)
    assert done.returncode == 2
    assert "no such name" in done.stderr
    assert "is not taken: others may write" in done.stderr
