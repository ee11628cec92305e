"""What benchmarks and documents import of the program is there, though most run rarely."""

from __future__ import annotations

import ast
import importlib
from importlib.util import find_spec

import pytest

from benchmarks import point_cost
from paths import ROOT

SCRIPTS = [*sorted((ROOT / "benchmarks").rglob("*.py")), *sorted((ROOT / "docs").glob("*.py"))]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_that_a_script_imports_is_defined(script):
    """A module that was merged or renamed leaves no script behind."""
    imports = [
        node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom)
    ]
    for node in imports:
        if node.module and node.module.startswith("hpcsweep"):
            module = importlib.import_module(node.module)
            for name in (alias.name for alias in node.names):
                assert hasattr(module, name) or find_spec(f"{node.module}.{name}"), (
                    node.lineno,
                    name,
                )


@pytest.mark.parametrize("watched", point_cost.WATCHED, ids=lambda watched: watched[1])
def test_every_stage_of_a_point_is_there_to_be_watched(watched):
    """The table of a point's cost names private functions, which move."""
    owner, name, _ = watched
    assert callable(getattr(owner, name, None))
