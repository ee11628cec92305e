"""How commands find the sweep that is meant."""

from __future__ import annotations

NOOP = "workload: noop\naxes: {model: [a], input_size: [1, 2, 3]}\n"


def test_results_can_lie_anywhere(desk):
    """By option or by environment."""
    desk.spec(NOOP)
    away = str(desk.folder / "else where")
    assert desk.run_process("--results", away, "submit", "sweep.yaml").returncode == 0
    assert "sweep" in desk.run_process("status", HPCSWEEP_RESULTS=away).stdout


def test_status_takes_a_sweep_file_for_its_results(desk):
    """As the other commands do."""
    desk.spec(NOOP)
    assert desk.run("submit", "sweep.yaml", "--cluster", "local").returncode == 0
    assert "sweep" in desk.run("status", "sweep.yaml").stdout


def test_a_sweep_is_named_by_its_file_or_its_folder_too(desk):
    """The file's own name counts; it need not be fit to be read any more."""
    desk.spec("name: other\n" + NOOP)
    assert desk.run("submit", "sweep.yaml").returncode == 0
    for command in (("status",), ("collect",), ("report",), ("logs",), ("retry",), ("cancel",)):
        for name in ("other", "sweep.yaml", "results/other"):
            done = desk.run(*command, name)
            assert done.returncode == 0, done.stderr
    desk.spec("name: [\n", "other.yaml")
    assert desk.run("status", "other.yaml").returncode == 0
