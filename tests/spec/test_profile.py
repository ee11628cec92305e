"""Cluster profiles: what they hold, what they extend, and how they complain."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from hpcsweep.analysis.roofline import ncu
from hpcsweep.catalog import gpus
from hpcsweep.catalog.gpus import by_device_name
from hpcsweep.errors import ProfileError, UsageError
from hpcsweep.spec import profile
from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

SHIPPED = ("v100", "l40", "mi250", "h100", "h200")
PROFILED = {"l40_ncu": "ncu", "mi250_rocprofv3": "rocprofv3"}
NO_GPU = {"base", "cpu", "local"}  # profiles that promise no GPU


def write(folder: Path, **files: str) -> Path:
    """Write profiles; return the path of the last."""
    for name, text in files.items():
        path = folder / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
    return path


def complaint_about(folder: Path, **files: str) -> str:
    """Return the complaint about the last file, without its folder."""
    path = write(folder, **files)
    with pytest.raises(ProfileError) as caught:
        profile.load(path)
    text = str(caught.value)
    assert text.count("\n") <= 1
    return text.replace(f"{folder}/", "")


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_profiles_ask_for_what_their_clusters_ask_for(name: str) -> None:
    """One GPU, 16 GB, 4 CPUs and a day in the partition `gpu`, from the base they extend."""
    found = profile.load(name)
    assert found.extends == "base"
    assert (found.name, found.gpu, found.launcher) == (name, name, "sbatch")
    assert (found.partition, found.gres, found.mem, found.cpus_per_task) == (
        "gpu",
        "gpu:1",
        "16G",
        4,
    )
    assert found.time_seconds == 24 * 3600
    assert found.mem_mb == 16 * 1024
    assert found.array_throttle == 8
    assert found.env == {"OMP_NUM_THREADS": "4"}
    assert (found.constraint, found.nodelist) == (None, None)  # nodes are a site's own


def test_every_profile_of_a_gpu_that_ships_is_in_these_tests() -> None:
    """And the table of GPUs has dense peaks for it, with their source."""
    files = {path.stem for path in (ROOT / "cluster_profiles").glob("*.yaml")}
    assert files - NO_GPU - PROFILED.keys() == set(SHIPPED)
    assert all(gpus.GPUS[name].source for name in SHIPPED)


@pytest.mark.parametrize("name", PROFILED)
def test_the_shipped_profilers_are_those_of_a_gpu_with_a_wrapper(name: str) -> None:
    """The job is that of the profile that they extend; ncu has the metrics of a roofline."""
    found = profile.load(name)
    plain = profile.load(found.extends)
    assert (found.wrapper, found.gpu, found.gpu_name) == (PROFILED[name], plain.gpu, plain.gpu_name)
    if found.wrapper == "ncu":
        assert found.wrapper_options[-1] == ",".join(ncu.metrics())
        assert "hpcsweep step" in found.wrapper_options


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("v100", "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-40GB"),
        ("l40", "NVIDIA L40S", "NVIDIA L4"),
        ("l40", "NVIDIA L40", "Tesla V100-SXM2-16GB"),
        ("mi250", "AMD Instinct MI250X/MI250", "AMD Instinct MI300X"),
        ("h100", "NVIDIA H100 80GB HBM3", "NVIDIA H200"),
        ("h100", "NVIDIA H100 PCIe", "NVIDIA GH200 480GB"),
        ("h200", "NVIDIA H200", "NVIDIA H100 80GB HBM3"),
    ],
)
def test_a_profile_knows_its_gpu_by_name(name: str, right: str, wrong: str) -> None:
    """Results from another GPU are refused on the node."""
    pattern = profile.load(name).gpu_name
    assert re.search(pattern, right)
    assert not re.search(pattern, wrong)
    assert by_device_name(right, 104) is not None


def test_the_local_profile_needs_no_scheduler() -> None:
    """And takes whatever device is there."""
    found = profile.load("local")
    assert (found.launcher, found.gpu, found.gpu_name, found.workers) == ("local", None, "", 1)


def test_later_keys_win_and_null_takes_away(tmp_path: Path) -> None:
    """Lists are replaced, the environment is merged name by name, over three generations."""
    path = write(
        tmp_path,
        a="gpu: x\npartition: p\nsetup: [one, two]\nenv: {A: 1, B: 2}\nmem: 8G\n",
        b="extends: a\nsetup: [three]\nenv: {B: 3}\n",
        c="extends: b\npartition: null\nmem: 4G\ntime: 90\n",
    )
    found = profile.load(path)
    assert found.partition is None
    assert found.setup == ["three"]
    assert found.env == {"A": "1", "B": "3"}
    assert (found.gpu, found.mem, found.time, found.time_seconds) == ("x", "4G", "90", 5400)
    assert (found.name, found.path) == ("c", path)


def test_every_field_has_a_default_that_a_cluster_accepts(tmp_path: Path) -> None:
    """A profile of two lines is enough."""
    found = profile.load(write(tmp_path, a="gpu: l40\n"))
    assert found.launcher == "sbatch"
    assert found.time_seconds is None
    assert found.mem_mb is None
    assert (found.signal_lead, found.kill_wait, found.nodes) == (120, 30.0, 1)
    assert (found.wrapper, found.modules, found.sbatch_options) == ("none", [], [])


@pytest.mark.parametrize("options", ["--time=5", "'-t 5'", "-t5", "--exclusive, -t9, '--time 5'"])
def test_an_option_of_sbatch_stands_over_the_time_limit(tmp_path: Path, options: str) -> None:
    """Sbatch takes the last one, so jobs have this time and no other."""
    text = f"gpu: l40\ntime: 30\nsbatch_options: [{options}]\n"
    assert profile.load(write(tmp_path, a=text)).time_seconds == 300


def test_variables_of_sbatch_stand_below_what_a_profile_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With their names as the places of complaints; on this machine they are nothing."""
    monkeypatch.setenv("SBATCH_TIMELIMIT", "1")
    monkeypatch.setenv("SBATCH_ACCOUNT", "lab")
    own = profile.load(write(tmp_path, a="gpu: l40\ntime: 30\nsbatch_options: [-A mine]\n"))
    assert (own.time_limit, own.sbatch_options) == ("30", ["-A mine"])
    assert profile.load(write(tmp_path, here="gpu: l40\nlauncher: local\n")).time_limit is None
    words = complaint_about(tmp_path, b="gpu: l40\n")
    assert "a time limit of 60 s (environment: SBATCH_TIMELIMIT) ends before" in words
    monkeypatch.setenv("SBATCH_TIMELIMIT", "9")
    found = profile.load(write(tmp_path, b="gpu: l40\nlauncher: submitit\n"))
    assert (found.time_seconds, found.where_option("--account=lab")) == (
        540,
        "environment: SBATCH_ACCOUNT",
    )


def test_an_option_of_a_command_asks_for_more_than_the_profile(tmp_path: Path) -> None:
    """It stands over the key, and over the options of sbatch that would stand over that."""
    options = "[--exclusive, '-t 5', --mem-per-cpu=1G, --time=7]"
    text = f"gpu: l40\ntime: 30\nmem: 4G\nsbatch_options: {options}\n"
    found = profile.load(write(tmp_path, a=text))
    asking = profile.asking_for(found, time="4h", mem=None)
    assert (asking.time_limit, asking.time_seconds, asking.mem) == ("04:00:00", 4 * 3600, "4G")
    assert asking.sbatch_options == ["--exclusive", "--mem-per-cpu=1G"]
    assert (asking.time_factor, asking.where("time")) == (None, "--time 4h")
    asking = profile.asking_for(found, time=None, mem="32G")
    assert (asking.mem, asking.time_limit, asking.time_factor) == ("32G", "7", 3)
    assert asking.sbatch_options == ["--exclusive", "-t 5", "--time=7"]
    assert profile.asking_for(found, time=None, mem=None) == found


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("time", "4x", "--time 4x: needs a time limit: 4h, 90m, 1d12h, or as sbatch takes it: MM,"),
        ("time", "90s", "--time 90s: a time limit of 90 s ends before `signal_lead`, 120 s"),
        ("mem", "32", "--mem 32: needs memory: a whole number with K, M, G or T"),
        ("mem", "", "--mem : needs memory"),
    ],
)
def test_a_mistake_of_such_an_option_is_told(
    tmp_path: Path, key: str, value: str, told: str
) -> None:
    """Like that of a key, with the option in place of file and line."""
    found = profile.load(write(tmp_path, a="gpu: l40\ntime: 30\n"))
    values = {"time": None, "mem": None, key: value}
    with pytest.raises(UsageError, match=f"^{re.escape(told)}"):
        profile.asking_for(found, **values)


@pytest.mark.parametrize("option", [{"time": "4h", "mem": None}, {"time": None, "mem": "4G"}])
def test_what_runs_here_has_no_limits_of_a_job(option: dict[str, str | None]) -> None:
    """One line says so."""
    with pytest.raises(UsageError, match="profile 'local' measures on this machine, where no job"):
        profile.asking_for(profile.load("local"), **option)


def test_all_fields_are_read(tmp_path: Path) -> None:
    """Each with a value of its own."""
    text = """
launcher: sbatch
gpu: l40
gpu_name: "L40S?$"
min_memory_gb: 40
partition: gpu
constraint: "gpul40s&ib"
gres: gpu:l40s:1
time: 1-12:00:00
mem: 16G
cpus_per_task: 4.0
nodes: 1
nodelist: n[1-3]
exclude: n7
account: lab
qos: long
array_throttle: 8
sbatch_options: [--exclusive, "--mail-type=END"]
modules: [cuda/12.4, gcc]
setup: ["source /etc/site.sh"]
conda: hpcsweep
env: {OMP_NUM_THREADS: 4, WORDS: "a 'b' $c"}
wrapper: nsys
workers: 2
kill_wait: 60
signal_lead: 300
chunk_minutes: null
max_points_per_chunk: 50
"""
    found = profile.load(write(tmp_path, a=text))
    assert found.time_seconds == 36 * 3600
    assert found.sbatch_options == ["--exclusive", "--mail-type=END"]
    assert found.env == {"OMP_NUM_THREADS": "4", "WORDS": "a 'b' $c"}
    assert (found.cpus_per_task, found.min_memory_gb, found.chunk_minutes) == (4, 40.0, None)
    assert set(found.model_dump()) == set(profile.ProfileFile.model_fields) | {"name", "path"}


def test_paths_are_relative_to_the_file_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs run elsewhere; `~` is the home here; a bare program is found on the node."""
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "sub").mkdir()
    write(tmp_path, base="gpu: l40\nvenv: envs/torch\n")
    write(tmp_path / "sub", child="extends: ../base.yaml\npython: python3.11\n")
    found = profile.load(tmp_path / "sub" / "child.yaml")
    assert found.venv == str(tmp_path / "envs" / "torch")
    assert found.python == "python3.11"
    other = profile.load(write(tmp_path, other="gpu: l40\npython: ~/bin/python\n"))
    assert other.python == "/home/me/bin/python"
    absolute = profile.load(write(tmp_path, absolute="gpu: l40\nvenv: /opt/x/../y\n"))
    assert absolute.venv == "/opt/y"


def test_a_profile_may_extend_the_one_of_its_own_name_that_it_hides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped l40 with another partition, still called l40."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cluster_profiles").mkdir()
    write(tmp_path / "cluster_profiles", l40="extends: l40\npartition: mine\n")
    found = profile.load("l40")
    assert (found.partition, found.gpu_name, found.mem) == ("mine", "L40S?$", "16G")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("gpu: l40\npartion: gpu\n", ":2: partion: unknown key, allowed are extends, launcher"),
        ("gpu: l40\npartion: gpu\n", "did you mean 'partition'?"),
        ("gpu: l40\nlauncher: sbatsh\n", ":2: launcher: found 'sbatsh', allowed are sbatch, "),
        ("gpu: l40\nlauncher: sbatsh\n", "did you mean 'sbatch'?"),
        ("gpu: l40\nwrapper: nvprof\n", ":2: wrapper: found 'nvprof', allowed are none, nsys"),
        ("gpu: l40\ntime: 24h\n", ":2: time: found '24h', needs a time limit: MM, MM:SS"),
        ("gpu: l40\ntime: true\n", ":2: time: found true, needs text"),
        (
            "gpu: l40\nmem: 16\n",
            ":2: mem: found '16', needs memory: a whole number with K, M",
        ),
        ("gpu: l40\nmem: '16'\n", ":2: mem: found '16', needs memory: a whole number with K, M"),
        ("gpu: l40\ncpus_per_task: four\n", ":2: cpus_per_task: found 'four', needs a whole"),
        ("gpu: l40\ncpus_per_task: true\n", ":2: cpus_per_task: found true, needs a whole number"),
        ("gpu: l40\ncpus_per_task: 0\n", ":2: cpus_per_task: found 0, needs at least 1"),
        ("gpu: l40\nworkers: 1.5\n", ":2: workers: found 1.5, needs a whole number"),
        ("gpu: l40\nmin_memory_gb: 0\n", ":2: min_memory_gb: found 0, needs more than 0"),
        ("gpu: l40\nkill_wait: .inf\n", ":2: kill_wait: found '.inf', needs a number"),
        ("gpu: l40\ngpu_name: '('\n", ":2: gpu_name: found '(', needs a regular expression"),
        ("gpu: a/b\n", ":1: gpu: found 'a/b', needs letters, digits"),
        (
            "gpu: l40\nsetup: module load cuda\n",
            ":2: setup: found 'module load cuda', needs a list",
        ),
        ("gpu: l40\nsetup:\n  - ok\n  - 5\n", ":4: setup[1]: found 5, needs text"),
        ("gpu: l40\nsetup:\n  - |\n    two\n    lines\n", ":3: setup[0]: found 'two\\nlines\\n', "),
        ("gpu: l40\npartition: ''\n", ":2: partition: found '', needs one line of text"),
        ("gpu: l40\nsbatch_options: [exclusive]\n", ":2: sbatch_options[0]: found 'exclusive', "),
        ("gpu: l40\nsbatch_options: [-a 0-9]\n", "found '-a 0-9', --array cannot set the array"),
        ("gpu: l40\nsbatch_options: [--time=1h]\n", ":2: sbatch_options[0]: found '--time=1h', "),
        ("gpu: l40\nenv: {A: true}\n", ":2: env.A: found true, needs text; quote it"),
        ("gpu: l40\nenv: {A B: x}\n", ":2: env: found a map, needs NAME: text"),
        ("gpu: l40\nenv: [A=x]\n", ":2: env: found a list, needs a map of keys to values"),
        ("gpu: l40\nconda: a\nvenv: b\n", ":3: venv: `conda` and `venv` exclude each other"),
        (
            "gpu: l40\ngpus_per_job: 8\nwrapper: ncu\n",
            ":2: gpus_per_job: ncu profiles one GPU, and `gpus_per_job` is 8",
        ),
        (
            "launcher: local\ngpus_per_job: 2\n",
            ":2: gpus_per_job: `gpus_per_job` is about jobs of Slurm",
        ),
        (
            "gpu: l40\ntime: '1'\n",
            ":2: time: a time limit of 60 s ends before `signal_lead`, 120 s",
        ),
        ("partition: gpu\n", ":1: `gpu` is missing: the value of the axis `gpu`"),
        ("gpu: l40\nextends: basis\n", ":2: extends: basis: no such name in cluster_profiles/"),
        ("gpu: l40\nextends: bsae\n", "did you mean 'base'?"),
        ("gpu: l40\nextends: 5\n", ":2: extends: found 5, needs text"),
        ("gpu: l40\ngpu: l40s\n", ":2: gpu: repeated key, first in line 1"),
        ("gpu: l40\nenv:\n\tA: 1\n", ":3: a tab; YAML indents with spaces"),
        ("gpu: !!python/name:os.system l40\n", ":1: tag !!python/name:os.system is not allowed"),
        ("", ": is empty"),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_key(
    tmp_path: Path, text: str, complaint: str
) -> None:
    """One or two lines: what was found, what is allowed, what is near."""
    said = complaint_about(tmp_path, a=text)
    assert said.startswith("a.yaml:")
    assert complaint in said


def test_a_mistake_in_the_base_is_told_where_it_is(tmp_path: Path) -> None:
    """The file and line of the one that is extended."""
    said = complaint_about(tmp_path, root="mem: 16G\nnoods: 2\n", child="extends: root\ngpu: l40\n")
    assert said.startswith("root.yaml:2: noods: unknown key")
    assert said.endswith("did you mean 'nodes'?")


def test_profiles_that_extend_each_other_are_refused(tmp_path: Path) -> None:
    """The circle is named."""
    said = complaint_about(tmp_path, x="extends: z\n", z="extends: y\n", y="extends: x\ngpu: a\n")
    where, circle = said.split("in a circle: ")
    assert where == "z.yaml:1: extends: profiles extend each other "
    assert circle == "y extends x extends z extends y"


def test_a_file_name_that_names_no_profile_is_refused(tmp_path: Path) -> None:
    """The name becomes part of folder names."""
    path = tmp_path / "my profile.yaml"
    path.write_text("gpu: l40\n")
    with pytest.raises(ProfileError, match="found 'my profile', needs letters"):
        profile.load(path)


def test_a_parent_whose_name_no_file_can_have_is_refused(tmp_path: Path) -> None:
    """It is longer than any file's."""
    path = tmp_path / "a.yaml"
    path.write_text(f"extends: {'x' * 300}\ngpu: l40\n")
    with pytest.raises(ProfileError, match=r"a.yaml:1: "):
        profile.load(path)


@pytest.mark.parametrize(
    "line",
    [
        "python: /no/such/python", "python: python0.1", "venv: ./gone", "conda: other",
        "init: [. /etc/profile]", "modules: [cuda]", "setup: [export A=1]",
    ],
)  # fmt: skip
def test_a_local_run_refuses_an_environment_that_it_would_not_use(tmp_path: Path, line: str):
    """It measures with the Python that runs the command; the same one may be named."""
    key = line.partition(":")[0]
    words = complaint_about(tmp_path, mine=f"extends: local\n{line}\n")
    assert words.startswith(f"mine.yaml:2: {key}: launcher local does not heed `{key}`")
    same = write(tmp_path, same=f"extends: local\npython: {sys.executable}\nvenv: {sys.prefix}\n")
    assert profile.load(same).python == sys.executable
    inherited = "launcher: local\nextends: base\npython: null\n"
    assert profile.load(write(tmp_path, parent="setup: [x]\n", child=inherited))
