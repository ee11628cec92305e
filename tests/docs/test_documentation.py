"""The documents: links lead somewhere, commands are described, codes are those of the code."""

from __future__ import annotations

import re

import pytest

from hpcsweep import errors, slurm
from hpcsweep.catalog import ALGORITHMS
from hpcsweep.cli import main
from hpcsweep.store.state import ChunkState, PointStatus
from paths import ROOT

PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("results/*.md")],
    key=lambda path: path.as_posix(),
)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file(page):
    """A newcomer's first page must not rot."""
    targets = [target for target, _ in LINK.findall(page.read_text()) if "://" not in target]
    assert [t for t in targets if not (page.parent / t).exists()] == []


def test_every_command_is_in_the_readme():
    """And the readme names no command that is not there."""
    text = (ROOT / "README.md").read_text()
    named = set(re.findall(r"^\| `hpcsweep (\w+)", text, re.MULTILINE))
    assert named == set(main.commands)


def test_the_readme_shows_the_two_commands_first():
    """Before anything else is explained."""
    text = (ROOT / "README.md").read_text()
    assert text.index("make demo") < text.index("make test") < text.index("```yaml")


def test_every_algorithm_is_in_the_readme():
    """By its own name."""
    text = (ROOT / "README.md").read_text()
    assert [name for name in ALGORITHMS if f"`{name}`" not in text] == []


def test_operations_explain_every_status_and_exit_code():
    """What is in the code is in the document."""
    text = (ROOT / "docs/operations.md").read_text()
    assert [name for name in PointStatus if f"| `{name}` |" not in text] == []
    classes = [c for c in vars(errors).values() if isinstance(c, type)]
    codes = {c.exit_code for c in classes if issubclass(c, errors.HpcsweepError)}
    codes |= {errors.EXIT_REQUEUE, errors.EXIT_INTERRUPTED, 0}
    rows = re.findall(r"^\| ([\d, ]+) \|", text, re.MULTILINE)
    told = {int(number) for row in rows for number in row.split(",")}
    assert codes == told


def test_operations_explain_every_state_of_a_chunk_and_of_slurm():
    """With the words of the code."""
    text = (ROOT / "docs/operations.md").read_text()
    assert [state for state in ChunkState if f"| `{state}` | {state.says} |" not in text] == []
    rows = re.findall(
        r"^\| `([A-Z_]+)` \| (\w+) \| (.+?)(; the node is avoided)? \|$", text, re.MULTILINE
    )
    assert [(name, says, bool(avoided)) for name, _, says, avoided in rows] == [
        (state.name, state.says, state.node_at_fault) for state in slurm.STATES
    ]
