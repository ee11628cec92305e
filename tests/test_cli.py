"""Help, exit codes, messages, and what each command loads."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from hpcsweep.cli import main

if TYPE_CHECKING:
    from localruns import Desk


FILE = {"pydantic", "yaml"}  # what reads sweep files and profiles
FRAMES = {"numpy", "pandas", "pyarrow"}
STANDARD = {"statistics", "concurrent.futures"}  # slow ones of the standard library
HEAVY = ("torch", "scipy", "submitit", "matplotlib", "jinja2", *FILE, *FRAMES, *STANDARD)


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
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_help_lists_every_command_and_loads_nothing(desk):
    """It has to be instant on a login node."""
    shown = desk.run_process("--help")
    for name in (
        "expand", "estimate", "submit", "status", "show", "collect", "report", "retry", "logs",
        "cancel", "verify", "doctor", "roofline", "plot",
    ):  # fmt: skip
        assert f"\n  {name} " in shown.stdout
        assert desk.run(name, "--help").returncode == 0
    assert loaded(desk, "--help") == set()


def test_each_command_loads_only_what_it_needs(desk):
    """Pandas alone takes longer than all else of a status; a login node may not have torch."""
    desk.spec(NOOP)
    desk.run("submit", "sweep.yaml", "--cluster", "local")
    assert loaded(desk, "collect") <= {"concurrent.futures"}  # of tables that it writes
    for arguments in (
        "collect", "status", "status --disk", "logs", "report", "report --format csv", "config",
        "report --where input_size>=2", "rm sweep --dry-run", "--help",
    ):  # fmt: skip
        assert loaded(desk, *arguments.split()) == set(), arguments
    for arguments in (
        "show", "cancel", "retry --dry-run", "expand sweep.yaml", "estimate sweep.yaml", "doctor",
        "submit sweep.yaml --cluster local",
    ):  # fmt: skip
        assert loaded(desk, *arguments.split()) <= FILE | STANDARD, arguments
    sides = ("sweep:input_size=1", "sweep:input_size=2")
    assert loaded(desk, "compare", *sides) <= FRAMES | STANDARD


@pytest.mark.parametrize("arguments", [("--help",), ("expand", "missing.yaml")])
def test_python_m_hpcsweep_is_the_same_command(desk, arguments):
    """Where the script is not on the PATH: the same words, streams and exit code."""
    done = subprocess.run(
        [sys.executable, "-m", "hpcsweep", *arguments],
        cwd=desk.folder,
        capture_output=True,
        text=True,
        timeout=300,
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
    _, errors = expanding.communicate(timeout=300)
    assert (expanding.returncode, errors) == (1, "")


@pytest.mark.parametrize("command", [[], ["submit"], ["roofline"], ["plot"], ["logs"]])
def test_examples_in_help_keep_their_lines(desk, command):
    """One example a line, as it is typed; no mark of the formatter shows."""
    shown = desk.run(*command, "--help").stdout
    assert "\\b" not in shown
    assert "\b" not in shown
    if not command:
        assert "\n        hpcsweep collect quickstart\n" in shown


def test_no_command_shows_the_help_and_is_no_error(desk):
    """On stdout, with exit code 0."""
    done = desk.run_process()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


def test_help_lists_each_command_by_its_purpose_and_cuts_none(desk):
    """Each fits into a line of 80 columns."""
    lines = desk.run_process("--help", COLUMNS="80").stdout.partition("Set up:\n")[2].splitlines()
    assert [line for line in lines if "..." in line] == []
    assert [line for line in lines if line.endswith(":")] == [
        "Run:",
        "Read:",
        "Decide:",
        "Look up:",
    ]
    assert {line.split()[0] for line in lines if line.startswith("  ")} == {*main.commands}
    assert len(main.commands) <= 25


def test_an_option_has_one_meaning():
    """The same words of help wherever it is, but for what is said of the command at hand."""
    says: dict[str, set[str]] = {}
    for command in main.commands.values():
        for option in command.params:
            if isinstance(option, click.Option):
                says.setdefault(option.opts[0], set()).add(option.help or "")
    several = {name for name, texts in says.items() if len(texts) > 1}
    own = {"--metric", "--from", "--cluster", "--gpu", "--dry-run", "--watch", "--by", "--out"}
    own |= {"--format", "--status"}
    assert several <= own | {"--all"}  # --all: nothing of a list is left out


STRUCK = """
import os, signal, sys
class Strike:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Strike())
from hpcsweep.cli import run
run()
"""


def struck(desk, code, *words):
    """Return what a command ended with and said that sends itself a Ctrl-C."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=desk.folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "module", ["hpcsweep.cli.program", "click", "hpcsweep.cli.settings", "hpcsweep.cluster.status"]
)
def test_ctrl_c_while_a_command_is_imported_ends_it_without_a_traceback(desk, module):
    """From its first line on; also in what it imports when it runs."""
    code = STRUCK.replace("sys.argv[1]", repr(module), 1)
    code, errors = struck(desk, code, "status")
    assert (code, "Traceback" in errors) == (130, False), errors


def test_ctrl_c_within_a_callback_is_not_forgotten(desk):
    """Python would print it and go on."""
    code = """
import os, signal
from hpcsweep.cli import run
from hpcsweep.spec import lookup
import time, weakref
class Thing: pass
def folder(*_):
    thing = Thing()
    kept = weakref.ref(thing, lambda _: os.kill(os.getpid(), signal.SIGINT))
    del thing
    time.sleep(60)
from hpcsweep.cluster import status
status.read_status = folder
run()
"""
    code, errors = struck(desk, code, "status")
    assert (code, "Traceback" in errors) == (130, False), errors
