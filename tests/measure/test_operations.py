"""What is counted of a pass: every operator that convolves, and no operation more than once."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch.utils.flop_counter import FlopCounterMode

import tinynets
from benchmarks import odd_zoo
from hpcsweep.conv import backend as backends
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.network import choose_algorithms
from hpcsweep.measure.operations import OperationCounter, kind_of
from hpcsweep.measure.shape_pass import shape_pass
from localruns import COMMAND
from measuring import cells_of, lying, point, policy

pytestmark = pytest.mark.filterwarnings("ignore:.*:FutureWarning", "ignore:.*:DeprecationWarning")
BODY = 2 * 16 * 16 * 8 * 8 * 9  # a convolution of the middle of an odd network, for 16 pixels
STEM = 2 * 16 * 16 * 3 * 8 * 9


def counted(run):
    """Return what is noted of a function's operators."""
    with torch.no_grad(), OperationCounter() as found:
        run()
    return found


def shapes_of(factory):
    """Return the shapes of a pass of an odd network."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return shape_pass(factory().eval(), torch.rand(1, 3, 16, 16))


def coverage_of(factory, algorithm="gemm"):
    """Return the cells about convolutions of an odd network that runs an algorithm."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = factory().eval()
    shapes = shape_pass(model, torch.rand(1, 3, 16, 16))
    choices = choose_algorithms(
        model, shapes, algorithm, policy("fallback"), backends.choose("cpu")
    )
    return cells_of(algorithm, shapes, choices)


@pytest.mark.parametrize("network", ["Residual", "OtherKinds", "Borrowing", "Biased"])
def test_a_real_pass_counts_what_torch_counts(network):
    """Convolutions of any kind, linear layers and products, to the integer."""
    model, image = getattr(tinynets, network)().eval(), torch.rand(2, 3, 16, 16)
    image = image[:, :, :4, :4] if network == "Biased" else image
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image)
    assert counted(lambda: model(image)).flops == counter.get_total_flops()


@pytest.mark.parametrize(
    ("operator", "convolves"),
    [
        ("aten::convolution", True),
        ("aten::_slow_conv2d_forward", True),
        ("aten::mkldnn_convolution", True),
        ("aten::cudnn_convolution_add_relu", True),
        ("aten::miopen_depthwise_convolution", True),
        ("aten::conv_tbc", True),
        ("mkldnn::_convolution_pointwise", True),
        ("quantized::conv2d_relu", True),
        ("quantized::conv_transpose3d", True),
        ("onednn::qconv2d_pointwise", True),
        ("odd::pair_conv", True),
        ("quantized::conv2d_prepack", False),
        ("quantized::conv2d_unpack_sizes", False),
        ("mkldnn::_reorder_convolution_weight", False),
        ("aten::convolution_backward", False),
        ("aten::_convert_weight_to_int4pack", False),
        ("odd::convex_hull", False),
        ("aten::relu", False),
    ],
)
def test_a_convolution_is_known_by_its_operators_name(operator, convolves):
    """Also one of another library, or of nobody here; preparing filters is no work."""

    class Named:
        class _schema:  # noqa: N801 - as torch has it
            name = operator

    assert bool(kind_of(Named)[1]) == convolves


def test_convolutions_below_torchs_own_layers_count_by_their_filters():
    """Called as no layer calls them, with other arguments: in older counters that is an error."""
    x, filters = torch.rand(2, 3, 9, 9), torch.rand(4, 3, 3, 3)
    found = counted(
        lambda: torch.ops.aten._slow_conv2d_forward(x, filters, [3, 3], None, [1, 1], [0, 0])
    )
    (one,) = found.convolutions
    assert (one.operator, one.flops) == ("aten::_slow_conv2d_forward", 2 * 2 * 7 * 7 * 4 * 3 * 9)
    found = counted(lambda: F.conv_transpose2d(x, torch.rand(3, 4, 3, 3)))
    assert [(c.operator, c.flops) for c in found.convolutions] == [
        ("conv_transpose2d", 2 * 2 * 9 * 9 * 3 * 4 * 9)
    ]
    (unknown,) = counted(
        lambda: torch.ops.aten.conv_tbc(torch.rand(9, 2, 3), torch.rand(3, 3, 4), torch.rand(4))
    ).convolutions
    assert (unknown.counted, unknown.flops) == (False, 0)


@pytest.mark.filterwarnings("ignore")  # torch's own, of quantization
def test_products_of_whole_numbers_count():
    """Of packed weights, and of torch's operator on int8."""
    linear = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(32, 8)), {nn.Linear})
    assert counted(lambda: linear(torch.rand(3, 32))).flops == 2 * 3 * 32 * 8
    left, right = torch.ones(32, 64, dtype=torch.int8), torch.ones(64, 16, dtype=torch.int8)
    assert counted(lambda: torch._int_mm(left, right)).flops == 2 * 32 * 64 * 16


@pytest.mark.parametrize(
    ("factory", "operators"),
    [
        (odd_zoo.Quantized, {"conv2d": STEM + BODY, "quantized::conv2d": 4 * BODY}),
        (
            odd_zoo.Deformed,
            {
                "conv2d": STEM + 2 * 16 * 16 * 8 * 18 * 9,
                "torchvision::deform_conv2d": 2 * 14 * 14 * 8 * 8 * 9,
            },
        ),
        (odd_zoo.in_mkldnn, {"conv2d": STEM + BODY, "aten::mkldnn_convolution": 2 * BODY}),
        (odd_zoo.scripted, {"conv2d": STEM + 3 * BODY}),
        (odd_zoo.traced, {"conv2d": STEM + 3 * BODY}),
        (odd_zoo.all_compiled, {"conv2d": STEM + 3 * BODY}),
        (odd_zoo.Direct, {"conv2d": STEM + 2 * BODY}),
        (odd_zoo.Vectorised, {"conv2d": STEM + BODY}),
        (odd_zoo.Hooked, {"conv2d": STEM + 2 * BODY}),
        (odd_zoo.Custom, {"conv2d": STEM + BODY, "odd::pair_conv": 0}),
        (odd_zoo.frozen, {"conv2d": STEM + BODY, "prim::mkldnn_convolution": 0}),
    ],
)
def test_every_convolution_that_runs_is_counted_once(factory, operators):
    """Whoever calls it, in whatever kind of module; unknown work is none, and is told."""
    shapes = shapes_of(factory)
    found = [one for call in shapes.convolution_calls for one in call.convolutions]
    found += shapes.outside
    sums = {one.operator: 0 for one in found}
    for one in found:
        sums[one.operator] += one.flops
    assert sums == operators
    assert shapes.convolution_flops == sum(operators.values())


@pytest.mark.parametrize(
    ("factory", "plain"),
    [
        (odd_zoo.Quantized, (STEM + BODY) / (STEM + 5 * BODY)),
        (odd_zoo.in_mkldnn, (STEM + BODY) / (STEM + 3 * BODY)),
        (odd_zoo.scripted, (STEM + BODY) / (STEM + 3 * BODY)),
        (odd_zoo.compiled_part, (STEM + BODY) / (STEM + 3 * BODY)),
        (odd_zoo.part_compiled, (STEM + BODY) / (STEM + 3 * BODY)),
        (odd_zoo.compiled_function, 0),
        (odd_zoo.all_scripted, 0),
        (odd_zoo.Direct, 1),
        (odd_zoo.Unbatched, 1),
        (odd_zoo.Aliased, 1),
        (odd_zoo.Vectorised, STEM / (STEM + BODY)),
        (odd_zoo.Custom, 0),
        (odd_zoo.frozen, 0),
    ],
)
def test_coverage_is_the_share_of_the_work_that_ran_the_algorithm(factory, plain):
    """Never more than that: of unknown work nothing is known but that it is there."""
    cells = coverage_of(factory)
    assert cells["algorithm_coverage_pct"] == pytest.approx(100 * plain)
    assert (cells["algorithm_uncovered"] is None) == (plain == 1)
    assert coverage_of(factory, "auto")["algorithm_coverage_pct"] == 100


def test_the_row_says_in_what_kind_of_part_convolutions_were_left_alone():
    """The reason names it, and unknown work comes first among what is uncovered."""
    assert coverage_of(odd_zoo.scripted)["fallback_reason"] == "conv2d in a TorchScript module"
    assert coverage_of(odd_zoo.compiled_part)["fallback_reason"] == "conv2d in a compiled module"
    assert coverage_of(odd_zoo.Custom)["algorithm_uncovered"] == "unknown share odd::pair_conv"


@pytest.mark.parametrize("layers", [True, False])
def test_a_layer_whose_evidence_contradicts_is_not_covered(monkeypatch, layers):
    """By work and by time: what it claims to run is not what ran."""
    lying(monkeypatch, "gemm", lambda x, filters, _shape: F.conv2d(x, filters, padding=1))
    wanted = {"iterations": 2, "layers": layers, "numerics": False}
    row = on_device("inference", "cpu").measure(point(algorithm="gemm", measure=wanted)).row
    assert "algorithm_mismatch" in row["flags"]
    assert row["algorithm_coverage_pct"] == 0
    assert row["algorithm_coverage_time_pct"] == (0 if layers else None)


@pytest.mark.parametrize("name", ["scripted", "part_compiled", "Vectorised"])
def test_a_part_that_nobody_enters_is_measured_from_outside(name):
    """Nothing in it is timed or proved as a layer, nothing is compiled for what we put there."""
    wanted = {"iterations": 2, "warmup": 1, "energy": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = on_device("inference", "cpu").measure(
            point(f"benchmarks.odd_zoo:{name}", algorithm="gemm", input_size=16, measure=wanted)
        )
    row, layers = done.row, [layer["layer"] for layer in done.layers]
    assert (row["call_rel_error"] or 0) < 1e-6
    assert not any(layer.startswith(("part.", "_orig_mod.")) for layer in layers)
    assert "algorithm_mismatch" not in row["flags"]
    assert ("part" in layers) == (name == "scripted")
    assert {"uncovered", "fallback"} <= set(row["flags"].split(";"))


def test_a_layer_that_a_compiled_part_has_too_is_left_to_it():
    """To swap it would change what was compiled."""
    model = odd_zoo.compiled_alias().eval()
    shapes = shape_pass(model, torch.rand(1, 3, 16, 16))
    choose_algorithms(model, shapes, "gemm", policy("fallback"), backends.choose("cpu"))
    assert type(model.part[0]) is nn.Conv2d
    assert [layer for layer, _ in shapes.convolutions] == ["stem.0", "plain"]


PRODUCTS = {
    "matrix and vector": (lambda: torch.rand(3, 4) @ torch.rand(4), 12),
    "vector and matrix": (lambda: torch.rand(4) @ torch.rand(4, 3), 12),
    "added to a vector": (
        lambda: torch.addmv(torch.rand(3), torch.rand(3, 4), torch.rand(4), beta=2),
        12,
    ),
    "linear layer with one output": (lambda: F.linear(torch.rand(2, 4), torch.rand(4)), 8),
    "vectors": (lambda: torch.rand(4) @ torch.rand(4), 4),
    "complex vectors": (lambda: torch.vdot(torch.rand(4) + 0j, torch.rand(4) + 0j), 4),
    "batches that are added up": (
        lambda: torch.addbmm(torch.rand(2, 5), torch.rand(3, 2, 4), torch.rand(3, 4, 5)),
        120,
    ),
    "bilinear form": (lambda: nn.Bilinear(3, 4, 5)(torch.rand(2, 3), torch.rand(2, 4)), 120),
    "sum of products": (lambda: torch.einsum("ij,j->i", torch.rand(3, 4), torch.rand(4)), 12),
}


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_that_torch_does_not_count_are_counted(name, device):
    """As many multiply-adds as the same product of matrices has, wherever it runs."""
    run, products = PRODUCTS[name]
    with torch.device(device):
        assert counted(run).flops == 2 * products


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_a_library_count_as_their_products(layer):
    """One operator of oneDNN on a CPU is as much work as its products on the meta device."""
    net, x = layer(4, 5, num_layers=2, bidirectional=True, batch_first=True), torch.rand(2, 7, 4)
    found = counted(lambda: net(x)).flops
    assert found == counted(lambda: net.to("meta")(x.to("meta"))).flops
    gates = {nn.LSTM: 4, nn.GRU: 3, nn.RNN: 1}[layer]
    assert found == 2 * 14 * gates * 5 * 2 * ((4 + 5) + (10 + 5))


NETS = """\
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
    def forward(self, x):
        return self.conv(x)

class Copies(Plain):
    def forward(self, x):
        return self.conv(x) * torch.tensor([2.0]).to(x.device)

class Reads(Plain):
    def forward(self, x):
        y = self.conv(x)
        return y if y.is_meta else y * y.sum().item()

class Branches(Plain):
    def forward(self, x):
        y = self.conv(x)
        return y if y.is_meta or y.sum() > -1 else -y

class Refuses(Plain):
    aside = 0  # passes on other streams: three before the capture
    def forward(self, x):
        if x.is_cuda and torch.cuda.current_stream() != torch.cuda.default_stream():
            self.aside += 1
            if self.aside > 3:
                raise RuntimeError("no graph of me, please")
        return self.conv(x)
"""
SWEEP = """\
workload: inference
axes:
  model: ["nets:Copies", "nets:Reads", "nets:Branches", "nets:Refuses", "nets:Plain"]
  input_size: [32]
  launch: [graph]
measure: {warmup: 1, iterations: 3, layers: false, numerics: false}
"""
WHY = {
    "nets:Copies": "aten::to synchronizes (data goes between host and GPU)",
    "nets:Reads": "aten::item synchronizes",
    "nets:Branches": "aten::is_nonzero synchronizes (a branch asks for a value)",
    "nets:Refuses": "RuntimeError: no graph of me, please",
}
LINES = {"nets:Copies": 13, "nets:Reads": 18, "nets:Branches": 23, "nets:Refuses": 31}


def test_a_network_that_no_graph_can_hold_is_unsupported_and_says_why(pretend_gpu, desk):
    """It names the operator and the line; a network after it is measured."""
    desk.spec(SWEEP)
    (desk.folder / "nets.py").write_text(NETS)
    command = (*COMMAND, "submit", "sweep.yaml", "--cluster", "local")
    done = pretend_gpu.run(*command, cwd=desk.folder, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["model"]: row for row in desk.rows()}
    plain = rows.pop("nets:Plain")
    assert (plain["status"], plain["status_reason"]) == ("ok", "")
    assert len(rows) == 4
    for model, row in rows.items():
        line = f"{(desk.folder / 'nets.py').resolve()}:{LINES[model]}"
        assert row["status"] == "unsupported"
        assert row["status_reason"] == (
            f"the network cannot be captured as a CUDA graph: {WHY[model]}, {line}; "
            "take `launch: eager`"
        )
