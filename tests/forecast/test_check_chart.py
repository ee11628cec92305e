"""The picture of what was left out."""

from __future__ import annotations

import pytest

import knownphysics
from hpcsweep.errors import UsageError
from hpcsweep.forecast import check_chart, leaving_out


def test_each_kind_has_a_panel_and_each_part_its_error(tmp_path):
    """Of three kinds in two rows, the last place stays empty."""
    seen = knownphysics.measured(knownphysics.Device(noise=0.05), sizes=(32, 48, 64, 96))
    left = [leaving_out.leave_out(seen, kind) for kind in ("network", "algorithm", "size")]
    check_chart.draw(left, tmp_path / "errors.svg")
    drawn = (tmp_path / "errors.svg").read_text()
    assert drawn.count(">predicted (ms)<") == 3
    for text in (">a whole network left out: median error, 90 % interval<", ">narrow: ", ">gemm: "):
        assert text in drawn


def test_nothing_to_draw_is_told(tmp_path):
    """One network at one size."""
    with pytest.raises(UsageError, match=r"errors\.png: nothing to draw"):
        check_chart.draw([], tmp_path / "errors.png")
