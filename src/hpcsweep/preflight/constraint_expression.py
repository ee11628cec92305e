"""Reads the expressions of `sbatch --constraint`: their features, and the nodes that fit.

``a&b`` and ``a,b`` ask for both features, ``a|b`` for one of them. Slurm evaluates them from left
to right, with parentheses. In ``[a|b]`` all nodes of the job have the same feature. ``a*2`` asks
for two such nodes: then a node with any of the features may be part of the job.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Final

_COUNT: Final = re.compile(r"\*\d+")
_NAME: Final = re.compile(r"[^&|,()\[\]*]+")
_TOKEN: Final = re.compile(rf"{_NAME.pattern}|[&|,()\[\]]")
_CLOSED_BY: Final = {"(": ")", "[": "]"}


def names(expression: str) -> tuple[str, ...]:
    """Return the features, each once, in order."""
    return tuple(dict.fromkeys(_NAME.findall(_COUNT.sub("", expression))))


def replaced(expression: str, name: str, new: str) -> str:
    """Return the expression with one feature renamed."""
    return _NAME.sub(lambda found: new if found[0] == name else found[0], expression)


def fits(expression: str, features: Collection[str]) -> bool:
    """Say whether a node with these features can run the job.

    Raises:
        ValueError: the expression is not valid.
    """
    if _COUNT.search(expression):
        return any(name in features for name in names(expression))
    tokens = iter(_TOKEN.findall(expression))
    if "".join(_TOKEN.findall(expression)) != expression:
        raise ValueError(_needs("no `*` without a number"))
    return _sequence(tokens, features, "")


def _sequence(tokens: Iterator[str], features: Collection[str], end: str) -> bool:
    """Evaluate from left to right up to a closing bracket, or to the end."""
    value = _operand(next(tokens, ""), tokens, features)
    for token in tokens:
        if token == end:
            return value
        if token not in {"&", ",", "|"}:
            raise ValueError(_needs(f"`&` or `|` before {token!r}"))
        right = _operand(next(tokens, ""), tokens, features)
        either = token == "|"  # noqa: S105 - no password
        value = (value or right) if either else (value and right)
    if end:
        raise ValueError(_needs(f"a closing {end!r}"))
    return value


def _operand(token: str, tokens: Iterator[str], features: Collection[str]) -> bool:
    if token in _CLOSED_BY:
        return _sequence(tokens, features, _CLOSED_BY[token])
    if not _NAME.fullmatch(token):
        raise ValueError(_needs(f"a feature before {token!r}" if token else "a feature at its end"))
    return token in features


def _needs(what: str) -> str:
    return f"needs {what}; it is written as a, a&b, a|b, [a|b] or a*2"
