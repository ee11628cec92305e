"""The job script: quoted, complete, and accepted by the shell."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from hpcsweep import profile, rundir, script
from hpcsweep.errors import ProfileError

if TYPE_CHECKING:
    from pathlib import Path


def _render(tmp_path: Path, text: str, folder: str = "results") -> str:
    path = tmp_path / "site.yaml"
    path.write_text("gpu: v100\n" + text)
    submission = rundir.new_submission(rundir.RunDir(tmp_path / folder / "s"), "site")
    return script.render(profile.load(path), submission)


def test_every_option_of_the_profile_is_in_the_script(tmp_path: Path):
    """One #SBATCH line each, and none for what the profile does not say."""
    text = _render(tmp_path, "partition: gpu\ntime: 60\nmem: 2G\nqos: brief\naccount: lab\n")
    for option in ("partition=gpu", "time=60", "mem=2G", "qos=brief", "account=lab"):
        assert f"#SBATCH --{option}\n" in text
    assert "--gres" not in text
    assert "date +%s) + 3600" in text


def test_hostile_values_stay_words(tmp_path: Path):
    """Quotes, blanks and substitutions reach the variable as they are; nothing is run."""
    bad = 'a\'b $(touch pwned) "c"'
    text = _render(tmp_path, f"env: {{X: {json.dumps(bad)}}}\npython: /bin/true\n", "it's $(here)")
    head = text.split("chunk=")[0] + '\nprintf %s "$X"\n'
    done = subprocess.run(
        ["bash", "-c", head], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == bad
    assert not (tmp_path / "pwned").exists()
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0


def test_the_first_setup_line_that_fails_ends_the_job_and_is_named(tmp_path: Path):
    """Later lines are not run."""
    text = _render(tmp_path, "setup: ['true', 'no_such_tool --x', 'touch late']\n")
    done = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 5
    assert "this setup line failed: no_such_tool --x" in done.stderr
    assert not (tmp_path / "late").exists()


def test_a_folder_with_a_line_end_is_refused(tmp_path: Path):
    """It could start a line of its own."""
    with pytest.raises(ProfileError, match="line end"):
        _render(tmp_path, "", "re\nsults")
