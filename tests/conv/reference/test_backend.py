"""The reference back-end: right numbers, really the named algorithm, honest about its limits.

Random shapes are in `properties/test_conv_numerics.py`; here are the cases with a name.
"""

from __future__ import annotations

import pickle
from fractions import Fraction
from itertools import product

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hpcsweep import catalog
from hpcsweep.conv.errors import UnknownAlgorithm
from hpcsweep.conv.reference import fft, winograd
from hpcsweep.conv.reference.backend import DIRECT, FAMILIES, Reference
from hpcsweep.conv.shape import ConvShape

conv2d = nn.functional.conv2d
BACKEND = Reference("cpu")
NAMED = tuple(FAMILIES)
GEMMS = ("gemm", "implicit_gemm", "implicit_precomp_gemm")
TRANSFORMS = tuple(name for name in NAMED if name not in GEMMS)
PLAIN = ConvShape(2, 6, 17, 20, 4, 3, 3, pad_h=1, pad_w=1)
ODD = ConvShape(2, 6, 17, 20, 4, 3, 5, 2, 3, 2, 1, 2, 1, groups=2)


def operands(
    shape: ConvShape, dtype: torch.dtype = torch.float32
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Return a random input, filter and bias; the same for the same shape."""
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(shape.n, shape.in_c, shape.in_h, shape.in_w, generator=generator)
    weight = torch.randn(
        shape.out_c, shape.group_in, shape.kernel_h, shape.kernel_w, generator=generator
    )
    bias = torch.randn(shape.out_c, generator=generator) if shape.bias else None
    return x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def truth(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, shape: ConvShape
) -> torch.Tensor:
    """Return the framework's result in float64."""
    return conv2d(
        x.double(),
        weight.double(),
        None if bias is None else bias.double(),
        (shape.stride_h, shape.stride_w),
        (shape.pad_h, shape.pad_w),
        (shape.dilation_h, shape.dilation_w),
        shape.groups,
    )


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Return the largest deviation over the largest value wanted."""
    return ((found.double() - wanted).abs().max() / wanted.abs().max()).item()


def test_every_algorithm_of_the_taxonomy_is_implemented() -> None:
    """But for the framework's own two."""
    assert {*NAMED, DIRECT, catalog.AUTO, catalog.AUTOTUNE} == set(catalog.ALGORITHMS)


def test_an_algorithm_that_is_not_implemented_is_refused() -> None:
    """`auto` is the framework's, never a back-end's."""
    with pytest.raises(UnknownAlgorithm):
        BACKEND.unsupported("auto", PLAIN)


@pytest.mark.parametrize("algorithm", GEMMS)
@pytest.mark.parametrize(
    "shape",
    [
        ODD,
        ConvShape(1, 8, 9, 9, 8, 3, 3, groups=8),
        ConvShape(3, 5, 7, 7, 6, 1, 1, bias=True),
        ConvShape(1, 5, 8, 8, 6, 1, 1, 2, 2),
        ConvShape(1, 3, 6, 6, 4, 3, 3, pad_h=5, pad_w=4),
        ConvShape(1, 3, 7, 8, 4, 7, 8),
    ],
    ids=["odd", "depthwise", "pointwise", "pointwise_strided", "mostly_padding", "one_pixel"],
)
def test_the_gemm_families_do_every_geometry(algorithm: str, shape: ConvShape) -> None:
    """Stride, padding, dilation and groups, different in height and width."""
    assert BACKEND.unsupported(algorithm, shape) is None
    x, weight, bias = operands(shape)
    found = BACKEND.forward(algorithm, x, weight, bias, shape)
    assert error(found, truth(x, weight, bias, shape)) < 2e-6


@pytest.mark.parametrize("block", [1, 1 << 30])
@pytest.mark.parametrize("algorithm", ["implicit_precomp_gemm", "fft", "winograd"])
@pytest.mark.parametrize("n", [1, 7])
def test_the_size_of_a_block_does_not_change_the_result(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, block: int, n: int
) -> None:
    """Many blocks, the last one shorter, or one that holds everything."""
    for module in ("gemm", "fft", "winograd"):
        monkeypatch.setattr(f"hpcsweep.conv.reference.{module}.BLOCK_BYTES", block)
    monkeypatch.setattr("hpcsweep.conv.reference.gemm._FEWEST_PIXELS", 50 if block == 1 else 1)
    monkeypatch.setattr("hpcsweep.conv.reference.winograd._FEWEST_TILES", 1)
    shape = ConvShape(n, 4, 13, 9, 6, 3, 3, pad_h=1, pad_w=1, groups=2)
    x, weight, bias = operands(shape)
    found = BACKEND.forward(algorithm, x, weight, bias, shape)
    assert error(found, truth(x, weight, bias, shape)) < 2e-6


@pytest.mark.parametrize(
    ("size", "kernel"),
    [
        (size, kernel)
        for size in ((33, 65), (31, 30), (70, 12), (60, 61))
        for kernel in ((3, 3), (1, 1), (16, 17), (1, 31))
        if kernel[0] <= size[0] and kernel[1] <= size[1]
    ],
)
def test_tiles_of_an_fft_meet_without_a_seam(
    size: tuple[int, int], kernel: tuple[int, int]
) -> None:
    """Images just around multiples of a tile's outputs, filters up to larger tiles."""
    shape = ConvShape(1, 2, *size, 3, *kernel)
    x, weight, bias = operands(shape)
    found = BACKEND.forward("fft_tiling", x, weight, bias, shape)
    assert error(found, truth(x, weight, bias, shape)) < 2e-6


@pytest.mark.parametrize("algorithm", [*NAMED, DIRECT])
def test_a_bias_is_added_once_per_channel(algorithm: str) -> None:
    """The difference to the run without it is the bias itself."""
    shape = ConvShape(2, 6, 17, 20, 4, 3, 3, pad_h=1, pad_w=1, bias=True)
    x, weight, bias = operands(shape, torch.float32)
    assert bias is not None
    with_bias = BACKEND.forward(algorithm, x, weight, bias, shape)
    without = BACKEND.forward(algorithm, x, weight, None, shape)
    assert torch.allclose(with_bias - without, bias.view(-1, 1, 1).expand_as(without), atol=1e-5)


@pytest.mark.parametrize("algorithm", [*NAMED, DIRECT])
@pytest.mark.parametrize("last", [(True, False), (False, True), (True, True)])
def test_channels_last_in_is_channels_last_out(algorithm: str, last: tuple[bool, bool]) -> None:
    """As in the framework: one operand is enough."""
    x, weight, bias = operands(PLAIN)
    layouts = [torch.channels_last if each else torch.contiguous_format for each in last]
    x, weight = (t.contiguous(memory_format=m) for t, m in zip((x, weight), layouts, strict=True))
    found = BACKEND.forward(algorithm, x, weight, bias, PLAIN)
    framework = conv2d(x, weight, None, 1, 1)
    assert found.stride() == framework.stride()
    assert error(found, truth(x, weight, bias, PLAIN)) < 2e-6


@pytest.mark.parametrize("algorithm", NAMED)
@pytest.mark.parametrize(
    ("dtype", "bound"), [(torch.float64, 1e-14), (torch.bfloat16, 1e-2), (torch.float16, 1e-3)]
)
def test_other_types_come_out_as_they_went_in(
    algorithm: str, dtype: torch.dtype, bound: float
) -> None:
    """Reduced ones lose what rounding the result loses, since sums are kept in float32."""
    shape = ConvShape(1, 64, 12, 12, 8, 3, 3, pad_h=1, pad_w=1, dtype=str(dtype)[6:])
    assert BACKEND.unsupported(algorithm, shape) is None
    x, weight, bias = operands(shape, dtype)
    found = BACKEND.forward(algorithm, x, weight, bias, shape)
    assert found.dtype == dtype
    assert error(found, truth(x, weight, bias, shape)) < bound


@pytest.mark.parametrize("algorithm", [*NAMED, DIRECT])
def test_autograd_goes_through(algorithm: str) -> None:
    """Gradients of input, filter and bias against the framework's in float64."""
    shape = ConvShape(2, 4, 9, 8, 6, 3, 3, pad_h=1, pad_w=1, groups=2, bias=True)
    leaves = [t.requires_grad_() for t in operands(shape) if t is not None]
    exact = [t.detach().double().requires_grad_() for t in leaves]
    x, weight, bias = leaves
    pull = torch.randn(2, 6, 9, 8, generator=torch.Generator().manual_seed(3))
    BACKEND.forward(algorithm, x, weight, bias, shape).backward(pull)
    truth(*exact, shape).backward(pull.double())
    for found, wanted in zip(leaves, exact, strict=True):
        assert found.grad is not None
        assert wanted.grad is not None
        assert error(found.grad, wanted.grad) < 5e-6


@pytest.mark.parametrize("algorithm", NAMED)
@pytest.mark.parametrize("learns", ["x", "weight"])
def test_gradients_are_right_where_one_operand_learns(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, learns: str
) -> None:
    """Blocks must not share memory then: autograd keeps the other operand of every product."""
    monkeypatch.setattr("hpcsweep.conv.reference.fft._MOST_FREQUENCIES", 7)
    shape = ConvShape(1, 4, 20, 20, 6, 3, 3)
    x, weight, _ = operands(shape)
    leaf = {"x": x, "weight": weight}[learns].requires_grad_()
    exact = {"x": x.detach().double(), "weight": weight.detach().double()}
    exact[learns].requires_grad_()
    BACKEND.forward(algorithm, x, weight, None, shape).square().sum().backward()
    truth(exact["x"], exact["weight"], None, shape).square().sum().backward()
    wanted = exact[learns].grad
    assert leaf.grad is not None
    assert wanted is not None
    assert error(leaf.grad, wanted) < 5e-6


@pytest.mark.parametrize("algorithm", NAMED)
def test_a_first_call_in_inference_mode_does_not_spoil_training(algorithm: str) -> None:
    """Cached tensors must not be born in inference mode: autograd refuses those for good."""
    shape = ConvShape(1, 2, 11, 13, 3, 3, 3, dtype="float64")  # nobody else's: a cache miss
    x, weight, _ = operands(shape, torch.float64)
    with torch.inference_mode():
        BACKEND.forward(algorithm, x, weight, None, shape)
    weight.requires_grad_()
    BACKEND.forward(algorithm, x, weight, None, shape).sum().backward()
    assert weight.grad is not None


@pytest.mark.parametrize("algorithm", TRANSFORMS)
@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (ConvShape(1, 3, 9, 9, 4, 3, 3, 2, 2), "stride 2x2"),
        (ConvShape(1, 3, 9, 9, 4, 3, 3, 1, 2), "stride 1x2"),
        (ConvShape(1, 3, 9, 9, 4, 3, 3, dilation_h=2, dilation_w=2), "dilation 2x2"),
    ],
)
def test_transforms_want_stride_and_dilation_one(
    algorithm: str, shape: ConvShape, reason: str
) -> None:
    """The reason is a few words that start with what is in the way."""
    assert (BACKEND.unsupported(algorithm, shape) or "").startswith(reason)


@pytest.mark.parametrize(
    ("algorithm", "kernel", "reason"),
    [
        ("winograd", (3, 3), None),
        ("winograd", (5, 5), "kernel 5x5: needs 3x3"),
        ("winograd", (1, 1), "kernel 1x1: needs 3x3"),
        ("winograd_nonfused", (3, 3), None),
        ("winograd_nonfused", (5, 5), None),
        ("winograd_nonfused", (3, 5), "kernel 3x5: needs 3x3 or 5x5"),
    ],
)
def test_winograd_takes_the_filters_that_it_takes_in_cudnn(
    algorithm: str, kernel: tuple[int, int], reason: str | None
) -> None:
    """3x3; the non-fused form also 5x5."""
    assert BACKEND.unsupported(algorithm, ConvShape(1, 3, 9, 9, 4, *kernel)) == reason


@pytest.mark.parametrize("algorithm", [*NAMED, DIRECT])
@pytest.mark.parametrize(
    "shape",
    [
        ConvShape(0, 3, 9, 9, 4, 3, 3),
        ConvShape(1, 3, 2, 9, 4, 3, 3),
        ConvShape(1, 3, 9, 9, 4, 3, 3, dtype="complex64"),
    ],
    ids=["no_image", "filter_larger_than_image", "complex"],
)
def test_nothing_sensible_to_compute_is_a_reason_not_a_crash(
    algorithm: str, shape: ConvShape
) -> None:
    """The framework then gives its own result, or its own error."""
    assert BACKEND.unsupported(algorithm, shape)


def test_direct_says_why_it_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong device, wrong type, wrong CPU, wrong build."""
    double = ConvShape(1, 3, 9, 9, 4, 3, 3, dtype="float64")
    assert BACKEND.unsupported(DIRECT, double) == "oneDNN has no float64"
    assert Reference("cuda").unsupported(DIRECT, PLAIN) == "oneDNN does not run on cuda"
    for dtype, probe in (("bfloat16", "bf16"), ("float16", "fp16")):
        shape = ConvShape(1, 3, 9, 9, 4, 3, 3, dtype=dtype)
        name = f"_is_mkldnn_{probe}_supported"
        monkeypatch.setattr(torch.ops.mkldnn, name, lambda: False)
        assert BACKEND.unsupported(DIRECT, shape) == f"this CPU has no {dtype} for oneDNN"
        monkeypatch.setattr(torch.ops.mkldnn, name, lambda: True)
        assert BACKEND.unsupported(DIRECT, shape) is None
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert BACKEND.unsupported(DIRECT, PLAIN) == "this torch build has no oneDNN"


@pytest.mark.parametrize(
    ("outputs", "taps", "points"),
    [(2, 3, winograd.POINTS[3]), (2, 5, winograd.POINTS[5]), (1, 3, (0, 1))],
)
def test_toom_cook_matrices_are_exact(
    outputs: int, taps: int, points: tuple[Fraction, ...]
) -> None:
    """AT ((G g) * (BT d)) is the correlation, in rational numbers, for all unit vectors."""
    at, g, bt = winograd.toom_cook(outputs, taps, [Fraction(p) for p in points])
    for tap, sample in product(range(taps), range(outputs + taps - 1)):
        products = [g_row[tap] * b_row[sample] for g_row, b_row in zip(g, bt, strict=True)]
        found = [sum(a * p for a, p in zip(row, products, strict=True)) for row in at]
        assert found == [Fraction(sample == out + tap) for out in range(outputs)]


def test_winograd_saves_the_multiplications_that_it_is_known_for() -> None:
    """16 instead of 36 per tile of F(2x2, 3x3), 36 instead of 100 of F(2x2, 5x5)."""
    for taps, points in ((3, 16), (5, 36)):
        shape = ConvShape(1, 2, 12, 12, 3, taps, taps)
        assert BACKEND.expected("winograd_nonfused", shape).batch == points


def test_fft_sizes_have_small_prime_factors_only() -> None:
    """Never smaller than asked, and never far above."""
    for size in range(1, 600):
        smooth = fft._smooth(size)
        assert size <= smooth <= size * 1.15
        rest = smooth
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        assert rest == 1


class Allocations(TorchDispatchMode):
    """Notes the bytes of every tensor that an operator newly allocates."""

    def __init__(self, *operands: torch.Tensor) -> None:
        """Begin with what is there already."""
        super().__init__()
        self.sizes: list[int] = []
        self.known = {tensor.untyped_storage().data_ptr() for tensor in operands}
        self.kept: list[torch.Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(out):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self.known:
                self.known.add(storage.data_ptr())
                self.kept.append(tensor)  # so that no address is used twice
                self.sizes.append(storage.nbytes())
        return out


@pytest.mark.parametrize(
    ("algorithm", "shape"),
    [
        ("gemm", ConvShape(2, 16, 20, 20, 16, 3, 3)),
        ("gemm", ConvShape(2, 16, 20, 20, 16, 3, 3, 2, 2, groups=4)),
        ("implicit_gemm", ConvShape(2, 64, 20, 20, 16, 3, 3)),
    ],
)
def test_the_workspace_of_a_gemm_is_its_largest_allocation(
    algorithm: str, shape: ConvShape
) -> None:
    """Counted while it really runs: the im2col matrix, or one shifted image."""
    x, weight, _ = operands(shape)
    with torch.inference_mode(), Allocations(x, weight) as seen:
        BACKEND.forward(algorithm, x, weight, None, shape)
    assert max(seen.sizes) == BACKEND.workspace_bytes(algorithm, shape)


def test_no_im2col_matrix_exists_where_none_should() -> None:
    """Nothing that the implicit forms allocate comes near it."""
    shape = ConvShape(1, 32, 96, 96, 8, 7, 7)
    x, weight, bias = operands(shape)
    matrix = BACKEND.workspace_bytes("gemm", shape)
    for algorithm in ("implicit_gemm", "implicit_precomp_gemm"):
        BACKEND.forward(algorithm, x, weight, bias, shape)  # the indices are cached by now
        with torch.inference_mode(), Allocations(x, weight) as seen:
            BACKEND.forward(algorithm, x, weight, bias, shape)
        assert matrix is not None
        assert max(seen.sizes) < matrix / 8


def test_a_pointwise_gemm_multiplies_the_image_itself() -> None:
    """No copy of a 1x1 filter's patches: only the result is allocated."""
    shape = ConvShape(1, 16, 20, 20, 32, 1, 1)
    x, weight, _ = operands(shape)
    with torch.inference_mode(), Allocations(x, weight) as seen:
        out = BACKEND.forward("gemm", x, weight, None, shape)
    assert seen.sizes == [out.untyped_storage().nbytes()]
    assert BACKEND.workspace_bytes("gemm", shape) == 0


@pytest.mark.parametrize("algorithm", NAMED)
def test_every_family_knows_its_workspace(algorithm: str) -> None:
    """A number of bytes that grows with the batch, or stays where blocks bound it."""
    small, large = (
        BACKEND.workspace_bytes(algorithm, ConvShape(n, 32, 28, 28, 32, 3, 3)) for n in (1, 64)
    )
    assert small is not None
    assert large is not None
    assert 0 < small <= large
    assert BACKEND.workspace_bytes(DIRECT, PLAIN) is None


def test_a_back_end_pickles() -> None:
    """Models that hold it are copied and sent."""
    assert pickle.loads(pickle.dumps(BACKEND)) == BACKEND
