"""With --json every command prints one document with a version, also where it fails."""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import click
import pytest

import layeredsweep
import oldtables
from hpcsweep.cli import answer, main
from hpcsweep.errors import PointsFailed
from localruns import COMMAND, Desk
from paths import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator


NOOP = "workload: noop\naxes: {model: [a], input_size: [1, 2, 3]}\n"
LONG = "all_algorithms_of_a_network_with_quite_a_long_name"
SMALL = "workload: inference\naxes: {model: [squeezenet1_1], input_size: [64], algorithm: [gemm]}\n"

# Arguments with which a command does its work, and the exit code; `demo` is measured
CALLS: dict[str, tuple[str, int]] = {
    "config": ("", 0),
    "init": ("--cluster local --wait 0 --project", 0),
    "expand": ("demo.yaml", 0),
    "estimate": ("noop.yaml", 0),
    "submit": ("noop.yaml --cluster local", 0),
    "status": ("", 0),
    "show": ("demo", 0),
    "collect": ("demo", 0),
    "import": ("tables --as older", 0),
    "report": ("demo --html page.html", 0),
    "layers": ("demo", 0),
    "best": ("demo --out map.yaml", 0),
    "compare": ("demo demo", 0),
    "predict": ("--check demo", 0),
    "plot": ("demo --x input_size --out s.csv", 0),
    "roofline": ("--example --out r.csv", 0),
    "retry": ("noop", 0),
    "logs": ("noop", 0),
    "cancel": ("noop", 0),
    "bundle": ("demo", 0),
    "rm": ("noop --dry-run", 0),
    "help": ("words", 0),
    "verify": ("small.yaml", 0),
    "doctor": ("", 0),
    "discover": ("", 9),
}


def leaves(group: click.Group, *before: str) -> Iterator[str]:
    """Yield the name of each command that does something."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from leaves(command, *before, name)
        else:
            yield " ".join([*before, name])


def document(text: str) -> dict[str, Any]:
    """Return the one document that a text is, without numbers that JSON does not have."""

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    assert text.endswith("}\n")
    record: dict[str, Any] = json.loads(text, parse_constant=refuse)
    assert record["hpcsweep"] == answer.VERSION
    return record


@pytest.fixture(scope="module")
def used(layered_desk) -> Desk:
    """Return a folder with everything that the calls above name."""
    layered_desk.spec(NOOP, "noop.yaml")
    layered_desk.spec(SMALL, "small.yaml")
    text = (layered_desk.results / "demo" / "sweep.yaml").read_text()
    layered_desk.spec(text, "demo.yaml")
    tables = layered_desk.folder / "tables"
    oldtables.folder(tables, [("VGG16", "gemm", "V100")], (64,), layers=2)
    assert layered_desk.run("submit", "noop.yaml", "--cluster", "local").returncode == 0
    return layered_desk


@pytest.mark.parametrize("command", [*leaves(main)])
def test_every_command_prints_one_document(command, used):
    """A new command needs a line above; its file paths are in the document, too."""
    words, code = CALLS[command]
    path = os.environ["PATH"] if code != 9 else "/nowhere"
    done = used.run(*command.split(), *words.split(), "--json", PATH=path)
    assert done.returncode == code, done.stderr
    record = document(done.stdout)
    assert record["command"] == command
    assert ("error" in record) is bool(code)
    assert len(record) > 2


@pytest.mark.parametrize("command", [*leaves(main)])
def test_errors_are_documents_too(command, desk):
    """On stdout, with the exit code and the words that people get on stderr."""
    done = desk.run(*command.split(), "--json", "--no-such-option")
    record = document(done.stdout)
    assert record["error"]["exit_code"] == done.returncode == 2
    assert done.stderr == f"hpcsweep: {record['error']['message']}\n"


def test_an_error_has_its_kind_and_its_command(desk):
    """Of every layer: the file, the results, click."""
    desk.spec("axes: {modle: [a]}\n")
    record = document(desk.run("expand", "sweep.yaml", "--json").stdout)
    assert (record["command"], record["error"]["kind"]) == ("expand", "SpecError")
    assert "did you mean" in record["error"]["message"]
    record = document(desk.run("report", "nothing", "--json").stdout)
    assert (record["command"], record["error"]["kind"]) == ("report", "UsageError")


def test_what_follows_something_is_no_document(used):
    """It is refused, in a document."""
    for words in (("status", "--watch"), ("logs", "noop", "--follow")):
        record = document(used.run(*words, "--json").stdout)
        assert "one document" in record["error"]["message"]


def test_quiet_leaves_only_answers(desk):
    """No progress of a run, no notes; mistakes are told as ever."""
    desk.spec(NOOP)
    done = desk.run_process("--quiet", "submit", "sweep.yaml", "--cluster", "local")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert desk.run("-q", "status").stdout
    assert desk.run("-q", "report", "nothing").stderr


@pytest.mark.slow
@pytest.mark.parametrize("words", ["status", f"show {LONG}", "report demo", "layers demo"])
def test_tables_fit_a_terminal_and_only_a_terminal(wide, words):
    """Pipes and files get whole lines, whatever COLUMNS is."""
    shown = wide.run_on_a_terminal(*words.split(), COLUMNS="80")
    assert max(map(len, shown.splitlines())) <= 80, shown
    assert max(map(len, wide.run(*words.split(), COLUMNS="80").stdout.splitlines())) > 80


@pytest.fixture(scope="module")
def wide(tmp_path_factory) -> Desk:
    """Return the folder of a sweep whose tables are too wide for a terminal."""
    folder = tmp_path_factory.mktemp("wide")
    algorithms = "auto, gemm, winograd, implicit_gemm, implicit_precomp_gemm, fft_tiling"
    sweep = layeredsweep.SWEEP.replace("auto, gemm, winograd", algorithms)
    layeredsweep.layered(folder, sweep)
    desk = Desk(folder)
    desk.spec(f"name: {LONG}\n{NOOP.replace('[a]', f'[{LONG}]')}")
    assert desk.submit().returncode == 0
    return desk


def test_the_page_on_documents_names_every_list():
    """What a program may rely on is written down."""
    text = (ROOT / "docs/reference/json.md").read_text()
    for name in ("hpcsweep", "command", "error", "files", "sweeps", "expansions", "estimates"):
        assert f"`{name}`" in text


SWEEP = """\
workload: noop
axes: {model: [a], input_size: {start: 1, stop: 6, num: 6}}
measure: {sleep_ms: 60}
"""


def shell(desk: Desk, command: str, redirected: str) -> int:
    """Run hpcsweep under a shell; return its own exit code."""
    line = f"{shlex.join(COMMAND)} {command} {redirected}"
    return subprocess.run(
        ["bash", "-c", line], cwd=desk.folder, env={**os.environ}, timeout=120, check=False
    ).returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    "redirected",
    [
        "<&- >&- 2>&-",
        ">/dev/full 2>&1",
        "2>&1 | true; exit ${PIPESTATUS[0]}",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in (
                "2>&-",
                ">&-",
                ">/dev/full",
                "2>/dev/full",
                "| true; exit ${PIPESTATUS[0]}",
            )
        ),
    ],
)
def test_a_submit_measures_every_point_whatever_becomes_of_its_output(desk: Desk, redirected: str):
    """As under cron, on a full disk, and before `head`; its exit code is that of the points."""
    desk.spec(SWEEP)
    assert shell(desk, "submit sweep.yaml --cluster local", redirected) == 0
    assert [row["status"] for row in desk.rows()] == ["ok"] * 6


def test_a_retry_measures_again_whatever_becomes_of_its_output(desk: Desk):
    """Here all of its outputs are closed or full."""
    fails = SWEEP.replace("sleep_ms: 60", "fail: [{when: {model: a}, how: error}]")
    desk.spec(fails)
    code = shell(desk, "submit sweep.yaml --cluster local", ">/dev/full 2>&-")
    assert code == PointsFailed.exit_code
    assert shell(desk, "retry sweep", ">/dev/full 2>&-") == PointsFailed.exit_code
    assert len(desk.rows()) == 12


def test_a_mistake_keeps_its_exit_code_where_nobody_can_read_of_it(desk: Desk):
    """Scripts branch on it."""
    for redirected in ("2>&-", "2>/dev/full", "<&- >&- 2>&-"):
        assert shell(desk, "submit nowhere", redirected) == 2


def test_a_name_that_is_not_utf_8_is_shown() -> None:
    """With its bytes as escapes, where the stream takes no others."""
    written = io.BytesIO()
    stream = io.TextIOWrapper(written, "utf-8")
    answer.show("a \udcff b \ud800", file=stream, flush=True)
    assert written.getvalue() == b"a \\udcff b \\ud800\n"


def test_a_word_for_debug_that_is_none_is_told_without_a_traceback(desk):
    """The variable takes what switches take."""
    told = desk.run_process("status", HPCSWEEP_DEBUG="x")
    assert "'x' is not a valid boolean" in told.stderr
    assert "Traceback" not in told.stderr
    assert "Traceback" not in desk.run_process("status", "s", HPCSWEEP_DEBUG="0").stderr
    assert "Traceback" in desk.run_process("status", "s", HPCSWEEP_DEBUG="1").stderr
