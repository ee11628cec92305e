"""What commands share: how they find the sweep that is meant, and how text gets to a terminal."""

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


def test_escape_sequences_do_not_reach_a_terminal(desk):
    """They are shown; what goes into a file or a pipe is as it was."""
    desk.spec(NOOP)
    assert desk.run("submit", "sweep.yaml").returncode == 0
    (submission,) = desk.sweep().submissions()
    with submission.log(0, 0).open("a") as file:
        file.write("\x1b]0;owned\x07 \x1b[2J\n")
    shown = desk.run_on_a_terminal("logs", "sweep")
    assert "\x1b" not in shown
    assert "\\x1b]0;owned\\x07 \\x1b[2J" in shown
    assert "\x1b]0;owned\x07 \x1b[2J" in desk.run_process("logs", "sweep").stdout


def test_escape_sequences_in_an_error_do_not_reach_a_terminal(desk):
    """A message names what it was given."""
    assert "no command '\\x1b[31mx'" in desk.run_on_a_terminal("\x1b[31mx")


def test_no_sweep_is_measured_on_a_login_node_by_accident(desk):
    """Without a profile only a sweep that is meant for this machine runs, where no sbatch is."""
    desk.spec(NOOP)
    desk.spec(NOOP.replace("model: [a]", "model: [a], gpu: [v100, l40]"), "gpus.yaml")
    sbatch = desk.folder / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\nexit 1\n")
    sbatch.chmod(0o755)
    nothing = {"HPCSWEEP_CLUSTER": "", "PATH": "/nowhere"}
    for command in (["submit"], ["submit", "--dry-run"]):
        done = desk.run(*command, "gpus.yaml", **nothing)
        why = "the sweep asks for gpu: v100, l40; this machine has: cpu. Name a profile (base, "
        assert done.returncode == 2
        assert done.stderr.startswith(f"hpcsweep: gpus: --cluster is missing: {why}")
        assert done.stderr.endswith(
            "local measures here), or set `cluster` with `hpcsweep init` or HPCSWEEP_CLUSTER\n"
        )
        done = desk.run(*command, "sweep.yaml", **{**nothing, "PATH": str(sbatch.parent)})
        assert done.returncode == 2
        assert "this machine has sbatch, so it may be a login node" in done.stderr
    assert not desk.results.exists()
    assert desk.run("submit", "sweep.yaml", **nothing).returncode == 0
    assert (
        desk.run("submit", "gpus.yaml", **{**nothing, "HPCSWEEP_CLUSTER": "local"}).returncode == 0
    )
