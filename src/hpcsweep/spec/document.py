"""Reads a user's YAML or TOML file with the lines of all keys and values.

PyYAML composes the tree of nodes with their lines; this module makes plain values of it by stricter
rules than YAML's. Repeated keys, tags, aliases that multiply, tabs, binary files and very deep
nesting are errors with file and line.

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

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 32
MAX_VALUES: Final = 200_000  # every use of an alias counts its values again
MAX_ALIASES: Final = 100
MOST_SHOWN: Final = 20  # complaints about one file

_CONTROL: Final = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INT: Final = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_KEY_AND_VALUE: Final = re.compile(r"\s*(- )?\w+:[^\s:/].*")
# of TOML: compiled at their first use, since most commands read none
_TOML_KEY: Final = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_TOML_KEYS: Final = rf"({_TOML_KEY}(?:\s*\.\s*{_TOML_KEY})*)"
_TOML_HEADER: Final = rf"\s*\[+\s*{_TOML_KEYS}\s*\]"
_TOML_ENTRY: Final = rf"\s*{_TOML_KEYS}\s*="
_TOML_PLACE: Final = r"\s*\(at (?:line (\d+), column \d+|end of document)\)"
# messages of PyYAML, and ours
_PROBLEMS: Final = {
    "but found another document": "a second document; one file holds one",
    "second occurrence": "an anchor (&name) whose name is taken above",
    "found undefined alias": "an alias (*name) that no anchor (&name) above it defines",
    "mapping values are not allowed in this context": "a second `: ` in one entry, or a line that "
    "is indented too far; quote text that holds `: `",
    "block sequence entries are not allowed in this context": "a `- ` behind a key; begin the list "
    "in the next line, or write [a, b]",
    "did not find expected ',' or ']'": "a list without its `]`, or without a comma",
    "did not find expected ',' or '}'": "a map without its `}`, or without a comma",
    "did not find expected '-' indicator": "a line in a list that does not begin with `- `",
    "did not find expected key": "not a `key: value` line, or indented unlike its neighbours",
    "could not find expected ':'": "a line that is no `key: value`; is a `: ` missing above?",
    "found unexpected end of stream": "a quote that nothing closes",
    "did not find expected node content": "no value where one is needed: a comma too many, or a "
    "bracket that nothing opened",
    "found character that cannot start any token": "a value may not begin with this character; "
    "quote it",
    "found unknown escape character": "a backslash in double quotes; write single quotes",
    "did not find expected alphabetic or numeric character": "a `*` or `&` without a name; quote "
    "text that begins so",
    "did not find expected comment or line break": "text behind `|` or `>`; begin it in the next "
    "line, or quote it",
    "did not find expected <document start>": "a line that is indented less than the first one",
}


class _YamlLoader(getattr(yaml, "CBaseLoader", yaml.BaseLoader)):  # type: ignore[misc]
    """Gives tags only to nodes that have one in the file."""

    def resolve(self, *_node: object) -> str:
        return ""


@dataclass(frozen=True)
class Document:
    """A file's plain data, with its nodes for the lines of complaints."""

    path: Path
    error: type[BadInput]
    text: str
    root: yaml.Node
    data: dict[str, Any]
    faults: Sequence[BadInput] = ()  # mistakes to report with those of later checks

    def line(self, loc: Loc) -> int:
        """Return the line of a key or item, or of the nearest existing one around it."""
        node = self.root
        line = 1
        for step in loc:
            if isinstance(node, yaml.MappingNode):
                pair = next((pair for pair in node.value if pair[0].value == step), None)
                if pair is None:
                    break
                line = _line(pair[0])
                node = pair[1]
            elif isinstance(node, yaml.SequenceNode) and step in range(len(node.value)):
                node = node.value[int(step)]
                line = _line(node)
            else:
                break
        return line

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
        if len(lines) > MOST_SHOWN:
            lines = [*lines[:MOST_SHOWN], f"and {len(lines) - MOST_SHOWN:,} more"]
        return self._doc.error("\n".join(lines))


def read_document(path: Path, error: type[BadInput]) -> Document:
    """Read a file whose top level is a map; raise `error` with file and line for anything else.

    An error of YAML's grammar is raised at once. Repeated keys, tags and too large numbers are
    `faults` of the document, which `Complaints` raises with later mistakes.
    """
    text = read_text(path, error)
    composer = _Composer(path, error)
    root = composer.compose(text)
    data = composer.plain(root)
    if not isinstance(data, dict):
        text = f"{path}:{_line(root)}: found {show(data)}, needs `key: value` lines"
        raise next(iter(composer.faults), error(text))
    return Document(path, error, text, root, data, composer.faults)


def dotted(loc: Loc) -> str:
    """Return ``axes.input_size[2]`` for a location."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{_key(step)}" for step in loc)
    return text.removeprefix(".")


def _key(key: str) -> str:
    """Return a key for a message; an unprintable or long key is quoted and cut."""
    return key if key and key.isprintable() and len(key) <= 60 else show(key)


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
    return text if len(text) <= 60 else f"{text[:57]}..."


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
    if bad := _CONTROL.search(text):
        line = text.count("\n", 0, bad.start()) + 1
        raise error(f"{path}:{line}: control character {bad[0]!r}; is it a text file?")
    return text


class _Composer:
    """Composes the only document of a text, and makes plain values of its nodes within limits."""

    def __init__(self, path: Path, error: type[BadInput]) -> None:
        self.path = path
        self.error = error
        self.values = 0
        self.faults: list[BadInput] = []

    def compose(self, text: str) -> yaml.Node:
        """Return the root node of the only document in a text."""
        try:
            self._check_nesting(text)
            root = yaml.compose(text, Loader=_YamlLoader)
        except yaml.MarkedYAMLError as reason:
            mark = reason.problem_mark or reason.context_mark
            tab = mark is not None and text[mark.index : mark.index + 1] == "\t"
            what = _PROBLEMS.get(str(reason.problem), f"not YAML: {reason.problem}")
            what = "a tab; YAML indents with spaces" if tab else what
            if mark and (line := _without_a_space(text, mark.line)):
                raise self.error(f"{self.path}:{line}: a space is missing behind a `:`") from reason
            start = reason.context_mark
            if mark and start and start.line != mark.line and "nothing closes" in what:
                mark = start
            raise self.error(f"{self.path}:{mark.line + 1 if mark else 1}: {what}") from reason
        except yaml.YAMLError as reason:
            raise self.error(f"{self.path}: not YAML: {reason}") from reason
        if root is None:
            raise self.error(f"{self.path}: is empty")
        return root

    def _check_nesting(self, text: str) -> None:
        """Refuse deep nesting before composing: the C library's recursion has no limit."""
        depth = aliases = 0
        for event in yaml.parse(text, Loader=_YamlLoader):
            if isinstance(event, yaml.CollectionStartEvent):
                depth += 1
            elif isinstance(event, yaml.CollectionEndEvent):
                depth -= 1
            aliases += isinstance(event, yaml.AliasEvent)
            if depth > MAX_DEPTH:
                raise self._too_deep(event)
            if aliases > MAX_ALIASES:
                raise self._complaint(event, f"more than {MAX_ALIASES} aliases")

    def plain(self, node: yaml.Node, depth: int = 0) -> Any:  # noqa: ANN401 - what YAML holds
        """Return a node's value in plain Python types; each use of an alias makes a new value."""
        if node.tag:
            tag = node.tag.replace("tag:yaml.org,2002:", "!!")[:60]
            text = f"tag {tag} is not allowed; plain values only"
            self.faults.append(self._complaint(node, text))
        if depth > MAX_DEPTH:
            raise self._too_deep(node)
        self.values += 1
        if self.values > MAX_VALUES:
            raise self._complaint(node, f"more than {MAX_VALUES:,} values; write ranges")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, depth)
        if isinstance(node, yaml.SequenceNode):
            return [self.plain(item, depth + 1) for item in node.value]
        quoted = isinstance(node, yaml.ScalarNode) and node.style
        return node.value if quoted else self._scalar(node)

    def _mapping(self, node: yaml.MappingNode, depth: int) -> dict[str, Any]:
        lines: dict[str, int] = {}
        values = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag:
                self.faults.append(self._complaint(key, "a key must be a plain word"))
                continue
            name = key.value
            if name in lines:
                text = f"{_key(name)}: repeated key, first in line {lines[name]}"
                self.faults.append(self._complaint(key, text))
                continue
            lines[name] = _line(key)
            values[name] = self.plain(value, depth + 1)
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
                self.faults.append(self._complaint(node, f"{text[:30]} is too large a number"))
                return 1
            return number
        return text

    def _too_deep(self, at: yaml.Node | yaml.Event) -> BadInput:
        return self._complaint(at, f"nested deeper than {MAX_DEPTH} levels")

    def _complaint(self, at: yaml.Node | yaml.Event, text: str) -> BadInput:
        complaint = self.error(f"{self.path}:{_line(at)}: {text}")
        complaint.line = _line(at)
        return complaint


def _without_a_space(text: str, line: int) -> int:
    """Return the number of the last line before a fault if it is ``key:value``, else 0.

    YAML takes such a line for text that goes on, and complains about the next line.
    """
    above = [(n, words) for n, words in enumerate(text.splitlines()[:line], 1) if words.strip()]
    last, words = above[-1] if above else (0, "")
    return last if _KEY_AND_VALUE.fullmatch(words) else 0


def _line(at: yaml.Node | yaml.Event) -> int:
    return at.start_mark.line + 1 if at.start_mark else 1


def read_toml(path: Path, table: tuple[str, ...] = ()) -> Document:
    """Read a TOML file, or one table of it; `ConfigError` has file and line of a mistake."""
    if sys.version_info >= (3, 11):
        import tomllib  # noqa: PLC0415 - few commands find such a file
    else:
        import tomli as tomllib  # noqa: PLC0415

    text = read_text(path, ConfigError)
    try:
        data: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as reason:  # such as a number of thousands of digits
        place = re.search(_TOML_PLACE, str(reason))
        line = place[1] if place and place[1] else len(text.splitlines())
        why = re.sub(_TOML_PLACE, "", str(reason))
        raise ConfigError(f"{path}:{line}: not TOML: {why}") from reason
    for name in table:
        data = data.get(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{path}: {'.'.join(table)}: needs a table")
    return Document(path, ConfigError, text, _toml_node(data, _toml_lines(text), table), data)


# tomllib does not report the lines of keys, so they are looked up in the text.
def _toml_lines(text: str) -> dict[Loc, int]:
    """Return the line of each key, and of each table's header."""
    line_of: dict[Loc, int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines()):
        if header := re.match(_TOML_HEADER, line):
            keys = table = _toml_keys(header[1])
        elif entry := re.match(_TOML_ENTRY, line):
            keys = (*table, *_toml_keys(entry[1]))
        else:
            continue
        for length in range(1, len(keys) + 1):
            line_of.setdefault(keys[:length], number)
    return line_of


def _toml_keys(keys: str) -> tuple[str, ...]:
    return tuple(key.strip("\"'") for key in re.findall(_TOML_KEY, keys))


def _toml_node(value: object, lines: Mapping[Loc, int], loc: tuple[str, ...]) -> yaml.Node:
    """Return a value as a tree in which `Document` finds lines."""
    line = lines.get(loc, 0)
    mark = yaml.Mark("", 0, line, 0, None, 0)
    if isinstance(value, dict):
        pairs = [
            (_toml_node(key, lines, (*loc, key)), _toml_node(inner, lines, (*loc, key)))
            for key, inner in value.items()
        ]
        return yaml.MappingNode("", pairs, mark)
    if isinstance(value, list):
        return yaml.SequenceNode("", [_toml_node(item, lines, loc) for item in value], mark)
    return yaml.ScalarNode("", str(value), mark)
