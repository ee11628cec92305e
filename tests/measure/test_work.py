"""Work and shares of peak."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from hpcsweep.measure import work
from hpcsweep.measure.machine.provenance import Device
from hpcsweep.measure.shape_pass import shape_pass
from measuring import CPU, point

H200 = Device(torch.device("cuda", 0), "NVIDIA H200", None, 132)
HOST = Device(CPU, "some processor")


@pytest.mark.parametrize(
    ("module", "shape"),
    [
        (nn.Conv2d(6, 8, (3, 5), stride=2, padding=1, groups=2), (2, 6, 12, 13)),
        (nn.Conv1d(4, 8, 3), (1, 4, 20)),
        (nn.Conv3d(2, 2, 3, groups=2), (1, 2, 5, 6, 7)),
        (nn.Linear(7, 3), (5, 7)),
        (nn.Linear(7, 3), (2, 5, 7)),
    ],
)
def test_formulas_agree_with_the_counter(module, shape):
    """Convolutions in 1, 2 and 3 dimensions and linear layers: the counter's number."""
    x = torch.zeros(shape)
    with FlopCounterMode(display=False) as counter:
        y = module(x)
    sizes = (tuple(x.shape),), (tuple(y.shape),)
    assert work.analytic_flops(module, *sizes) == counter.get_total_flops()


def test_other_modules_have_no_formula():
    """Normalisation and activation count nothing by this convention."""
    assert work.analytic_flops(nn.ReLU(), ((1, 3),), ((1, 3),)) is None


def test_rates_come_from_the_median():
    """Half the time, twice the rate; multiply-adds are half of the operations."""
    shapes = shape_pass(nn.Conv2d(3, 8, 3).eval(), torch.zeros(1, 3, 16, 16))
    cells = work.cells(shapes, 10, 2.0, point().axes, HOST)
    faster = work.cells(shapes, 10, 1.0, point().axes, HOST)
    assert faster["achieved_tflops"] == pytest.approx(2 * cells["achieved_tflops"])
    assert cells["achieved_tflops"] == pytest.approx(shapes.flops / 2e-3 / 1e12)
    assert cells["macs"] * 2 == cells["flops"] == 2 * 8 * 14 * 14 * 27
    assert cells["arith_intensity"] == pytest.approx(cells["flops"] / cells["bytes_min"])
    assert cells["bytes_min"] == 4 * (3 * 256 + (8 * 27 + 8) + 8 * 196)


def test_a_processor_has_no_entry_in_the_peak_table():
    """Shares of peak stay empty where no dense peak is known."""
    shapes = shape_pass(nn.Conv2d(3, 8, 3).eval(), torch.zeros(1, 3, 16, 16))
    assert "pct_peak_compute" not in work.cells(shapes, 10, 2.0, point().axes, HOST)


def test_shares_of_peak_follow_dtype_and_tf32():
    """The same rate is a smaller share of the tensor cores' peak than of float32's."""
    shapes = shape_pass(nn.Conv2d(3, 8, 3).eval(), torch.zeros(1, 3, 16, 16))
    shares = [
        work.cells(shapes, 10, 2.0, point(**axes).axes, H200)["pct_peak_compute"]
        for axes in ({}, {"tf32": True}, {"dtype": "float16"})
    ]
    assert shares[0] > shares[1] > shares[2] > 0
    cells = work.cells(shapes, 10, 2.0, point().axes, H200)
    assert cells["pct_peak_bw"] == pytest.approx(100 * cells["achieved_gbs"] / 4800)
    assert cells["peak_source"] == "H200 SXM"
