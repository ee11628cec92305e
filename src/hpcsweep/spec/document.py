"""Reads a YAML file that a user wrote, and knows the line of everything in it.

PyYAML's C parser gives the events; the tree is built here, since a file that decides over GPU-hours
deserves more than a loader that takes everything: repeated keys, tags, aliases that multiply,
tabs, binary files and bottomless nesting are refused, each with file and line.

Scalars follow YAML 1.2: ``yes`` is a word, ``24:00:00`` is not a number in base 60, ``1e-3`` is
a number. Keys are always text.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import yaml
from yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from yaml.events import Event

    from hpcsweep.errors import BadInput

    Loc = Sequence[str | int]

MAX_BYTES: Final = 1 << 20
MAX_DEPTH: Final = 32
MAX_VALUES: Final = 200_000  # after aliases were expanded
MAX_ALIASES: Final = 100

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CONTROL: Final = re.compile(r"[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_INT: Final = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


@dataclass(slots=True)
class Node:
    """A value and the line where it begins; `keys` holds the lines of a map's keys."""

    line: int
    value: Any
    keys: dict[str, int] = field(default_factory=dict)
    height: int = 0  # levels below it


@dataclass(frozen=True)
class Document:
    """A file that was read: its plain data, and lines for complaints about it."""

    path: Path
    error: type[BadInput]
    text: str
    root: Node
    data: dict[str, Any]

    def line(self, loc: Loc) -> int:
        """Return the line of a key or item; of the nearest one around it that exists."""
        node, line = self.root, 1
        for step in loc:
            if isinstance(node.value, dict) and step in node.value:
                line, node = node.keys[str(step)], node.value[step]
            elif isinstance(node.value, list) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.line
            else:
                break
        return line

    def complaint(self, loc: Loc, text: str) -> BadInput:
        """Return the error ``FILE:LINE: KEY: text``, to be raised."""
        key = f"{dotted(loc)}: " if loc else ""
        return self.error(f"{self.path}:{self.line(loc)}: {key}{text}")


def read(path: Path, error: type[BadInput]) -> Document:
    """Read a file whose top level is a map; raise `error` with file and line for anything else."""
    text = _text(path, error)
    root = _Builder(path, error).build(text)
    if not isinstance(root.value, dict):
        raise error(f"{path}:{root.line}: found {show(_plain(root))}, needs `key: value` lines")
    return Document(path, error, text, root, _plain(root))


def dotted(loc: Loc) -> str:
    """Return ``axes.input_size[2]`` for a location."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{_key(step)}" for step in loc)
    return text.removeprefix(".")


def _key(key: str) -> str:
    """Return a key as it stands; one that would break a message apart is quoted and cut."""
    return key if key and key.isprintable() and len(key) <= 60 else show(key)


def show(value: object) -> str:
    """Return a value as a complaint quotes it: short, one line, in YAML's spelling."""
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


def _text(path: Path, error: type[BadInput]) -> str:
    """Return a file's text once it is known to be text."""
    try:
        if path.is_dir():
            raise error(f"{path}: is a directory, needs a YAML file; name one of the files in it")
        if path.exists() and not path.is_file():
            raise error(f"{path}: is not a regular file, needs a YAML file")
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
        raise error(
            f"{path}:{line}: byte 0x{data[reason.start]:02x} is not UTF-8; is it a text file?"
        ) from reason
    bad = _CONTROL.search(text)
    if bad:
        line = text.count("\n", 0, bad.start()) + 1
        raise error(f"{path}:{line}: control character {bad[0]!r}; is it a text file?")
    return text


class _Builder:
    """Events to nodes, without recursion and within limits."""

    def __init__(self, path: Path, error: type[BadInput]) -> None:
        self.path, self.error = path, error
        self.anchors: dict[str, tuple[Node, int]] = {}  # with the number of values below
        self.values = self.aliases = 0

    def build(self, text: str) -> Node:
        """Return the root of the only document in a text."""
        try:
            return self._document(yaml.parse(text, Loader=_LOADER))
        except yaml.MarkedYAMLError as reason:
            mark = reason.problem_mark or reason.context_mark
            tab = mark is not None and text[mark.index : mark.index + 1] == "\t"
            what = "a tab; YAML indents with spaces" if tab else f"not YAML: {reason.problem}"
            raise self.error(f"{self.path}:{mark.line + 1 if mark else 1}: {what}") from reason
        except yaml.YAMLError as reason:
            raise self.error(f"{self.path}: not YAML: {reason}") from reason

    def _document(self, events: Iterator[Event]) -> Node:
        """Return the first document's root, after making sure that there is no other."""
        root: Node | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if root is not None:
                    raise self._fail(event, "a second document; one file holds one")
                root = self._node(next(events), events, 0)
        if root is None:
            raise self.error(f"{self.path}: is empty")
        return root

    def _node(self, event: Event, events: Iterator[Event], depth: int) -> Node:
        """Return one node; recursion ends at `MAX_DEPTH`."""
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise self._fail(event, f"tag {_tag(tag)} is not allowed; plain values only")
        if depth > MAX_DEPTH:
            raise self._too_deep(event)
        self._count(event, 1)
        before = self.values
        if isinstance(event, MappingStartEvent):
            node = self._mapping(event, events, depth)
        elif isinstance(event, SequenceStartEvent):
            items: list[Node] = []
            node = Node(_line(event), items)
            while not isinstance(item := next(events), SequenceEndEvent):
                items.append(self._node(item, events, depth + 1))
                node.height = max(node.height, items[-1].height + 1)
        else:
            node = Node(_line(event), self._scalar(cast("ScalarEvent", event)))
        anchor = getattr(event, "anchor", None)
        if anchor is not None:
            self.anchors[anchor] = (node, self.values - before + 1)
        return node

    def _mapping(self, start: Event, events: Iterator[Event], depth: int) -> Node:
        node = Node(_line(start), {})
        while not isinstance(event := next(events), MappingEndEvent):
            if not isinstance(event, ScalarEvent) or event.tag is not None:
                raise self._fail(event, "a key must be a plain word")
            key, line = event.value, _line(event)
            if key in node.keys:
                first = node.keys[key]
                raise self._fail(event, f"{_key(key)}: repeated key, first in line {first}")
            node.keys[key] = line
            child = node.value[key] = self._node(next(events), events, depth + 1)
            node.height = max(node.height, child.height + 1)
        return node

    def _alias(self, event: AliasEvent, depth: int) -> Node:
        self.aliases += 1
        if event.anchor not in self.anchors:
            raise self._fail(event, f"*{event.anchor} names an anchor that is not complete above")
        if self.aliases > MAX_ALIASES:
            raise self._fail(event, f"more than {MAX_ALIASES} aliases")
        node, size = self.anchors[event.anchor]
        self._count(event, size)
        if depth + node.height > MAX_DEPTH:
            raise self._too_deep(event)
        return node

    def _count(self, event: Event, values: int) -> None:
        self.values += values
        if self.values > MAX_VALUES:
            raise self._fail(event, f"more than {MAX_VALUES:,} values; write ranges")

    def _scalar(self, event: ScalarEvent) -> object:
        text: str = event.value
        if not event.implicit[0]:  # it was quoted
            return text
        if text in _WORDS:
            return _WORDS[text]
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            number = float(text)
            if math.isinf(number) or (text.lstrip("+-").isdecimal() and len(text) > 18):
                raise self._fail(event, f"{text[:30]} is too large a number")
            return number
        return text

    def _too_deep(self, event: Event) -> BadInput:
        return self._fail(event, f"nested deeper than {MAX_DEPTH} levels")

    def _fail(self, event: Event, text: str) -> BadInput:
        return self.error(f"{self.path}:{_line(event)}: {text}")


def _plain(node: Node) -> Any:  # noqa: ANN401 - what YAML holds
    if isinstance(node.value, dict):
        return {key: _plain(child) for key, child in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(child) for child in node.value]
    return node.value


def _line(event: Event) -> int:
    mark = event.start_mark
    return mark.line + 1 if mark else 1


def _tag(tag: str) -> str:
    return tag.replace("tag:yaml.org,2002:", "!!")[:60]
