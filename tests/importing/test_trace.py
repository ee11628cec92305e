"""Traces of PyTorch's profiler: convolution calls with the time of their kernels."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter

import pytest

from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import importer, trace
from localruns import Desk
from paths import FACTS

REAL = FACTS / "traces"
V100 = "NVIDIA V100-SXM2-32GB"
DIMS = [[2, 3, 8, 8], [4, 3, 3, 3], [4]]
SIZES = ["[1, 1]", "[1, 1]", "[1, 1]"]
FULL = {
    "Input Dims": [*DIMS, [], [], [], []],
    "Input type": ["float"] * 3 + ["ScalarList"] * 4,
    "Concrete Inputs": ["", "", "", *SIZES, "1"],
}
LIBRARY = {
    "Input Dims": [*DIMS[:2], [], [], [], []],
    "Input type": ["float"] * 2 + ["ScalarList"] * 4,
    "Concrete Inputs": ["", "", *SIZES, "1"],
}
BACK = {
    "Input Dims": [[2, 4, 8, 8], *DIMS[:2], [], [], [], [], [], [], [], []],
    "Input type": ["float"] * 3,
    "Concrete Inputs": ["", "", "", "[4]", *SIZES, "False", "[0, 0]", "1", "[False, True, True]"],
}
KEY = "conv2d_n2_c3_8x8_k4_3x3_s1x1_p1x1_d1x1_g1_bias_float32"
IMPLICIT = "void implicit_convolve_sgemm<float, 128, 5>(int, float const*)"
ADD = "void at::native::vectorized_elementwise_kernel<4, AddFunctor>(int)"


class Writing:
    """Events of a trace, in the profiler's form."""

    def __init__(self):
        self.events, self.launches = [{"ph": "M", "name": "process_name"}, "odd", None], 0

    def event(self, kind, name, at, took, args=None, *, tid=1):
        """Add a complete event; times are microseconds."""
        self.events.append(
            {"ph": "X", "cat": kind, "name": name, "pid": 1, "tid": tid, "ts": at, "dur": took,
             "args": args or {}}
        )  # fmt: skip

    def launch(self, kernel, at, took, tid=1):
        """Launch a kernel, which runs much later."""
        self.launches += 1
        self.event(
            "cuda_runtime", "cudaLaunchKernel", at, 1, {"correlation": self.launches}, tid=tid
        )
        self.event("kernel", kernel, at + 10_000, took, {"correlation": self.launches, "device": 1})

    def conv(self, at, kernels=(IMPLICIT,), outer=None, inner=None, sequence=None):
        """Call a convolution, which takes 100 us of the host, with a bias that is added apart."""
        outer, inner = (outer or {}) | {"Sequence number": sequence}, inner or {}
        self.event("cpu_op", "aten::conv2d", at, 100, outer)
        self.event("cpu_op", "aten::convolution", at + 1, 98, {})
        self.event("cpu_op", "aten::cudnn_convolution", at + 2, 50, inner)
        for number, kernel in enumerate(kernels):
            self.launch(kernel, at + 10 + number, 500)
        self.launch(ADD, at + 70, 7)

    def write(self, path, head=None, events=None):
        """Write a trace; packed if its name says so."""
        devices = [{"id": 0, "name": V100}, {"id": 1, "name": V100}]
        whole = {"deviceProperties": devices, **(head or {}), "traceEvents": events or self.events}
        content = json.dumps(whole).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
        return path


@pytest.fixture
def writing():
    """Return events to add to."""
    return Writing()


def rows_of(tmp_path, path, **options):
    """Import a trace; return its layer rows and the notes."""
    found = importer.bring(tmp_path / "results", path, **options)
    table = next((found.sweep_dir.path / "shards").rglob("*layers*.csv"))
    with table.open() as file:
        return list(csv.DictReader(file)), found


@pytest.mark.parametrize("name", ["a.json", "a.pt.trace.json.gz"])
def test_a_call_has_the_time_of_its_own_kernels(tmp_path, writing, name):
    """With that which adds the bias; not of launches on another thread at that time."""
    writing.conv(1000, [IMPLICIT, IMPLICIT], FULL, LIBRARY)
    writing.launch(IMPLICIT, 1010, 9999, tid=2)
    rows, found = rows_of(tmp_path, writing.write(tmp_path / name))
    assert found.sweep_dir.name == "a"
    assert len(rows) == 1
    expected = {
        **dict.fromkeys(("kernel_ms", "mean_ms", "median_ms"), "1.007"), "unique_key": KEY,
        "gpu": "v100",
        "algorithm": "auto", "algorithm_used": "implicit_gemm", "backend": "cudnn",
        "direction": "forward", "flops": str(2 * 2 * 64 * 4 * 27), "out_h": "8", "bias": "true",
        "layer_timer": "kernels", "percentage": "100", "stride": "1", "padding": "1",
    }  # fmt: skip
    assert {cell: rows[0][cell] for cell in expected} == expected
    assert rows[0]["algorithm_evidence"].startswith("profiler: recognised by implicit_convolve")


def test_a_kernel_without_a_launch_is_nobodys(tmp_path, writing):
    """A profiler that recorded no runtime calls does not tell whose a kernel is: it is counted."""
    writing.conv(1000, (), FULL, {**LIBRARY, "External id": 7})
    for number in (7, 10):
        writing.event("kernel", IMPLICIT, 5000, 9, {"correlation": 99, "External id": number})
    rows, found = rows_of(tmp_path, writing.write(tmp_path / "a.json"))
    assert [row["kernel_ms"] for row in rows] == ["0.007"]
    assert any("left out: 2 events of kernels that no convolution" in note for note in found.notes)


def test_an_operator_inside_another_of_its_name_is_the_same_call(tmp_path, writing):
    """PyTorch 1.7 calls `cudnn_convolution` twice; the inner one launches."""
    args = {"Input Dims": LIBRARY["Input Dims"], "Input type": LIBRARY["Input type"]}
    for at, name in enumerate(("conv2d", "_convolution", "cudnn_convolution", "cudnn_convolution")):
        writing.event("Operator", f"aten::{name}", 100 + at, 100 - 2 * at, args)
    writing.launch(IMPLICIT, 120, 637)
    rows, found = rows_of(tmp_path, writing.write(tmp_path / "a.json"))
    assert [row["kernel_ms"] for row in rows] == ["0.637"]
    assert rows[0]["algorithm_evidence"].startswith("profiler: recognised")
    left = [note for note in found.notes if "left out" in note]
    assert left == ["left out: 3 events of other kinds"]


@pytest.mark.parametrize("library", ["cudnn", "miopen"])
def test_a_bias_is_part_of_the_call_whatever_the_library(tmp_path, writing, library):
    """One adds it in its own operator, the other in one around it; it tells no algorithm."""
    writing.event("cpu_op", "aten::conv2d", 0, 100)
    writing.event("cpu_op", "aten::_convolution", 1, 98)
    writing.event("cpu_op", f"aten::{library}_convolution", 2, 60 if library == "cudnn" else 96)
    writing.launch("nchwToNhwcKernel<float>", 5, 3)
    writing.launch(IMPLICIT, 10, 1000)
    writing.event("gpu_memset", "Memset (Device)", 11, 99, {"correlation": 1})
    writing.launch(ADD, 90, 187)
    rows, _ = rows_of(tmp_path, writing.write(tmp_path / "a.json"))
    assert [row["kernel_ms"] for row in rows] == ["1.19"]
    assert rows[0]["algorithm_used"] == "implicit_gemm"


def test_a_kernel_that_took_less_than_nothing_is_none(tmp_path, writing):
    """A clock that was set back makes such events; the call keeps its other kernels."""
    writing.conv(0, (IMPLICIT,), FULL, LIBRARY)
    writing.launch(IMPLICIT, 40, -(10**6))
    rows, _ = rows_of(tmp_path, writing.write(tmp_path / "a.json"))
    assert [row["kernel_ms"] for row in rows] == ["0.507"]


def test_a_kernel_that_ends_at_once_is_flagged(tmp_path, writing):
    """The other calls of its step keep their flags, and their visit."""
    work = {**LIBRARY, "Input Dims": [[2, 3, 8, 8], [4, 3, 3, 3], [], [], [], []]}
    writing.conv(0, (IMPLICIT,), FULL, work)
    writing.event("cpu_op", "aten::cudnn_convolution", 200, 50, work)
    writing.launch(IMPLICIT, 210, 0.001)
    rows, found = rows_of(tmp_path, writing.write(tmp_path / "a.json"))
    assert "1 time of 2 shorter than the GPU can" in " ".join(found.notes)
    assert len({row["point_id"] for row in rows}) == 2


def test_the_traces_of_two_ranks_are_not_told_apart(tmp_path, writing):
    """Both number their launches from one, so a kernel would be anybody's."""
    writing.conv(0)
    events = [{**event, "pid": 2} for event in writing.events if isinstance(event, dict)]
    path = writing.write(tmp_path / "a.json", events=[*writing.events, *events])
    with pytest.raises(UsageError, match=r"a\.json: events of several processes: .* rank alone"):
        importer.bring(tmp_path / "results", path)


def test_kernels_of_a_replayed_graph_are_counted(tmp_path, writing):
    """They name no operator; what was launched one by one is imported."""
    graph = ("cuda_runtime", "cudaGraphLaunch", 5000, 9, {"correlation": 77})
    writing.event("cpu_op", "aten::conv2d", 0, 100)
    writing.event(*graph)
    writing.event("kernel", IMPLICIT, 6000, 9, {"correlation": 77})
    path = writing.write(tmp_path / "a.json")
    told = "1 event of kernels that no convolution launched, such as a replayed graph's"
    with pytest.raises(ResultsError, match=told):
        importer.bring(tmp_path / "results", path)
    writing.conv(200)
    assert f"left out: {told}" in rows_of(tmp_path, writing.write(path))[1].notes


@pytest.mark.parametrize(
    ("names", "device"),
    [
        (["AMD Instinct MI300X VF"], "AMD Instinct MI300X VF"),
        (["NVIDIA T4", "NVIDIA T4"], "NVIDIA T4"),
        (["NVIDIA A100-SXM4-40GB", "NVIDIA T4"], "unknown"),
        (["AMD Instinct MI210", "AMD Instinct MI100"], "unknown"),
        (["NVIDIA T4", None], "unknown"),
        ([None], "unknown"),
        ([], "unknown"),
    ],
)
def test_a_device_is_that_of_all_in_the_list_or_none(names, device):
    """Of two kinds nothing tells which ran: no device beats a wrong one."""
    head = {"deviceProperties": [{"id": at, "name": name} for at, name in enumerate(names)]}
    assert trace._device({**head, "x": 1}) == device


def test_both_gradients_are_one_call_of_their_own_algorithms(tmp_path, writing):
    """Each operator's kernels are recognised apart; only the gradients that ran are work."""
    writing.event("cpu_op", "aten::cudnn_convolution_backward", 0, 100, {
        "Input Dims": [DIMS[0], [2, 4, 8, 8], DIMS[1]], "Input type": ["float"] * 3,
    })  # fmt: skip
    for at, word, kernel in ((10, "input", "dgrad_engine"), (50, "weight", "winogradWgradData")):
        writing.event("cpu_op", f"aten::cudnn_convolution_backward_{word}", at, 20)
        writing.launch(f"void cudnn::{kernel}<float>()", at + 5, 100)
    writing.event("cpu_op", "aten::convolution_backward", 500, 100, BACK)
    writing.launch("void dgrad_engine<float>()", 510, 100)
    rows, _ = rows_of(tmp_path, writing.write(tmp_path / "a.json"))
    assert {row["direction"] for row in rows} == {"backward"}
    assert rows[0]["algorithm_used"] == "implicit_gemm+winograd_nonfused"
    assert rows[1]["unique_key"] == KEY
    work = 2 * 2 * 64 * 4 * 27
    assert [row["flops"] for row in rows] == [str(2 * work), str(work)]
    assert rows[0]["out_h"] == "8"


def test_a_step_is_a_visit(tmp_path, writing):
    """Calls before the first step are in the trace, too; nothing is summed over steps."""
    for at in (100, 1100, 2100, 2300):
        writing.conv(at)
    for number, at in ((4, 1000), (5, 2000)):
        writing.event("user_annotation", f"ProfilerStep#{number}", at, 1000)
        writing.event("gpu_user_annotation", f"ProfilerStep#{number}", at + 9, 1000)
    rows, found = rows_of(tmp_path, writing.write(tmp_path / "a.json"))
    assert [row["layer"] for row in rows] == ["conv2d 0", "conv2d 0", "conv2d 0", "conv2d 1"]
    assert sorted(Counter(row["point_id"] for row in rows).values()) == [1, 1, 2]
    assert "4 calls without recorded shapes of both sides" in found.notes


def test_sizes_without_strides_still_tell_the_work(tmp_path, writing):
    """The gradient that autograd's node takes has the size of the output."""
    old = {"Input Dims": LIBRARY["Input Dims"], "Input type": LIBRARY["Input type"]}
    writing.conv(0, (IMPLICIT,), {}, old, sequence=12)
    writing.conv(200, (IMPLICIT,), {}, old, sequence=13)
    writing.event(
        "cpu_op", "ConvolutionBackward0", 900, 9,
        {"Sequence number": 12, "Input Dims": [[2, 4, 8, 8]]}, tid=3,
    )  # fmt: skip
    writing.event("cpu_op", "ConvolutionBackward0", 950, 9, {"Input Dims": [[2, 4, 8, 8]]})
    writing.conv(400, (IMPLICIT,), {}, old)  # neither has a number
    rows, _ = rows_of(tmp_path, writing.write(tmp_path / "a.json"))
    assert [row["flops"] for row in rows] == [str(2 * 2 * 64 * 4 * 27), "", ""]
    assert [row["out_h"] for row in rows] == ["8", "", ""]
    assert {row["stride_h"] for row in rows} == {""}
    assert all(row["in_channels"] == "3" for row in rows)


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"Concrete Inputs": ["", "", *SIZES, "2"]}, "conv2d_n2_c3_8x8_k4_3x3_g1_float32"),
        ({"Concrete Inputs": ["", "", "same", *SIZES]}, "conv2d_n2_c3_8x8_k4_3x3_g1_float32"),
        ({"Concrete Inputs": ["", "", "[0, 0]", "[0, 0]", "[1, 1]", "1"]},
         "conv2d_n2_c3_8x8_k4_3x3_g1_float32"),
        ({"Input Dims": [[2, 3, 8, 8, 8], [4, 3, 3, 3, 3]]}, ""),
        ({"Input Dims": "odd"}, ""),
        ({"Input type": ["long", "float"]}, "conv2d_n2_c3_8x8_k4_3x3_g1_unknown"),
        ({"Input Strides": [[192, 1, 24, 3], [27, 1, 9, 3]]},
         KEY.replace("bias", "nobias") + "_nhwc"),
    ],
)  # fmt: skip
def test_a_shape_is_whole_or_left_open(tmp_path, writing, change, key):
    """What is not recorded, or does not agree, is never guessed."""
    writing.conv(0, (IMPLICIT,), {}, LIBRARY | change)
    rows, _ = rows_of(tmp_path, writing.write(tmp_path / "a.json"))
    assert rows[0]["unique_key"] == key


def test_what_kernels_do_not_tell_is_said(tmp_path, writing):
    """Both FFTs have the same kernels; a name that nobody knows proves nothing."""
    writing.conv(0, ("void fft2d_r2c_32x32<float, false>()",))
    writing.conv(200, ("my_own_kernel",))
    rows, found = rows_of(tmp_path, writing.write(tmp_path / "a.json"))
    assert [row["algorithm_used"] for row in rows] == ["fft or fft_tiling", "unknown"]
    assert "algorithm compatible 2" in found.notes


def test_a_trace_without_a_device_says_so(tmp_path, writing):
    """And takes the name that is given."""
    writing.conv(0)
    path = writing.write(tmp_path / "a.json", {"deviceProperties": "none"})
    assert (
        "the trace names no device, or several: --device does" in rows_of(tmp_path, path)[1].notes
    )
    rows, _ = rows_of(tmp_path, path, name="b", device="h100")
    assert rows[0]["gpu"] == "h100"


def test_calls_without_kernels_are_counted(tmp_path, writing):
    """The profile ended before they ran."""
    writing.conv(0, (IMPLICIT,), FULL, LIBRARY)
    writing.event("cpu_op", "aten::conv2d", 500, 10)
    writing.event("cpu_op", "aten::conv2d", "soon", 10)
    writing.event("cpu_op", "aten::relu", 600, 10)
    _, found = rows_of(tmp_path, writing.write(tmp_path / "a.json"))
    events = (len(writing.events), len(writing.events) - 6)
    assert found.notes[2:6] == (
        "{} events read: {} taken".format(*events),
        "left out: 4 events of other kinds",
        "left out: 1 event without a time",
        "left out: 1 event of convolutions that launched no kernel",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"traceEvents": []}', "no convolution that launched a kernel"),
        (
            b'[{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2}]',
            "1 event of kernels that no convolution launched",
        ),
        (b'{"traceEvents": [{"ph": "X"', "the file was cut"),
        (b'{"a": 1}', "no profiler trace"),
        (b"not json", "is no JSON"),
    ],
)
def test_a_file_that_is_no_trace_leaves_nothing(tmp_path, content, message):
    """One line, and no sweep that later commands would trip over."""
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises((ResultsError, UsageError), match=message):
        importer.bring(tmp_path / "results", path)
    assert not list((tmp_path / "results").rglob("*.csv"))


@pytest.mark.parametrize(
    ("name", "sweep"),
    [("a.json", "a"), ("w0.123.pt.trace.json.gz", "w0.123"), ("x.trace.JSON", "x")],
)
def test_a_sweep_has_the_name_of_the_trace(tmp_path, name, sweep):
    """Without what all traces have in their names."""
    assert trace.sweep_name(tmp_path / name) == sweep


def test_layers_and_roofline_take_it(tmp_path, writing):
    """They say that nobody here measured it."""
    writing.conv(0, (IMPLICIT,), FULL, LIBRARY)
    desk = Desk(tmp_path)
    writing.write(desk.folder / "a.json.gz")
    assert desk.run("import", "a.json.gz").returncode == 0
    shown = desk.run("layers", "a")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "?  unreliable: foreign" in shown.stdout
    assert "of the kernels of all convolutions" in shown.stdout
    shown = desk.run("roofline", "a")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "V100 SXM2" in shown.stdout


# How often each algorithm ran: typed from the kernels' names, forward.
COUNTED = {
    "v100_resnet50_train": {
        "implicit_gemm": 168, "implicit_precomp_gemm": 66, "winograd_nonfused": 60, "winograd": 18,
        "gemm": 6,
    },
    "a100_alexnet": {"implicit_precomp_gemm": 8, "fft or fft_tiling": 2},
    "h100_vit": {"implicit_precomp_gemm": 1},
    "mi300x_resnet_bf16": {"implicit_gemm": 99, "gemm": 18},
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_real_traces_are_read(tmp_path, name):
    """Each forward call has its algorithm; ResNet-50's convolutions do 8.17 GFLOP per image."""
    path = REAL / f"{name}.json.gz"
    rows, _ = rows_of(tmp_path, path)
    forward = [row for row in rows if row["direction"] == "forward"]
    assert Counter(row["algorithm_used"] for row in forward) == COUNTED[name]
    if name.startswith("v100"):
        assert sum(int(row["flops"]) for row in forward) == pytest.approx(
            6 * 32 * 8.174e9, rel=1e-3
        )
        assert sum(float(row["kernel_ms"]) for row in forward) == pytest.approx(126.619)
