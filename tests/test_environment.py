"""The names of environment variables stand in one place."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

from attempts import prepared
from hpcsweep import environment
from paths import ROOT

if TYPE_CHECKING:
    import pytest

    from localruns import Desk

NAMES = {
    text
    for name, text in vars(environment).items()
    if name.isupper() and not name.startswith("_") and type(text) is str
}


def test_job_scripts_set_what_the_supervisor_reads() -> None:
    """A template cannot import the names, so it repeats them."""
    text = "".join(path.read_text() for path in (ROOT / "jobs/templates").iterdir())
    assert set(re.findall(r"HPCSWEEP_\w+", text)) == {environment.DEADLINE, environment.WRAPPER}


def test_no_other_module_spells_a_variable() -> None:
    """A misspelt name would be read as unset, and nobody would notice."""
    spelt = {
        (path.name, name)
        for path in (ROOT / "src/hpcsweep").rglob("*.py")
        for name in re.findall(r"[\"'](HPCSWEEP_\w+)[\"']", path.read_text())
    }
    assert spelt == {("environment.py", name) for name in NAMES}


_TELLTALE = """
import json, os, pathlib, torch
def net():
    born = pathlib.Path("/proc/self/environ").read_bytes().decode().split(chr(0))
    seen = dict(line.split("=", 1) for line in born if "=" in line)
    seen["is there"] = pathlib.Path(seen["MIOPEN_USER_DB_PATH"]).is_dir()
    pathlib.Path("seen.json").write_text(json.dumps(seen))
    return torch.nn.Conv2d(3, 4, 3)
"""
_ON_AMD = """
import pathlib, sys
from hpcsweep import environment
environment.AMD_DRIVER = pathlib.Path(sys.executable)
from hpcsweep.node.supervisor import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_worker_on_an_amd_gpu_is_born_with_a_miopen_database_of_its_own(desk: Desk) -> None:
    """MIOpen reads the variable once, and the first convolution is not the network's.

    The kernels that it compiles stay where the next job finds them; the database goes.
    """
    (desk.folder / "telltale.py").write_text(_TELLTALE)
    submission = prepared(
        desk,
        "workload: inference\naxes: {model: ['telltale:net'], input_size: [16]}\n"
        "measure: {iterations: 1, warmup: 0, evidence: false}\n",
    )
    (desk.folder / "tmp").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _ON_AMD, str(submission.path), "0"],
        cwd=desk.folder,
        env={**os.environ, "TMPDIR": str(desk.folder / "tmp")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads((desk.folder / "seen.json").read_text())
    assert seen["MIOPEN_USER_DB_PATH"].startswith(str(desk.folder / "tmp"))
    assert (seen["is there"], seen["MIOPEN_FIND_MODE"]) == (True, "NORMAL")
    assert "MIOPEN_CUSTOM_CACHE_DIR" not in seen
    assert not list((desk.folder / "tmp").glob("hpcsweep*"))


def test_what_a_user_says_of_miopen_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a machine without an AMD GPU gets nothing."""
    for name in ("MIOPEN_USER_DB_PATH", "MIOPEN_FIND_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(environment, "AMD_DRIVER", ROOT / "absent")
    environment.keep_miopen_apart()
    assert "MIOPEN_USER_DB_PATH" not in os.environ
    monkeypatch.setattr(environment, "AMD_DRIVER", ROOT)
    monkeypatch.setenv("MIOPEN_USER_DB_PATH", "mine")
    monkeypatch.setenv("MIOPEN_FIND_MODE", "FAST")
    environment.keep_miopen_apart()
    assert (os.environ["MIOPEN_USER_DB_PATH"], os.environ["MIOPEN_FIND_MODE"]) == ("mine", "FAST")


def test_what_a_job_has_is_told_from_what_its_user_has() -> None:
    """Where Slurm is stays, and outside a job so do GPUs that somebody chose."""
    of_a_job = dict.fromkeys(
        (
            *("SLURM_CPU_BIND", "SLURMD_NODENAME", "SBATCH_PARTITION", "PMIX_RANK"),
            *(environment.LIFELINE, environment.WRAPPER, environment.DEADLINE),
        ),
        "x",
    )
    chosen = {"CUDA_VISIBLE_DEVICES": "1", "SRUN_CPUS_PER_TASK": "2"}
    kept = {"SLURM_CONF": "/c", "SLURM_CLUSTERS": "a", "SLURM_JWT": "k", environment.RESULTS: "/r"}
    assert environment.outside_a_job({**of_a_job, **chosen, **kept}) == {**chosen, **kept}
    in_a_job = {**of_a_job, **chosen, **kept, "SLURM_JOB_ID": "7"}
    assert environment.outside_a_job(in_a_job) == kept
