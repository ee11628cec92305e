"""Reads a TOML file that a user wrote into a `Document`, with the line of every key.

The parser of the standard library knows no lines of keys, so they are looked up in the text.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from hpcsweep.errors import BadInput
from hpcsweep.spec.document import Document, Loc, read_text

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_KEY: Final = r"""(?:[\w-]+|"[^"]*"|'[^']*')"""
_KEYS: Final = rf"({_KEY}(?:\s*\.\s*{_KEY})*)"
_HEADER: Final = re.compile(rf"\s*\[+\s*{_KEYS}\s*\]")
_ENTRY: Final = re.compile(rf"\s*{_KEYS}\s*=")
_WHERE: Final = re.compile(r"\s*\(at (?:line (\d+), column \d+|end of document)\)")


def read(path: Path, error: type[BadInput], table: Sequence[str] = ()) -> Document:
    """Read a file, or one table of it; raise `error` with file and line for what is no TOML."""
    text = read_text(path, error)
    try:
        data: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as reason:  # also for a number of thousands of digits
        said = str(reason)
        place = _WHERE.search(said)
        line = place[1] if place and place[1] else len(text.splitlines())
        raise error(f"{path}:{line}: not TOML: {_WHERE.sub('', said)}") from reason
    for name in table:
        data = data.get(name, {})
        if not isinstance(data, dict):
            raise error(f"{path}: {'.'.join(table)}: needs a table")
    return Document(path, error, text, _node(data, _lines(text), tuple(table)), data)


def _lines(text: str) -> dict[Loc, int]:
    """Return the line of each key, and of each table's header."""
    found: dict[Loc, int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines()):
        if header := _HEADER.match(line):
            keys = table = _split(header[1])
        elif entry := _ENTRY.match(line):
            keys = (*table, *_split(entry[1]))
        else:
            continue
        for length in range(1, len(keys) + 1):
            found.setdefault(keys[:length], number)
    return found


def _split(keys: str) -> tuple[str, ...]:
    return tuple(key.strip("\"'") for key in re.findall(_KEY, keys))


def _node(value: object, lines: Mapping[Loc, int], loc: tuple[str, ...]) -> yaml.Node:
    """Return a value as a tree in which `Document` finds lines."""
    line = lines.get(loc, 0)
    mark = yaml.Mark("", 0, line, 0, None, 0)
    if isinstance(value, dict):
        pairs = [
            (_node(key, lines, (*loc, key)), _node(inner, lines, (*loc, key)))
            for key, inner in value.items()
        ]
        return yaml.MappingNode("", pairs, mark)
    if isinstance(value, list):
        return yaml.SequenceNode("", [_node(item, lines, loc) for item in value], mark)
    return yaml.ScalarNode("", str(value), mark)
