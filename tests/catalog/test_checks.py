"""The checks that exist, and what follows from their records."""

from __future__ import annotations

import pytest

from hpcsweep.catalog import SETTINGS, WORKLOADS, columns
from hpcsweep.catalog.checks import CHECKS


@pytest.mark.parametrize("name", CHECKS)
def test_what_a_check_fills_is_a_column_and_what_it_raises_a_flag(name):
    """Reference, shards and readers know both."""
    check = CHECKS[name]
    assert check.overall.declared.keys() <= {*columns.OVERALL_COLUMNS}
    assert check.layers.declared.keys() <= {*columns.LAYER_COLUMNS}
    assert {flag.name: flag.doc for flag in check.flags}.items() <= columns.FLAGS.items()
    assert {flag.name for flag in check.flags if flag.doubt} <= columns.DOUBTFUL


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_switched_by_a_setting_that_exists(name):
    """It applies to workloads that exist."""
    assert CHECKS[name].setting in {None, *SETTINGS}
    assert {*CHECKS[name].workloads} <= {*WORKLOADS}


def test_no_two_checks_fill_the_same_cell():
    """Each column has one file that says what it means."""
    for table in ("overall", "layers"):
        found = [cell for check in CHECKS.values() for cell in getattr(check, table).declared]
        assert len(found) == len(set(found))
    assert len({*columns.OVERALL_COLUMNS}) == len(columns.OVERALL_COLUMNS)
