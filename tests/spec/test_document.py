"""Reading a YAML or TOML file with its lines, and refusing what no configuration should hold."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.errors import ConfigError, SpecError
from hpcsweep.spec.document import (
    MAX_DEPTH,
    MAX_VALUES,
    Complaints,
    Document,
    read_document,
    read_toml,
    show,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return where the tests write."""
    return tmp_path / "a.yaml"


def data_of(file: Path, text: str) -> Document:
    """Write and read."""
    file.write_text(text, encoding="utf-8")
    return read_document(file, SpecError)


def complaint_about(file: Path, content: str | bytes) -> str:
    """Return the complaint's text after the file's name."""
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(SpecError) as caught:
        Complaints(read_document(file, SpecError)).tell()
    text = str(caught.value)
    assert text.startswith(str(file))
    assert "\n" not in text
    return text.removeprefix(str(file))


def test_every_key_and_item_knows_its_line(file: Path) -> None:
    """Block and flow style alike; an unknown place answers with the nearest one around it."""
    doc = data_of(file, "a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n")
    assert doc.data == {"a": 1, "b": ["x", {"c": 2, "d": 3}]}
    lines = {("a",): 1, ("b",): 2, ("b", 0): 3, ("b", 1): 4, ("b", 1, "c"): 4, ("b", 1, "d"): 5}
    assert {loc: doc.line(loc) for loc in lines} == lines
    assert doc.line(("b", 1, "nowhere", 7)) == 4
    assert doc.line(("nowhere",)) == 1
    assert doc.line(("b", 9)) == 2


def test_a_complaint_names_file_line_and_key(file: Path) -> None:
    """The form that every message about a file has."""
    doc = data_of(file, "a: 1\nb: [1, 2]\n")
    assert str(doc.complaint(("b", 1), "found 2")) == f"{file}:2: b[1]: found 2"
    assert str(doc.complaint((), "is wrong")) == f"{file}:1: is wrong"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("yes", "yes"),
        ("off", "off"),
        ("24:00:00", "24:00:00"),
        ("1e-3", 0.001),
        ("010", 10),
        ("-3", -3),
        ("2.", 2.0),
        (".5", 0.5),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("'5'", "5"),
        ('"true"', "true"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
        ("2001-01-01", "2001-01-01"),
        (".inf", ".inf"),
        ("|\n  two\n  lines\n", "two\nlines\n"),
    ],
)
def test_scalars_follow_yaml_1_2(file: Path, text: str, value: object) -> None:
    """No base 60, no octal, no words for booleans but true and false."""
    found = data_of(file, f"a: {text}\n").data["a"]
    assert found == value
    assert type(found) is type(value)


def test_keys_are_text_whatever_they_look_like(file: Path) -> None:
    """A pattern such as `3` or `null` is a name."""
    assert list(data_of(file, "1: a\nnull: b\ntrue: c\n").data) == ["1", "null", "true"]


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(file: Path) -> None:
    """Files are edited on all kinds of machines."""
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    doc = read_document(file, SpecError)
    assert doc.data == {"a": 1, "b": 2}
    assert doc.line(("b",)) == 2


def test_a_few_aliases_are_welcome(file: Path) -> None:
    """An anchor stands for a value that is written once; each use is a value of its own."""
    doc = data_of(file, "a: &sizes [1, 2]\nb: *sizes\n")
    assert doc.data["b"] == [1, 2]
    assert doc.data["a"] is not doc.data["b"]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("a: 1\nb: 2\na: 3\n", ":3: a: repeated key, first in line 1"),
        ("a:\n  b: 1\n  b: 2\n", ":3: b: repeated key, first in line 2"),
        ("a:\n\tb: 1\n", ":2: a tab; YAML indents with spaces"),
        ("a: b\n\tc: d\n", ":2: a tab; YAML indents with spaces"),
        ("a: !!python/object/apply:os.system [x]\n", ":1: tag !!python/object/apply:os.system"),
        ("a: !!python/name:os.system\n", ":1: tag !!python/name:os.system is not allowed"),
        ("a: !!int 3\n", ":1: tag !!int is not allowed; plain values only"),
        ("!!map {a: 1}\n", ":1: tag !!map is not allowed"),
        ("a: 1\n!!str b: 1\n", ":2: a key must be a plain word"),
        ("? [a, b]\n: 1\n", ":1: a key must be a plain word"),
        ("? *x\n: 1\n", ":1: not YAML: found undefined alias"),
        ("a: *b\n", ":1: not YAML: found undefined alias"),
        ("a: &a [*a]\n", f":1: nested deeper than {MAX_DEPTH} levels"),
        ("a: &x 1\nb: &x 2\n", ":2: not YAML: found duplicate anchor"),
        ("a: 1\n---\nb: 2\n", ":2: not YAML: expected a single document"),
        ("", ": is empty"),
        ("# only a comment\n", ": is empty"),
        ("- a\n- b\n", ":1: found a list, needs `key: value` lines"),
        ("just words\n", ":1: found 'just words', needs `key: value` lines"),
        (
            "a: [1, 2\nb: 3\n",
            ":2: not YAML: while parsing a flow sequence, did not find expected ',' or ']'",
        ),
        (
            "a: {x: 1\nb: 3\n",
            ":2: not YAML: while parsing a flow mapping, did not find expected ',' or '}'",
        ),
        (
            "a: 1\nb: 'x\nc: 2\n",
            ":2: not YAML: while scanning a quoted scalar, found unexpected end of stream",
        ),
        ("a: b: c\n", ":1: not YAML: mapping values are not allowed in this context"),
        ("a: 1\n  b: 2\n", ":2: not YAML: mapping values are not allowed in this context"),
        (
            "a:\n  b: 1\n c: 2\n",
            ":3: not YAML: while parsing a block mapping, did not find expected key",
        ),
        (
            "a: 1\nb\nc: 2\n",
            ":3: not YAML: while scanning a simple key, could not find expected ':'",
        ),
        (
            "a:\n - x\n b: 1\n",
            ":3: not YAML: while parsing a block collection, did not find expected '-'",
        ),
        ("a: - x\n", ":1: not YAML: block sequence entries are not allowed in this context"),
        ("a: @x\n", ":1: not YAML: while scanning for the next token, found character that cannot"),
        (
            "a: [x, , y]\n",
            ":1: not YAML: while parsing a flow node, did not find expected node content",
        ),
        (
            'a: "\\d"\n',
            ":1: not YAML: while parsing a quoted scalar, found unknown escape character",
        ),
        ("a: *.yaml\n", ":1: not YAML: while scanning an alias, did not find expected alphabetic"),
        (
            "a: |x\n b\n",
            ":1: not YAML: while scanning a block scalar, did not find expected comment",
        ),
        ("  a: 1\nb: 2\n", ":2: not YAML: did not find expected <document start>"),
        ("a: 1\nb: \x07\n", ":2: control character '\\x07'; is it a text file?"),
        (b"a: 1\nb: \0\n", ":2: control character '\\x00'; is it a text file?"),
        (b"a: caf\xe9\n", ":1: byte 0xe9 is not UTF-8; is it a text file?"),
        (bytes(range(256)) * 8, "is it a text file?"),
        ("a: " + "9" * 5000, ":1: 999999999999999999999999999999 is too large a number"),
        ("a: 1e999\n", ":1: 1e999 is too large a number"),
        ("a: [" + "1," * 700_000 + "]", ": is larger than 1 MiB; write ranges, not values"),
        ("a: [" + "1," * (MAX_VALUES + 1) + "]", ":1: more than 200,000 values; write ranges"),
        ("a: " + "[" * 40 + "]" * 40, f":1: nested deeper than {MAX_DEPTH} levels"),
        (
            "a: " + "[" * 300_000,
            ":1: not YAML: while increasing flow level, exceeded maximum nesting depth",
        ),
        (
            "a: " + "{b: " * 100_000,
            ":1: not YAML: while increasing flow level, exceeded maximum nesting depth",
        ),
        (
            "- " * 200_000,
            ":1: not YAML: while increasing block level, exceeded maximum nesting depth",
        ),
    ],
)
def test_what_no_configuration_should_hold_is_told_with_its_line(
    file: Path, content: str | bytes, complaint: str
) -> None:
    """One line: file, line, what was found."""
    assert complaint in complaint_about(file, content)


def test_a_bomb_of_aliases_is_not_expanded(file: Path) -> None:
    """Nine levels of nine would be 400 million values."""
    levels = "".join(
        f"{name}: &{name} [{','.join([f'*{below}'] * 9)}]\n"
        for below, name in zip("abcdefgh", "bcdefghi", strict=True)
    )
    text = complaint_about(file, "a: &a [x,x,x,x,x,x,x,x,x]\n" + levels)
    assert text == ":1: more than 200,000 values; write ranges"


def test_aliases_cannot_build_what_is_too_deep_to_write(file: Path) -> None:
    """A chain of anchors would otherwise outgrow Python's stack."""
    chain = "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [*a{i}]\n" for i in range(MAX_DEPTH))
    assert f"nested deeper than {MAX_DEPTH} levels" in complaint_about(file, chain)


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    """A directory, a device, a pipe that nobody writes to, a file that is not there."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    for path, why in [
        (tmp_path, "is a directory, needs a YAML file"),
        (pipe, "is not a regular file"),
        (tmp_path / "none.yaml", "cannot be read (No such file or directory)"),
        (tmp_path / ("x" * 300), "cannot be read (File name too long)"),
    ]:
        with pytest.raises(SpecError, match=r"is|cannot") as caught:
            read_document(path, SpecError)
        assert why in str(caught.value)


def test_values_are_shown_short_and_on_one_line() -> None:
    """A complaint quotes what it found in YAML's spelling."""
    assert [show(v) for v in (None, True, [], [1], {}, {"a": 1}, 3, "x\ny")] == [
        "nothing",
        "true",
        "an empty list",
        "a list",
        "an empty map",
        "a map",
        "3",
        "'x\\ny'",
    ]
    assert len(show("x" * 1000)) == 60


words = st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), max_size=8)
plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=20,
)


@given(data=st.dictionaries(words, plain, min_size=1, max_size=4))
def test_json_is_read_as_what_it_is(
    data: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """YAML 1.2 holds JSON: any tree of plain values survives, whatever its text looks like."""
    path = tmp_path_factory.mktemp("dump") / "a.yaml"
    path.write_text(json.dumps(data, ensure_ascii=False, indent=2), encoding="utf-8")
    assert read_document(path, SpecError).data == data


TOML = """\
results = "x"

[submit]  # a table
# a remark = 3
sample = 3
names = [
  "a",
]
[tool.ours]
"quoted key" = 1
dotted.key = 2
"""


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    """Return where the file lies."""
    return tmp_path / "config.toml"


def test_every_key_has_its_line(toml: Path) -> None:
    """In tables, quoted, dotted; an item of a list has that of its key."""
    toml.write_text(TOML)
    doc = read_toml(toml)
    lines = {
        ("results",): 1,
        ("submit",): 3,
        ("submit", "sample"): 5,
        ("submit", "names", 0): 6,
        ("tool", "ours", "quoted key"): 10,
        ("tool", "ours", "dotted", "key"): 11,
    }
    assert {loc: doc.line(loc) for loc in lines} == lines
    assert doc.data["submit"] == {"sample": 3, "names": ["a"]}


@pytest.mark.parametrize(
    ("text", "told"),
    [("a = 1\nb == 2\n", ":2: not TOML: "), ("a = 1\nb = [1,\n", ":2: not TOML: "),
     ("a = 1\na = 2\n", ":2: not TOML: "), ("a = " + "9" * 5000, ":1: not TOML: "),
     ("a = '\x00'\n", ":1: control character")],
)  # fmt: skip
def test_what_is_no_toml_is_told_with_its_line(toml: Path, text: str, told: str) -> None:
    """In the words of the parser, without its place."""
    toml.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_toml(toml)
    assert str(caught.value).startswith(f"{toml}{told}")
    assert "(at " not in str(caught.value)
