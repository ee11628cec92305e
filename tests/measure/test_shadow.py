"""Everyday code of networks runs in float64, whatever types it asks for."""

from __future__ import annotations

import copy

import pytest
import torch

import idioms
from hpcsweep.measure import models, numerics
from hpcsweep.measure.bench import on_device
from hpcsweep.measure.rounding import unit
from hpcsweep.measure.shadow import Shadow
from measuring import CPU, point

# of torch, about TorchScript
pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")
QUICK = {"iterations": 1, "layers": False, "evidence": False, "energy": False}
QUICK |= {"numerics": "layers", "stop": "fixed", "warmup": 0}
REFUSED = {
    "KernelForFloats": "halve is for float32, not torch.float64",
    "Randomised": "two passes over one input differ; is the network random?",
}
ROUNDS = {"MixedHead": torch.bfloat16, "Rounds": torch.float16, "ReducedProducts": torch.bfloat16}
NAMES = [name for name, kind in vars(idioms).items() if isinstance(kind, type) and "_" not in name]
NAMES = [name for name in NAMES if issubclass(getattr(idioms, name), idioms._Body)]


@pytest.fixture(scope="module")
def bench():
    """Return a bench on the CPU."""
    return on_device("inference", "cpu")


def of_idiom(name, **axes):
    """Return the point of an idiom, and its network."""
    wanted = point(f"idioms:{name}", input_size=16, measure=QUICK, **axes)
    return wanted, models.build(models.ModelKey.of(wanted), CPU)


@pytest.mark.parametrize("name", NAMES)
def test_everyday_code_is_compared_or_refused_with_the_reason(bench, name):
    """Casts, checks, constants, masks, states and tables of its own are no alarm."""
    row = bench.measure(of_idiom(name)[0]).row
    doubts = {"inaccurate", "unverified"} & set(row["flags"].split(";"))
    if name in REFUSED:
        assert doubts
        assert row["numerics_reason"].endswith(REFUSED[name])
        return
    assert not doubts, row["numerics_reason"]
    assert 0 < row["max_rel_error"] < 64 * unit(ROUNDS.get(name, torch.float32))


def test_there_are_many_idioms():
    """The list is not empty by mistake."""
    assert len(NAMES) >= 30
    assert REFUSED.keys() | ROUNDS.keys() < set(NAMES)


@pytest.mark.parametrize("name", sorted({*NAMES} - REFUSED.keys() - ROUNDS.keys()))
def test_an_error_that_rounding_does_not_explain_is_found(name):
    """The reference of an idiom is sharp: a ten-thousandth of the output is too much."""
    wanted, model = of_idiom(name)
    (image,) = models.make_inputs(wanted, CPU)
    reference = numerics.Float64Reference(CPU)
    with torch.inference_mode():
        output = model(image.clone())
        off = output + 1e-4 * output.abs().max()
    (right,) = reference.verdicts(wanted, model, output, 2e-6)
    (wrong,) = reference.verdicts(wanted, model, off, 2e-6)
    assert right.excess < 1 < wrong.excess
    assert reference.coarsest <= unit(torch.float32)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.mark.parametrize("name", ["Resizes", "RelativeBias", "Capsules", "Upcasts", "OneHot"])
def test_code_without_constants_of_a_type_computes_as_in_float64(name):
    """To the last digits, as the network itself does when all of it is float64."""
    wanted, model = of_idiom(name)
    (image,) = models.make_inputs(wanted, CPU)
    with torch.inference_mode():
        (found,), _ = numerics._shadowed(model, model, torch.float32, image.double())
        exact = copy.deepcopy(model).double()
        torch.set_default_dtype(torch.float64)
        try:
            with _Doubles():
                truth = exact(image.double())
        finally:
            torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float64
    assert (found - truth).abs().max() < 1e-14 * truth.abs().max()


class _Doubles(torch.overrides.TorchFunctionMode):
    """Takes `.float()` for `.double()`."""

    def __torch_function__(self, func, _types, args=(), kwargs=None):
        """Replace it."""
        named = getattr(func, "__name__", "") == "float"
        return (torch.Tensor.double if named else func)(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", ["Checks", "Memoises", "MasksByFinfo", "WithoutAutocast"])
def test_code_that_runs_in_a_reduced_type_is_compared_in_it(bench, name, dtype):
    """It is told the type of the point, whatever another point of its network was told."""
    row = bench.measure(of_idiom(name, dtype=dtype)[0]).row
    assert row["numerics_reason"] is None
    assert 0 < row["max_rel_error"] < 64 * unit(getattr(torch, dtype))


def beside(numbers, dtype=torch.float32):
    """Return a shadow, and a tensor of a type with these numbers in it."""
    shadow = Shadow(CPU)
    held = numbers.to(dtype)
    shadow.hold(held, numbers)
    return shadow, held


def test_constants_are_what_the_network_makes_them():
    """In float32 until they meet what depends on the input, also random ones."""
    third = torch.full((3,), 1 / 3, dtype=torch.float64)
    shadow, x = beside(third)
    with torch.inference_mode(), shadow:
        ramp = torch.linspace(0, 1, 3)
        angle = torch.sin(torch.arange(100_000, 100_003).float())
        drawn = torch.randn(3, generator=torch.Generator().manual_seed(0))
        found = torch.stack([x.float(), x + ramp, x + angle, x + drawn])
        assert found.dtype == torch.float32
        assert shadow.coarsest == unit(torch.float32)
        half = x.half()
        assert shadow.coarsest == unit(torch.float16)
    again = torch.randn(3, generator=torch.Generator().manual_seed(0))
    wanted = torch.stack([0 * third, ramp, angle, again]).double() + third
    assert torch.equal(shadow.of(found), wanted)
    assert torch.equal(shadow.of(half), third)
    assert torch.equal(shadow.of(ramp), ramp.double())


def test_random_numbers_are_those_that_the_network_drew():
    """Whatever its type: dropout drops the same."""
    shadow, x = beside(torch.full((100,), 1 / 3, dtype=torch.float64))
    with torch.inference_mode(), shadow:
        dropped = torch.nn.functional.dropout(x, 0.5, training=True)
        noisy = x + torch.rand_like(x)
    assert torch.equal(shadow.of(dropped) == 0, dropped == 0)
    assert (shadow.of(noisy) - noisy).abs().max() < 1e-6


def test_what_is_written_into_a_constant_reaches_its_other_views():
    """A blank one is exact; another stays in its type, since others may share its memory."""
    third = torch.full((4,), 1 / 3, dtype=torch.float64)
    shadow, x = beside(third)
    with torch.inference_mode(), shadow:
        blank, filled = torch.zeros(2, 4), torch.arange(8.0).view(2, 4)
        for table in (blank, filled):
            table[0].copy_(x)
            table[1].zero_()
            table[1] += x
            torch.mul(x, 2, out=table[1, :])
    wanted = torch.stack((third, 2 * third))
    assert torch.equal(shadow.of(blank), wanted)
    assert torch.equal(shadow.of(filled), wanted.float().double())


def test_complex_numbers_stay_complex():
    """In twice the digits."""
    third = torch.full((4,), 1 / 3, dtype=torch.complex128)
    shadow, x = beside(third, torch.complex64)
    with torch.inference_mode(), shadow:
        turned = x.to(torch.complex64) * torch.polar(torch.ones(4), torch.zeros(4)) + x.cfloat()
    assert torch.equal(shadow.of(turned), 2 * third)


def test_bits_of_numbers_are_constants():
    """Whole numbers of a path are those of the network."""
    third = torch.full((4,), 1 / 3, dtype=torch.float64)
    shadow, x = beside(third)
    with torch.inference_mode(), shadow:
        again = x.view(torch.int32).view(torch.float32)
        assert x.view(torch.int32)[0] == third.float().view(torch.int32)[0]
    assert torch.equal(shadow.of(again), third.float().double())
