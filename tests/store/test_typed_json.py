"""JSON objects as records: what is missing takes its default, and every type is checked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum

import pytest

from hpcsweep.store import typed_json


class Colour(Enum):
    """An enum of a record."""

    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A record inside a record."""

    depth: int = 0


@dataclass(frozen=True, kw_only=True)
class Record:
    """One field of each kind."""

    name: str
    share: float = 1.0
    colour: Colour = Colour.RED
    words: tuple[str, ...] = ()
    count: int | None = None
    inner: Inner = field(default_factory=Inner)


def test_a_record_is_read_back_as_it_was_written():
    """Records inside, enums and tuples too."""
    record = Record(name="a", share=0.5, words=("b", "c"), count=3, inner=Inner(depth=2))
    assert typed_json.from_plain(Record, typed_json.to_plain(record)) == record


def test_what_is_missing_or_null_takes_its_default_and_what_is_unknown_is_left_out():
    """An older version wrote less, a newer one more."""
    found = {"name": "a", "share": None, "count": None, "added_later": [1]}
    assert typed_json.from_plain(Record, found) == Record(name="a")


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ({}, "keys are missing"),
        ({"name": 1}, "name"),
        ({"name": "a", "share": "much"}, "share"),
        ({"name": "a", "colour": "blue"}, "Colour"),
        ({"name": "a", "words": "b"}, "words"),
        ({"name": "a", "count": True}, "count"),
        ({"name": "a", "inner": {"depth": "deep"}}, "depth"),
    ],
)
def test_a_value_of_another_type_is_an_error_that_names_it(found, told):
    """So is one that is missing and has no default."""
    with pytest.raises(ValueError, match=told):
        typed_json.from_plain(Record, found)


def test_a_sealed_object_is_proven() -> None:
    """One without a checksum is of an older version."""
    record = json.loads(json.dumps(typed_json.sealed({"a": 1.5, "b": ["é"], "n": None})))
    typed_json.prove(record)
    typed_json.prove({"a": 1})
    with pytest.raises(ValueError, match="checksum does not fit"):
        typed_json.prove({**record, "a": 1.25})
