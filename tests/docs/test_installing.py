"""docs/install.md and docs/configuration.md: their files work, and print what stands there."""

from __future__ import annotations

import re

import pytest

from docscripts import DOCS
from hpcsweep.cli import settings
from hpcsweep.spec import profile
from paths import ROOT

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INSTALL = BLOCK.findall((DOCS / "install.md").read_text())
CONFIGURATION = BLOCK.findall((DOCS / "configuration.md").read_text())
DEFINITION = ROOT / "jobs/apptainer/hpcsweep.def"


def test_the_profiles_of_the_page_are_profiles(tmp_path, monkeypatch):
    """Each in the file that its first line names."""
    monkeypatch.chdir(tmp_path)
    found = [text for kind, text in INSTALL if kind == "yaml"]
    for text in found:
        path = tmp_path / text.splitlines()[0].removeprefix("# ")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        assert profile.load(path).own_python
    assert len(found) == 2


@pytest.fixture
def configured(desk, monkeypatch):
    """Return a folder with the configuration file of the page, and no other."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(desk.folder / "home"))
    monkeypatch.delenv("HPCSWEEP_CLUSTER")
    (text,) = (text for kind, text in CONFIGURATION if kind == "toml")
    desk.spec(text, "hpcsweep.toml")
    return desk


def test_the_page_shows_what_config_prints(configured):
    """Every line of it."""
    told = configured.run("config", HPCSWEEP_SUBMIT_CLUSTER="h100").stdout.splitlines()
    shown = next(text for kind, text in CONFIGURATION if text.startswith("option "))
    assert [line for line in shown.splitlines() if line not in told] == []


def test_the_page_shows_what_a_mistake_says(configured):
    """With the line of the file as it stands there; the names of all options are left out."""
    shown = next(text for kind, text in CONFIGURATION if text.startswith("hpcsweep: "))
    configured.spec('results = "out"\n[submit]\nsampel = 3\n', "hpcsweep.toml")
    begins, _, ends = shown.partition("...")
    said = configured.run("status").stderr
    assert (said.startswith(begins), said.endswith(ends)) == (True, True), said


def test_every_variable_that_the_page_names_exists():
    """Each is that of an option, or of the program."""
    text = (DOCS / "configuration.md").read_text()
    named = set(re.findall(r"HPCSWEEP_[A-Z_]+[A-Z]", text)) - {"HPCSWEEP_SUBMIT_SAMPEL"}
    from hpcsweep import environment
    from hpcsweep.cli import main

    known = {settings.variable(loc) for loc, _ in settings.options(main)}
    assert named <= known | {one for one in vars(environment).values() if isinstance(one, str)}
    assert len(named) > 6


def test_the_definition_of_the_image_has_its_arguments():
    """Those with a default, and the one that the page gives."""
    text = DEFINITION.read_text()
    used = set(re.findall(r"\{\{ (\w+) \}\}", text))
    defaults = set(re.findall(r"^    (\w+)=\S+$", text.partition("%files")[0], re.MULTILINE))
    (line,) = (
        line for _, text in INSTALL for line in text.splitlines() if "apptainer build" in line
    )
    given = set(re.findall(r"--build-arg (\w+)=", line))
    assert used == defaults | given
    assert line.endswith(DEFINITION.relative_to(ROOT).as_posix())
