"""Help, exit codes, messages, and what each command loads."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from localruns import Desk

HEAVY = ("torch", "pandas", "submitit", "matplotlib", "pydantic", "rich", "yaml")
NOOP = "workload: noop\naxes: {model: [a], input_size: [1, 2, 3]}\n"


@pytest.fixture
def desk(tmp_path):
    """Return a folder of its own."""
    return Desk(tmp_path)


def loaded(desk: Desk, *arguments: str) -> set[str]:
    """Return which heavy modules a command loads."""
    code = (
        "import sys, atexit\n"
        f"heavy = {HEAVY!r}\n"
        "atexit.register(lambda: print('\\nLOADED', *[m for m in heavy if m in sys.modules]))\n"
        "from hpcsweep.cli import run; run()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=desk.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_help_lists_every_command_and_loads_nothing(desk):
    """It has to be instant on a login node."""
    shown = desk.run("--help")
    for name in (
        "expand", "estimate", "submit", "status", "collect", "report", "retry", "logs", "cancel",
        "verify", "doctor", "roofline", "plot",
    ):  # fmt: skip
        assert f"\n  {name} " in shown.stdout
        assert desk.run(name, "--help").returncode == 0
    assert loaded(desk, "--help") == set()


def test_status_and_collect_load_only_what_they_need(desk):
    """A status is asked for often, a collect runs on a login node."""
    desk.spec(NOOP)
    desk.run("submit", "sweep.yaml", "--cluster", "local")
    assert loaded(desk, "status") == set()
    assert loaded(desk, "collect") == set()


def test_expand_loads_no_torch(desk):
    """A login node may not have it."""
    desk.spec(NOOP)
    assert loaded(desk, "expand", "sweep.yaml") <= {"yaml", "pydantic"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("expnad", "x"), "did you mean 'expand'"),
        (("expand", "quikstart"), "did you mean 'quickstart'"),
        (("expand", "missing.yaml"), "missing.yaml"),
        (("submit", "quickstart", "--cluster", "l04"), "did you mean 'l40'"),
        (("status", "nothing"), "no results of a sweep 'nothing'"),
        (("collect",), "no results yet"),
        (("report", "nothing"), "no results of a sweep"),
        (("logs", "nothing"), "no results of a sweep"),
    ],
)
def test_what_does_not_exist_is_told_in_a_line_or_two(desk, arguments, words):
    """Exit code 2, the nearest spelling, no traceback."""
    done = desk.run(*arguments)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 2
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback(desk):
    """For whoever wants to report a bug."""
    done = desk.run("--debug", "expand", "missing.yaml")
    assert "Traceback" in done.stderr
    assert done.returncode != 0


def test_expand_json_is_pure(desk):
    """Machines read stdout; every point is flat."""
    desk.spec(NOOP + "exclude: [{input_size: 2}]\n")
    record = json.loads(desk.run("expand", "sweep.yaml", "--json").stdout)
    assert record["points_total"] == 2
    assert [rule["points"] for rule in record["rules"]] == [1]
    assert [point["input_size"] for point in record["points"]] == [1, 3]
    assert all(len(point["point_id"]) == 16 for point in record["points"])


def test_expand_shows_ten_points_unless_asked_for_all(desk):
    """The rest is counted."""
    desk.spec(NOOP.replace("[1, 2, 3]", "{start: 1, stop: 30, num: 30}"))
    assert "and 20 more" in desk.run("expand", "sweep.yaml").stdout
    assert (
        len(json.loads(desk.run("expand", "sweep.yaml", "--json", "--all").stdout)["points"]) == 30
    )


def test_estimate_tells_the_cost(desk):
    """Before anything is submitted, from rows where there are some."""
    desk.spec(NOOP)
    record = json.loads(desk.run("estimate", "sweep.yaml", "--json").stdout)
    assert record["points"] == 3
    assert record["share_from_rows"] == 0
    assert list(record["gpu_hours"]) == ["cpu"]


def test_results_can_lie_anywhere(desk):
    """By option or by environment."""
    desk.spec(NOOP)
    away = str(desk.folder / "else where")
    assert desk.run("--results", away, "submit", "sweep.yaml").returncode == 0
    assert "sweep" in desk.run("status", HPCSWEEP_RESULTS=away).stdout


@pytest.mark.parametrize("command", [[], ["submit"], ["roofline"], ["plot"], ["logs"]])
def test_examples_in_help_keep_their_lines(desk, command):
    """One example a line, as it is typed; no mark of the formatter shows."""
    shown = desk.run(*command, "--help").stdout
    assert "\\b" not in shown
    assert "\b" not in shown
    if not command:
        assert "\n        hpcsweep collect quickstart\n" in shown


@pytest.mark.parametrize("command", [[], ["cluster"], ["data"]])
def test_no_command_shows_the_help_and_is_no_error(desk, command):
    """On stdout, with exit code 0."""
    done = desk.run(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


def test_status_takes_a_sweep_file_for_its_results(desk):
    """As the other commands do."""
    desk.spec(NOOP)
    assert desk.run("submit", "sweep.yaml", "--cluster", "local").returncode == 0
    assert "sweep" in desk.run("status", "sweep.yaml").stdout
