"""Mutates the shipped sweeps: numbers, parts that are doubled or removed, text that is broken."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

NUMBERS = (0, 1, -1, 2, 7, 31, 224, 1000, 10**5, 10**6, 10**7, 10**17, 0.5, 1e300)
LARGE = ("input_size", "batch_size", "seed")
SCRAPS = ("[", "{", ": ", "- ", "\t", "*a", "'", "0", "")
WORDS = ("", "auto", "gemm", "resnet18", "a", "~", "é", "training", "noop", "l40", "x" * 300)


def mutated(data: bytes, drawn: random.Random) -> bytes:
    """Return a sweep or a profile that differs in one to four places."""
    text = data.decode()
    if drawn.random() < 0.2:
        at = drawn.randrange(len(text))
        cut = drawn.randrange(12)
        return (text[:at] + drawn.choice(SCRAPS) + text[at + cut :]).encode()
    found = yaml.safe_load(text)
    for _ in range(drawn.randint(1, 4)):
        places = [*_places(found)]
        if places:
            place, key = drawn.choice(places)
            place[key] = _other(place[key], drawn)
    if drawn.random() < 0.5:
        _enlarge(found, drawn)
    return json.dumps(found).encode()


def _places(data: dict[Any, Any] | list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield every container with every key or index of it."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        yield data, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _other(value: object, drawn: random.Random) -> object:
    """Return something else in place of a value."""
    if isinstance(value, list) and value and drawn.random() < 0.7:
        times = drawn.choice([2, 30, 500, 3000])
        return (copy.deepcopy(value) * times)[: 150_000 // max(len(str(value)), 1) + 2]
    if isinstance(value, bool) or drawn.random() < 0.1:
        return drawn.choice([True, False, None, [], {}, *WORDS])
    if isinstance(value, int | float):
        return drawn.choice([*NUMBERS, value * 10, value + 1, -value])
    if isinstance(value, dict) and value and drawn.random() < 0.7:
        return {key: _other(one, drawn) for key, one in value.items()}
    return drawn.choice([value, *WORDS, *NUMBERS])


def _enlarge(data: dict[str, Any], drawn: random.Random) -> None:
    """Give a sweep many values, or many rules."""
    axes = data.get("axes")
    if not isinstance(axes, dict):
        return
    for name in drawn.sample(
        ["input_size", "batch_size", "seed", "num_threads"], drawn.randint(1, 3)
    ):
        most = drawn.choice([10, 100, 215, 1000, 10**6])
        ranged = {"start": 1, "stop": most, "step": 1}
        axes[name] = drawn.choice([ranged, drawn.sample(range(1, 10**6), min(most, 1000))])
    rules = drawn.choice([0, 3, 100, 1000])
    names = [name for name in axes if name in LARGE]
    data["exclude"] = [_condition(names, drawn) for _ in range(rules)]
    if drawn.random() < 0.3:
        whens = range(min(rules, 60))
        data["when"] = [
            {"if": _condition(names, drawn), "axes": {"dtype": ["float16"], "tf32": [True, False]}}
            for _ in whens
        ]


def _condition(names: list[str], drawn: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in drawn.sample(names, drawn.randint(1, len(names))) if names else ():
        low = drawn.randint(1, 1000)
        found[name] = drawn.choice(
            [{"ge": low, "le": low + drawn.randint(0, 300)}, {"not": [low]}, low, [low, low + 1]]
        )
    return found
