"""Templates of commands."""

from __future__ import annotations

import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.spec import template

TEXTS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1)


@pytest.mark.parametrize("text", ["{}", "{0}", "{a.b}", "{a[0]}", "{a!r}", "{a:3}", "{", "a}"])
def test_braces_hold_names_alone(text):
    """Nothing that Python's format could do with a value is allowed."""
    with pytest.raises(ValueError, match=r"."):
        template.names_in(text)


def test_names_are_found_and_doubled_braces_are_braces():
    """In the order in which they stand."""
    text = "run {a}{b} '{{\"x\": {a}}}'"
    assert template.names_in(text) == ["a", "b", "a"]
    assert template.words(text, {"a": 1, "b": "c"}) == ["run", "1c", '{"x": 1}']


def test_values_are_written_as_in_the_id_of_the_point():
    """Two spellings of one number are one point, and one command."""
    values = {"a": 1.0, "b": True, "c": None, "d": 1e-3}
    assert template.words("x {a} {b} {c} --d={d}", values) == ["x", "1", "true", "--d=0.001"]


def test_a_word_of_which_nothing_is_left_is_left_out():
    """So a flag may be there or not; an empty word that the template has stays."""
    assert template.words("x {flag} ''", {"flag": ""}) == ["x", ""]
    assert template.words("x {flag}", {"flag": ""}, shell=True)[-1] == "x "


@given(TEXTS)
def test_a_value_is_one_word(value):
    """Whatever it is."""
    assert template.words("echo -{a} '{a} b'", {"a": value}) == ["echo", f"-{value}", f"{value} b"]


@pytest.mark.parametrize("value", ["$(id)", "a;b", "' '", '"', "\n", "`x`", "~", "#", "&& x", "é"])
def test_a_value_is_one_word_of_the_shell(value):
    """What the shell makes of it is the value."""
    line = template.words("printf %s {a}", {"a": value}, shell=True)
    assert subprocess.run(line, capture_output=True, check=True).stdout.decode() == value
    assert shlex.split(line[-1])[-1] == value
