"""What of a network may be entered, and what is closed."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

from benchmarks import odd_zoo
from hpcsweep.conv import parts

pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")


@pytest.mark.parametrize(
    ("factory", "entered"),
    [
        (odd_zoo.Parted, ["", "stem", "head", "part", "part.0", "part.1", "part.2", "plain"]),
        (odd_zoo.scripted, ["", "stem", "head", "part", "plain"]),
        (odd_zoo.compiled_part, ["", "stem", "head", "part", "plain"]),
        (odd_zoo.part_compiled, ["", "stem", "head", "part", "plain"]),
        (odd_zoo.compiled_alias, ["", "stem", "stem.0", "head", "part", "plain"]),
        (odd_zoo.all_compiled, [""]),
        (odd_zoo.compiled_function, [""]),
    ],
)
def test_closed_parts_are_seen_from_outside(factory, entered):
    """Their layers are not entered, not even by another name; their callers are."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = factory()
    found = parts.walk(model)
    assert [name for name, _ in found] == entered
    closed = {name for name, module in found if parts.closed(module)}
    assert closed <= {"", "part"}
    assert (not closed) == (factory is odd_zoo.Parted)


def test_a_class_that_compiles_its_forward_is_closed():
    """A decorator does the same as a call; what is kept from compiling is open."""

    class Compiled(nn.Sequential):
        @torch.compile(backend="eager")
        def forward(self, x):
            return super().forward(x)

    class Disabled(nn.Sequential):
        @torch.compiler.disable
        def forward(self, x):
            return super().forward(x)

    assert parts.closed(Compiled(nn.ReLU())) == "in a compiled module"
    assert parts.closed(Disabled(nn.ReLU())) is None


def test_wrapped_forwards_see_direct_calls_and_leave_nothing():
    """Hooks see calls of the module alone; what a module had of its own is there again."""
    model, seen = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), []
    own = model[1].forward = lambda x: x

    def wrap(name, _module, forward):
        return lambda x: seen.append(name) or forward(x)

    with parts.wrapped_layers(parts.walk(model)[1:], wrap):
        x = model[0].forward(torch.zeros(1, 3, 2, 2))
        model(torch.zeros(1, 3, 2, 2))
        model[1](x)
    assert seen == ["0", "0", "1", "1"]
    assert "forward" not in vars(model[0])
    assert model[1].forward is own
