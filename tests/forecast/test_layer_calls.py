"""The layer calls of points that no row has: what a shape pass tells of them."""

from __future__ import annotations

import knownphysics
import resultsfolder
from hpcsweep.forecast import layer_calls, prediction
from knownphysics import TEXT

LAZY = """\
from torch import nn


def net():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LazyLinear(10))
"""


def test_a_network_whose_layers_fit_one_size_is_built_for_each(tmp_path, monkeypatch):
    """The first pass makes them: a network of one size does not take another one."""
    (tmp_path / "lazy_at_each_size.py").write_text(LAZY)
    monkeypatch.syspath_prepend(tmp_path)
    spec = TEXT.replace("resnet18", "lazy_at_each_size:net")
    points = resultsfolder.points_of(tmp_path, spec)
    seen = knownphysics.with_defaults(knownphysics.measured(networks=knownphysics.NAMED))
    calls = layer_calls.of_points(points, prediction.as_table(points), seen)
    linear = calls[calls["op"].str.contains("linear")]
    assert linear.groupby("input_size")["params"].first().tolist() == [36010, 84650]
