"""Work and shares of peak."""

from __future__ import annotations

import io

import pandas as pd
import pytest
import torch
from torch import nn

import tinynets
from hpcsweep.catalog import columns
from hpcsweep.measure import work
from hpcsweep.measure.machine.rig import Device
from hpcsweep.measure.shape_pass import shape_pass
from measuring import CPU, point

H200 = Device(torch.device("cuda", 0), "NVIDIA H200", None, 132)
HOST = Device(CPU, "some processor")


def test_a_pass_beyond_the_peak_is_no_time_of_it():
    """Nor that of one of its layers; a processor has no peak here."""
    found = shape_pass(tinynets.Functional().eval(), torch.zeros(2, 3, 512, 512))
    axes = point().axes
    layer = {**work.call_cells(found.calls[0]).filled(), "median_ms": 1.0}
    assert not work.is_impossible(1.0, [layer], found, axes, H200)
    assert work.is_impossible(1e-4, [layer], found, axes, H200)
    assert work.is_impossible(1.0, [{**layer, "median_ms": 1e-5}], found, axes, H200)
    assert not work.is_impossible(1e-4, [layer], found, axes, HOST)


def test_what_runs_between_layers_moves_bytes_too():
    """A functional convolution reads its input and filters, and writes its output."""
    found = shape_pass(tinynets.Functional().eval(), torch.zeros(2, 3, 16, 16))
    (conv,) = found.calls
    image = 4 * 2 * 4 * 16 * 16
    assert found.bytes_min == conv.bytes_min + 2 * image + 4 * (4 * 4 * 3 * 3)


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
def test_the_bytes_of_layers_that_nobody_sees_are_unknown():
    """So the intensity and the shares of the bandwidth are empty, and not too high and too low."""
    net = torch.jit.trace(tinynets.Residual().eval(), torch.zeros(1, 3, 16, 16))
    found = shape_pass(net, torch.zeros(1, 3, 16, 16))
    cells = work.amount_cells(net, found) | work.rate_cells(found, 2.0, point().axes, H200)
    assert cells.flops > 0
    assert cells.pct_peak_compute > 0
    assert cells.bytes_min is None
    assert cells.arith_intensity is None
    assert cells.achieved_gbs is None
    assert cells.pct_peak_bw is None


@pytest.mark.parametrize(
    ("settings", "size"),
    [
        ({"padding": 1, "padding_mode": "circular"}, 18),
        ({"padding": "same", "kernel_size": 4}, 19),
        ({"padding": 1}, 16),
    ],
)
def test_size_and_padding_of_a_convolution_are_of_one_call(settings, size):
    """What a module pads itself is part of the input that the convolution reads."""
    net = nn.Conv2d(3, 4, **{"kernel_size": 3, **settings}).eval()
    cells = work.call_cells(shape_pass(net, torch.zeros(1, 3, 16, 16)).calls[0])
    assert (cells.in_h, cells.in_w) == (size, size)
    down = cells.in_h + 2 * cells.pad_h - cells.kernel_h
    across = cells.in_w + 2 * cells.pad_w - cells.kernel_w
    assert cells.out_h == down // cells.stride_h + 1
    assert cells.out_w == across // cells.stride_w + 1


def test_rates_come_from_the_median():
    """Half the time, twice the rate; multiply-adds are half of the operations."""
    net = nn.Conv2d(3, 8, 3).eval()
    shapes = shape_pass(net, torch.zeros(1, 3, 16, 16))
    cells = work.amount_cells(net, shapes) | work.rate_cells(shapes, 2.0, point().axes, HOST)
    faster = work.rate_cells(shapes, 1.0, point().axes, HOST)
    assert faster.achieved_tflops == pytest.approx(2 * cells.achieved_tflops)
    assert cells.achieved_tflops == pytest.approx(shapes.flops / 2e-3 / 1e12)
    assert cells.macs * 2 == cells.flops == 2 * 8 * 14 * 14 * 27
    assert cells.arith_intensity == pytest.approx(cells.flops / cells.bytes_min)
    assert cells.bytes_min == 4 * (3 * 256 + (8 * 27 + 8) + 8 * 196)
    assert cells.pct_peak_compute is None  # of a processor no dense peak is known


def test_shares_of_peak_follow_dtype_and_tf32():
    """The same rate is a smaller share of the tensor cores' peak than of float32's."""
    shapes = shape_pass(nn.Conv2d(3, 8, 3).eval(), torch.zeros(1, 3, 16, 16))
    shares = [
        work.rate_cells(shapes, 2.0, point(**axes).axes, H200).pct_peak_compute
        for axes in ({}, {"tf32": True}, {"dtype": "float16"})
    ]
    assert shares[0] > shares[1] > shares[2] > 0
    for axes in ({"tf32": True}, {"dtype": "float16"}):
        by_fma = work.rate_cells(shapes, 2.0, point(**axes).axes, H200, tensor_cores=False)
        assert by_fma.pct_peak_compute == shares[0]
    cells = work.rate_cells(shapes, 2.0, point().axes, H200)
    assert cells.pct_peak_bw == pytest.approx(100 * cells.achieved_gbs / 4800)
    assert cells.peak_source == "H200 SXM"


def test_the_cells_of_a_convolution_are_its_geometry():
    """Numbers for machines, and the predecessor's short forms: one number where sides agree."""
    net = nn.Conv2d(3, 6, (3, 5), stride=2, padding=(1, 2), groups=3, bias=False)
    (call,) = shape_pass(net.eval(), torch.zeros(2, 3, 20, 20)).calls
    cells = work.call_cells(call)
    assert cells.op == "conv2d"
    assert (cells.kernel_size, cells.stride, cells.padding) == ("3x5", "2", "1x2")
    assert (cells.in_channels, cells.in_h, cells.out_channels, cells.out_w) == (
        3,
        20,
        6,
        10,
    )
    assert (cells.groups, cells.bias) == (3, False)
    assert call.flops == 2 * (2 * 6 * 10 * 10) * 3 * 5


@pytest.mark.parametrize(("kernel", "squares"), [((7, 7), [49.0]), ((1, 7), None)])
def test_a_script_that_computes_with_kernel_size_needs_square_kernels(kernel, squares):
    """As the reference says of the predecessor's scripts; `kernel_h` and `kernel_w` always do."""
    net = nn.Sequential(nn.Conv2d(3, 6, kernel), nn.ReLU()).eval()
    names = ("kernel_size", "kernel_h", "kernel_w")
    rows = [work.call_cells(call) for call in shape_pass(net, torch.zeros(1, 3, 16, 16)).calls]
    lines = [",".join(columns.cells(row.filled(), names)) for row in rows]
    table = pd.read_csv(io.StringIO("\n".join([",".join(names), *lines])))
    assert (table["kernel_h"] * table["kernel_w"]).dropna().tolist() == [kernel[0] * kernel[1]]
    if squares:
        assert (table["kernel_size"] ** 2).dropna().tolist() == squares
    else:
        with pytest.raises(TypeError):
            table["kernel_size"] ** 2
