"""Records: their cells are columns, and no others can be made."""

from __future__ import annotations

import pytest

from hpcsweep.catalog.record import Cells, UndeclaredCell, cell


class Heat(Cells):
    """Some cells."""

    heat_j: float | None = cell("joules", clocked=True)
    source: str | None = cell("of what")
    told_at: str | None = cell("when", kind="time")
    each: list[float] | None = cell("one by one")


def test_a_column_has_the_name_the_type_and_the_meaning_of_its_cell():
    """The kind is that of the annotation, unless it is given."""
    found = [(name, one.kind, one.doc, one.clocked) for name, one in Heat.declared.items()]
    assert found == [
        ("heat_j", "float", "joules", True),
        ("source", "str", "of what", False),
        ("told_at", "time", "when", False),
        ("each", "list", "one by one", False),
    ]


def test_a_cell_is_none_until_it_is_known_and_fixed_then():
    """What is 0 or empty is known."""
    heat = Heat(heat_j=0.0, source=None)
    assert (heat.heat_j, heat.source, heat.told_at) == (0.0, None, None)
    assert heat.filled() == {"heat_j": 0.0}
    with pytest.raises(AttributeError, match="'heat_j' cannot be set"):
        heat.heat_j = 1.0


def test_of_two_records_the_later_counts_in_what_it_knows():
    """What it does not know it does not take away."""
    both = Heat(heat_j=1.0, source="plate") | Heat(heat_j=2.0)
    assert both == Heat(heat_j=2.0, source="plate")
    assert both != Heat(heat_j=2.0)


def test_a_name_that_no_record_declares_is_an_error_that_names_it():
    """With the nearest one, at once."""
    with pytest.raises(UndeclaredCell) as told:
        Heat(heat_jj=1.0)  # type: ignore[call-arg]
    assert str(told.value) == "Heat has no cell 'heat_jj'; did you mean 'heat_j'?"
