"""Small networks for tests, reachable as ``tinynets:name``."""

from __future__ import annotations

import itertools
import threading

import torch
from torch import nn


class Residual(nn.Module):
    """Two convolutions that share one in-place ReLU, with an addition that no module makes."""

    def __init__(self, channels=8):
        """Make the layers."""
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.conv = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.head = nn.Linear(channels, 5)

    def forward(self, x):
        """Run a pass."""
        x = self.relu(self.stem(x))
        x = self.relu(x + self.norm(self.conv(x)))
        return self.head(x.mean((2, 3)))


class Wandering(nn.Module):
    """Has other filters from its fourth pass on, as no honest network does."""

    def __init__(self):
        """Make the layer."""
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.passes = 0

    def forward(self, x):
        """Run a pass."""
        self.passes += not x.is_meta
        if self.passes == 4:
            self.conv.weight = nn.Parameter(self.conv.weight.detach().clone())
        return self.conv(x)


class NormAct(nn.BatchNorm2d):
    """Normalises, then calls an activation and an identity, as timm's batch norm does."""

    def __init__(self, channels):
        """Make the layers."""
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU()

    def forward(self, x):
        """Run a pass."""
        return self.act(self.drop(super().forward(x)))


class Scaled(nn.Module):
    """Scales what its block returns, as ConvNeXt does."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.register_buffer("gain", torch.ones(8, 1, 1))
        self.block = nn.Sequential(nn.Conv2d(8, 8, 1), NormAct(8))

    def forward(self, x):
        """Run a pass."""
        return self.gain * self.block(x) + x


def around():
    """Return layers around others, one in the other."""
    return nn.Sequential(nn.Conv2d(3, 8, 1), Scaled(), NormAct(8), nn.Flatten(2))


class Attention(nn.Module):
    """Attention, whose projection is a child that nobody calls."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.patch = nn.Conv2d(3, 16, 8, stride=8)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        """Run a pass."""
        x = self.patch(x).flatten(2).transpose(1, 2)
        return self.attention(x, x, x, need_weights=False)[0]


class Borrowing(nn.Module):
    """Uses its children's weights without calling them."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.inner = nn.Linear(3, 4)
        self.outer = nn.Linear(4, 2)

    def forward(self, x):
        """Run a pass."""
        x = nn.functional.linear(x.mean((2, 3)), self.inner.weight)
        return nn.functional.linear(x, self.outer.weight)


class Biased(nn.Module):
    """Attention that calls a projection and multiplies matrices itself."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.project = nn.Linear(4, 4)

    def forward(self, x):
        """Run a pass."""
        x = self.project(x.mean((1,)))
        return x @ x.transpose(1, 2)


class Convolving(nn.Module):
    """Multiplies matrices itself, but has a convolution as well."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)

    def forward(self, x):
        """Run a pass."""
        x = self.conv(x)
        return x @ x


class Holding(nn.Module):
    """Holds a borrowing block, and keeps a tensor that is neither parameter nor buffer."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.block = Borrowing()
        self.offset = torch.ones(2)

    def forward(self, x):
        """Run a pass."""
        return self.block(x) + self.offset


class Twofaced(nn.Module):
    """Takes another path through its layers in every second call."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.calls = 0
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        """Run a pass."""
        self.calls += 1
        y = self.conv(x)
        return self.conv(x) if self.calls % 2 else y


class Hungry(nn.Module):
    """Asks for more memory than any machine has."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        """Run a pass."""
        y = self.conv(x)
        if not y.is_meta:
            torch.empty(1 << 55)
        return y


class Dicts(nn.Module):
    """Returns a dict, as networks with auxiliary heads do."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.conv = nn.Conv2d(3, 2, 1)

    def forward(self, x):
        """Run a pass."""
        return {"out": self.conv(x), "aux": [self.conv(x)]}


def no_module():
    """Return something that is no network."""
    return 3


def small_vgg():
    """Return convolutions and pooling without normalisation."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, (1, 3))
    )


def convolutions_alone():
    """Return convolutions of several widths, without bias: a pretend GPU computes all of it."""
    widths = itertools.pairwise((3, 9, 5, 7, 4, 8, 3))
    return nn.Sequential(*(nn.Conv2d(*width, 3, padding=1, bias=False) for width in widths))


class CapturedOtherwise(nn.Module):
    """Runs another convolution where it is captured."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.usual = nn.Conv2d(3, 4, 3, bias=False)
        self.captured = nn.Conv2d(3, 4, 3, bias=False)

    def forward(self, x):
        """Run a pass."""
        is_captured = x.is_cuda and torch.cuda.is_current_stream_capturing()
        return self.captured(x) if is_captured else self.usual(x)


class Unscriptable(Residual):
    """Uses what TorchScript has no words for."""

    def forward(self, x):
        """Run a pass."""
        names = {name: value for name, value in vars(self).items() if name == "nothing"}
        return super().forward(x, **names)


class Dropping(Residual):
    """Draws random numbers in every pass."""

    def forward(self, x):
        """Run a pass."""
        return super().forward(nn.functional.dropout(x, training=self.training))


class Standardised(nn.Conv2d):
    """A convolution of its own class, as weight standardisation is: not what its filters say."""

    def forward(self, x):
        """Convolve with filters of zero mean and twice their size."""
        filters = 2 * (self.weight - self.weight.mean((1, 2, 3), keepdim=True))
        return nn.functional.conv2d(x, filters, self.bias, self.stride, self.padding)


class OfItsOwn(nn.Module):
    """A plain convolution, then one of a class of its own."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.plain = nn.Conv2d(3, 4, 3, padding=1)
        self.own = Standardised(4, 4, 3, padding=1)

    def forward(self, x):
        """Run a pass."""
        return self.own(self.plain(x))


class Unbatched(nn.Module):
    """Calls a convolution on one image of the batch, by keyword, and another on all of it."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.one = nn.Conv2d(3, 4, 1)
        self.all = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x):
        """Run a pass."""
        return self.all(x) + self.one(input=x[0])


class Functional(nn.Module):
    """Convolves by a function with filters of its own, which is most of its work."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)
        self.filters = nn.Parameter(torch.randn(4, 4, 3, 3))

    def forward(self, x):
        """Run a pass."""
        return nn.functional.conv2d(self.conv(x), self.filters, padding=1)


class OtherKinds(nn.Module):
    """A plain convolution, one that is transposed, and one of one dimension."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.line = nn.Conv1d(4, 4, 3)

    def forward(self, x):
        """Run a pass."""
        return self.line(self.up(self.conv(x)).flatten(2))


class Volume(nn.Module):
    """A convolution of three dimensions and no other."""

    def __init__(self):
        """Make the layer."""
        super().__init__()
        self.conv = nn.Conv3d(1, 2, 3, padding=1)

    def forward(self, x):
        """Take the channels for depth."""
        return self.conv(x[:, None])


class Turning(nn.Module):
    """Convolves by a function, but not on the meta device."""

    def __init__(self):
        """Make the layer."""
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        """Run a pass."""
        y = self.conv(x)
        return y if y.is_meta else y + nn.functional.conv2d(x, self.conv.weight)


class MoreOnGpu(nn.Module):
    """Calls its second layer on a GPU alone, which the shape pass does not see."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)

    def forward(self, x):
        """Run a pass."""
        y = self.one(x)
        return self.two(y) if y.is_cuda else y


class Silent(nn.Module):
    """Multiplies its output by zero, as a network does whose last layer was never trained."""

    def __init__(self):
        """Make the layer."""
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        """Run a pass."""
        return 0 * self.conv(x)


class Plain(nn.Module):
    """Two convolutions and a linear layer, for networks that do something odd with them."""

    def __init__(self):
        """Build the layers."""
        super().__init__()
        self.first, self.second = (nn.Conv2d(n, 8, 3, padding=1) for n in (3, 8))
        self.head = nn.Linear(8, 10)

    def body(self, x):
        """Return what goes into the mean."""
        return self.second(x)

    def forward(self, x):
        """Run a pass."""
        return self.head(self.body(torch.relu(self.first(x))).mean((2, 3)))


class Rewritten(Plain):
    """Its convolutions have code of their own: in the layer, in what that calls, and in hooks."""

    def __init__(self):
        """Write over them."""
        super().__init__()
        first, second = self.first, self.second
        third = self.third = nn.Conv2d(8, 8, 1)
        first.forward = lambda x: nn.functional.conv2d(x, 3 * first.weight, padding=1)
        second._conv_forward = lambda x, w, b: nn.functional.conv2d(x, 2 * w, b, padding=1)
        third.register_forward_pre_hook(lambda _m, args: (args[0] + 1,))
        third.register_forward_hook(lambda _m, _args, y: self.head.weight[0, 0] * y)

    def body(self, x):
        """Call them."""
        return self.third(self.second(x))


class Converting(Plain):
    """Puts a layer into another type in its first pass, and computes in that."""

    def body(self, x):
        """Convert, and compute."""
        return self.second.to(torch.bfloat16)(x.bfloat16()).to(x.dtype)


class Casting(Plain):
    """Has mixed precision of its own."""

    def body(self, x):
        """Convolve in a reduced type."""
        with torch.autocast(x.device.type, torch.bfloat16):
            return super().body(x).to(x.dtype)


class SparseOutput(Plain):
    """Returns a sparse tensor."""

    def forward(self, x):
        """Run a pass."""
        return super().forward(x).to_sparse()


class Renewing(Plain):
    """Makes a layer in each pass, and gives it the parameters of the one before."""

    def body(self, x):
        """Replace the layer, and use it."""
        new = nn.Conv2d(8, 8, 3, padding=1, device=x.device, dtype=x.dtype)
        new.weight, new.bias = self.second.weight, self.second.bias
        self.second = new
        return super().body(x)


class Named(nn.Module):
    """Names layers, ranges and a function of autograd after operators that they are not."""

    def __init__(self):
        """Make the layers."""
        super().__init__()
        self.spatial_attention, self.gru = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3)
        self.add_module("net::bilinear|attention", nn.Conv2d(8, 8, 1))
        self.transformer = nn.Linear(8, 10)

    def forward(self, x):
        """Run a pass."""
        with torch.profiler.record_function("net::attention"):
            x = self.spatial_attention(x)
        with torch.profiler.record_function("mlp::convolution"):
            x = LSTM.apply(self.gru(x))
        x = self.get_submodule("net::bilinear|attention")(x)
        return self.transformer(x.mean((2, 3)))


class LSTM(torch.autograd.Function):
    """Doubles; no recurrent layer."""

    @staticmethod
    def forward(_, x):
        """Double."""
        return 2 * x


class Switching(Plain):
    """Takes another number of threads than its point has."""

    def forward(self, x):
        """Switch, and run a pass."""
        torch.set_num_threads(2)
        return super().forward(x)


class WithoutOneDNN(Plain):
    """Switches a library off in its first pass, for good."""

    def forward(self, x):
        """Switch, and run a pass."""
        torch.backends.mkldnn.enabled = False
        return super().forward(x)


def turning():
    """Return a network as some do that work around a fault: by switches of the process."""
    torch.backends.cudnn.enabled = torch.backends.mkldnn.enabled = False
    torch.backends.cudnn.benchmark = True
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    return Plain()


class DrawsByDefault(Plain):
    """Adds numbers of the type that torch gives to new tensors."""

    def forward(self, x):
        """Run a pass."""
        return super().forward(x + torch.ones(1))


class Failing(Plain):
    """Raises in its third pass what torch never raises; passes on the meta device do not count."""

    passes = 0

    def forward(self, x):
        """Count, and run a pass."""
        self.passes += 1
        if self.passes == 3:
            raise KeyError("gone")
        return super().forward(x)


class HeadFirst(nn.Module):
    """Defines its last layer before the others."""

    def __init__(self):
        """Build them."""
        super().__init__()
        self.head, self.first, self.features = nn.Linear(5, 10), nn.Conv2d(3, 8, 3), None
        self.build(torch.zeros(0))

    def build(self, like):
        """Make the layer between."""
        self.features = nn.Linear(8, 5).to(like)

    def forward(self, x):
        """Run a pass."""
        x = self.first(x).mean((2, 3))
        if self.features is None:
            self.build(x)
        return self.head(torch.relu(self.features(x)))


class LateFeatures(HeadFirst):
    """Makes the layer between in its first pass."""

    def __init__(self):
        """Leave it out."""
        super().__init__()
        self.features = None


class ConvolvesLast(nn.Module):
    """Has a linear layer that is a gate, and a convolution for the classes."""

    def __init__(self):
        """Build them."""
        super().__init__()
        self.first, self.last, self.gate = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 10, 1), nn.Linear(8, 8)

    def forward(self, x):
        """Run a pass."""
        x = self.first(x)
        return self.last(x * torch.sigmoid(self.gate(x.mean((2, 3))))[..., None, None]).mean((2, 3))


def ends_in_groups():
    """End in a convolution that has none of its settings by default."""
    last = nn.Conv2d(
        8, 10, 3, stride=2, padding=2, dilation=2, groups=2, bias=False, padding_mode="reflect"
    )
    return nn.Sequential(nn.Conv2d(3, 8, 3), last, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class NoGradients(Plain):
    """Builds no graph, whoever trains it."""

    @torch.no_grad()
    def forward(self, x):
        """Run a pass."""
        return super().forward(x)


class Product(nn.Module):
    """A product with a matrix of its own."""

    def __init__(self):
        """Draw the matrix."""
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(10, 10))

    def forward(self, x):
        """Multiply."""
        return x.mean((2, 3)) @ self.matrix


def goes_on():
    """Two convolutions, and what is none after them."""
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 10, 3), Product())


class TwoTypes(nn.Module):
    """Two convolutions, the second one in float64, or as complex numbers."""

    def __init__(self, dtype=torch.float64):
        """Make the layers."""
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3, dtype=dtype)

    def forward(self, x):
        """Convolve twice."""
        return self.second(self.first(x).to(self.second.weight.dtype)).mean((2, 3)).abs().float()


def complex_too():
    """Return a network whose second convolution is complex."""
    return TwoTypes(torch.complex64)


class FineTuned(Residual):
    """Has a frozen body: its parameters, and the mode of its normalisation; its head learns."""

    def __init__(self):
        """Freeze."""
        super().__init__()
        for part in (self.stem, self.conv, self.norm):
            part.requires_grad_(requires_grad=False).eval()


class KeepsNormalisation(FineTuned):
    """Freezes its normalisation whenever it is put into training mode, and one convolution."""

    def __init__(self):
        """Freeze the convolution alone."""
        Residual.__init__(self)
        self.conv.requires_grad_(requires_grad=False)

    def train(self, mode=True):  # noqa: FBT002 - torch's own signature
        """Switch all but the normalisation."""
        super().train(mode)
        self.norm.eval()
        return self


def for_inference():
    """Return a network as a file of trained weights is used: in evaluation mode."""
    return Residual().eval()


def frozen_whole():
    """Return a network in which nothing learns, with as many classes as the data have."""
    model = Residual()
    model.head = nn.Linear(8, 10)
    return model.requires_grad_(requires_grad=False)


class TwoGraphs(nn.Module):
    """Has another graph for evaluation, as torchvision's extractors of features have."""

    def __init__(self):
        """Begin with the one for training."""
        super().__init__()
        self.conv, self.graph = nn.Conv2d(3, 8, 3), "training"

    def train(self, mode=True):  # noqa: FBT002 - torch's own signature
        """Change the graph."""
        self.graph = "training" if mode else "evaluation"
        return super().train(mode)

    def forward(self, x):
        """Run a pass."""
        return self.conv(x).mean((2, 3))


def two_graphs():
    """Return such a network with a part that is frozen, and a head."""
    return nn.Sequential(TwoGraphs(), nn.BatchNorm1d(8).eval(), nn.Linear(8, 10))


class Remembering(Residual):
    """Computes its features for the first image of a size, and has them for all others."""

    def __init__(self):
        super().__init__()
        self._kept = {}

    def forward(self, x):
        """Classify."""
        if x.shape not in self._kept:
            self._kept[x.shape] = super().forward(x)
        return self._kept[x.shape] + 0


class Threaded(Residual):
    """Convolves in a thread beside its own layers."""

    def forward(self, x):
        """Classify, with what the thread adds."""
        beside = []
        filters = torch.ones(8, 3, 3, 3)

        def convolve():
            with torch.inference_mode():
                beside.append(torch.nn.functional.conv2d(x, filters))

        thread = threading.Thread(target=convolve)
        thread.start()
        thread.join()
        return super().forward(x) + 0 * beside[0].mean()


class Late(torch.Tensor):
    """A tensor whose numbers are computed when somebody asks for them."""

    computed = 0

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Compute."""
        Late.computed += 1
        return super().__torch_function__(func, types, args, kwargs or {})


class Lazily(Residual):
    """Returns a tensor that computes late."""

    def forward(self, x):
        """Classify."""
        return super().forward(x).as_subclass(Late)


class Casting16(Residual):
    """Computes its body in bfloat16 by an autocast of its own."""

    def forward(self, x):
        """Classify."""
        with torch.autocast(x.device.type, torch.bfloat16):
            return super().forward(x).float()


class DropsLayers(Residual):
    """Leaves its second convolution out in every other step of a training."""

    def __init__(self):
        """Count steps."""
        super().__init__()
        self.steps = 0

    def forward(self, x):
        """Classify."""
        x = self.relu(self.stem(x))
        self.steps += self.training
        if self.steps % 2 == 1:
            x = x + self.conv(x)
        return self.head(x.mean((2, 3)))


class Normalising(Residual):
    """Normalises its input where it lies."""

    def forward(self, x):
        """Classify."""
        return super().forward(x.sub_(0.5).div_(4))


class FixedPoint(Residual):
    """Rounds its scores to whole numbers of a step."""

    def forward(self, x):
        """Classify."""
        return (super().forward(x) * 64).round().to(torch.int16).to(x.dtype) / 64
