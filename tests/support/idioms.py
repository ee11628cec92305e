"""Everyday code of networks in float32, reachable as ``idioms:name``; all of it is honest."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit


class _Body(nn.Module):
    """A convolution before, a linear layer after."""

    def __init__(self) -> None:
        """Build them."""
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run a pass."""
        return self.head(self.body(self.stem(x)).mean((2, 3)))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is in between."""
        raise NotImplementedError


class Floats(_Body):
    """Makes sure that it computes in float32."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Convert."""
        return (x.float() - x.to(torch.float32).mean()) * x.type(torch.float32)


class FloatsByName(_Body):
    """Converts as code for older versions does."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Convert."""
        return x.type(torch.FloatTensor).to(x.device).type_as(self.head.weight)


class Checks(_Body):
    """Refuses types that it was not written for."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Check, and compute."""
        assert x.dtype in {torch.float32, torch.float16, torch.bfloat16}, x.dtype
        assert self.head.weight.dtype == x.dtype
        if torch.result_type(x, 1.0) != x.dtype:
            raise TypeError(x.dtype)
        return x.relu()


class Ramp(_Body):
    """Weighs columns by a ramp."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the ramp."""
        return x * torch.linspace(0, 1, x.shape[-1], device=x.device)


class Identity(_Body):
    """Adds a multiple of the identity to the channels' products."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply matrices."""
        flat = x.flatten(2)
        gram = flat @ flat.transpose(1, 2) / flat.shape[-1] + 0.1 * torch.eye(8, device=x.device)
        return (torch.linalg.solve(gram, flat) + gram @ flat).view_as(x)


class SinusoidalPositions(_Body):
    """Adds sines and cosines of far positions, computed in the pass."""

    first = 100_000  # where float32 has lost three digits of an angle

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Fill a table, and add it."""
        flat = x.flatten(2).transpose(1, 2)
        table = torch.zeros(flat.shape[1], 8)
        position = torch.arange(self.first, self.first + len(table)).float().unsqueeze(1)
        step = torch.exp(torch.arange(0, 8, 2).float() * (-math.log(10_000.0) / 8))
        table[:, 0::2], table[:, 1::2] = torch.sin(position * step), torch.cos(position * step)
        return (flat + table.to(flat)).transpose(1, 2).view_as(x)


class RotaryPositions(_Body):
    """Turns pairs of channels by angles from a buffer of frequencies."""

    def __init__(self) -> None:
        """Make the frequencies."""
        super().__init__()
        self.register_buffer("frequencies", 10_000.0 ** (-torch.arange(0, 8, 2).float() / 8))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Turn."""
        flat = x.flatten(2).transpose(1, 2)
        steps = torch.arange(50_000, 50_000 + flat.shape[1], device=x.device)
        angles = torch.outer(steps.type_as(self.frequencies), self.frequencies)
        sine, cosine = angles.sin()[None], angles.cos()[None]
        left, right = flat[..., 0::2], flat[..., 1::2]
        turned = torch.stack((left * cosine - right * sine, left * sine + right * cosine), -1)
        return turned.flatten(-2).transpose(1, 2).reshape(x.shape)


class ComplexRotation(_Body):
    """Turns pairs of channels as complex numbers."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Turn."""
        flat = x.flatten(2).transpose(1, 2).float()
        pairs = torch.view_as_complex(flat.reshape(*flat.shape[:-1], 4, 2).contiguous())
        angles = torch.outer(torch.arange(flat.shape[1]).float(), torch.rand(4).new_full((4,), 0.3))
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(2).transpose(1, 2).view_as(x)


class TimeEmbedding(_Body):
    """Embeds a fixed time, as diffusion networks do."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Embed, and scale."""
        steps = torch.full((len(x),), 981, dtype=torch.long)
        frequencies = torch.exp(-math.log(10_000) * torch.arange(4, dtype=torch.float32) / 4)
        angles = steps[:, None].float() * frequencies[None]
        embedded = torch.cat([angles.cos(), angles.sin()], -1).to(dtype=x.dtype)
        return x * (1 + embedded[..., None, None])


class SamplesGrid(_Body):
    """Samples the image at turned places."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Make a grid, and sample."""
        turn = torch.tensor([[0.9, -0.2, 0.0], [0.2, 0.9, 0.1]]).repeat(len(x), 1, 1)
        grid = F.affine_grid(turn, list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, padding_mode="border", align_corners=False)


class SamplesFlow(_Body):
    """Warps by a flow that it computes, around a mesh of places."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Make the mesh, and sample."""
        places = [torch.linspace(-1, 1, n, device=x.device) for n in x.shape[-2:]]
        rows, columns = torch.meshgrid(*places, indexing="ij")
        mesh = torch.stack((columns, rows), -1)
        return F.grid_sample(
            x, mesh + 0.1 * x[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=True
        )


class Recurrent(_Body):
    """Runs an LSTM from a state of zeros that it makes."""

    def __init__(self) -> None:
        """Build it."""
        super().__init__()
        self.rows = nn.LSTM(8, 8, batch_first=True)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Make the state, and run."""
        sequence = x.mean(2).transpose(1, 2)
        state = torch.zeros(1, len(x), 8), torch.zeros(1, len(x), 8)
        return self.rows(sequence, state)[0].transpose(1, 2)[..., None]


class RecurrentByDefault(_Body):
    """Runs a GRU in two directions, without a state."""

    def __init__(self) -> None:
        """Build it."""
        super().__init__()
        self.rows = nn.GRU(8, 4, bidirectional=True)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Run."""
        return self.rows(x.mean(2).permute(2, 0, 1))[0].permute(1, 2, 0)[..., None]


class Cells(_Body):
    """Steps through columns with a cell, and writes each result into a tensor that it made."""

    def __init__(self) -> None:
        """Build the cell."""
        super().__init__()
        self.cell = nn.LSTMCell(8, 8)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Step."""
        columns, hidden = x.mean(2), torch.zeros(len(x), 8, dtype=x.dtype, device=x.device)
        memory, found = torch.zeros_like(hidden), torch.empty(len(x), 8, x.shape[-1])
        for i in range(x.shape[-1]):
            hidden, memory = self.cell(columns[..., i], (hidden, memory))
            found[:, :, i].copy_(hidden)
        return found[..., None]


class Accumulates(_Body):
    """Adds up shifted images in place, in a tensor that it made."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Add."""
        total, weight = torch.zeros(x.shape), torch.arange(1, 5, dtype=torch.float32)
        for i in range(4):
            total += weight[i] * x.roll(i, -1)
        shares = torch.eye(8).clone()
        shares += x.mean((0, 2, 3))
        shares[0] = x.amax((0, 2, 3))
        return torch.einsum("ij,bjhw->bihw", shares, total)


class Scatters(_Body):
    """Sums pixels by segment, into views and by indices."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Sum."""
        flat = x.flatten(2)
        segment = torch.arange(flat.shape[-1]) % 5
        sums = torch.zeros(*flat.shape[:2], 5).index_add_(2, segment, flat)
        counts = torch.zeros(5).scatter_add_(0, segment, torch.ones(len(segment)))
        largest = torch.linspace(-9, -8, 5).expand(*flat.shape[:2], 5).contiguous()
        largest = largest.scatter_reduce(2, segment.expand_as(flat), flat, "amax")
        return ((sums / counts + largest)[..., segment]).view_as(x)


class Resizes(_Body):
    """Interpolates down and up again."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Interpolate."""
        small = F.interpolate(x, scale_factor=0.5, mode="bilinear", antialias=True)
        return F.interpolate(small.float(), size=x.shape[-2:], mode="bicubic").to(x.dtype)


class MasksByInfinity(_Body):
    """Attends to earlier places alone, by a mask of infinities."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        flat = x.flatten(2).transpose(1, 2)
        size = flat.shape[1]
        mask = torch.full((size, size), float("-inf")).triu(1)
        scores = (flat @ flat.transpose(1, 2) / math.sqrt(8) + mask).softmax(
            -1, dtype=torch.float32
        )
        return (scores.type_as(flat) @ flat).transpose(1, 2).view_as(x)


class MasksByFinfo(_Body):
    """Masks by the smallest number of its type."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        flat = x.flatten(2).transpose(1, 2)
        keep = torch.tril(torch.ones(flat.shape[1], flat.shape[1], dtype=torch.bool))
        scores = flat @ flat.transpose(1, 2)
        scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
        bias = (1.0 - keep.to(x.dtype)) * torch.finfo(x.dtype).min
        return ((scores + bias).softmax(-1) @ flat).transpose(1, 2).view_as(x)


class FusedAttention(_Body):
    """Calls fused attention with a mask of slopes."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        flat = x.flatten(2).transpose(1, 2)[:, None]
        steps = torch.arange(flat.shape[-2])
        slopes = -0.05 * (steps[:, None] - steps[None]).abs().float()
        found = F.scaled_dot_product_attention(flat, flat, flat, attn_mask=slopes)
        return found[:, 0].transpose(1, 2).view_as(x)


class DropsPaths(_Body):
    """Has a mask of random numbers from a seed of its own."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Draw, and scale."""
        drawn = torch.rand(1, 8, 1, 1, generator=torch.Generator().manual_seed(3))
        noise = torch.randn(x.shape[1:], generator=torch.Generator().manual_seed(4), dtype=x.dtype)
        return x.div(0.8) * (drawn + 0.8).floor_() + 0.1 * noise


class OneHot(_Body):
    """Weighs channels by the class of the strongest one."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Choose."""
        strongest = x.mean((2, 3)).argmax(1)
        return x * (1 + F.one_hot(strongest, 8).float())[..., None, None]


class CastsBuffers(_Body):
    """Holds constants in other types, and casts them in each pass."""

    def __init__(self) -> None:
        """Make them."""
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("steps", torch.arange(8), persistent=False)
        self.scale = torch.linspace(0.5, 1, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise, and run a pass."""
        return super().forward((x - self.mean.to(x.dtype)) / self.mean.to(x))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Scale."""
        return x * self.steps.to(torch.float32).view(1, 8, 1, 1) * self.scale.view(8, 1, 1)


class WithoutAutocast(_Body):
    """Keeps its norm in float32, whoever switches mixed precision on."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise."""
        with torch.autocast(x.device.type, enabled=False):
            wide = x.float()
            return (wide * torch.rsqrt(wide.pow(2).mean(1, keepdim=True) + 1e-6)).type_as(x)


class NormalisesWide(_Body):
    """Normalises in float32 and returns to its type, with weights by `view`."""

    def __init__(self) -> None:
        """Make the weights."""
        super().__init__()
        self.weight = nn.Parameter(torch.rand(8))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise."""
        kind, wide = x.dtype, x.to(dtype=torch.float32)
        mean, variance = wide.mean(1, keepdim=True), wide.var(1, keepdim=True, unbiased=False)
        wide = (wide - mean) * torch.rsqrt(variance + torch.finfo(torch.float32).eps)
        return self.weight.view(1, -1, 1, 1).float() * wide.to(kind)


class Constants(_Body):
    """Makes tensors of its constants, from lists, numpy and other tensors."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Make them."""
        kernel = torch.tensor([[1.0, 2.0, 1.0]]).t() @ torch.tensor([[1.0, 2.0, 1.0]])
        kernel = (kernel / kernel.sum()).expand(8, 1, 3, 3)
        window = torch.from_numpy(np.hanning(x.shape[-1]).astype(np.float32))
        bias = torch.as_tensor(np.arange(8, dtype=np.float32)).view(8, 1, 1)
        blurred = F.conv2d(x, kernel, padding=1, groups=8) * window
        return blurred + bias + x.new_tensor([0.5]) + x.new_zeros(1) + torch.ones_like(x[:, :1])


class Spectrum(_Body):
    """Filters in the frequency domain."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Filter."""
        found = torch.fft.rfft2(x.float(), norm="ortho")
        rows = torch.fft.fftfreq(x.shape[-2])[:, None]
        low = torch.exp(-(rows**2 + torch.fft.rfftfreq(x.shape[-1])[None] ** 2))
        return torch.fft.irfft2(found * low.to(torch.complex64), s=x.shape[-2:], norm="ortho")


class Choosing(_Body):
    """Takes one of two values by a mask, and clamps by tensors."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Choose."""
        x = torch.where(x > 0, x, torch.tensor(-0.1, device=x.device))
        x = torch.where(x < 1, x, torch.zeros(1, dtype=torch.float32))
        return torch.maximum(x, torch.tensor([-1.0])).clamp(max=torch.tensor(2.0))


class Counting(_Body):
    """Multiplies by counts of whole numbers and booleans."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Count."""
        valid = torch.arange(x.shape[-1]) < 5
        count = valid.sum().clamp(min=1).float()
        return x * valid.float() / count + (x > 0).sum((2, 3), keepdim=True).float().log1p()


class Standardises(_Body):
    """Standardises a convolution's filters, with a blur of constants before."""

    def __init__(self) -> None:
        """Build the convolution."""
        super().__init__()
        self.conv = nn.Conv2d(8, 8, 3, padding=1)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        filters = self.conv.weight.float()
        filters = filters - filters.mean((1, 2, 3), keepdim=True)
        return F.conv2d(
            x, filters / filters.std() + torch.zeros(8, 8, 3, 3), self.conv.bias, padding=1
        )


class OwnCast(nn.Conv2d):
    """A convolution that casts its weights."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        return F.conv2d(x.float(), self.weight.float(), self.bias.float(), padding=1)


class OwnConvolution(_Body):
    """Has a convolution of its own class that casts."""

    def __init__(self) -> None:
        """Build it."""
        super().__init__()
        self.conv = OwnCast(8, 8, 3, padding=1)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        return self.conv(x)


class Memoises(_Body):
    """Keeps a table for each size that it has seen, in its own type."""

    def __init__(self) -> None:
        """Begin without one."""
        super().__init__()
        self.tables = {}

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Look up, and add."""
        key = (x.shape[-1], x.dtype, x.device)
        if key not in self.tables:
            self.tables[key] = torch.linspace(0, 1, x.shape[-1], dtype=x.dtype, device=x.device)
        return x + self.tables[key]


class RelativeBias(_Body):
    """Looks up a bias of relative places, from a table of weights."""

    def __init__(self) -> None:
        """Make the table."""
        super().__init__()
        self.table = nn.Parameter(torch.randn(31) / 3)
        self.embedding = nn.Embedding(16, 8)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Attend along the rows."""
        rows, steps = x.mean(3).transpose(1, 2), torch.arange(x.shape[2])
        rows = rows + self.embedding(steps % 16)
        bias = self.table[(steps[:, None] - steps[None]).clamp(-15, 15) + 15]
        scores = torch.baddbmm(bias.expand(len(x), -1, -1), rows, rows.transpose(1, 2))
        return (scores.softmax(-1) @ rows).transpose(1, 2)[..., None]


class Distances(_Body):
    """Assigns pixels to centres softly, by distance."""

    def __init__(self) -> None:
        """Make the centres."""
        super().__init__()
        self.centres = nn.Parameter(torch.randn(4, 8))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Assign."""
        flat = x.flatten(2).transpose(1, 2).contiguous()
        near = torch.softmax(-torch.cdist(flat, self.centres.expand(len(x), -1, -1)), -1)
        penalty = torch.linspace(1, 2, 4).expand(len(x), -1)[:, None]
        return ((near * penalty) @ self.centres).transpose(1, 2).view_as(x)


class Attends(_Body):
    """Calls torch's attention with a float mask, and a norm."""

    def __init__(self) -> None:
        """Build them."""
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        flat = self.norm(x.flatten(2).transpose(1, 2).float())
        mask = nn.Transformer.generate_square_subsequent_mask(flat.shape[1])
        return self.attention(flat, flat, flat, attn_mask=mask)[0].transpose(1, 2).view_as(x)


class Upcasts(_Body):
    """Computes a sum in float64 and returns to its type."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Sum."""
        total = x.double().cumsum(-1).to(x.dtype)
        return total + x.sum((2, 3), keepdim=True, dtype=torch.float64).float()


class Pools(_Body):
    """Pools by weights of its own, with sizes from the input."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Pool."""
        weights = torch.hann_window(x.shape[-1], periodic=False).to(x)
        pooled = torch.tensordot(x, weights, dims=1) / weights.sum()
        levels = torch.quantile(x.flatten(1), torch.tensor([0.1, 0.9]), dim=1)
        return pooled[..., None] + levels.t().sum(1).view(-1, 1, 1, 1)


class Boxes(_Body):
    """Crops features in boxes that it makes."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Crop."""
        from torchvision.ops import roi_align

        boxes = [torch.tensor([[0.0, 0.0, 7.0, 5.0], [2.0, 1.0, 9.5, 9.0]]) for _ in x]
        return roi_align(x, boxes, 4).view(len(x), 2, 8, 4, 4).mean(1)


class Capsules(_Body):
    """Routes by agreement, with logits that begin at zero."""

    def __init__(self) -> None:
        """Make the weights."""
        super().__init__()
        self.votes = nn.Parameter(torch.randn(4, 8, 8) / 3)

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Route."""
        votes = torch.einsum("bchw,kcd->bkdhw", x, self.votes)
        logits = torch.zeros(len(x), 4, 1, *x.shape[2:], device=x.device)
        for _ in range(2):
            found = (logits.softmax(1) * votes).sum(1, keepdim=True)
            logits = logits + (votes * found).sum(2, keepdim=True)
        return found[:, 0]


class DeclaresDefault(_Body):
    """Asks for the default type of tensors."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Ask."""
        return x.to(torch.get_default_dtype()) + torch.ones(1, dtype=torch.get_default_dtype())


class MixedHead(_Body):
    """Switches mixed precision on for its last layer alone."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run a pass."""
        x = self.stem(x).mean((2, 3))
        with torch.autocast(x.device.type, torch.bfloat16):
            return self.head(x)


class Rounds(_Body):
    """Stores what is in between in half precision."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Round, and return to its type."""
        return x.half().to(x.dtype)


class ReducedProducts(_Body):
    """Multiplies matrices in a reduced type."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply."""
        flat = x.flatten(2).to(torch.bfloat16)
        return ((flat @ flat.mT).float().softmax(-1) @ x.flatten(2)).view_as(x)


class Seeds(_Body):
    """Seeds the noise and the layer that it makes in each pass."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Draw, and convolve."""
        with torch.random.fork_rng():
            torch.manual_seed(5)
            mixed = nn.Conv2d(8, 8, 1, device=x.device, dtype=x.dtype)(x)
            return mixed + torch.randn_like(x) + torch.rand_like(x, dtype=torch.float32)


@torch.library.custom_op("idioms::halve", mutates_args=())
def halve(x: torch.Tensor) -> torch.Tensor:
    """Halve float32 numbers, as a kernel for these alone does."""
    if x.dtype != torch.float32:
        raise TypeError(f"halve is for float32, not {x.dtype}")
    return x / 2


@halve.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Guards(_Body):
    """Calls a kernel of its own for float32, and operators for other types."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Halve."""
        return torch.ops.idioms.halve(x) if x.dtype == torch.float32 else x / 2


class WeightNormalised(_Body):
    """Computes a layer's weights from others, by hooks and parametrizations."""

    def __init__(self) -> None:
        """Build the layers."""
        super().__init__()
        self.conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 1))
        self.other = nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 1)).eval()

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Convolve."""
        return self.other(self.conv(x).float())


class Scripted(_Body):
    """Has a part in TorchScript, with a buffer, beside code that casts."""

    def __init__(self) -> None:
        """Build the part."""
        super().__init__()
        self.part = torch.jit.script(nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8)))

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Run it."""
        return self.part(x.float()) + torch.linspace(0, 1, x.shape[-1])


class InverseRoot(_Body):
    """Reads the bits of float32 numbers."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Guess 1 / sqrt(x) by its exponent, and correct the guess."""
        x = x.abs() + 1
        guess = (0x5F3759DF - (x.view(torch.int32) >> 1)).view(torch.float32)
        return guess * (1.5 - 0.5 * x * guess * guess)


class KernelForFloats(_Body):
    """Calls its kernel for float32, whatever its type."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Halve."""
        return torch.ops.idioms.halve(x)


class Randomised(_Body):
    """Draws other numbers in each pass."""

    def body(self, x: torch.Tensor) -> torch.Tensor:
        """Draw."""
        return x + torch.randn_like(x)
