"""A release: notes from the changelog, and files that other programs read."""

from __future__ import annotations

import pytest

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


def test_a_release_has_no_test_that_fails_by_chance():
    """What is flaky is mended before, not after."""
    with pytest.raises(ValueError, match="test_b fails by chance"):
        notes("v0.3.0", CHANGES, PACKAGE, "tests/a.py::test_b\n")


def test_the_version_of_the_package_has_notes():
    """A change of either is a change of both."""
    package = (ROOT / "src/hpcsweep/version.py").read_text()
    assert "Slurm" in notes(
        f"v{hpcsweep.__version__}", (ROOT / "CHANGELOG.md").read_text(), package
    )
