"""A release: notes from the changelog, and files that other programs read."""

from __future__ import annotations

import re

import pytest
import yaml

import docscripts
import hpcsweep
from paths import ROOT

CHANGES = """# Changelog

## [Unreleased]

## [0.3.0] - 2026-02-03

### Added

- New.

## [0.2.0] - 2026-01-02

- Old.
"""
PACKAGE = '"""Doc."""\n\n__version__ = "0.3.0"\n'


def notes(*arguments: str) -> str:
    """Return what the script prints."""
    return docscripts.load("release_notes").notes(*arguments)


def test_the_notes_of_a_release_are_its_section():
    """No heading of it, nothing of others."""
    assert notes("v0.3.0", CHANGES, PACKAGE) == "### Added\n\n- New."


@pytest.mark.parametrize(
    ("tag", "changes", "words"),
    [
        ("v0.2.0", CHANGES, "has 0.3.0"),
        ("v0.3.0", CHANGES.replace("[0.3.0]", "[0.3.1]"), "no section"),
        ("v0.3.0", CHANGES.replace("### Added\n\n- New.", ""), "no section"),
    ],
)
def test_a_tag_that_does_not_fit_is_refused(tag, changes, words):
    """Before anything is published."""
    with pytest.raises(ValueError, match=words):
        notes(tag, changes, PACKAGE)


def test_the_version_of_the_package_has_notes():
    """A change of either is a change of both."""
    package = (ROOT / "src/hpcsweep/__init__.py").read_text()
    assert "Slurm" in notes(
        f"v{hpcsweep.__version__}", (ROOT / "CHANGELOG.md").read_text(), package
    )


@pytest.mark.parametrize(
    "name", ["CITATION.cff", ".pre-commit-config.yaml", *(
        path.relative_to(ROOT).as_posix() for path in (ROOT / ".github").rglob("*.yml")
    )],
)  # fmt: skip
def test_files_for_other_programs_are_yaml(name):
    """Each is a map."""
    assert isinstance(yaml.safe_load((ROOT / name).read_text()), dict)


def test_the_workflow_runs_what_a_person_runs_on_every_python():
    """`make test`, from the oldest version that the package allows."""
    job = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())["jobs"]["test"]
    assert job["strategy"]["matrix"]["python"] == ["3.10", "3.11", "3.12", "3.13"]
    assert job["steps"][-1]["run"].startswith("make test")
    oldest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert oldest
    assert oldest[1] == "3.10"
