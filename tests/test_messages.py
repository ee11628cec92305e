"""Messages are records; who listens chooses the form, and nothing is lost without a listener."""

from __future__ import annotations

import json
import logging

import pytest

import hpcsweep
from hpcsweep import messages
from hpcsweep.messages import Message

FAILING = """\
name: s
workload: noop
axes: {model: [a], input_size: [1, 2]}
measure: {fail: [{when: {input_size: 2}, how: error}]}
"""


def test_the_line_of_a_message_begins_with_its_level_and_ends_with_what_to_do():
    """Progress is what was asked for, so its line has no level."""
    assert str(Message("progress", "2 points on cpu")) == "2 points on cpu"
    assert str(Message("note", "w is not safe", "chmod go-w")) == "note: w is not safe; chmod go-w"


def test_a_listener_hears_what_is_told_while_it_listens():
    """The one before listens again afterwards."""
    outer: list[Message] = []
    inner: list[Message] = []
    with messages.told_to(outer.append):
        with messages.told_to(inner.append):
            messages.note("a", "do b")
        messages.progress("c")
    assert inner == [Message("note", "a", "do b")]
    assert outer == [Message("progress", "c")]


def test_without_a_listener_notes_and_warnings_are_those_of_python(caplog):
    """At the line of the caller's program; progress is in the log."""
    caplog.set_level(logging.INFO, "hpcsweep")
    with pytest.warns(UserWarning, match="^a; do b$") as told:
        messages.warning("a", "do b")
    assert told[0].filename == __file__
    messages.progress("c")
    assert caplog.messages == ["c"]


def test_what_the_command_line_prints_a_document_lists(desk):
    """With level and remedy, also what --quiet does not print; Python warns with the same."""
    desk.spec(FAILING)
    done = desk.run("--quiet", "submit", "sweep.yaml", "--cluster", "local", "--json")
    assert done.returncode == 3
    assert done.stderr == ""
    listed = json.loads(done.stdout)["messages"]
    assert all(one.keys() == {"level", "text", "remedy"} for one in listed)
    (warned,) = (one["text"] for one in listed if one["level"] == "warning")
    assert warned.startswith("s: 1 error: RuntimeError: injected error")
    printed = desk.run("retry", "s")
    assert f"warning: {warned}" in printed.stderr
    with pytest.warns(UserWarning, match="t: 1 error: "):
        hpcsweep.run(desk.spec(FAILING.replace("name: s", "name: t")), results=desk.results)


def test_after_a_refusal_nobody_listens_any_more(desk):
    """Whatever is refused: a word of the command line, or the configuration."""
    assert desk.run("--no-such-option", "status").returncode == 2
    (desk.folder / "hpcsweep.toml").write_text("results = 3\n")
    assert desk.run("status").returncode == 2
    with pytest.warns(UserWarning, match="^a$"):
        messages.warning("a")
