"""Tests are found by name: those of `src/hpcsweep/a/b.py` are `tests/a/test_b.py`.

A package counts as a module, too: those of `a/b/__init__.py` are `tests/a/test_b.py`.
"""

from __future__ import annotations

from paths import ROOT, TESTS

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
    "measure/workloads/training/test_sweep": "a training sweep from its file to its table",
    "node/test_kill": "processes of a run are killed at random",
    "submit/test_script_runs": "job scripts run in a shell, without Slurm",
    "test_layout": "this module",
    "test_secondtry": "the second try of what failed (tests/support/secondtry.py)",
    "test_offspring": "what tests start (tests/support/offspring.py)",
    "test_wheel": "the built wheel",
}


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
