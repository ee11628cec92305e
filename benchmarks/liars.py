"""Measures with back-ends that lie about what they run, and counts how many are caught.

    python benchmarks/liars.py                   # some minutes on two cores
    python benchmarks/liars.py --only keeps      # those whose name has that word

A liar claims an algorithm and runs something else: another algorithm, with or without decoys; the
claimed one only while somebody seems to look; nothing at all, since it kept an output. Each is put
under the reference back-end, and a small network is measured as in a sweep. It is caught if its row
is not valid, or `verify` would not call the point proven. Liars about gradients run under a step.

Every algorithm is measured honestly, too, on networks of other shapes, types and layouts: what is
said against those is a false alarm. Exit code 1: a liar got through, or there was a false alarm.
"""

# ruff: noqa: ANN401, ARG001, ARG005, SLF001 - liars have the signatures of others, and sniff

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints to stderr
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # no time is quoted, and others may be here
sys.path.insert(0, str(Path(__file__).parent))  # where the factory below is found by name

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit

from hpcsweep import catalog
from hpcsweep.cli.verify import CHECKS, Verification
from hpcsweep.conv import swap
from hpcsweep.conv.proof import backward_pass
from hpcsweep.conv.reference.algorithms import FAMILIES, Reference
from hpcsweep.conv.shape import ConvShape
from hpcsweep.measure.workloads.inference import Inference
from hpcsweep.point import Point

Forward = Callable[[str, Tensor, Tensor, Tensor | None, ConvShape], Tensor]
Liar = Callable[[Forward], Forward]  # from the honest back-end's forward

HONEST = Reference().forward
ONCE = {**CHECKS, "warmup": 1, "iterations": 3, "energy": False}


class Small(nn.Module):
    """Convolutions of all kinds that every algorithm takes, on one image or several."""

    def __init__(self, kernel: int = 3, groups: int = 2, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, kernel, padding=kernel // 2, bias=False)
        self.middle = nn.Conv2d(8, 8, kernel, padding=1, groups=groups, stride=stride)
        self.last = nn.Conv2d(8, 12, kernel, padding="same", padding_mode="reflect")
        self.head = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve three times, then classify."""
        x = torch.relu(self.middle(torch.relu(self.first(x))))
        return self.head(torch.relu(self.last(x)).mean((2, 3)))


def wide() -> Small:
    """Return a network with filters that Winograd cannot fuse, and one group per channel."""
    return Small(5, 8)


def strided() -> Small:
    """Return a network of which some algorithms can run a part."""
    return Small(3, 1, 2)


def runs(other: str) -> Liar:
    """Run another algorithm."""
    return lambda honest: lambda _, *call: honest(other, *call)


def framework(_: Forward) -> Forward:
    """Leave it to the framework."""
    return lambda _, x, w, b, s: F.conv2d(x, w, b, s.stride, s.padding, s.dilation, s.groups)


def and_decoy(other: str, decoy: Callable[[str, Tensor, Tensor, ConvShape], object]) -> Liar:
    """Run another algorithm and something for show."""

    def under(honest: Forward) -> Forward:
        def run(name: str, x: Tensor, w: Tensor, b: Tensor | None, s: ConvShape) -> Tensor:
            decoy(name, x, w, s)
            return honest(other, x, w, b, s)

        return run

    return under


def a_product(_: str, x: Tensor, w: Tensor, s: ConvShape) -> object:
    """Multiply matrices of the sizes of im2col, and cut windows."""
    x.unfold(2, 1, 1).unfold(3, 1, 1)
    inner = s.group_in * s.taps
    batch = s.n * s.groups
    return torch.bmm(w.new_ones(batch, s.group_out, inner), w.new_ones(batch, inner, s.pixels))


def a_transform(_: str, x: Tensor, w: Tensor, s: ConvShape) -> object:
    """Transform the image there and back."""
    return torch.fft.irfft2(torch.fft.rfft2(x))


def all_of_it(name: str, x: Tensor, w: Tensor, s: ConvShape) -> object:
    """Run what is claimed, and throw the result away."""
    return HONEST(name, x, w, None, s)


def by_elements(_: str, x: Tensor, w: Tensor, s: ConvShape) -> object:
    """Multiply and add by elements."""
    return (x[:, :1] * w.flatten()[0]).sum()


def profiled() -> bool:
    """Say whether the profiler runs."""
    return bool(torch.autograd._profiler_enabled())


def watched() -> bool:
    """Say whether the profiler runs or a mode sees the operators."""
    return profiled() or torch._C._len_torch_dispatch_stack() > 0


def only(where: Callable[[ConvShape], bool], other: str = "gemm") -> Liar:
    """Run another algorithm for some shapes."""
    return lambda honest: (
        lambda name, *call: honest(other if where(call[-1]) else name, *call)  # type: ignore[arg-type]
    )


def keeping(key: Callable[[Tensor, Tensor], object], looks: Callable[[], bool]) -> Liar:
    """Return a kept output for what it takes for the same input, unless somebody looks."""

    def under(honest: Forward) -> Forward:
        kept: dict[object, Tensor] = {}

        def run(name: str, x: Tensor, w: Tensor, b: Tensor | None, s: ConvShape) -> Tensor:
            known = (w.data_ptr(), key(x, w))
            if known not in kept or looks():
                kept[known] = honest(name, x, w, b, s)
            return kept[known]

        return run

    return under


def behind(honest: Forward) -> Forward:
    """Return the output of the call before."""
    kept: dict[int, Tensor] = {}

    def run(name: str, x: Tensor, w: Tensor, b: Tensor | None, s: ConvShape) -> Tensor:
        new = honest(name, x, w, b, s)
        old = kept.get(w.data_ptr(), new)
        kept[w.data_ptr()] = new
        return old

    return run


def other_weights(honest: Forward) -> Forward:
    """Ignore the filters."""
    return lambda name, x, w, b, s: honest(name, x, torch.ones_like(w), b, s)


def no_bias(honest: Forward) -> Forward:
    """Forget the bias."""
    return lambda name, x, w, b, s: honest(name, x, w, None, s)


def twice(honest: Forward) -> Forward:
    """Work twice."""
    return lambda *call: (honest(*call), honest(*call))[1]


def half(honest: Forward) -> Forward:
    """Convolve half of the channels, and repeat them."""

    def run(name: str, x: Tensor, w: Tensor, b: Tensor | None, s: ConvShape) -> Tensor:
        out = honest(name, x, w, b, s)
        half = out.shape[1] // 2
        return torch.cat([out[:, :half], out[:, :half]], 1)

    return run


def nowhere(_: Forward) -> Forward:
    """Compute outside of torch."""
    import numpy as np  # noqa: PLC0415

    def run(_: str, x: Tensor, w: Tensor, b: Tensor | None, s: ConvShape) -> Tensor:
        (down, right) = s.padding
        (i, j) = s.stride
        image = np.pad(x.numpy(), ((0, 0), (0, 0), (down, down), (right, right)))
        windows = np.lib.stride_tricks.sliding_window_view(image, w.shape[2:], (2, 3))
        windows = windows[:, :, ::i, ::j].reshape(s.n, s.groups, s.group_in, s.out_h, s.out_w, -1)
        filters = w.numpy().reshape(s.groups, s.group_out, s.group_in, -1)
        out = np.einsum("ngchwt,gkct->ngkhw", windows, filters).reshape(s.output_size)
        return torch.from_numpy(out.copy()) + (0 if b is None else b.view(-1, 1, 1))

    return run


def liars() -> dict[str, tuple[str, Liar]]:
    """Return the claim of each liar, and what it does."""
    found: dict[str, tuple[str, Liar]] = {
        f"{claimed}: runs {ran}": (claimed, runs(ran))
        for claimed in FAMILIES
        for ran in FAMILIES
        if claimed != ran
    }
    found |= {f"{name}: leaves it to the framework": (name, framework) for name in FAMILIES}
    decoys = (a_product, a_transform, all_of_it, by_elements)
    found |= {
        f"{claimed}: runs {other} and {decoy.__name__} for show": (claimed, and_decoy(other, decoy))
        for claimed, other in (
            ("gemm", "implicit_gemm"),
            ("implicit_gemm", "gemm"),
            ("fft", "gemm"),
        )
        for decoy in decoys
    }
    for name in ("winograd", "fft", "implicit_precomp_gemm"):
        other = "gemm" if name != "winograd" else "winograd_nonfused"
        found |= {
            f"{name}: lies in one layer": (name, only(lambda s: s.out_c == 12, other)),
            f"{name}: lies about groups": (name, only(lambda s: s.groups > 1, other)),
            f"{name}: lies in batches": (name, only(lambda s: s.n > 1, other)),
            f"{name}: keeps the output": (name, keeping(lambda x, w: 0, lambda: False)),
            f"{name}: keeps the output, sniffs the profiler": (
                name,
                keeping(lambda x, w: x.data_ptr(), profiled),
            ),
            f"{name}: keeps the output of equal inputs, sniffs profiler and modes": (
                name,
                keeping(lambda x, w: x.sum().item(), watched),
            ),
            f"{name}: is one call behind": (name, behind),
            f"{name}: ignores the filters": (name, other_weights),
            f"{name}: forgets the bias": (name, no_bias),
            f"{name}: works twice": (name, twice),
            f"{name}: repeats half of the channels": (name, half),
            f"{name}: computes outside of torch": (name, nowhere),
        }
    return found


@contextmanager
def lying(liar: Liar) -> Iterator[None]:
    """Put a liar under the reference back-end."""
    run = liar(HONEST)
    with mock.patch.object(Reference, "forward", lambda _, *call: run(*call)):
        yield


def finding(bench: Inference, algorithm: str, network: str = "Small", **axes: Any) -> Verification:
    """Measure a network by an algorithm as a sweep would, with every check on."""
    values = catalog.axis_defaults("inference") | {"model": f"liars:{network}", "gpu": "cpu"}
    values |= {"input_size": 24, "batch_size": 2, "algorithm": algorithm, "num_threads": 2} | axes
    point = Point("inference", values, catalog.setting_defaults("inference") | ONCE, "0" * 16)
    done = bench.measure(point)
    assert done.proof is not None
    return Verification(point, done.row, done.layers, done.proof)


def said_against(found: Verification) -> str | None:
    """Return what is said against a point; fallbacks and times in doubt are not."""
    flags = {"algorithm_mismatch", "inaccurate"} & set(found.row["flags"].split(";"))
    problems = [one for one in found.problems if "could not be compared" not in one]
    return "; ".join([*problems[:1], *sorted(flags)]) or None


def gradient_liar(claimed: str, other: str) -> str | None:
    """Return what is said against a step that is honest forward, and runs another one backward."""

    class Lie(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None, s: ConvShape) -> Tensor:
            ctx.save_for_backward(x, w)
            ctx.shape = s
            ctx.biased = b is not None
            return HONEST(claimed, x, w, b, s)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            x, w = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            with torch.enable_grad():
                out = HONEST(other, x, w, None, ctx.shape)
            of_bias = grad.sum((0, 2, 3)) if ctx.biased else None
            return (*torch.autograd.grad(out, (x, w), grad), of_bias, None)

    model = Small()
    x = torch.randn(2, 3, 24, 24)
    backend = Reference()
    calls: list[tuple[str, ConvShape]] = []
    for name, layer in model.named_children():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_pre_hook(
                lambda m, a, name=name: calls.append((name, ConvShape.of(m, *a)))
            )
    model(x)
    for layer in model.children():
        layer._forward_pre_hooks.clear()
    swap.swap(model)
    picked = swap.assign(model, calls, claimed, "fallback", backend)
    with lying(lambda _: lambda _, *call: Lie.apply(*call)):
        found = backward_pass.prove(model, lambda: model(x).sum().backward(), picked, backend)
    return next((call.problem for call in found if call.problem), None)


def honest() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield algorithms and axes of points that nobody may say anything against."""
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"batch_size": 1, "input_size": 33},
        {"network": wide.__name__, "input_size": 40},
        {"network": strided.__name__, "input_size": 31, "batch_size": 3},
        {"memory_format": "nhwc"},
        {"dtype": "float64"},
        {"dtype": "bfloat16"},
        {"network": wide.__name__, "cache_state": "rotated"},
    )
    for algorithm in FAMILIES:
        for axes in kinds:
            yield algorithm, axes


def main() -> int:
    """Measure all of them; return the exit code."""
    parser = argparse.ArgumentParser(description="Liars, and honest runs beside them.")
    parser.add_argument("--only", default="", help="a word of the name")
    wanted = parser.parse_args().only
    bench = Inference("cpu")
    caught = 0
    alarms = 0
    asked = 0
    ran = 0
    said: str | None
    for name, (claimed, liar) in liars().items():
        if wanted in name:
            with lying(liar):
                said = said_against(finding(bench, claimed))
            asked = asked + 1
            caught = caught + bool(said)
            print(f"{'caught' if said else 'PASSED':7} {name}: {said}", flush=True)
    for claimed, other in ((a, b) for a in FAMILIES for b in FAMILIES if a != b):
        if wanted in f"{claimed}: gradients run {other}" and claimed != "direct":
            said = gradient_liar(claimed, other)
            asked = asked + 1
            caught = caught + bool(said)
            print(f"{'caught' if said else 'PASSED':7} {claimed}: gradients run {other}: {said}")
    for algorithm, axes in honest():
        said = said_against(finding(bench, algorithm, **axes)) if not wanted else None
        # that oneDNN itself takes an im2col product for `direct` is true, and told
        alarm = said is not None and "oneDNN ran" not in said and "no convolution ran" not in said
        ran = ran + (not wanted)
        alarms = alarms + alarm
        if alarm:
            print(f"ALARM   {algorithm} {axes}: {said}", flush=True)
    print(f"liars caught: {caught} of {asked}; false alarms: {alarms} of {ran} honest runs")
    return 1 if alarms or caught < asked else 0


if __name__ == "__main__":
    sys.exit(main())
