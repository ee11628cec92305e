"""Tests are found by name: those of `src/hpcsweep/a/b.py` are `tests/a/test_b.py`.

A package counts as a module, too: those of `a/b/__init__.py` are `tests/a/test_b.py`. And a name of
a module or class means one thing everywhere.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import TYPE_CHECKING

from paths import ROOT, TESTS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

PACKAGE = ROOT / "src/hpcsweep"
# Folders of tests that ask for something else than one module, and single test modules that do.
OF_THE_WHOLE = {"acceptance", "benchmarks", "docs", "on_slurm", "properties"}
STORIES = {
    "importing/test_names": "what names in records of another site lead to",
    "forecast/test_foreign": "what imports of others' times teach a prediction",
    "measure/test_plans": "layers: plans, from the measurement to the replay",
    "catalog/test_roles": "what an axis is, followed from the catalogue to everything that asks",
    "cli/test_completion": "what TAB offers",
    "cli/test_foreign": "what files say, in every form in which it is shown",
    "cli/test_mistakes": "what is typed wrong, and the answer",
    "store/collect/test_fresh": "tables that are renewed before somebody reads them",
    "conv/libraries/test_cudnn_on_a_gpu": "the same back-end where there is a GPU",
    "measure/workloads/test_training_sweep": "a training sweep from its file to its table",
    "node/test_kill": "processes of a run are killed at random",
    "submit/test_script_runs": "job scripts run in a shell, without Slurm",
    "test_layout": "this module",
    "test_guests": "what works where a guest is deleted",
    "test_secondtry": "the second try of what failed (tests/support/secondtry.py)",
    "test_offspring": "what tests start (tests/support/offspring.py)",
    "test_wheel": "the built wheel",
}
# names that everybody gives to these libraries
USUAL = {"numpy": "np", "pandas": "pd", "pyarrow": "pa", "functional": "F", "tomli": "tomllib"}


def test_every_test_module_has_its_module_by_name():
    """Those that ask for something else are listed, with what that is."""
    paths = (path.relative_to(PACKAGE).with_suffix("") for path in PACKAGE.rglob("*.py"))
    modules = (path.parent if path.name == "__init__" else path for path in paths)
    named = {
        module.with_name(f"test_{module.name}").as_posix() for module in modules if module.name
    }
    found = (path.relative_to(TESTS).with_suffix("") for path in TESTS.rglob("test_*.py"))
    rest = {path.as_posix() for path in found if path.parts[0] not in OF_THE_WHOLE}
    assert sorted(rest - named - set(STORIES)) == []
    assert sorted(set(STORIES) - (rest - named)) == []  # found by name by now, or gone


def modules() -> list[Path]:
    """Return the modules of the package, without `__init__` and `__main__`."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if not path.stem.startswith("__")]


@cache
def tree(path: Path) -> ast.Module:
    """Return what a module consists of."""
    return ast.parse(path.read_text())


def named_twice(names: Iterable[tuple[str, Path]]) -> dict[str, list[str]]:
    """Return the names that several places have, with the places."""
    places: dict[str, list[str]] = {}
    for name, path in names:
        places.setdefault(name, []).append(path.relative_to(PACKAGE).as_posix())
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_modules_share_a_name():
    """Whoever reads `from hpcsweep.x import name` knows which; but a check is a pair of files."""
    pairs = {"catalog/checks", "measure/checks"}
    shared = named_twice((path.stem, path) for path in modules())
    assert {
        name: places
        for name, places in shared.items()
        if {path.rpartition("/")[0] for path in places} != pairs
    } == {}


def test_no_two_public_classes_share_a_name():
    """A class is named for the thing that it is, and so can be looked for."""
    classes = (
        (node.name, path)
        for path in modules()
        for node in tree(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert named_twice(classes) == {}


def test_no_import_renames_what_it_imports():
    """A name means one thing in every module; some libraries have the names that all use."""
    renamed = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {name.name} as {name.asname}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
        if name.asname not in {None, name.name, USUAL.get(name.name)}
    ]
    assert renamed == []
