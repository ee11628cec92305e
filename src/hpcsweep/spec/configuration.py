"""Reads configuration files, with the line of every key."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from hpcsweep import environment
from hpcsweep.errors import ConfigError
from hpcsweep.spec import lookup
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


def results_folder(given: str | os.PathLike[str] = "") -> Path:
    """Return the folder of all results: `given`, else by variable, by file, or `results`."""
    folder = str(given or os.environ.get(environment.RESULTS) or "")
    files = () if folder else tuple(lookup.config_files())
    for path, table in files[::-1]:  # later files win
        doc = read(path, table)
        if not isinstance(folder := doc.data.get("results", ""), str):
            raise doc.complaint(("results",), "needs text; quote it if it is")
        if folder:
            return path.parent / Path(folder).expanduser()
    return Path(folder) if folder else lookup.results_folder()


def read(path: Path, table: tuple[str, ...] = ()) -> Document:
    """Read a file, or one table of it; `ConfigError` has file and line of a mistake in TOML."""
    text = read_text(path, ConfigError)
    try:
        data: Any = tomllib.loads(text)
    except (ValueError, RecursionError) as reason:  # such as a number of thousands of digits
        place = _WHERE.search(str(reason))
        line = place[1] if place and place[1] else len(text.splitlines())
        raise ConfigError(f"{path}:{line}: not TOML: {_WHERE.sub('', str(reason))}") from reason
    for name in table:
        data = data.get(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"{path}: {'.'.join(table)}: needs a table")
    return Document(path, ConfigError, text, _node(data, _lines(text), table), data)


# tomllib does not report the lines of keys, so they are looked up in the text.
def _lines(text: str) -> dict[Loc, int]:
    """Return the line of each key, and of each table's header."""
    line_of: dict[Loc, int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines()):
        if header := _HEADER.match(line):
            keys = table = _split(header[1])
        elif entry := _ENTRY.match(line):
            keys = (*table, *_split(entry[1]))
        else:
            continue
        for length in range(1, len(keys) + 1):
            line_of.setdefault(keys[:length], number)
    return line_of


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
