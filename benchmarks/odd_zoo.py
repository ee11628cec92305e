"""Networks that hold, make or call their layers in ways that are allowed and unusual.

All take images of three channels from 24 pixels on. `odd_networks.py` runs them through the
algorithms, the tests of what looks into networks use them, too.
"""

from __future__ import annotations

import threading
import warnings
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torchvision.ops import DeformConv2d


def conv(channels: int = 8, out: int = 8) -> nn.Conv2d:
    """Return the 3 x 3 convolution that most of these networks are made of."""
    return nn.Conv2d(channels, out, 3, padding=1)


class Odd(nn.Module):
    """A stem of 8 channels, what a class of its own does with them, a mean and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3)
        self.head = nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run a pass."""
        return self.head(self.body(torch.relu(self.stem(x))).mean((2, 3)))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Do the odd part."""
        raise NotImplementedError


class Aliased(Odd):
    """Its convolution and its norm have two names, and the norm's statistics a third."""

    def __init__(self) -> None:
        super().__init__()
        self.first = conv()
        self.norm = nn.BatchNorm2d(8)
        self.features = nn.Sequential(self.first, self.norm, nn.ReLU(), self.first)
        self.register_buffer("again", self.norm.running_mean)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Use both names."""
        return self.features(self.first(x)) + self.again[:, None, None]


class Tied(Odd):
    """Two convolutions share filters, two others a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([conv() for _ in range(4)])
        self.layers[1].weight = self.layers[0].weight
        self.layers[3].bias = self.layers[2].bias

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Normed(Odd):
    """Filters that are computed from others: by parametrizations, and by hooks as before them."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()
        self.weight_normed = parametrizations.weight_norm(conv())
        self.spectral = parametrizations.spectral_norm(conv())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that they are superseded
            self.old = nn.utils.weight_norm(conv())
            self.older = nn.utils.spectral_norm(conv())

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """One after the other."""
        for layer in (self.plain, self.weight_normed, self.spectral, self.old, self.older):
            x = torch.relu(layer(x))
        return x


class PlainTensors(Odd):
    """Keeps filters in an attribute, a list and a dict, which are no parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()
        self.filters = torch.randn(8, 8, 3, 3) / 9
        self.more = [torch.randn(8, 8, 1, 1) / 3, {"shift": torch.randn(8, 1, 1)}]

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve with all."""
        x = F.conv2d(self.plain(x), self.filters.to(x))
        return F.conv2d(x, self.more[0].to(x)) + self.more[1]["shift"].to(x)


class Late(Odd):
    """Makes two convolutions and a linear layer in its first pass, for the size of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = self.features = None

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Make them, and use them."""
        if self.middle is None:
            self.middle = conv(x.shape[1]).to(x)
            self.add_module("last", conv().to(x))
            self.features = nn.Linear(x[0].numel(), 8).to(x)
        x = self.last(self.middle(x))
        return self.features(x.flatten(1))[:, :, None, None]


class LateOnItsDevice(Odd):
    """Asks the input for the device of a late convolution, and for that of a table it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = None
        self.table = None
        self.by_size = {}

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Make them, and use them."""
        if self.middle is None:
            self.middle = nn.Conv2d(8, 8, 3, device=x.device, dtype=x.dtype)
            self.table = torch.ones(8, 1, 1, device=x.device, dtype=x.dtype)
        rows = self.by_size.setdefault(x.shape, x.new_ones(x.shape[2], 1))
        return self.middle(x * self.table * rows)


class LateByDefault(Odd):
    """Makes a late convolution in torch's default type on its default device."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = None

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Make it, and use it."""
        if self.middle is None:
            self.middle = conv()
        return self.middle(x)


class Lazy(Odd):
    """Torch's own layers without a size."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.LazyConv2d(8, 3)
        self.norm = nn.LazyBatchNorm2d()
        self.features = nn.LazyLinear(8)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Use them."""
        return self.features(self.norm(self.middle(x)).flatten(1))[:, :, None, None]


class PerCall(Odd):
    """Makes a new convolution in each pass, one of them in a place of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Make them, and use them."""
        torch.manual_seed(3)
        self.latest = conv().to(x)
        return conv().to(x)(self.latest(self.plain(x)))


class Rebinding(Odd):
    """Gives itself new filters, and a new buffer, in each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()
        self.register_buffer("seen", torch.zeros(()))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Replace them, and use them."""
        self.seen = self.seen + 1
        self.plain.weight = nn.Parameter(self.plain.weight.clone())
        return self.plain(x)


class Closures(Odd):
    """Keeps functions that know its layers, a lock, and layers in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()
        self.lock = threading.Lock()
        self.steps = [lambda x: 2 * self.plain(x), torch.relu]
        self.unregistered = [conv()]

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """One step after the other."""
        with self.lock:
            for step in (*self.steps, self.unregistered[0].to(x)):
                x = step(x)
        return x


class Direct(Odd):
    """Calls `forward` of its convolutions, which hooks do not see, and one as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()
        self.other = conv()

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Call them."""
        return self.other.forward(input=torch.relu(self.plain.forward(x)))


class Unbatched(Odd):
    """Convolves one image after the other, without a dimension of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Take the batch apart."""
        return torch.stack([self.plain(image) for image in x])


class Vectorised(Odd):
    """Convolves a batch as many images, by `vmap`."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Map the layer."""
        return torch.vmap(self.plain)(x)


class Hooked(Odd):
    """Has a hook that convolves once more, and one that keeps what it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()
        self.filters = nn.Parameter(torch.randn(8, 8, 3, 3) / 9)
        self.kept = []
        self.plain.register_forward_hook(lambda _m, _i, y: F.conv2d(y, self.filters, padding=1))
        self.plain.register_forward_pre_hook(lambda _m, args: self.kept.append(args[0]))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Call the layer."""
        self.kept.clear()
        return self.plain(x) + self.kept[0].mean()


class Checkpointed(Odd):
    """Runs a part in a way that keeps nothing for a backward pass; has a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()
        self.line = nn.LSTM(8, 8, batch_first=True)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve, then go along the rows."""
        x = checkpoint(self.plain, x, use_reentrant=False)
        return self.line(x.mean(3).transpose(1, 2))[0].transpose(1, 2)[..., None]


class InPlace(Odd):
    """Changes the image that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run a pass."""
        return super().forward(x.sub_(0.5).mul_(1.1))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        return self.plain(x)


class Outputs(Odd):
    """Returns two tensors, of which one is a million times the other, and a list in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()

    def forward(self, x: torch.Tensor) -> object:
        """Run a pass."""
        x = self.stem(x)
        y = self.plain(x)
        return 1e6 * x, {"small": [y, self.head(y.mean((2, 3)))], "none": None}


class Complex(Odd):
    """Convolves complex numbers, by a function and by a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()
        self.of_pairs = nn.Conv2d(8, 8, 3, dtype=torch.complex64)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Go there and back."""
        pairs = torch.complex(*(y.to(self.of_pairs.weight.real) for y in (self.plain(x), x)))
        return self.of_pairs(F.conv2d(pairs, self.of_pairs.weight)).abs().to(x)


class Deformed(Odd):
    """Convolves where offsets say, which is an operator of torchvision."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = nn.Conv2d(8, 18, 3, padding=1)
        self.deformed = DeformConv2d(8, 8, 3)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Find the offsets first."""
        return self.deformed(x, self.offsets(x)[:, :, 1:-1, 1:-1])


@torch.library.custom_op("odd::pair_conv", mutates_args=())
def pair_conv(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Convolve twice, which nobody outside knows."""
    return F.conv2d(F.conv2d(x, weight, padding=1), weight, padding=1)


class Custom(Odd):
    """Convolves in an operator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = conv()
        self.filters = nn.Parameter(torch.randn(8, 8, 3, 3) / 9)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Call it."""
        return torch.ops.odd.pair_conv(self.plain(x), self.filters)


class Quantized(Odd):
    """Most of its work is quantized convolutions, between two that are plain."""

    def __init__(self) -> None:
        super().__init__()
        kind = torch.ao.nn.quantized
        self.plain = conv()
        self.enter = kind.Quantize(0.05, 128, torch.quint8)
        self.leave = None
        self.integers = nn.Sequential(*[kind.Conv2d(8, 8, 3, padding=1) for _ in range(4)])
        for layer in self.integers:
            layer.scale = 0.05
        self.leave = kind.DeQuantize()

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Quantize, convolve, and return."""
        return self.plain(self.leave(self.integers(self.enter(x.float()))).to(x))


def two_layers() -> nn.Sequential:
    """Return what is scripted, traced or compiled below."""
    return nn.Sequential(conv(), nn.ReLU(), conv())


class Parted(Odd):
    """Has a part that somebody may have changed into another kind, and a plain convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.part = two_layers()
        self.plain = conv()

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """One, then the other."""
        return self.plain(self.part(x))


def scripted() -> nn.Module:
    """Return a network with a part in TorchScript."""
    return _parted(torch.jit.script)


def traced() -> nn.Module:
    """Return a network with a part that was traced."""
    return _parted(partial(torch.jit.trace, example_inputs=torch.zeros(1, 8, 24, 24)))


def frozen() -> nn.Module:
    """Return a network with a part that was traced and optimised, without parameters."""
    optimised = torch.jit.optimize_for_inference
    return _parted(lambda part: optimised(torch.jit.script(part.eval())))


def all_scripted() -> nn.Module:
    """Return a network that is TorchScript as a whole."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(nn.Sequential(conv(3), nn.ReLU(), conv()))


def in_mkldnn() -> nn.Module:
    """Return a network whose part has its weights in oneDNN's own layout."""

    class There(nn.Module):
        def __init__(self, part: nn.Module) -> None:
            super().__init__()
            from torch.utils import mkldnn  # noqa: PLC0415 - warns

            self.part = mkldnn.to_mkldnn(part.eval())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.part(x.to_mkldnn()).to_dense()

    return _parted(There)


def compiled_part() -> nn.Module:
    """Return a network with a part that is wrapped by `torch.compile`."""
    return _parted(partial(torch.compile, backend="eager"))


def part_compiled() -> nn.Module:
    """Return a network whose part was told to compile itself."""
    network = Parted()
    network.part.compile(backend="eager")
    return network


def compiled_function() -> nn.Module:
    """Return a network that has a compiled function, which calls a part of it."""
    network = Parted()
    network.run = torch.compile(network.part.forward, backend="eager")
    network.body = lambda x: network.plain(network.run(x))
    return network


def all_compiled() -> nn.Module:
    """Return a network that is compiled as a whole."""
    return torch.compile(Parted(), backend="eager")


def compiled_alias() -> nn.Module:
    """Return a network with a convolution that it calls itself, and in a compiled part."""
    network = Parted()
    network.part[0] = network.stem = conv(8)
    network.stem = nn.Sequential(nn.Conv2d(3, 8, 1), network.stem)
    network.part.compile(backend="eager")
    return network


def _parted(change: object) -> nn.Module:
    network = Parted()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is deprecated
        network.part = change(network.part)
    return network


NETWORKS = (
    Aliased, Tied, Normed, PlainTensors, Late, LateOnItsDevice, LateByDefault, Lazy, PerCall,
    Rebinding, Closures, Direct, Unbatched, Vectorised, Hooked, Checkpointed, InPlace, Outputs,
    Complex, Deformed, Custom, Quantized, scripted, traced, frozen, all_scripted, in_mkldnn,
    compiled_part, part_compiled, compiled_function, all_compiled, compiled_alias,
)  # fmt: skip
