"""Help, exit codes, messages, and what each command loads."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from paths import ROOT

if TYPE_CHECKING:
    from localruns import Desk

HEAVY = ("torch", "pandas", "submitit", "matplotlib", "pydantic", "rich", "yaml")
NOOP = "workload: noop\naxes: {model: [a], input_size: [1, 2, 3]}\n"


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
    shown = desk.run_process("--help")
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


@pytest.mark.parametrize("arguments", [("--help",), ("expand", "missing.yaml")])
def test_python_m_hpcsweep_is_the_same_command(desk, arguments):
    """Where the script is not on the PATH: the same words, streams and exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "hpcsweep", *arguments],
        cwd=desk.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    script = desk.run(*arguments)
    assert (done.returncode, done.stdout, done.stderr) == (
        script.returncode,
        script.stdout,
        script.stderr,
    )


def test_debug_shows_the_traceback(desk):
    """For whoever wants to report a bug."""
    done = desk.run_process("--debug", "expand", "missing.yaml")
    assert "Traceback" in done.stderr
    assert done.returncode != 0


def test_a_reader_that_leaves_early_is_no_mistake(desk):
    """As in `hpcsweep expand ... | head`: no traceback, and no word about it."""
    desk.spec(NOOP.replace("[1, 2, 3]", "{start: 1, stop: 9999, num: 9999}"))
    expanding = desk.start("expand", "sweep.yaml", "--json", "--all")
    assert expanding.stdout.read(1) == "{"
    expanding.stdout.close()
    _, errors = expanding.communicate(timeout=60)
    assert (expanding.returncode, errors) == (1, "")


def test_expand_json_is_pure(desk):
    """Machines read stdout; every point is flat."""
    desk.spec(NOOP + "exclude: [{input_size: 2}]\n")
    done = desk.run_process("expand", "sweep.yaml", "--cluster", "local", "--json")
    record = json.loads(done.stdout)
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
    assert desk.run_process("--results", away, "submit", "sweep.yaml").returncode == 0
    assert "sweep" in desk.run_process("status", HPCSWEEP_RESULTS=away).stdout


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
    done = desk.run_process(*command)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


def test_status_takes_a_sweep_file_for_its_results(desk):
    """As the other commands do."""
    desk.spec(NOOP)
    assert desk.run("submit", "sweep.yaml", "--cluster", "local").returncode == 0
    assert "sweep" in desk.run("status", "sweep.yaml").stdout


def test_expand_shows_the_ids_that_will_be_measured_or_none(desk):
    """The gpu is part of an id; where the sweep leaves it to the profile, a line says so."""
    desk.spec(NOOP)
    bare = json.loads(desk.run("expand", "sweep.yaml", "--json").stdout)
    assert {point["point_id"] for point in bare["points"]} == {None}
    assert "point_id" not in desk.run("expand", "sweep.yaml").stdout
    assert "--cluster NAME" in desk.run("expand", "sweep.yaml").stdout
    here = json.loads(desk.run("expand", "sweep.yaml", "--cluster", "local", "--json").stdout)
    assert here["notes"] == []
    desk.run("submit", "sweep.yaml", "--cluster", "local")
    assert {row["point_id"] for row in desk.rows()} == {p["point_id"] for p in here["points"]}


def test_expand_shows_the_ids_of_a_sweep_that_names_its_gpus(desk):
    """They are those that a profile of that GPU measures."""
    desk.spec(NOOP.replace("}", ", gpu: [l40]}"))
    bare, there = (
        json.loads(desk.run("expand", "sweep.yaml", *more, "--json").stdout)
        for more in ((), ("--cluster", "l40"))
    )
    assert bare["points"] == there["points"]
    assert bare["notes"] == []
    assert "sweep on l40 (l40): 3" in desk.run("expand", "sweep.yaml", "--cluster", "l40").stdout


def test_a_misspelt_model_of_a_no_op_is_told_and_taken(desk):
    """It runs no model, so any name will do; the file may be meant for real one day."""
    desk.spec(NOOP.replace("[a]", "[resnet81, mine]"))
    words = "other workloads do not know the model 'resnet81'; did you mean 'resnet18'?"
    assert f"note: {words}" in desk.run("expand", "sweep.yaml").stdout
    done = desk.run("submit", "sweep.yaml")
    assert (done.returncode, done.stderr.strip()) == (0, f"note: {words}")
    desk.spec(NOOP.replace("[a]", "[resnet18, mine]"))
    assert desk.run("submit", "sweep.yaml").stderr == ""


def test_help_cuts_no_description_of_a_command(desk):
    """Each fits into a line of 80 columns, in the order of the README's table."""
    lines = desk.run_process("--help", COLUMNS="80").stdout.partition("Commands:\n")[2].splitlines()
    assert [line for line in lines if "..." in line] == []
    readme = (ROOT / "README.md").read_text()
    assert [line.split()[0] for line in lines] == re.findall(
        r"^\| `hpcsweep (\w+)", readme, re.MULTILINE
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("submit",), "Missing argument 'SPEC' (see `hpcsweep submit --help`)"),
        (("data", "get"), "Missing argument"),
        (("status", "--jsn"), "did you mean"),
        (("status", "--results", "x"), "--results belongs before the command: hpcsweep --results"),
        (("status", "--debug"), "--debug belongs before the command: hpcsweep --debug ... status"),
        (("--reslts", "x", "status"), "(see `hpcsweep --help`)"),
    ],
)
def test_wrong_arguments_are_told_with_the_help_to_read(desk, arguments, words):
    """That of the command, not of the program."""
    done = desk.run(*arguments)
    assert done.returncode == 2
    assert words.lower() in done.stderr.lower()
    assert len(done.stderr.splitlines()) == 1


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
