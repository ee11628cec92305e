"""The pages that describe files: their tables come from the code, their examples work."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import docscripts
from docscripts import DOCS
from hpcsweep.spec import profile, sweep_file
from hpcsweep.spec.axis_values import MAX_VALUES
from hpcsweep.spec.expansion import MOST_POINTS, expand
from hpcsweep.spec.sweep_file import MAX_POINTS

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


def examples(page: str) -> list[str]:
    """Return the YAML blocks of a page."""
    return re.findall(r"```yaml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    """Return the script that writes generated text."""
    return docscripts.load("generate")


def test_every_generated_file_is_what_the_code_would_write(generate: ModuleType) -> None:
    """After a change: `python docs/generate.py`."""
    stale = [path.name for path, text in generate.files().items() if path.read_text() != text]
    assert stale == []


@pytest.mark.parametrize("example", examples("sweeps.md"))
def test_every_sweep_of_the_documentation_loads_and_has_points(
    tmp_path: Path, example: str
) -> None:
    """A newcomer copies them."""
    path = tmp_path / "example.yaml"
    path.write_text(example)
    expansion = expand(sweep_file.load(path))
    assert len(expansion) == sum(1 for _ in expansion) > 0


@pytest.mark.parametrize("example", examples("profiles.md"))
def test_every_profile_of_the_documentation_loads(tmp_path: Path, example: str) -> None:
    """On top of the shipped base."""
    path = tmp_path / "example.yaml"
    path.write_text(example)
    assert profile.load(path).gpu in {"l40", "v100", "h100", "mi250"}


def test_the_limits_in_the_text_are_those_of_the_code() -> None:
    """Numbers in prose go stale unseen."""
    text = (DOCS / "sweeps.md").read_text()
    assert f"{MOST_POINTS:,} points at a time" in text
    assert f"{MAX_VALUES:,} values, and a sweep {MAX_POINTS:,} points" in text
