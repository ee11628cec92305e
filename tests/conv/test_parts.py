"""What of a network may be entered, and what is closed; its tensors stay its own."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import tinynets
from benchmarks import odd_zoo
from hpcsweep.conv import parts, swap
from hpcsweep.conv.parts import Held, TensorsChanged, nodes_between, tensors_in
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure import model_builder
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.shape_pass import shape_pass
from measuring import CPU, point
from profiled import BACKEND

MADE_IN_A_PASS = {"Late", "LateOnItsDevice", "LateByDefault", "Lazy", "PerCall", "Rebinding"}
HOLDING = [one for one in odd_zoo.NETWORKS if one.__name__ not in MADE_IN_A_PASS]
QUICK = {"iterations": 1, "warmup": 0, "energy": False, "layers": False}
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


def built(factory):
    """Return a network as points get it, after a pass if it needs no compiler, and an image."""
    wanted = point(f"benchmarks.odd_zoo:{factory.__name__}", batch_size=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = model_builder.build(model_builder.ModelKey.of(wanted), CPU)
    (image,) = model_builder.make_inputs(wanted, CPU)
    if "compiled" not in factory.__name__:
        with torch.inference_mode():
            model(image.clone())
    return model, image


def everything(model):
    """Return each module's attributes, entries and tensors, by place: the objects."""
    found = {}
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            found[name, key] = value
            entries = value.items() if isinstance(value, dict) else ()
            found |= {(name, key, own): entry for own, entry in entries}
    return found


@pytest.mark.parametrize("factory", HOLDING, ids=lambda one: one.__name__)
def test_the_shape_pass_leaves_every_object_in_its_place(factory):
    """Shared, tied, computed, in lists, scripted or compiled: on its device, in its type."""
    model, image = built(factory)
    before = everything(model)
    kinds = {key: (t.device, t.dtype) for key, t in before.items() if isinstance(t, torch.Tensor)}
    held = Held(model)
    shape_pass(model, image.clone())
    held.check()
    after = everything(model)
    moved = {key for key, value in before.items() if after.get(key) is not value}
    hooks = {("old", "weight"), ("older", "weight")}  # torch's hooks compute these in each pass
    assert moved <= hooks
    assert {key: (after[key].device, after[key].dtype) for key in kinds} == kinds


def test_functions_that_know_a_network_write_nothing_into_it():
    """A hook that keeps what passed by sees the copy's tensors, and that is undone."""
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    model.kept, model.last = [torch.zeros(1)], {"image": None}

    def keep(_module, args, output):
        model.kept[:] = [output]
        model.last["image"], model.own = args[0], output

    model[0].register_forward_hook(keep)
    first = model.kept[0]
    shape_pass(model, torch.zeros(1, 3, 8, 8))
    assert model.kept[0] is first
    assert model.last == {"image": None}
    assert not hasattr(model, "own")


def test_what_cannot_be_copied_is_shared():
    """A lock in a network, and a generator in a list of it."""
    model, _ = built(odd_zoo.Closures)
    model.more = [(item for item in ())]
    with parts.copied(model, lambda tensor: tensor.to("meta")) as other:
        assert other.lock is model.lock
        assert {t.device.type for t in other.parameters()} == {"meta"}
    assert {t.device.type for t in model.parameters()} == {"cpu"}


def on_meta(model):
    """Leave filters without values, as torch's own call does where they have two names."""
    model.stem._parameters["weight"] = model.stem.weight.to("meta")


def another(model):
    """Leave a copy of the filters."""
    model.stem.weight = copy.deepcopy(model.stem.weight)


def another_type(model):
    """Leave the filters in another type, in the same object."""
    model.stem.weight.data = model.stem.weight.data.double()


@pytest.mark.parametrize("spoil", [on_meta, another, another_type])
def test_tensors_that_are_lost_are_told(spoil):
    """A network left without values, with a copy, or in another type."""
    model, _ = built(odd_zoo.Aliased)
    held = Held(model)
    held.check()
    spoil(model)
    with pytest.raises(TensorsChanged, match=r"stem\.weight is "):
        held.check()


def test_a_network_that_loses_its_tensors_gets_no_row():
    """The point fails and says which; the next one has a new network."""
    bench = on_device("inference", "cpu")
    measure = {**QUICK, "warmup": 3, "iterations": 3}
    with pytest.raises(TensorsChanged, match=r"conv\.weight is not the tensor that it was"):
        bench.measure(point("tinynets:Wandering", measure=measure))
    assert bench.measure(point("tinynets:Residual", measure=measure)).row["call_rel_error"] < 1e-6


@pytest.mark.parametrize("factory", [odd_zoo.Rebinding, odd_zoo.PerCall, odd_zoo.Normed])
def test_a_network_may_replace_its_own_tensors(factory):
    """It does so in its first pass as in all others: that is no loss."""
    wanted = point(f"benchmarks.odd_zoo:{factory.__name__}", input_size=24, measure=QUICK)
    row = on_device("inference", "cpu").measure(wanted).row
    assert row["call_rel_error"] < 1e-6


@pytest.mark.parametrize(("dtype", "layout"), [("float32", "nchw"), ("bfloat16", "nhwc")])
@pytest.mark.parametrize("name", ["Late", "LateOnItsDevice", "LateByDefault", "Lazy"])
def test_layers_of_the_first_pass_are_made_for_real(name, layout, dtype):
    """Their calls have rows and run the algorithm; another size of images makes them anew."""
    bench = on_device("inference", "cpu")
    for size in (24, 32):
        done = bench.measure(
            point(
                f"benchmarks.odd_zoo:{name}", algorithm="gemm", input_size=size, dtype=dtype,
                memory_format=layout, batch_size=2, measure={**QUICK, "layers": True},
            )
        )  # fmt: skip
        assert done.row["algorithm_coverage_pct"] == 100
        assert done.row["call_rel_error"] < {"float32": 1e-6, "bfloat16": 0.05}[dtype]
        assert [row["op"] for row in done.layers].count("conv2d") == done.row["conv_calls"] >= 2
        held = [
            *bench.workload._models._model.parameters(),
            *bench.workload._models._model.buffers(),
        ]
        assert {t.device.type for t in held} == {"cpu"}
        assert not any(t.is_inference() for t in held)


@pytest.mark.parametrize("algorithm", ["auto", "gemm", "fft", "winograd_nonfused", "direct"])
def test_a_call_is_all_nodes_between_its_output_and_its_input(algorithm: str) -> None:
    """One node for the framework's own convolution, several for one made of operators."""
    model = tinynets.Residual()
    x = torch.randn(2, 8, 8, 8, requires_grad=True) * 2
    swap.swap(model)
    calls = [("conv", ConvShape.of(model.conv, x))]
    swap.assign(model, calls, algorithm, "error", BACKEND)
    nodes = nodes_between(model.conv(x), [x])
    assert (len(nodes) == 1) == (algorithm in {"auto", "direct"})
    assert x.grad_fn not in nodes


def test_tensors_are_found_in_what_networks_return() -> None:
    """Alone, in tuples, in dicts, nested; anything else is passed over."""
    output = tinynets.Dicts().eval()(torch.zeros(1, 3, 4, 4))
    assert len(list(tensors_in(output))) == 2
    assert list(tensors_in((None, 3))) == []
