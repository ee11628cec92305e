"""The names of environment variables stand in one place."""

from __future__ import annotations

import re

from hpcsweep import environment
from paths import ROOT

NAMES = {text for name, text in vars(environment).items() if name.isupper() and type(text) is str}


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
