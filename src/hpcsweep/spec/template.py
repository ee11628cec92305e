"""Fills the template of a command with the values of a point's axes. Standard library only."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from string import Formatter
from typing import Any, Final

from hpcsweep.point import canonical_json

OUT: Final = "out"  # a folder of the point alone
LAST_LINE: Final = "last_line"  # of the output, in place of a file


def names_in(template: str) -> list[str]:
    """Return the names in braces; `ValueError` where braces hold anything else."""
    names = []
    for _, name, form, conversion in Formatter().parse(template):
        if name is None:  # text behind the last braces
            continue
        if form or conversion or not name.isidentifier():
            raise ValueError(f"{{{name}}} is no name of an axis; {{{{ and }}}} are braces")
        names.append(name)
    return names


def results_file(results: Mapping[str, Any]) -> str:
    """Return the template of the file that has a command's results; empty if no file has them."""
    named = str(results.get("csv") or results.get("json", ""))
    return "" if named == LAST_LINE else named


def filled(template: str, values: Mapping[str, Any]) -> str:
    """Return the template with the text of each value; of None it is empty."""
    return template.format_map(_texts(values))


def words(template: str, values: Mapping[str, Any], *, shell: bool = False) -> list[str]:
    """Return the words of a command. No value makes two words of one, also in a shell.

    A word of which the values leave nothing is left out. `ValueError`: a quote is not closed.
    """
    texts = _texts(values)
    if shell:
        quoted = {name: text and shlex.quote(text) for name, text in texts.items()}
        return ["/bin/sh", "-c", template.format_map(quoted)]
    filled_words = []
    for word in shlex.split(template):
        text = word.format_map(texts)
        if text or not word:  # an empty word of the template, such as '', stays
            filled_words.append(text)
    return filled_words


def quoted_names(template: str) -> set[str]:
    """Return the names in braces that stand inside quotes of a shell."""
    quote = ""
    found = set()
    for text, name, _form, _conversion in Formatter().parse(template):
        signs = iter(text)
        for sign in signs:
            if sign == "\\" and quote != "'":
                next(signs, None)
            elif sign == quote:
                quote = ""
            elif sign in {"'", '"'} and not quote:
                quote = sign
        if name is not None and quote:
            found.add(name)
    return found


def as_text(value: object) -> str:
    """Return the text of a value in a command; of None it is empty."""
    if value is None:
        return ""
    return value if isinstance(value, str) else canonical_json(value)


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {name: as_text(value) for name, value in values.items()}
