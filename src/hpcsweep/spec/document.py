"""Reads a user's YAML or TOML file with the lines of all keys and values.

PyYAML composes the tree of nodes with their lines; this module makes plain values of it by stricter
rules than YAML's. Repeated keys, tags, aliases that multiply, binary files and very deep nesting
are errors with file and line.

Scalars follow YAML 1.2: ``yes`` is a word, ``24:00:00`` is not a number in base 60, ``1e-3`` is
a number. Keys are always text.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from hpcsweep.errors import BadInput, ConfigError

Loc = Sequence[str | int]

MAX_BYTES: Final = 1 << 20  # a larger file lists what a range says, or is another kind of file
MAX_DEPTH: Final = 32  # far more than a sweep file needs; a recursion stays short
# every use of an alias counts its values again; so many take some 3 s to read
MAX_VALUES: Final = 200_000
_WIDE: Final = 60  # signs of a key or a value: it shares a line with the file, the key and a remedy
MOST_SHOWN: Final = 20  # complaints about one file: what fits a screen

# What YAML 1.2 does not call printable: it names a binary file, or hides what a terminal shows.
_CONTROL: Final = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
# Of 18 digits every number fits 64 bits, in which tables and their readers keep it.
_INT: Final = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# ``key:value``, in which no part is a path, a time or a name of a factory
_KEY_AND_VALUE: Final = re.compile(r"\s*(- )?\w+:[^\s:/].*")
# tomllib's errors have no attributes with the place before Python 3.14: it stands in their text
_TOML_PLACE: Final = r"\s*\(at (?:line (\d+), column \d+|end of document)\)"


class _YamlLoader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Gives tags only to nodes that have one in the file."""

    def resolve(self, *_node: object) -> str:
        return ""


@dataclass(frozen=True)
class Document:
    """A file's plain data, with the lines of its keys and items for complaints."""

    path: Path
    error: type[BadInput]
    text: str
    data: dict[str, Any]
    lines: Mapping[Loc, int]
    faults: Sequence[BadInput] = ()  # mistakes to report with those of later checks

    def line(self, loc: Loc) -> int:
        """Return the line of a key or item, or of the nearest existing one around it."""
        for length in range(len(loc), 0, -1):
            place = tuple(loc[:length])
            if place in self.lines:
                return self.lines[place]
        return 1

    def complaint(self, loc: Loc, text: str) -> BadInput:
        """Return the error ``FILE:LINE: KEY: text``."""
        key = f"{dotted(loc)}: " if loc else ""
        line = self.line(loc)
        complaint = self.error(f"{self.path}:{line}: {key}{text}")
        complaint.line = line
        return complaint


class Complaints:
    """Gathers the mistakes in a file, to raise them as one error with a line for each."""

    def __init__(self, doc: Document) -> None:
        self._doc = doc
        self._kept = [*doc.faults]

    def __bool__(self) -> bool:
        return bool(self._kept)

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep the complaint that ends the block, so that other checks can follow."""
        try:
            yield
        except self._doc.error as complaint:
            self._kept.append(complaint)

    def add(self, loc: Loc, text: str) -> None:
        """Keep a complaint."""
        self._kept.append(self._doc.complaint(loc, text))

    def tell(self) -> None:
        """Raise the kept complaints, if there are any."""
        if self._kept:
            raise self.error()

    def error(self) -> BadInput:
        """Return all complaints in the order of their lines."""
        ordered = sorted(self._kept, key=lambda complaint: complaint.line)
        lines = [*dict.fromkeys(map(str, ordered))]
        more = len(lines) - MOST_SHOWN
        if more > 0:
            lines[MOST_SHOWN:] = [f"and {more:,} more"]
        return self._doc.error("\n".join(lines))


def read_document(path: Path, error: type[BadInput]) -> Document:
    """Read a file whose top level is a map; raise `error` with file and line for anything else.

    An error of YAML's grammar is raised at once. Repeated keys, tags and too large numbers are
    `faults` of the document, which `Complaints` raises with later mistakes.
    """
    text = read_text(path, error)
    try:
        root = yaml.compose(text, Loader=_YamlLoader)
    except (yaml.YAMLError, RecursionError) as reason:
        line, what = _not_yaml(text, reason)
        raise error(f"{path}:{line}: {what}") from reason
    if root is None:
        raise error(f"{path}: is empty")
    values = _Values(path, error)
    data = values.of(root, ())
    if not isinstance(data, dict):
        text = f"{path}:{_line(root)}: found {show(data)}, needs `key: value` lines"
        raise next(iter(values.faults), error(text))
    return Document(path, error, text, data, values.lines, values.faults)


def dotted(loc: Loc) -> str:
    """Return ``axes.input_size[2]`` for a location."""
    text = ""
    for step in loc:
        text += f"[{step}]" if isinstance(step, int) else f".{_key(step)}"
    return text.removeprefix(".")


def _key(key: str) -> str:
    """Return a key for a message; an unprintable or long key is quoted and cut."""
    return key if key and key.isprintable() and len(key) <= _WIDE else show(key)


def show(value: object) -> str:
    """Return a value for a complaint: one short line in YAML's spelling."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a map" if value else "an empty map"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= _WIDE else f"{text[: _WIDE - 3]}..."


def read_text(path: Path, error: type[BadInput]) -> str:
    """Return the text of a file; raise `error` for folders, binary files and large files."""
    try:
        if path.is_dir():
            raise error(f"{path}: is a directory, needs a YAML file; name one of the files in it")
        if path.exists() and not path.is_file():
            raise error(f"{path}: is not a regular file, needs a YAML file")
        if path.suffix == ".py":
            wanted = f"a sweep, in YAML, names a network in it: model: ['{path.stem}:NAME']"
            raise error(f"{path}: is Python; {wanted}")
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as reason:  # ValueError: a NUL byte in the name
        why = getattr(reason, "strerror", None) or reason
        raise error(f"{path}: cannot be read ({why})") from reason
    if len(data) > MAX_BYTES:
        raise error(f"{path}: is larger than {MAX_BYTES >> 20} MiB; write ranges, not values")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        line = data.count(b"\n", 0, reason.start) + 1
        byte = f"byte 0x{data[reason.start]:02x}"
        raise error(f"{path}:{line}: {byte} is not UTF-8; is it a text file?") from reason
    bad = _CONTROL.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        raise error(f"{path}:{line}: control character {bad[0]!r}; is it a text file?")
    return text


class _Values:
    """Makes plain values of YAML's nodes; notes the line of each."""

    def __init__(self, path: Path, error: type[BadInput]) -> None:
        self.path = path
        self.error = error
        self.lines: dict[Loc, int] = {}
        self.faults: list[BadInput] = []

    def of(self, node: yaml.Node, loc: tuple[str | int, ...]) -> Any:  # noqa: ANN401 - as in YAML
        """Return a node's value in plain Python types; each use of an alias makes a new value."""
        if node.tag:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")[:60]
            self._add_fault(node, f"tag {tag} is not allowed; plain values only")
        if len(loc) > MAX_DEPTH:
            raise self._complaint(node, f"nested deeper than {MAX_DEPTH} levels")
        self.lines.setdefault(loc, _line(node))
        if len(self.lines) > MAX_VALUES:
            raise self._complaint(node, f"more than {MAX_VALUES:,} values; write ranges")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, loc)
        if isinstance(node, yaml.SequenceNode):
            return [self.of(item, (*loc, i)) for i, item in enumerate(node.value)]
        quoted = not isinstance(node, yaml.ScalarNode) or node.style
        return node.value if quoted else self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, loc: tuple[str | int, ...]) -> dict[str, Any]:
        values = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag:
                self._add_fault(key, "a key must be a plain word")
                continue
            place = (*loc, key.value)
            if place in self.lines:
                first = self.lines[place]
                self._add_fault(key, f"{_key(key.value)}: repeated key, first in line {first}")
            else:
                self.lines[place] = _line(key)
                values[key.value] = self.of(value, place)
        return values

    def _scalar(self, node: yaml.Node) -> object:
        text: str = node.value
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if math.isinf(number) or (text.lstrip("+-").isdecimal() and len(text) > 18):
                self._add_fault(node, f"{text[:30]} is too large a number")
                return 1
            return number
        return text

    def _add_fault(self, node: yaml.Node, text: str) -> None:
        self.faults.append(self._complaint(node, text))

    def _complaint(self, node: yaml.Node, text: str) -> BadInput:
        complaint = self.error(f"{self.path}:{_line(node)}: {text}")
        complaint.line = _line(node)
        return complaint


def _not_yaml(text: str, reason: Exception) -> tuple[int, str]:
    """Return the line of an error of YAML's grammar, and the complaint."""
    if not isinstance(reason, yaml.MarkedYAMLError) or not reason.problem_mark:
        return 1, f"not YAML: {' '.join(str(reason).split())}"
    mark = reason.problem_mark
    if text[mark.index : mark.index + 1] == "\t":
        return mark.line + 1, "a tab; YAML indents with spaces"
    line = _without_a_space(text, mark.line)
    if line:
        return line, "a space is missing behind a `:`"
    if reason.context_mark and not text[mark.index :].strip():
        mark = reason.context_mark  # what nothing closes is found at the end of the file
    what = ", ".join(filter(None, (reason.context, reason.problem)))
    return mark.line + 1, f"not YAML: {what}"


def _without_a_space(text: str, line: int) -> int:
    """Return the number of the last line before a fault if it is ``key:value``, else 0.

    YAML takes such a line for text that goes on, and complains about the next line.
    """
    lines = text.splitlines()[:line]
    while lines and not lines[-1].strip():
        lines.pop()
    return len(lines) if lines and _KEY_AND_VALUE.fullmatch(lines[-1]) else 0


def _line(node: yaml.Node) -> int:
    return node.start_mark.line + 1


def read_toml(path: Path) -> Document:
    """Read a TOML file; `ConfigError` has file and line of a mistake."""
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - few commands find such a file
    else:
        import tomli as tomllib  # noqa: PLC0415

    text = read_text(path, ConfigError)
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as reason:  # such as a number of thousands of digits
        place = re.search(_TOML_PLACE, str(reason))
        line = place[1] if place and place[1] else len(text.splitlines())
        why = re.sub(_TOML_PLACE, "", str(reason))
        raise ConfigError(f"{path}:{line}: not TOML: {why}") from reason
    return Document(path, ConfigError, text, data, _toml_lines(text))


# tomllib does not report the lines of keys, so they are looked up in the text.
def _toml_lines(text: str) -> dict[Loc, int]:
    """Return the line of each key, and of each table's header."""
    line_of: dict[Loc, int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line.startswith("["):
            keys = table = _toml_keys(line.partition("]")[0].lstrip("["))
        elif "=" in line:
            keys = (*table, *_toml_keys(line.partition("=")[0]))
        else:
            continue
        for length in range(1, len(keys) + 1):
            line_of.setdefault(keys[:length], number)
    return line_of


def _toml_keys(keys: str) -> tuple[str, ...]:
    return tuple(key.strip(" \"'") for key in keys.split("."))
