"""Tests are found by name: those of `src/hpcsweep/a/b.py` are `tests/a/test_b.py`.

A package counts as a module, too: those of `a/b/__init__.py` are `tests/a/test_b.py`.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from paths import ROOT, TESTS

if TYPE_CHECKING:
    from pathlib import Path

PACKAGE = ROOT / "src/hpcsweep"

# Modules whose tests stand with those of another one, since each is asked for through that one.
TESTED_WITH = {
    "__init__": "test_api",
    "adaptive/summary": "adaptive/test_workflow",
    "analysis/page/figures": "analysis/page/test_write",
    "analysis/page/sections": "analysis/page/test_write",
    "cli/configuration": "cli/test_settings",
    "cli/machine": "preflight/test_doctor",
    "cli/sweeps": "cli/test_common",
    "preflight/findings": "preflight/test_checks",
    "predict/baselines": "predict/test_check",
    "predict/fallbacks": "predict/test_model",
    "predict/leaving_out": "predict/test_check",
    "predict/shapes": "predict/test_sweep",
    "predict/terms": "predict/test_physics",
    "slurm/cluster": "on_slurm/test_mistakes",
    "submit/cost": "submit/test_estimate",
    "submit/launchers/arrays": "on_slurm/test_launching",
    "submit/launchers/sbatch": "on_slurm/test_launching",
    "submit/launchers/via_submitit": "on_slurm/test_submitit",
    "submit/precheck": "on_slurm/test_mistakes",
    "submit/steps": "submit/test_workflow",
    "submit/to_slurm": "on_slurm/test_launching",
    "tracking/bad_nodes": "on_slurm/test_badnodes",
    "tracking/sweep_status": "tracking/test_status",
}
# Folders of tests that ask for something else than one module.
OF_THE_WHOLE = {
    "benchmarks": "the scripts in benchmarks/",
    "docs": "documents, pictures and generated pages",
    "on_slurm": "a real Slurm",
    "properties": "laws, with inputs that are drawn",
}
# Single test modules that do.
STORIES = {
    "cli/test_mistakes": "what is typed wrong, and the answer",
    "conv/proof/test_liars": "back-ends that lie about what they run, and honest ones",
    "conv/vendor/test_cudnn_on_a_gpu": "the same back-end where there is a GPU",
    "measure/training/test_sweep": "a training sweep from its file to its table",
    "node/test_kill": "processes of a run are killed at random",
    "submit/test_script_runs": "job scripts run in a shell, without Slurm",
    "test_layout": "this module",
    "test_offspring": "what tests start (tests/support/offspring.py)",
    "test_wheel": "the built wheel",
}


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).with_suffix("").as_posix().removesuffix("/__init__")


def _has_logic(path: Path) -> bool:
    """Say whether a module defines functions; names and records alone need no tests."""
    return any(isinstance(node, ast.FunctionDef) for node in ast.walk(ast.parse(path.read_text())))


def _test_of(module: str) -> str:
    folder, _, name = module.rpartition("/")
    return f"{folder}/test_{name}".removeprefix("/")


MODULES = {_name(path, PACKAGE): path for path in PACKAGE.rglob("*.py")}
TEST_MODULES = {_name(path, TESTS) for path in TESTS.rglob("test_*.py")}
WITH_LOGIC = {name for name, path in MODULES.items() if _has_logic(path)}


def test_every_module_with_logic_has_its_tests_by_name():
    """Those that have none are listed, with where their tests are."""
    without = {name for name in WITH_LOGIC if _test_of(name) not in TEST_MODULES}
    assert sorted(without - set(TESTED_WITH)) == []
    assert sorted(set(TESTED_WITH) - without) == []  # found by name by now, or gone
    assert sorted(set(TESTED_WITH.values()) - TEST_MODULES) == []


def test_every_test_module_has_its_module_by_name():
    """Those that ask for something else are listed, with what that is."""
    rest = {name for name in TEST_MODULES if name.partition("/")[0] not in OF_THE_WHOLE}
    without = rest - {_test_of(name) for name in MODULES}
    assert sorted(without - set(STORIES)) == []
    assert sorted(set(STORIES) - without) == []
