"""The record of a check: its fields are columns."""

from __future__ import annotations

from dataclasses import dataclass

from hpcsweep.catalog.record import cell, cells_of, clocked


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Two cells."""

    heat_j: float | None = cell("joules", clocked=True)
    source: str | None = cell("of what")


def test_a_column_has_the_name_the_type_and_the_meaning_of_its_field():
    """A check without a record has no column."""
    assert [*cells_of(Heat)] == [("heat_j", "float", "joules"), ("source", "str", "of what")]
    assert clocked(Heat) == ["heat_j"]
    assert [*cells_of(None)] == clocked(None) == []
