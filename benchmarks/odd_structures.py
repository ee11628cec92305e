"""Honest networks whose structure is unusual: what runs, copies, folds or maps their layers.

All take images of three channels from 24 pixels on. `odd_networks.py` runs them through the
algorithms, tests measure and train them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch._higher_order_ops import while_loop
from torch.autograd.function import FunctionCtx
from torch.func import functional_call, grad, stack_module_state
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.utils import fuse_conv_bn_eval, prune
from torch.utils.checkpoint import checkpoint, checkpoint_sequential
from torchvision.models import DenseNet, ResNet
from torchvision.models.feature_extraction import create_feature_extractor
from torchvision.models.resnet import BasicBlock

from benchmarks.odd_zoo import Odd, conv


class Tokens(Odd):
    """Images as tokens of 8 channels: attention, in a class of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(8, 8, 4, stride=4)

    def body(self, x: Tensor) -> Tensor:
        """Make tokens, attend, and make images again."""
        tokens = self.attend(self.patch(x).flatten(2).transpose(1, 2))
        return tokens.transpose(1, 2)[..., None]

    def attend(self, tokens: Tensor) -> Tensor:
        """Do the odd part."""
        raise NotImplementedError


class Encoder(Tokens):
    """Torch's encoder, of which a block is one operator in inference."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 2)

    def attend(self, tokens: Tensor) -> Tensor:
        """Encode."""
        return self.encoder(tokens)


class Causal(Tokens):
    """Blocks that norm first, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(block, 2, nn.LayerNorm(8), enable_nested_tensor=False)

    def attend(self, tokens: Tensor) -> Tensor:
        """Encode."""
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1]).to(tokens)
        return self.encoder(tokens, mask=mask, is_causal=True)


class Translator(Tokens):
    """Torch's encoder and decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)

    def attend(self, tokens: Tensor) -> Tensor:
        """Encode and decode."""
        return self.transformer(tokens, tokens)


class Flexible(Tokens):
    """Attention with a score of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(8, 16)
        self.narrow = nn.Linear(16, 8)

    def attend(self, tokens: Tensor) -> Tensor:
        """Prefer near tokens."""
        heads = self.wide(tokens)[:, None]
        near = flex_attention(heads, heads, heads, lambda s, _b, _h, i, j: s - (i - j).abs() / 8)
        return self.narrow(near[:, 0])


class Part(Odd):
    """A part of two convolutions with a batch norm between."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(conv(), nn.BatchNorm2d(8), nn.ReLU(), conv())

    def body(self, x: Tensor) -> Tensor:
        """Run it."""
        return self.part(x)


class Recomputed(Part):
    """Keeps no activations of the part."""

    def body(self, x: Tensor) -> Tensor:
        """Run it, and again in the backward pass."""
        return checkpoint(self.part, x, use_reentrant=False)


class RecomputedInside(Part):
    """The same by a backward pass inside the backward pass."""

    def body(self, x: Tensor) -> Tensor:
        """Run it, and again in the backward pass."""
        return checkpoint(self.part, x, use_reentrant=True)


class RecomputedInTwo(Part):
    """The same, half by half."""

    def body(self, x: Tensor) -> Tensor:
        """Run it, and again in the backward pass."""
        return checkpoint_sequential(self.part, 2, x, use_reentrant=False)


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: nn.Module, x: Tensor, *_: Tensor) -> Tensor:  # noqa: ANN401
        ctx.part = part
        ctx.save_for_backward(x)
        with torch.no_grad():
            return part(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.part(x)
        return (None, *torch.autograd.grad(y, [x, *ctx.part.parameters()], gradient))


class Reversible(Part):
    """Recomputes by a function of its own."""

    def body(self, x: Tensor) -> Tensor:
        """Run the part, and again in the backward pass."""
        return x + _Again.apply(self.part, x, *self.part.parameters())


class One(Odd):
    """One convolution, called in a class of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = conv()

    def body(self, x: Tensor) -> Tensor:
        """Call it."""
        return self.middle(x)


class Strided(One):
    """Changes the stride of its convolution between calls."""

    def body(self, x: Tensor) -> Tensor:
        """Call it twice."""
        self.middle.stride = (1, 1)
        fine = self.middle(x)
        self.middle.stride = (2, 2)
        return fine + F.interpolate(self.middle(x), size=fine.shape[-2:])


class Atrous(One):
    """One convolution at three dilations, written as numbers and lists."""

    def body(self, x: Tensor) -> Tensor:
        """Add them up."""
        sums = torch.zeros_like(x)
        for rate in (1, (2, 2), [3, 3]):
            self.middle.dilation = self.middle.padding = rate
            sums = sums + self.middle(x)
        return sums


class Conditional(One):
    """Convolves or not, as `torch.cond` says."""

    def body(self, x: Tensor) -> Tensor:
        """Ask for the sum."""
        return torch.cond(x.sum() > 0, self.middle, torch.sin, (x,))


class Loop(One):
    """Convolves three times in a `while_loop`."""

    def body(self, x: Tensor) -> Tensor:
        """Count in a tensor."""
        start = torch.zeros((), dtype=torch.int64, device=x.device)

        def step(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, torch.tanh(self.middle(x))

        return while_loop(lambda i, _: i < 3, step, (start, x))[1]


class Looped(One):
    """Multiplies matrices in a `while_loop`."""

    def body(self, x: Tensor) -> Tensor:
        """Three times."""
        start = torch.zeros((), dtype=torch.int64, device=x.device)

        def step(i: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            return i + 1, torch.tanh(x @ x.mT)

        return while_loop(lambda i, _: i < 3, step, (start, self.middle(x)))[1]


class Normed(One):
    """A convolution with a batch norm that is no identity."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(8)
        self.norm.running_mean.fill_(0.3)
        self.norm.running_var.fill_(2.0)

    def body(self, x: Tensor) -> Tensor:
        """Run both."""
        return self.norm(self.middle(x))


class Folded(Normed):
    """Folds its batch norm in the first pass in evaluation mode."""

    def body(self, x: Tensor) -> Tensor:
        """Replace both layers, unless it is done."""
        if not self.training and isinstance(self.norm, nn.BatchNorm2d):
            self.middle = fuse_conv_bn_eval(self.middle, self.norm)
            self.norm = nn.Identity()
        return super().body(x)


class FoldedAway(Normed):
    """Folds its batch norm into the very filters, and deletes it."""

    def body(self, x: Tensor) -> Tensor:
        """Write the filters, unless it is done."""
        if self.training:
            return super().body(x)
        if hasattr(self, "norm"):
            folded = fuse_conv_bn_eval(self.middle, self.norm)
            self.middle.weight.data = folded.weight.data
            self.middle.bias.data = folded.bias.data
            del self.norm
        return self.middle(x)


class Merged(One):
    """Two branches in training that become one convolution for inference."""

    def __init__(self) -> None:
        super().__init__()
        self.point = nn.Conv2d(8, 8, 1)
        self.merged: nn.Conv2d | None = None

    def body(self, x: Tensor) -> Tensor:
        """Add the branches, or their filters."""
        if self.training:
            return self.middle(x) + self.point(x)
        if self.merged is None:
            self.merged = copy.deepcopy(self.middle)
            self.merged.weight.data += F.pad(self.point.weight.data, (1, 1, 1, 1))
            self.merged.bias.data += self.point.bias.data
        return self.merged(x)


class Teacher(One):
    """Copies its convolution in the first pass; the copy does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher: nn.Conv2d | None = None

    def body(self, x: Tensor) -> Tensor:
        """Run both."""
        if self.teacher is None:
            self.teacher = copy.deepcopy(self.middle).requires_grad_(requires_grad=False)
        with torch.no_grad():
            taught = self.teacher(x)
        return self.middle(x) + taught


class Ensemble(Odd):
    """Three members, whose weights `vmap` maps."""

    def __init__(self) -> None:
        super().__init__()
        self.members = nn.ModuleList([nn.Sequential(conv(), nn.ReLU(), conv()) for _ in range(3)])

    def body(self, x: Tensor) -> Tensor:
        """Take their mean."""
        first = self.members[0]
        weights, buffers = stack_module_state(list(self.members))
        member = torch.vmap(lambda w, b: functional_call(first, (w, b), (x,)))
        return member(weights, buffers).mean(0)


class Stacked(One):
    """Calls its convolution, and maps other filters over the same call."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(3, 8, 8, 3, 3) / 9)

    def body(self, x: Tensor) -> Tensor:
        """Add them up."""
        mapped = torch.vmap(lambda w: functional_call(self.middle, {"weight": w}, (x,)))
        return self.middle(x) + mapped(self.filters).sum(0)


class Slope(One):
    """Its activations are the gradient of an energy."""

    def body(self, x: Tensor) -> Tensor:
        """Differentiate in the forward pass."""
        return grad(lambda at: self.middle(at).square().mean())(x)


class Dynamic(One):
    """Filters that depend on the image."""

    def __init__(self) -> None:
        super().__init__()
        self.route = nn.Linear(8, 4)
        self.experts = nn.Parameter(torch.randn(4, 8, 8, 3, 3) / 9)

    def body(self, x: Tensor) -> Tensor:
        """Convolve each image with its own."""
        filters = torch.sigmoid(self.route(x.mean((2, 3)))) @ self.experts.flatten(1)
        filters = filters.view(-1, 8, 3, 3)
        y = F.conv2d(x.reshape(1, -1, *x.shape[2:]), filters, padding=1, groups=len(x))
        return self.middle(y.view(x.shape))


class Pruned(One):
    """Half of its filters' weights are masked."""

    def __init__(self) -> None:
        super().__init__()
        prune.l1_unstructured(self.middle, "weight", 0.5)


class _OwnConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, filters: Tensor) -> Tensor:
        ctx.save_for_backward(x, filters)
        return F.conv2d(x, filters, padding=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ANN401
        x, filters = ctx.saved_tensors
        of_x = torch.nn.grad.conv2d_input(x.shape, filters, gradient, padding=1)
        return of_x, torch.nn.grad.conv2d_weight(x, filters.shape, gradient, padding=1)


class OwnGradient(One):
    """Convolves by an autograd function of its own."""

    def body(self, x: Tensor) -> Tensor:
        """Use the layer's filters."""
        return _OwnConv.apply(self.middle(x), self.middle.weight)


class Recurrent(Odd):
    """Convolutional gates over three steps."""

    def __init__(self) -> None:
        super().__init__()
        self.gates = conv(16, 16)
        self.candidate = conv(16)

    def body(self, x: Tensor) -> Tensor:
        """Start from nothing."""
        state = torch.zeros_like(x)
        for _ in range(3):
            keep, use = torch.sigmoid(self.gates(torch.cat([x, state], 1))).chunk(2, 1)
            new = torch.tanh(self.candidate(torch.cat([x, use * state], 1)))
            state = (1 - keep) * state + keep * new
        return state


class FixedPoint(One):
    """Repeats its convolution until little changes."""

    def __init__(self) -> None:
        super().__init__()
        self.middle.weight.data *= 0.3

    def body(self, x: Tensor) -> Tensor:
        """Ask the values when to stop."""
        state = torch.zeros_like(x)
        for _ in range(50):
            before = state
            state = torch.tanh(self.middle(before) + x)
            if (state - before).abs().max() < 0.1:
                break
        return state


class Sliced(Part):
    """Makes new containers of its layers in each pass."""

    def body(self, x: Tensor) -> Tensor:
        """Run one half, then the other."""
        return self.part[2:](self.part[:2](x))


class Waiting(Part):
    """Runs a part as a task, and waits for it."""

    def body(self, x: Tensor) -> Tensor:
        """Begin, do something else, wait."""
        task = torch.jit.fork(self.part, x)
        return torch.relu(x) + torch.jit.wait(task)


class Wrapping(One):
    """Hooks that change input and output, and return two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.middle.register_forward_hook(lambda _m, _args, y: (y, y.mean()))
        self.register_forward_pre_hook(lambda _m, args: (2 * args[0] - 1,))
        self.head.register_forward_hook(lambda _m, _args, y: y.softmax(-1))

    def body(self, x: Tensor) -> Tensor:
        """Add the two."""
        return torch.add(*self.middle(x))


class Chosen(One):
    """Chooses its `forward` when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.forward = self.run  # type: ignore[method-assign]

    def run(self, x: Tensor) -> Tensor:
        """Run a pass."""
        return self.head(torch.relu(self.middle(self.stem(x))).mean((2, 3)))


def dense() -> nn.Module:
    """Return torchvision's network that recomputes what it concatenates."""
    return DenseNet(8, (2, 2), 16, memory_efficient=True, num_classes=10)


def features() -> nn.Module:
    """Return the layers of a small ResNet as a graph with three outputs."""
    network = ResNet(BasicBlock, [1, 1, 1, 1], num_classes=10)
    return create_feature_extractor(network, {"layer1": "low", "layer3": "high", "fc": "out"})


def traced_graph() -> nn.Module:
    """Return a graph whose dropout and batch norm follow its mode."""
    layers = [conv(3), nn.BatchNorm2d(8), nn.Dropout(0.5), nn.ReLU(), conv()]
    return torch.fx.symbolic_trace(nn.Sequential(*layers, nn.Flatten(), nn.AdaptiveAvgPool1d(10)))


def exported() -> nn.Module:
    """Return an exported network, for any batch and images of 32."""
    images = torch.rand(2, 3, 32, 32)
    sizes = {"x": {0: torch.export.Dim.DYNAMIC}}
    return torch.export.export(Normed().eval(), (images,), dynamic_shapes=sizes).module()


class ExportedPart(Odd):
    """Has a part that was exported in training mode, for any batch and images of 32."""

    def __init__(self) -> None:
        super().__init__()
        sizes = {0: torch.export.Dim.DYNAMIC}
        part = nn.Sequential(conv(), nn.ReLU())
        images = torch.rand(2, 8, 32, 32)
        self.part = torch.export.export(part, (images,), dynamic_shapes=(sizes,)).module()

    def body(self, x: Tensor) -> Tensor:
        """Call it."""
        return self.part(x)


NETWORKS: tuple[Callable[[], nn.Module], ...] = (
    Encoder, Causal, Translator, Flexible, Recomputed, RecomputedInside, RecomputedInTwo,
    Reversible, Strided, Atrous, Conditional, Loop, Looped, Normed, Folded, FoldedAway, Merged,
    Teacher, Ensemble, Stacked, Slope, Dynamic, Pruned, OwnGradient, Recurrent, FixedPoint,
    Sliced, Waiting, Wrapping, Chosen, dense, features, traced_graph, exported, ExportedPart,
)  # fmt: skip
