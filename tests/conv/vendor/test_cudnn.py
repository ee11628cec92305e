"""The cuDNN back-end: on the real libcudnn as far as it goes without a GPU, and on a stand-in.

The stand-in (`native/cudnn.c`) computes on host memory, so that plans, argument order, scaling,
layouts, workspaces, gradients and errors are exercised by the very calls that a GPU would get.
"""

from __future__ import annotations

import ctypes
import itertools
import re
from dataclasses import replace
from importlib import metadata
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812 - its own habit

from hpcsweep import environment
from hpcsweep.catalog import ALGORITHMS
from hpcsweep.conv import backend as backends
from hpcsweep.conv import swap
from hpcsweep.conv.errors import LibraryUnusable
from hpcsweep.conv.proof import backward_pass, forward_pass
from hpcsweep.conv.shape import ConvShape
from hpcsweep.conv.vendor import ctypes_tools, cudnn, cudnn_library
from hpcsweep.conv.vendor.backend import VendorBackend
from hpcsweep.conv.vendor.cudnn import Cudnn, Descriptors
from hpcsweep.conv.vendor.cudnn_library import CudnnBadParameter, CudnnError, Library
from hpcsweep.conv.vendor.driver import NotSupported, Problem
from hpcsweep.measure.machine import framework
from hpcsweep.measure.training.workload import Training
from measuring import training
from nativelib import compile_library

EXPLICIT = [name for name in ALGORITHMS if name not in {"auto", "autotune"}]
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


def _wheel_files(name):
    for package in ("nvidia-cudnn-cu13", "nvidia-cudnn-cu12"):
        try:
            files = metadata.files(package)
        except metadata.PackageNotFoundError:
            continue
        yield from (file.locate() for file in files if file.name == name)


@pytest.fixture(scope="module")
def real():
    """Return the libcudnn of torch's own wheel."""
    found = next(_wheel_files(cudnn_library.NAME), None)
    if found is None:
        pytest.skip("no cuDNN wheel is installed")
    return Library(str(found))


@pytest.fixture(scope="module")
def header():
    """Return the text of the headers that the wheel ships."""
    names = ("cudnn_graph.h", "cudnn_ops.h", "cudnn_cnn.h")
    texts = [path.read_text() for name in names for path in list(_wheel_files(name))[:1]]
    if len(texts) != len(names):
        pytest.skip("no cuDNN headers are installed")
    return re.sub(r"/\*.*?\*/", "", "\n".join(texts), flags=re.DOTALL)


# ------------------------------------------------------------------ headers and the real library


def _enum(header, name):
    body = re.search(r"typedef enum\s*\{([^}]*)\}\s*" + name, header)[1]
    body = body.replace("CUDNN_DEPRECATED_ENUM", "")
    return {k: int(v) for k, v in re.findall(r"(\w+)\s*=\s*(\d+)", body)}


def test_every_value_is_that_of_the_headers(header):
    """Algorithms of all directions, types, layouts, math types, modes and statuses."""
    forward = _enum(header, "cudnnConvolutionFwdAlgo_t")
    for name, value in cudnn_library.FORWARD.items():
        assert forward[f"CUDNN_CONVOLUTION_FWD_ALGO_{name.upper()}"] == value
    assert len(cudnn_library.FORWARD) == forward["CUDNN_CONVOLUTION_FWD_ALGO_COUNT"]
    for way, ours in (
        ("BwdData", cudnn_library.BACKWARD_DATA),
        ("BwdFilter", cudnn_library.BACKWARD_FILTER),
    ):
        theirs = _enum(header, f"cudnnConvolution{way}Algo_t")
        stem = f"CUDNN_CONVOLUTION_{way[:3].upper()}_{way[3:].upper()}_ALGO_"
        for name, value in ours.items():
            assert theirs[stem + name.upper().removeprefix("ALGO_")] == value
        assert len(ours) == theirs[stem + "COUNT"]
    types = _enum(header, "cudnnDataType_t")
    names = {"float32": "FLOAT", "float64": "DOUBLE", "float16": "HALF", "bfloat16": "BFLOAT16"}
    for name, value in cudnn_library.DATA_TYPES.items():
        assert types[f"CUDNN_DATA_{names[name]}"] == value
    formats = _enum(header, "cudnnTensorFormat_t")
    assert {
        name: formats[f"CUDNN_TENSOR_{name.upper()}"] for name in ("nchw", "nhwc")
    } == cudnn_library.FORMATS
    math = _enum(header, "cudnnMathType_t")
    for name in ("DEFAULT_MATH", "TENSOR_OP_MATH", "FMA_MATH"):
        assert math[f"CUDNN_{name}"] == getattr(cudnn_library, name)
    mode = _enum(header, "cudnnConvolutionMode_t")
    assert mode["CUDNN_CROSS_CORRELATION"] == cudnn_library.CROSS_CORRELATION
    status = _enum(header, "cudnnStatus_t")
    assert status["CUDNN_STATUS_NOT_INITIALIZED"] == cudnn_library.NOT_INITIALIZED
    for kind, name in ((2, "BAD_PARAM"), (3, "NOT_SUPPORTED"), (5, "EXECUTION_FAILED")):
        of_kind = [v for k, v in status.items() if k.startswith(f"CUDNN_STATUS_{name}")]
        assert {value // 1000 for value in of_kind} == {kind}


_C_TYPES = {"int": ctypes.c_int, "size_t": ctypes.c_size_t, "int *": "POINTER(c_int)"}


def _kind(parameter):
    """Return how a C parameter is passed: int, size, pointer to int or size, or an address."""
    text = re.sub(r"\bconst\b", "", parameter)
    base = re.sub(r"\w+$", "", text.strip()).strip() if not text.strip().endswith("*") else text
    stars = base.count("*")
    name = base.replace("*", "").strip()
    if name == "int":
        return "int*" if stars else "int"
    if name == "size_t":
        return "size*" if stars else "size"
    enums = ("Algo_t", "MathType_t", "DataType_t", "TensorFormat_t", "ConvolutionMode_t")
    if name.endswith(enums):
        return "int"
    return "address*" if stars and name != "void" else "address"


def _ours(kind):
    known = {
        ctypes.c_int: "int",
        ctypes.c_size_t: "size",
        ctypes.c_void_p: "address",
        ctypes.POINTER(ctypes.c_int): "int*",
        ctypes.POINTER(ctypes.c_size_t): "size*",
        ctypes.POINTER(ctypes.c_void_p): "address*",
    }
    return known[kind]


@pytest.mark.parametrize("function", cudnn_library.SIGNATURES)
def test_every_signature_is_that_of_the_headers(header, function):
    """Parameter by parameter: an int is an int, an address an address."""
    declared = re.search(r"\b" + function + r"\s*\(([^;]*?)\)\s*;", header)[1]
    theirs = [_kind(parameter) for parameter in declared.split(",")]
    assert [_ours(kind) for kind in cudnn_library.SIGNATURES[function]] == theirs


def test_the_real_library_tells_its_version_and_is_loaded_once(real):
    """A second look at it gives the same library; nothing is mapped twice."""
    assert real.version // 10_000 == 9
    assert real.version == torch.backends.cudnn.version()
    again = Library(real.path)
    assert again._library._handle == real._library._handle
    assert len(set(cudnn_library._loaded())) == 1


@given(
    n=st.integers(1, 4),
    channels=st.integers(1, 8),
    out=st.integers(1, 8),
    size=st.tuples(st.integers(7, 40), st.integers(7, 40)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(st.integers(0, 3), st.integers(0, 3)),
    dilation=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    groups=st.integers(1, 3),
    dtype=st.sampled_from(list(cudnn_library.DATA_TYPES)),
    layout=st.sampled_from(["nchw", "nhwc"]),
)
def test_cudnn_computes_the_same_output_sizes(  # noqa: PLR0917 - a convolution's
    real, n, channels, out, size, kernel, stride, pad, dilation, groups, dtype, layout
):
    """Real descriptors of any geometry, type and layout; no GPU is needed for that."""
    shape = ConvShape(
        *(n, channels * groups, *size, out * groups, *kernel),
        *(*stride, *pad, *dilation, groups),
        dtype=dtype,
        layout=layout,
    )
    found = Descriptors.of(real, Problem("forward", "gemm", shape, layout, tf32=False))
    assert found.output_size(real) == (n, out * groups, shape.out_h, shape.out_w)


def test_a_parameter_that_cudnn_refuses_is_a_typed_error_with_its_words(real):
    """A stride of 0 and an unheard-of type."""
    descriptor = ctypes_tools.Descriptor(real, "cudnn", "Convolution")
    with pytest.raises(CudnnBadParameter, match=r"cudnnSetConvolution2dDescriptor: CUDNN_STATUS"):
        real.call("cudnnSetConvolution2dDescriptor", descriptor, 0, 0, 0, 0, 1, 1, 1, 0)
    tensor = ctypes_tools.Descriptor(real, "cudnn", "Tensor")
    with pytest.raises(CudnnError):
        real.call("cudnnSetTensor4dDescriptorEx", tensor, 99, 1, 1, 1, 1, 1, 1, 1, 1)


@NO_GPU
def test_without_a_gpu_cudnn_says_so(real):
    """Making a handle is what needs one."""
    shape = ConvShape(1, 3, 8, 8, 4, 3, 3)
    with pytest.raises(LibraryUnusable, match=r"no NVIDIA GPU here.*NOT_INITIALIZED"):
        Cudnn(lambda: real).plan(Problem("forward", "gemm", shape, "nchw", tf32=False), 0)


def test_a_library_that_is_missing_or_is_no_cudnn_is_told(tmp_path, monkeypatch):
    """A path that does not exist, and a library of something else."""
    monkeypatch.setenv(environment.CUDNN, str(tmp_path / "libcudnn.so.9"))
    cudnn_library.load.cache_clear()
    with pytest.raises(LibraryUnusable, match="cuDNN cannot be loaded"):
        cudnn_library.load()
    cudnn_library.load.cache_clear()


@pytest.mark.parametrize(
    ("number", "text"), [(92600, "9.26.0"), (90101, "9.1.1"), (8907, "8.9.7"), (100203, "10.2.3")]
)
def test_versions_are_told_as_people_write_them(number, text):
    """Up to 8 a version counted in thousands."""
    assert cudnn_library.version_text(number) == text


# ------------------------------------------------------------------------------- the stand-in


class StandIn:
    """The compiled stand-in, with its log."""

    def __init__(self, path):
        """Load it through the very class that loads the real one."""
        self.library = Library(str(path))
        self._c = self.library._library
        self._c.fake_calls.restype = ctypes.c_char_p
        self._c.fake_ran.restype = ctypes.c_char_p
        self._c.fake_stream.restype = ctypes.c_void_p
        self._c.fake_fail.argtypes = (ctypes.c_char_p, ctypes.c_int)

    @property
    def calls(self):
        """Return the functions that were called."""
        return self._c.fake_calls().decode().splitlines()

    @property
    def ran(self):
        """Return direction (0 forward, 1 data, 2 filter) and algorithm of what was computed."""
        return [tuple(map(int, line.split())) for line in self._c.fake_ran().decode().splitlines()]

    def fail(self, name, status):
        """Let a function fail from now on."""
        self._c.fake_fail(name.encode(), status)

    def __getattr__(self, name):
        """Reach the others."""
        return getattr(self._c, f"fake_{name}")


@pytest.fixture(scope="module")
def _compiled(tmp_path_factory):
    return StandIn(compile_library("cudnn", tmp_path_factory.mktemp("cudnn")))


@pytest.fixture
def fake(_compiled):
    """Return the stand-in, without memories."""
    _compiled.forget()
    return _compiled


@pytest.fixture
def backend(fake):
    """Return a back-end that runs on the stand-in and host memory."""
    return VendorBackend(Cudnn(lambda: fake.library), "cpu")


def test_another_major_version_is_refused(fake, tmp_path):
    """With what to do."""
    fake.version(8907)
    with pytest.raises(LibraryUnusable, match=r"cuDNN 8\.9\.7 is not of version 9; give this"):
        Library(fake.library.path)


GEOMETRIES = [
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 3, "padding": 1, "bias": False},
    {"kernel_size": (3, 5), "stride": (2, 1), "padding": (0, 2), "dilation": (1, 2)},
    {"kernel_size": 3, "groups": 2, "padding": 1},
    {"kernel_size": 1, "stride": 2},
    {"kernel_size": 3, "padding": "same", "dilation": 2},
    {"kernel_size": 4, "padding": "same"},
    {"kernel_size": 3, "padding": 1, "padding_mode": "reflect"},
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
@pytest.mark.parametrize("nhwc", [False, True], ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_forward_and_gradients_are_those_of_the_framework(backend, geometry, nhwc, dtype):
    """Every algorithm that the library takes, through a swapped layer and autograd."""
    torch.manual_seed(0)
    plain = nn.Conv2d(4, 6, **geometry).to(dtype)
    x = torch.randn(2, 4, 11, 9, dtype=dtype)
    if nhwc:
        plain, x = (
            plain.to(memory_format=torch.channels_last),
            x.to(memory_format=torch.channels_last),
        )
    wanted = _with_gradients(plain, x)
    for algorithm in EXPLICIT:
        model = nn.Sequential(plain)
        swap.swap(model)
        (picked,) = swap.assign(
            model, [("0", ConvShape.of(plain, x))], algorithm, swap.FALLBACK, backend
        )
        for ours, theirs in zip(_with_gradients(model, x), wanted, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
        assert picked.backend == ("framework" if picked.fallback else "cudnn")
        swap.restore(model)
        plain.zero_grad()


def _with_gradients(model, x):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    out = model(x)
    out.square().sum().backward()
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    return [out.detach(), x.grad, *grads]


def test_support_is_asked_before_anything_runs_and_once(backend, fake):
    """FFT with stride 2 and Winograd with 1x1 are answers, not accidents; asking again is free."""
    strided = ConvShape(1, 4, 16, 16, 4, 3, 3, stride_h=2, stride_w=2)
    assert backend.unsupported("fft", strided) == "FFT wants stride 1"
    assert backend.unsupported("winograd", ConvShape(1, 4, 16, 16, 4, 1, 1)).startswith("Winograd")
    assert backend.unsupported("direct", strided) == "not implemented"
    assert "cudnnConvolutionForward" not in fake.calls
    before = len(fake.calls)
    assert backend.unsupported("fft", strided) == "FFT wants stride 1"
    assert len(fake.calls) == before


def test_what_a_library_takes_but_then_does_not_do_is_unsupported(backend, fake):
    """The first run is a try."""
    fake.fail("cudnnConvolutionForward", 3007)
    reason = backend.unsupported("gemm", ConvShape(1, 4, 16, 16, 4, 3, 3))
    assert "cudnnConvolutionForward" in reason


def test_an_execution_that_fails_when_tried_is_unsupported(backend, fake):
    """One layer is not worth the point: the reason has function, status and the library's words."""
    fake.fail("cudnnConvolutionForward", 5000)
    reason = backend.unsupported("gemm", ConvShape(1, 4, 17, 16, 4, 3, 3))
    assert reason == ("failed when tried: cudnnConvolutionForward: CUDNN_STATUS_EXECUTION_FAILED")


def test_an_execution_that_fails_later_is_a_typed_error(backend, fake):
    """With function and status."""
    x, weight = torch.randn(1, 4, 17, 16), torch.randn(4, 4, 3, 3)
    shape = ConvShape(1, 4, 17, 16, 4, 3, 3)
    assert backend.unsupported("gemm", shape) is None
    fake.fail("cudnnConvolutionForward", 5000)
    with pytest.raises(CudnnError, match="cudnnConvolutionForward: CUDNN_STATUS_EXECUTION_FAILED"):
        backend.forward("gemm", x, weight, None, shape)


def test_a_device_that_a_try_broke_is_an_error_and_no_answer(backend, fake, monkeypatch):
    """Then nothing that follows in this process would be right."""

    def broken():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(backend, "_wait", broken)
    with pytest.raises(RuntimeError, match="CUDA error: an illegal"):
        backend.unsupported("gemm", ConvShape(1, 4, 17, 16, 4, 3, 3))
    fake.fail("cudnnConvolutionForward", 5000)
    with pytest.raises(RuntimeError, match="CUDA error: an illegal"):
        backend.unsupported("gemm", ConvShape(1, 4, 17, 16, 4, 3, 3))


def test_the_workspace_is_told_and_limited(backend):
    """A limit that is too small falls back, with both numbers."""
    layer = nn.Conv2d(4, 4, 3)
    shape = ConvShape.of(layer, torch.empty(1, 4, 34, 34))
    assert backend.workspace_bytes("gemm", shape) == 4 * 4 * 9 * 32 * 32
    assert backend.workspace_bytes("implicit_gemm", shape) == 0
    model = nn.Sequential(layer)
    swap.swap(model)
    (picked,) = swap.assign(
        model, [("0", shape)], "gemm", swap.FALLBACK, backend, most_workspace=1000
    )
    assert (picked.used, picked.fallback) == ("auto", True)
    assert picked.reason == "a workspace of 0.1 MiB; 0.000953674 MiB are allowed"


@pytest.mark.parametrize(
    ("dtype", "tf32", "math"),
    [
        ("float32", False, "FMA_MATH"),
        ("float32", True, "DEFAULT_MATH"),
        ("float16", False, "TENSOR_OP_MATH"),
        ("bfloat16", True, "TENSOR_OP_MATH"),
        ("float64", False, "DEFAULT_MATH"),
    ],
)
def test_the_math_type_is_explicit(dtype, tf32, math):
    """Float32 never becomes TF32 unless it was asked for, and never float16."""
    assert cudnn.math_type(dtype, tf32=tf32) == getattr(cudnn_library, math)


def test_tf32_follows_the_switch_of_torch_and_has_plans_of_its_own(backend, fake):
    """The switch is looked at for each call; no plan of the other kind is taken."""
    layer, x = nn.Conv2d(2, 2, 3), torch.randn(1, 2, 8, 8)
    shape = ConvShape.of(layer, x)
    seen = []
    for allowed in (True, False, True):
        framework._allow_tf32(allowed=allowed)
        backend.forward("implicit_gemm", x, layer.weight, layer.bias, shape)
        seen.append(fake.math())
    assert seen == [cudnn_library.DEFAULT_MATH, cudnn_library.FMA_MATH, cudnn_library.DEFAULT_MATH]


def test_gradients_run_the_counterpart_or_say_that_they_do_not(backend):
    """The explicit GEMM has none; Winograd has none for filters."""
    shape = ConvShape(1, 4, 16, 16, 4, 3, 3)

    def run(algorithm, of=shape):
        return {gradient.way: gradient.algorithm for gradient in backend.gradients(algorithm, of)}

    assert run("gemm") == {"data": None, "filter": None}
    assert run("winograd") == {"data": "winograd", "filter": None}
    assert run("implicit_precomp_gemm") == {"data": "algo_1", "filter": "algo_3"}
    assert run("fft", ConvShape(1, 4, 16, 16, 4, 3, 3, 2, 2))["data"] is None
    _, of_filters = backend.gradients("gemm", shape)
    assert of_filters.reason == "cudnn has no gemm for the gradient of the filters"


NET_CALLS = [
    ("0", ConvShape(2, 3, 12, 12, 4, 3, 3, bias=True)),
    ("1", ConvShape(2, 4, 10, 10, 4, 3, 3, bias=True)),
]


def _stepped(backend, algorithm):
    """Return a swapped network, its choices, and a step of it that warmed up."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3))
    swap.swap(net)
    picked = swap.assign(net, NET_CALLS, algorithm, swap.FALLBACK, backend)
    x = torch.randn(2, 3, 12, 12)

    def step():
        net(x).sum().backward()

    step()
    return net, picked, step


@pytest.mark.parametrize("algorithm", EXPLICIT)
def test_evidence_of_both_directions_is_what_the_library_was_called_with(backend, fake, algorithm):
    """Call by call: the cell names function and algorithm, and the library's own log agrees."""
    net, picked, step = _stepped(backend, algorithm)
    fake.forget()
    forward = forward_pass.prove(net, step, picked, backend).calls
    logged = fake.ran
    backward = backward_pass.prove(net, step, picked, backend)
    assert not any(call.mismatch for call in [*forward, *backward])
    if algorithm == "direct":  # declared by cuDNN, never done
        assert logged == []
        return
    number = cudnn_library.FORWARD[algorithm]
    assert [call.text for call in forward] == [f"api: cudnnConvolutionForward:{algorithm}"] * 2
    names = cudnn._GRADIENTS["data"].get(algorithm), cudnn._GRADIENTS["filter"].get(algorithm)
    wanted = [(0, number), (0, number)]
    for index, of_call in ((1, backward[1]), (0, backward[0])):  # the last layer comes first
        tables = (cudnn_library.BACKWARD_DATA, cudnn_library.BACKWARD_FILTER)
        for way, name, table in zip((1, 2), names, tables, strict=True):
            function = ("BackwardData", "BackwardFilter")[way - 1]
            asked = way == 2 or index == 1  # the first layer's input needs no gradient
            told = f"cudnnConvolution{function}:{name}" in of_call.text
            assert told == (asked and name is not None)
            wanted += [(way, table[name])] if told else []
        assert ("convolution_backward" in of_call.text) == (None in names[1 - index :])
    assert sorted(logged) == sorted(wanted)


def test_gradients_of_another_algorithm_than_claimed_are_a_mismatch(backend):
    """Also where the framework took them over in silence."""
    net, picked, step = _stepped(backend, "implicit_precomp_gemm")
    claims = [replace(choice, used="fft") for choice in picked]
    found = backward_pass.prove(net, step, claims, backend)
    assert [call.problem for call in found] == [
        "filter: no cudnnConvolutionBackwardFilter:fft",
        "data: no cudnnConvolutionBackwardData:fft",
    ]
    net, picked, step = _stepped(backend, "gemm")
    claims = [replace(choice, used="implicit_gemm") for choice in picked]
    found = backward_pass.prove(net, step, claims, backend)
    assert found[1].problem == "data: ran aten::convolution_backward"


@pytest.mark.parametrize(("kernel", "fits"), [("implicit_convolve", True), ("fft2d_r2c", False)])
def test_the_kernels_of_a_gradient_are_those_of_its_operator(backend, kernel, fits):
    """The profiler gives kernels to the innermost operator, which is the gradient's own."""
    net, picked, step = _stepped(backend, "implicit_gemm")
    with backward_pass.ranges(net), torch.profiler.profile() as seen:
        step()
    events = seen.events()
    for event in events:
        if event.name == "hpcsweep::convolution_filter_gradient":
            event.kernels = [SimpleNamespace(name=kernel)]
    found = backward_pass.read(events, picked, backend)
    wanted = None if fits else f"filter: ran {kernel}"
    assert [call.problem for call in found] == [wanted, wanted]
    assert all(kernel in call.text for call in found)


def test_what_the_backward_pass_runs_is_told_per_call(backend):
    """As asked, half of it, or none; with the library's scratch memory and the reasons."""
    _, picked, _ = _stepped(backend, "fft")
    whole = backward_pass.choices(picked, backend)[1]
    assert (whole.used, whole.backend, whole.fallback) == ("fft", "cudnn", False)
    assert whole.workspace_bytes > 0
    _, picked, _ = _stepped(backend, "winograd")
    half = backward_pass.choices(picked, backend)[1]
    assert (half.used, half.backend, half.fallback) == ("winograd+auto", "cudnn+framework", True)
    assert half.reason == "cudnn has no winograd for the gradient of the filters"
    _, picked, _ = _stepped(backend, "gemm")
    none = backward_pass.choices(picked, backend)[1]
    assert (none.used, none.backend) == ("auto", "framework")


def test_a_training_row_tells_what_its_gradients_ran(backend):
    """Forward rows as asked, backward rows the framework's, covered by half the time or so."""
    bench = Training("cpu")
    bench._backend = backend
    wanted = {"layers": True, "evidence": True}
    done = bench.measure(training(algorithm="gemm", measure=wanted))
    forward, backward = (
        [row for row in done.layers if row["direction"] == way and row.get("algorithm_used")]
        for way in ("forward", "backward")
    )
    assert {(r["backend"], r["algorithm_used"]) for r in forward} == {("cudnn", "gemm")}
    assert {(r["backend"], r["algorithm_used"]) for r in backward} == {("framework", "auto")}
    assert all("cudnn has no gemm" in r["fallback_reason"] for r in backward)
    assert all(r["algorithm_evidence"].startswith("api: cudnn") for r in forward)
    assert all("aten::convolution_backward" in r["algorithm_evidence"] for r in backward)
    row = done.row
    assert row["algorithm_evidence"] == "profiler"
    assert row["algorithm_coverage_pct"] == 100
    assert 0 < row["algorithm_coverage_time_pct"] < 100
    assert "fallback" in row["flags"].split(";")
    assert "algorithm_mismatch" not in row["flags"].split(";")


def test_a_wrong_device_or_type_is_a_typed_error(backend):
    """Not an address handed to a library."""
    x, weight = torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3)
    shape = ConvShape(1, 2, 8, 8, 2, 3, 3)
    with pytest.raises(TypeError, match=r"float32 on cpu got torch.float64"):
        backend.forward("implicit_gemm", x, weight.double(), None, shape)
    with pytest.raises(NotSupported, match="no int32"):
        backend.forward("implicit_gemm", x.int(), weight.int(), None, shape)


def test_tensors_that_are_not_contiguous_are_made_so(backend):
    """As the framework does."""
    x = torch.randn(1, 8, 8, 2).permute(0, 3, 1, 2)[:, :, ::2]
    weight = torch.randn(2, 2, 3, 3)
    shape = ConvShape(1, 2, 4, 8, 2, 3, 3)
    out = backend.forward("implicit_gemm", x, weight, None, shape)
    torch.testing.assert_close(out, F.conv2d(x, weight), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("nhwc", [False, True], ids=["nchw", "nhwc"])
def test_nothing_runs_beside_the_library_in_any_direction(backend, nhwc):
    """No copy and no filling, which on a GPU would be kernels within the layer's time."""
    layout = torch.channels_last if nhwc else torch.contiguous_format
    layer = nn.Conv2d(4, 6, 3, bias=False).to(memory_format=layout)
    x = torch.randn(2, 4, 9, 9).to(memory_format=layout).requires_grad_()
    shape = ConvShape.of(layer, x)
    grad = torch.randn(2, 6, 7, 7).to(memory_format=layout)
    for _ in range(2):  # the first time the back-end tries its plans
        with torch.profiler.profile() as seen:
            backend.forward("winograd_nonfused", x, layer.weight, None, shape).backward(grad)
    names = {event.key for event in seen.key_averages()}
    assert {
        "hpcsweep::convolution",
        "hpcsweep::convolution_data_gradient",
        "hpcsweep::convolution_filter_gradient",
    } <= names
    assert not {n for n in names if n.startswith("aten::")} & {
        "aten::copy_",
        "aten::clone",
        "aten::contiguous",
        "aten::zero_",
        "aten::fill_",
    }


def test_descriptors_are_given_back(fake):
    """Nothing lives on when a back-end is gone, but the handle of the thread."""
    before = fake.live()
    one = VendorBackend(Cudnn(lambda: fake.library), "cpu")
    for algorithm in EXPLICIT:
        one.unsupported(algorithm, ConvShape(1, 4, 16, 16, 4, 3, 3))
    assert fake.live() > before + 4
    del one
    import gc

    from hpcsweep.conv.vendor import operator

    operator.ENGINES.clear()
    gc.collect()
    assert fake.live() <= before + 1


# torch's own tracing looks at such a gradient
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.parametrize("nhwc", [False, True])
@pytest.mark.parametrize("algorithm", ["gemm", "winograd"])
def test_the_operator_passes_torchs_own_checks(backend, algorithm, nhwc):
    """Schema, autograd registration, fake tensors, and tracing with gradients."""
    layout = torch.channels_last if nhwc else torch.contiguous_format
    x = torch.randn(2, 2, 6, 6).to(memory_format=layout).requires_grad_()
    weight = torch.randn(4, 2, 3, 3).to(memory_format=layout).requires_grad_()
    arguments = (x, weight, "cudnn", algorithm, [1, 1], [1, 1], [1, 1], 1, nhwc)
    torch.library.opcheck(torch.ops.hpcsweep.convolution.default, arguments)


def test_the_gradient_formula_is_right_in_float64(backend):
    """Against finite differences."""
    x = torch.randn(1, 2, 5, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 2, 3, 3, dtype=torch.float64, requires_grad=True)

    nhwc = False

    def run(a, b):
        return torch.ops.hpcsweep.convolution(
            a, b, "cudnn", "winograd_nonfused", [1, 1], [1, 1], [1, 1], 1, nhwc
        )

    assert torch.autograd.gradcheck(run, (x, weight))


def test_a_swapped_network_survives_copies_state_dicts_and_autocast(backend):
    """What people do with modules still works."""
    import copy

    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    x = torch.randn(1, 3, 12, 12)
    wanted = net(x)
    swap.swap(net)
    shapes = [
        ("0", ConvShape.of(net[0], x)),
        ("2", ConvShape.of(net[2], torch.empty(1, 4, 10, 10))),
    ]
    swap.assign(net, shapes, "implicit_gemm", swap.FALLBACK, backend)
    torch.testing.assert_close(net(x), wanted, rtol=1e-4, atol=1e-5)
    twin = copy.deepcopy(net)
    twin.load_state_dict(net.state_dict())
    torch.testing.assert_close(twin(x), wanted, rtol=1e-4, atol=1e-5)


def test_traces_name_the_operator_per_layer(backend):
    """Kernels of a library's calls are told apart by the operator around them."""
    with torch.profiler.profile() as seen:
        test_shape = ConvShape(1, 2, 8, 8, 2, 3, 3)
        backend.forward(
            "implicit_gemm", torch.randn(1, 2, 8, 8), torch.randn(2, 2, 3, 3), None, test_shape
        )
    assert "hpcsweep::convolution" in {event.key for event in seen.key_averages()}
    expected = backend.expected("winograd", test_shape)
    assert expected.must[0] == ("hpcsweep::convolution",)


def test_cuda_gets_this_back_end(monkeypatch):
    """And a ROCm build, which calls its devices cuda too, does not."""
    monkeypatch.setattr(torch.version, "hip", None)
    assert backends.choose("cuda").name == "cudnn"
    monkeypatch.setattr(torch.version, "hip", "6.2")
    assert backends.choose("cuda").name != "cudnn"


def test_every_algorithm_has_a_number_in_cudnns_numbering():
    """The taxonomy is cuDNN's."""
    assert set(cudnn_library.FORWARD) == set(EXPLICIT)
    numbers = itertools.chain.from_iterable(t.values() for t in cudnn._GRADIENTS.values())
    assert set(numbers) <= {*cudnn_library.BACKWARD_DATA, *cudnn_library.BACKWARD_FILTER}
