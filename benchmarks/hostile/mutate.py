"""Mutates files of any kind: bytes, lines, cells, and what JSON holds."""

from __future__ import annotations

import copy
import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator

    Step = Callable[[bytes, random.Random], bytes]

NUMBERS = (
    *("0", "-1", "1", "7", "1.5", "2147483648", "9223372036854775808", "10000000", "1" + "0" * 17),
    *("9" * 25, "9" * 5000, "1e999", "-1e308", "nan", "inf", "1_000", "0x10", "٣", "²", "007"),
)
WORDS = (
    *("", " ", "a", "null", "[]", "{}", "true", "é", "\0", "\r", "\x1b[2J", "=1+1", "..", "/"),
    *("N/A", "(null)", "UNLIMITED", "None", "0001-01-01T00:00:00", "9999-12-31T23:59:59"),
    *("2026-01-01T00:00:00", "0-9999999", "12_[0-99999999999]", "12_[1,4-6:2%3]", "1-", "x" * 300),
    *("PENDING", "NODE_FAIL", "ok", "oom", "error", "100000-00:00:00", "gpu:l40:4K", '"', "\u2028"),
)
_NUMBER = re.compile(rb"\d[\d.]*")
_CELL = re.compile(rb"[^,\n|=\x1f:]+")
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 7, 0.5, 10**7, 10**17, 10**25, 1e308, float("nan"), [], {}, ""),
    *("a", "é\n", "x" * 300, "0-9999999", "local", "sbatch", [1], ["a"], [[]], {"a": 1}, "\ud800"),
    *("9" * 5000, "0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59-12:00"),
)


def mutated(data: bytes, drawn: random.Random) -> bytes:
    """Return a file that differs in one to four places."""
    if drawn.random() < 0.4 and (found := _json(data, drawn)) is not None:
        return found
    for _ in range(drawn.randint(1, 4)):
        data = drawn.choice(_STEPS)(data, drawn)
    return data


def _json(data: bytes, drawn: random.Random) -> bytes | None:
    """Change values of a JSON document, or of one line of a file that has one per line."""
    lines = data.splitlines(keepends=True)
    at = drawn.randrange(len(lines)) if lines else 0
    for begin, end in ((0, len(lines)), (at, at + 1)):
        try:
            found = json.loads(b"".join(lines[begin:end]))
        except ValueError:
            continue
        if isinstance(found, dict | list):
            for _ in range(drawn.randint(1, 3)):
                found = _changed(found, drawn)
            text = json.dumps(found).encode() + b"\n"
            return b"".join([*lines[:begin], text, *lines[end:]])
    return None


def _changed(found: Any, drawn: random.Random) -> Any:  # noqa: ANN401 - whatever JSON holds
    """Change one place: another value, one that is gone, doubled, or stands elsewhere."""
    places = [*_places(found)]
    if not places:
        return copy.deepcopy(drawn.choice(_VALUES))
    place, key = drawn.choice(places)
    how = drawn.random()
    if how < 0.6:
        place[key] = copy.deepcopy(drawn.choice(_VALUES))
    elif how < 0.75:
        del place[key]
    elif how < 0.9 and isinstance(place[key], list):
        place[key] = copy.deepcopy(place[key]) * drawn.choice([2, 100])
    else:
        other, name = drawn.choice(places)
        place[key] = copy.deepcopy(other[name])
    return found


def _places(data: Any) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401
    if isinstance(data, dict | list):
        for key, value in list(data.items() if isinstance(data, dict) else enumerate(data)):
            yield data, key
            yield from _places(value)


def _flip(data: bytes, drawn: random.Random) -> bytes:
    found = bytearray(data)
    for _ in range(drawn.choice([1, 1, 8])):
        if found:
            found[drawn.randrange(len(found))] ^= 1 << drawn.randrange(8)
    return bytes(found)


def _cut(data: bytes, drawn: random.Random) -> bytes:
    return data[: drawn.randrange(len(data) + 1)]


def _without(data: bytes, drawn: random.Random) -> bytes:
    at = drawn.randrange(len(data) + 1)
    return data[:at] + data[at + drawn.choice([1, 2, 12, 100]) :]


def _inserted(data: bytes, drawn: random.Random) -> bytes:
    at = drawn.randrange(len(data) + 1)
    scrap = drawn.choice([*WORDS, *NUMBERS, "\n", ",", '"', "[" * 2000, "{" * 40]).encode()
    return data[:at] + scrap + data[at:]


def _zeroed(data: bytes, drawn: random.Random) -> bytes:
    at = drawn.randrange(len(data) + 1)
    size = drawn.choice([1, 16, 512])
    return data[:at] + b"\0" * len(data[at : at + size]) + data[at + size :]


def _lines(data: bytes, drawn: random.Random) -> bytes:
    """Repeat a line, leave it out, or put it elsewhere."""
    lines = data.splitlines(keepends=True)
    if not lines:
        return data
    line = lines.pop(drawn.randrange(len(lines)))
    for _ in range(drawn.choice([0, 1, 2, 300])):
        lines.insert(drawn.randrange(len(lines) + 1), line)
    return b"".join(lines)


def _number(data: bytes, drawn: random.Random) -> bytes:
    return _replaced(_NUMBER, data, drawn.choice(NUMBERS), drawn)


def _cell(data: bytes, drawn: random.Random) -> bytes:
    return _replaced(_CELL, data, drawn.choice([*WORDS, *NUMBERS]), drawn)


def _replaced(what: re.Pattern[bytes], data: bytes, by: str, drawn: random.Random) -> bytes:
    found = [*what.finditer(data)]
    if not found:
        return data + by.encode()
    one = drawn.choice(found)
    return data[: one.start()] + by.encode() + data[one.end() :]


def _noise(_data: bytes, drawn: random.Random) -> bytes:
    return drawn.randbytes(drawn.randrange(400))


_STEPS: tuple[Step, ...] = (
    *(_flip, _cut, _without, _inserted, _zeroed, _lines),
    *(_number, _number, _number, _cell, _cell, _cell, _noise),
)
