"""The documents: links lead somewhere, commands parse, codes and states are those of the code."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

import click
import pytest

import docscripts
from hpcsweep import errors
from hpcsweep.cli import main
from hpcsweep.store.collect.summary import CollectReport
from hpcsweep.store.state import ChunkState, PointStatus
from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

FOLDERS = ("", "docs", "docs/reference", "results", "jobs/templates", "benchmarks")
PAGES = [page for folder in FOLDERS for page in sorted((ROOT / folder).glob("*.md"))]
FILES = [*ROOT.glob("sweeps/*.yaml"), *ROOT.glob("cluster_profiles/*.yaml")]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
FOREIGN = {  # options of other programs that sentences name
    *("--array", "--chdir", "--clusters", "--deadline", "--exclude", "--mem", "--name"),  # sbatch
    *("--no-requeue", "--requeue", "--time", "--wait"),
    *("--cache-control", "--clock-control", "--export", "--kernel-name", "--launch-count"),  # ncu
    *("--nvtx-include", "--page", "--set", "--metrics"),
    "--kernel-trace",  # rocprofv3
    "--restore-session",  # ReFrame
    *("--out", "--seconds", "--pretend"),  # benchmarks/gpu
    *("--limit-s", "--only", "--points", "--runs"),  # benchmarks/peers
    *("--against", "--cpu"),  # benchmarks/point_cost.py
    *("--unlock", "--rerun-incomplete"),  # snakemake
}
SEEDS = ROOT / "docs" / "seeds.md"  # it names the options of other people's scripts


def name(path: Path) -> str:
    """Return a path as tests are called by."""
    return path.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and the site give to the headings of a page."""
    text = FENCED.sub("", page.read_text())
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def shown(text: str) -> list[str]:
    """Return the commands in the code blocks of a page, or in the comments of a file."""
    blocks = [block for kind, block in FENCED.findall(text) if kind == "console"]
    lines = "\n".join([*blocks, *re.findall(r"^# (.*)$", text, re.MULTILINE)]).splitlines()
    found = [line.strip().removeprefix("$ ") for line in lines]
    inner = [inner for line in found for inner in re.findall(r"\$\((hpcsweep [^)]*)\)", line)]
    return [line for line in [*found, *inner] if line.startswith("hpcsweep ")]


def mentioned(text: str) -> list[str]:
    """Return what stands as code inside of sentences, on one line each."""
    return [" ".join(code.split()) for code in INLINE.findall(FENCED.sub("", text))]


def parse(command: str) -> tuple[click.Command, list[str], click.Context]:
    """Return the command that a line calls, with its arguments; a `ClickException` if it is none.

    Words such as SWEEP and [WHAT] pass for arguments.
    """
    words = [word for word in shlex.split(command, comments=True)[1:] if word != "..."]
    found: click.Command = main
    context = click.Context(main, info_name="hpcsweep", **main.context_settings)
    while isinstance(found, click.Group):
        rest = found.make_parser(context).parse_args(words)[1]
        if not rest:
            break
        child = found.get_command(context, rest[0])
        if child is None:
            raise click.UsageError(f"no command {rest[0]}")
        found, words = child, rest[1:]
        context = click.Context(found, info_name=rest[0], parent=context)
    found.make_parser(context).parse_args(list(words))
    return found, words, context


def wrong(command: str, *, whole: bool) -> str:
    """Return what is wrong with a command, or nothing; `whole`: with all of its arguments."""
    try:
        found, words, context = parse(command)
        if whole:
            found.make_context(str(context.info_name), list(words), parent=context.parent)
    except (click.ClickException, ValueError) as error:
        return f"{command}: {error}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_leads_to_a_file_and_a_heading(page):
    """A newcomer's first page must not rot."""
    gone = []
    for target, anchor in LINK.findall(FENCED.sub("", page.read_text())):
        if "://" in target:
            continue
        there = (page.parent / target).resolve() if target else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            gone.append(f"{target}#{anchor}".rstrip("#"))
    assert gone == []


@pytest.mark.parametrize("page", [*PAGES, *FILES], ids=name)
def test_every_command_in_a_page_is_one_that_the_program_takes(page):
    """Whole lines with all arguments, and what sentences mention with its options."""
    text = page.read_text()
    problems = [wrong(line.split(" > ")[0], whole=True) for line in shown(text)]
    inside = [code for code in mentioned(text) if code.startswith("hpcsweep ")]
    problems += [wrong(code.replace(r"\|", "|"), whole=False) for code in inside]
    assert [problem for problem in problems if problem] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page != SEEDS], ids=name)
def test_every_option_in_a_sentence_exists(page):
    """In one of the commands, or in another program that is named here."""
    commands = [context.command for context in docscripts.load("generate").all_commands()]
    known = {option for command in commands for param in command.params for option in param.opts}
    named = [found[0] for code in mentioned(page.read_text()) if (found := code.split())]
    options = {re.split("[=,]", word)[0] for word in named if re.match("--[a-z]", word)}
    assert sorted(options - known - FOREIGN) == []


def test_a_command_that_does_not_exist_is_noticed():
    """So that the checks above cannot pass by looking away."""
    assert wrong("hpcsweep submit quickstart --cluster local", whole=True) == ""
    assert wrong("hpcsweep submti quickstart", whole=False)
    assert wrong("hpcsweep status --wach", whole=False)
    assert wrong("hpcsweep data fetch cifar10", whole=False)
    assert wrong("hpcsweep submit", whole=True)
    assert wrong("hpcsweep submit", whole=False) == ""


def test_operations_explain_every_status():
    """What is in the code is in the document."""
    text = (ROOT / "docs/operations.md").read_text()
    assert [name for name in PointStatus if f"| `{name}` |" not in text] == []


def test_the_reference_explains_every_exit_code():
    """Those of the exceptions, success, and the two that no exception has."""
    text = (ROOT / "docs/reference/exit-codes.md").read_text()
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    codes = {c.exit_code for c in classes if issubclass(c, errors.HpcsweepError)}
    codes |= {errors.EXIT_REQUEUE, errors.EXIT_INTERRUPTED, 0}
    assert codes == {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}


def test_operations_explain_every_state_of_a_chunk():
    """With the words of the code."""
    text = (ROOT / "docs/operations.md").read_text()
    assert [state for state in ChunkState if f"| `{state}` | {state.says} |" not in text] == []


def test_the_page_on_results_names_every_key_of_the_report():
    """Those that `collect --json` prints."""
    text = (ROOT / "docs/results.md").read_text()
    keys = CollectReport("s", 0, {}, 0, 0, 0, 0, 0, [], [], []).to_json()
    assert [key for key in keys if f"`{key}`" not in text] == []
