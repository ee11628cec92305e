"""TOML files: every key has its line, and what is no TOML is told with one."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcsweep.errors import ConfigError
from hpcsweep.spec import configuration

TEXT = """\
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
def path(tmp_path: Path) -> Path:
    """Return where the file lies."""
    return tmp_path / "config.toml"


def test_every_key_has_its_line(path: Path) -> None:
    """In tables, quoted, dotted; an item of a list has that of its key."""
    path.write_text(TEXT)
    doc = configuration.read(path)
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


def test_one_table_of_a_file_has_the_lines_of_the_file(path: Path) -> None:
    """As pyproject.toml has it."""
    path.write_text(TEXT)
    doc = configuration.read(path, ("tool", "ours"))
    assert doc.data == {"quoted key": 1, "dotted": {"key": 2}}
    assert str(doc.complaint(("dotted", "key"), "no")) == f"{path}:11: dotted.key: no"
    assert configuration.read(path, ("tool", "theirs")).data == {}


@pytest.mark.parametrize(
    ("text", "told"),
    [("a = 1\nb == 2\n", ":2: not TOML: "), ("a = 1\nb = [1,\n", ":2: not TOML: "),
     ("a = 1\na = 2\n", ":2: not TOML: "), ("a = '\x00'\n", ":1: control character")],
)  # fmt: skip
def test_what_is_no_toml_is_told_with_its_line(path: Path, text: str, told: str) -> None:
    """In the words of the parser, without its place."""
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        configuration.read(path)
    assert str(caught.value).startswith(f"{path}{told}")
    assert "(at " not in str(caught.value)


def test_a_table_that_is_a_value_is_refused(path: Path) -> None:
    """`tool` may hold anything else."""
    path.write_text("tool = 3\n")
    with pytest.raises(ConfigError, match="needs a table"):
        configuration.read(path, ("tool", "ours"))


def test_a_number_of_thousands_of_digits_is_no_toml(path: Path) -> None:
    """Python refuses to read it, in words that name no file."""
    path.write_text("a = " + "9" * 5000)
    with pytest.raises(ConfigError, match=r"config.toml:1: not TOML"):
        configuration.read(path)
