"""The job script: as it was agreed on, quoted, and accepted by the shell.

`HPCSWEEP_GOLDEN=write pytest` of this file writes `tests/golden/*.sbatch` anew.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from drafts import written
from hpcsweep.cluster.slurm import job_script
from hpcsweep.errors import ProfileError
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import folders
from hpcsweep.submit import request
from paths import GOLDEN

SHELLCHECK = Path(sys.executable).parent / "shellcheck"
# 2016: lines of the profile are kept for `eval`; 2054: options hold commas; 2064, 2329: the traps.
NOT_FOR_US = "SC2016,SC2054,SC2064,SC2329"

PYTHON = "python: /opt/hpcsweep/bin/python\n"
EVERY_OPTION = """
partition: gpu-long
constraint: "gpul40s&ib"
gres: gpu:l40s:1
time: 1-12:00:00
mem: 64G
cpus_per_task: 8
nodes: 2
nodelist: gpu[1-3]
exclude: gpu2,gpu7
account: vision
qos: long
array_throttle: 2
signal_lead: 300
sbatch_options: [--exclusive, "--mail-type=END,FAIL", --comment="night shift"]
init: ["source /etc/profile"]
modules: [cuda/12.4, gcc]
setup: ["source /etc/site.sh", "ulimit -c 0"]
env: {OMP_NUM_THREADS: 8, WORDS: a b}
"""
HOSTILE = r"""
partition: it's $(touch pwned) `touch pwned` "gpu"
constraint: a&b|c
modules: ["$(touch pwned)", "ein Modul \\ für'n Test"]
setup: ["echo \"$HOME\" 'a  b' # a comment", "x=`echo 1`; [ \"$x\" = 1 ]"]
venv: /opt/it's/a "venv" $(here)
python: /opt/pyth'on `3`/bin/python
env: {X: "'; touch pwned; echo \"$(touch pwned)\" `touch pwned` \\ ünï → 測", EMPTY: ""}
wrapper: nsys
wrapper_options: ["--env-var=A='b c',D=$(touch pwned)", "--stats=true"]
"""
CASES = {
    "v100": f"extends: v100\n{PYTHON}",
    "l40": f"extends: l40\n{PYTHON}",
    "mi250-node": f"extends: mi250\ngres: gpu:8\ngpus_per_job: 8\n{PYTHON}",
    "mi250": f"extends: mi250\n{PYTHON}",
    "h100": f"extends: h100\n{PYTHON}",
    "h200": f"extends: h200\n{PYTHON}",
    "v100-conda": "extends: v100\nconda: hpcsweep\ntime: null\nmodules: [anaconda3]\n",
    "l40-every-option": f"extends: l40\n{PYTHON}{EVERY_OPTION}",
    "h200-venv": "extends: h200\nvenv: /home/me/envs/torch\nsetup: [nvidia-smi -L]\n",
    "l40-nsys": f"extends: l40\n{PYTHON}wrapper: nsys\n"
    "wrapper_options: ['--trace=cuda,nvtx,cudnn', '--sample=none']\n",
    "h200-ncu": f"extends: h200\n{PYTHON}wrapper: ncu\n"
    "wrapper_options: [--nvtx, --nvtx-include, hpcsweep step, --set, full]\n",
    "mi250-rocprofv3": f"extends: mi250\n{PYTHON}wrapper: rocprofv3\nmodules: [rocm]\n",
    "hostile": f"extends: mi250\n{HOSTILE}",
}
FOLDERS = {"hostile": '/scratch/it\'s a 100% "hostile" $(touch pwned) `folder` ünï/results/s'}


@pytest.fixture(autouse=True)
def _only_shipped_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No template or profile of whoever runs the tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("TORCH_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def render(tmp_path: Path, text: str, folder: str = "/scratch/vision/results/resnet") -> str:
    """Return the script of a profile for a submission that need not be there."""
    path = tmp_path / "site.yaml"
    path.write_text(text)
    submission = folders.SweepDir(Path(folder)).submission("20260101-000000-site")
    return job_script.render(profile.load(path), submission, 3)


@pytest.fixture(params=CASES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str]:
    """Give each case: the file as it was agreed on, and the script as it is rendered now."""
    folder = FOLDERS.get(request.param, "/scratch/vision/results/resnet")
    text = render(tmp_path, CASES[request.param], folder)
    path = GOLDEN / f"{request.param}.sbatch"
    if os.environ.get("HPCSWEEP_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    return path, text


def test_the_script_is_the_one_that_was_agreed_on(golden: tuple[Path, str]):
    """A change shows in a diff that a person can read."""
    path, text = golden
    assert text == path.read_text(encoding="utf-8")


def test_the_shell_accepts_the_script(golden: tuple[Path, str]):
    """And nothing that it reads is run before the profile's own lines are."""
    path, text = golden
    done = subprocess.run(["bash", "-n"], input=text, text=True, check=False)
    assert done.returncode == 0, path
    done = subprocess.run(
        [SHELLCHECK, f"--exclude={NOT_FOR_US}", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{path}\n{done.stdout}"


def test_the_shell_accepts_the_script_of_the_job_after_them(tmp_path: Path):
    """With every hostile value; what is printed and left behind is told by its command alone."""
    (tmp_path / "a.yaml").write_text(f"extends: mi250\n{HOSTILE}")
    submission = folders.SweepDir(Path(FOLDERS["hostile"])).submission("20260101-000000-site")
    command = 'echo "it\'s $(touch pwned) `touch pwned`" {a,b} 100%'
    asked = profile.load(tmp_path / "a.yaml")
    text = job_script.render_then(asked, submission, command, Path("/it's $(here)"))
    for check in (["bash", "-n"], [SHELLCHECK, f"--exclude={NOT_FOR_US}", "-"]):
        done = subprocess.run(check, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    with pytest.raises(ProfileError, match="line end"):
        job_script.render_then(asked, submission, "a\nb", tmp_path)


def test_no_golden_file_is_left_over():
    """Each has its case."""
    assert {path.stem for path in GOLDEN.glob("*.sbatch")} == set(CASES)


def test_every_key_of_a_profile_that_sbatch_takes_is_in_a_golden_file():
    """One #SBATCH line each."""
    text = (GOLDEN / "l40-every-option.sbatch").read_text()
    texts = [field.description for field in profile.ProfileFile.model_fields.values()]
    keys = [text.split()[1].rstrip(":") for text in texts if text.startswith("sbatch --")]
    options = [*keys, "--exclusive", "--mail-type", "--comment", "--signal"]
    assert "--cpus-per-task" in options
    assert [o for o in options if f"#SBATCH {o}" not in text.replace("'--", "--")] == []


def test_hostile_values_stay_words(tmp_path: Path):
    """Quotes, blanks and substitutions reach variables and options as they are."""
    folder = tmp_path / "it's $(touch pwned)"
    kept = [line for line in HOSTILE.splitlines() if line.startswith(("partition", "mod", "env"))]
    text = render(tmp_path, "\n".join(["gpu: x", *kept]), str(folder))
    head = text.split("python=")[0] + '\nprintf %s "$X"\n'
    module = "module() { :; }\n"
    done = subprocess.run(
        ["bash", "-c", module + head], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == '\'; touch pwned; echo "$(touch pwned)" `touch pwned` \\ ünï → 測'
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "line",
    [
        'partition: "a\\nb"',
        'setup: ["true", "a\\nb"]',
        'python: "py\\0thon"',
        'sbatch_options: ["--comment=a\\n#SBATCH --uid=0"]',
    ],
)
def test_a_line_end_is_refused_where_it_stands(tmp_path: Path, line: str):
    """It could start a line of its own; file, line and key are named."""
    key = line.partition(":")[0]
    with pytest.raises(ProfileError, match=rf"site\.yaml:2: {key}.*one line"):
        render(tmp_path, f"gpu: l40\n{line}\n")


def test_a_folder_with_a_line_end_is_refused(tmp_path: Path):
    """So is one that the profile does not name."""
    with pytest.raises(ProfileError, match=r"re\\nsults.*line end"):
        render(tmp_path, "gpu: l40\n", "/scratch/re\nsults/s")


def test_a_wrapper_without_a_job_is_refused(tmp_path: Path):
    """Nothing would start it."""
    with pytest.raises(ProfileError, match=r":3: wrapper: nsys needs launcher: sbatch"):
        render(tmp_path, "gpu: l40\nlauncher: local\nwrapper: nsys\n")
    with pytest.raises(ProfileError, match="wrapper_options"):
        render(tmp_path, "gpu: l40\nwrapper_options: [--nvtx]\n")


def test_templates_of_ones_own_are_told_and_kept(desk, monkeypatch):
    """They are code that jobs run."""
    templates = desk.folder / "jobs/templates"
    templates.mkdir(parents=True)
    (templates / "gpu_nvidia.sh.j2").write_text("export MINE=1\n")
    (desk.folder / "site.yaml").write_text("gpu: l40\ntime: 30\n")
    desk.spec("workload: noop\naxes: {model: [a]}\n")
    done = desk.run("submit", "sweep.yaml", "--cluster", "site.yaml", PATH="/nowhere")
    path = templates / "gpu_nvidia.sh.j2"
    assert f"note: the job script is made of your own template {path}\n" in done.stderr, done
    assert done.stdout == ""
    monkeypatch.chdir(desk.folder)
    asked = request.make(sweep_file.load("sweep.yaml"), profile.load("site.yaml"))
    submission = written(desk.sweep(), asked).submission
    assert submission.read_manifest().templates == (str(path),)
    assert "export MINE=1" in job_script.render(asked.profile, submission, 1)


def test_a_job_has_the_torch_cache_of_submit_or_of_its_profile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever of the environment sbatch passes on: `submit` looked there for weights."""
    text = "launcher: sbatch\ngpu: l40\ntime: 10\n"
    assert "TORCH_HOME" not in render(tmp_path, text)
    monkeypatch.setenv("XDG_CACHE_HOME", "/scratch/cache")
    assert "export TORCH_HOME=/scratch/cache/torch\n" in render(tmp_path, text)
    monkeypatch.setenv("TORCH_HOME", "/scratch/torch home")
    assert "export TORCH_HOME='/scratch/torch home'\n" in render(tmp_path, text)
    own = render(tmp_path, text + "env: {TORCH_HOME: /own}\n")
    assert own.count("export TORCH_HOME=") == own.count("export TORCH_HOME=/own") == 1


def test_a_folder_with_a_backslash_is_refused_before_anything_is_written(desk):
    """Slurm takes it for an escape, and the job would fail in the queue without a log."""
    (desk.folder / "site.yaml").write_text("gpu: l40\ntime: 30\n")
    desk.spec("workload: noop\naxes: {model: [a]}\n")
    done = desk.run("--results", "a\\b", "submit", "sweep.yaml", "--cluster", "site.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    assert "rename it, or choose another with --results" in done.stderr
    assert not (desk.folder / "a\\b").exists()
