"""CONTRIBUTING, with its map of the code, names what is in the tree, all of it."""

from __future__ import annotations

import ast
import re
from collections import Counter
from typing import TYPE_CHECKING

import docscripts
from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = ROOT / "src" / "hpcsweep"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
ROOTS = (ROOT, PACKAGE.parent, PACKAGE)  # paths in CONTRIBUTING start at one of these
PATH = re.compile(r"`((?:[\w.-]+/)+[\w.-]*|[\w-]+\.(?:py|md|toml|yaml))`")
DEFINED = re.compile(r"`([A-Za-z_]\w+)`(?: or `(\w+)`)? in `([\w/]+\.py)`")


def modules_of_the_tree() -> list[str]:
    """Return `spec/space` and the like, for every module but `__init__`."""
    paths = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")
    return [path.relative_to(PACKAGE).with_suffix("").as_posix() for path in paths]


def modules_of_the_map() -> list[str]:
    """Return the modules that the map names, in its order."""
    rows = docscripts.load("site_pages").map_rows()
    return [row.folder + name for row in rows for name in row.modules]


def defined(path: Path) -> set[str]:
    """Return the names that a file defines at its top level."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        found |= {target.id for target in targets if isinstance(target, ast.Name)}
    return found


def test_the_map_names_every_module_exactly_once():
    """A new module gets its place in the reading order."""
    tree, named = Counter(modules_of_the_tree()), Counter(modules_of_the_map())
    lacks, ghosts = sorted(tree - named), sorted(name for name in named if name not in tree)
    twice = sorted(name for name, times in named.items() if times > 1)
    wrong = f"lacks {lacks}" * bool(lacks) + f" has ghosts {ghosts}" * bool(ghosts)
    wrong += f" names twice {twice}" * bool(twice)
    assert not wrong, f"the map in CONTRIBUTING.md {wrong.strip()}"


def test_every_path_in_contributing_exists():
    """Relative to the repository or to the package."""
    named = PATH.findall(CONTRIBUTING)
    gone = [name for name in named if not any((root / name).exists() for root in ROOTS)]
    assert len(named) > 20
    assert not gone, f"CONTRIBUTING.md names {gone}"


def test_every_name_in_contributing_is_defined_where_it_says():
    """`NAME` in `file.py`: the place where to add something."""
    named = DEFINED.findall(CONTRIBUTING)
    gone = [
        f"{name} in {path}"
        for *names, path in named
        for name in filter(None, names)
        if name not in defined(PACKAGE / path)
    ]
    assert len(named) > 5
    assert not gone, f"CONTRIBUTING.md names {gone}"


def test_every_command_in_contributing_exists():
    """Targets of make, and files that Python or pytest is given."""
    lines = re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    targets = {name for line in lines for name in line.split()}
    assert set(re.findall(r"\bmake ([a-z-]+)", CONTRIBUTING)) <= targets
    files = re.findall(r"(?:-m pytest|bin/python) ([\w/.]+\.py)", CONTRIBUTING)
    assert [name for name in files if not (ROOT / name).exists()] == []
    assert len(files) > 1
