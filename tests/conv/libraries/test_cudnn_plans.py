"""Engines and plans of cuDNN: told by the real library, run by a stand-in.

The graph interface and the front-end answer for GPUs that are not here; the front-end builds plans
for them, too. Only running needs a GPU: the stand-in convolves on the host, at the addresses it is
given.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

from hpcsweep import environment
from hpcsweep.catalog import gpus
from hpcsweep.conv import choice
from hpcsweep.conv.backend import Direction, LibraryUnusable
from hpcsweep.conv.libraries import NotSupported, Problem, cudnn_library, cudnn_plans
from hpcsweep.conv.libraries.cudnn_library import CudnnError, CudnnGraph
from hpcsweep.conv.libraries.cudnn_plans import FrontEnd, Graphs
from hpcsweep.conv.proof import cell, profiled_passes
from hpcsweep.conv.shape import NHWC, ConvShape
from hpcsweep.conv.swap import ExplicitConv2d, assign, swap
from hpcsweep.measure.shape_pass import shape_pass
from paths import FACTS

try:
    import cudnn
except ImportError:
    cudnn = None
with_front_end = pytest.mark.skipif(cudnn is None, reason="nvidia-cudnn-frontend is not installed")
SHAPE = ConvShape(1, 64, 14, 14, 64, 3, 3, 1, 1, 1, 1)
as_in_9_26 = pytest.mark.skipif(
    torch.backends.cudnn.version() != 92600, reason="cuDNN 9.26 refuses these plans"
)


class _Graph:
    """A real graph for a device that is not here, whose plans are run on the host."""

    def __init__(self, graph, log):
        self._graph, self._log, self._tensors = graph, log, {}

    def __getattr__(self, name):
        return getattr(self._graph, name)

    def tensor(self, **how):
        self._tensors[how["uid"]] = (how["dim"], how["stride"])
        return self._graph.tensor(**how)

    def conv_fprop(self, **how):
        return self._described("conv_fprop", how)

    def conv_dgrad(self, **how):
        return self._described("conv_dgrad", how)

    def conv_wgrad(self, **how):
        return self._described("conv_wgrad", how)

    def _described(self, name, how):
        self._name, self._how = name, how
        self._result = getattr(self._graph, name)(**how)
        return self._result

    def deselect_numeric_notes(self, notes):
        self._log.append(("deselected", [note.name for note in notes]))
        self._graph.deselect_numeric_notes(notes)

    def get_workspace_size_plan_at_index(self, index):
        size = self._graph.get_workspace_size_plan_at_index(index)
        self._log.append(("size", self._graph.get_plan_name_at_index(index), size))
        return size

    def execute_plan_at_index(self, tensors, workspace, index, handle):
        self._log.append(("ran", self._graph.get_plan_name_at_index(index), handle))
        assert workspace or not self._graph.get_workspace_size_plan_at_index(index)
        first, second = (_at(tensors[uid], *self._tensors[uid]) for uid in (1, 2))
        out = _at(tensors[3], self._result.get_dim(), self._result.get_stride())
        with ThreadPoolExecutor(1) as pool:  # torch's profiler does not see other threads
            pool.submit(_convolve, first, second, out, self._name, self._how).result()


@torch.no_grad()
def _convolve(first, second, out, name, how):
    geometry = how["stride"], how["pre_padding"], how["dilation"]
    if name == "conv_fprop":
        out.copy_(torch.conv2d(first, second, None, *geometry))
        return
    of_filters = name == "conv_wgrad"
    x, weight = (second, out) if of_filters else (out, second)
    found = torch.ops.aten.convolution_backward(
        *(first, x, weight, None, *geometry),
        *(False, [0, 0], 1, [not of_filters, of_filters, False]),
    )
    out.copy_(found[of_filters])


def _at(address, size, stride):
    """Return the float32 numbers at an address."""
    count = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    numbers = (ctypes.c_float * count).from_address(address)
    return torch.frombuffer(numbers, dtype=torch.float32).as_strided(size, stride)


class _Module:
    """The real front-end, told of a GPU."""

    def __init__(self, gpu="l40"):
        self.log = []
        self._device = cudnn.create_device_properties(json.dumps(gpus.cudnn_properties(gpu)))

    def __getattr__(self, name):
        return getattr(cudnn, name)

    def pygraph(self, handle=None, **how):
        assert handle == "handle"
        return _Graph(cudnn.pygraph(device_property=self._device, **how), self.log)

    def create_handle(self):
        return "handle"

    def set_stream(self, handle, stream):
        assert (handle, stream) == ("handle", 0)


@pytest.fixture
def told_of(monkeypatch, real):
    """Return what lets the back-end take the stand-in for the front-end on a GPU."""
    if cudnn is None:
        pytest.skip("nvidia-cudnn-frontend is not installed")

    def tell(gpu):
        found = _Module(gpu)
        library = CudnnGraph(real.path)
        graphs = Graphs.of(library, gpus.cudnn_properties(gpu))
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)  # a point may have left it
        monkeypatch.setattr(FrontEnd, "module", found)
        monkeypatch.setattr(
            FrontEnd, "_asked", lambda _self, problem, _device: graphs.ask(problem.shape)
        )
        return found

    return tell


@pytest.fixture
def module(told_of):
    """Return the stand-in on an L40."""
    return told_of("l40")


def problem(algorithm="heuristic", shape=SHAPE, way=Direction.FORWARD, **more):
    """Return a convolution."""
    return Problem(way, algorithm, shape, shape.layout, **{"tf32": True, **more})


@pytest.mark.parametrize("layout", ["nchw", NHWC])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_front_end_names_the_plans_that_the_graph_interface_names(module, real, dtype, layout):
    """Two ways to ask one library: the same engines and knobs, in the same order."""
    shape = replace(SHAPE, dtype=dtype, layout=layout)
    graphs = Graphs.of(CudnnGraph(real.path), gpus.cudnn_properties("l40"))
    told = graphs.ask(shape)
    names = FrontEnd("9").names(problem(shape=shape), 0, 5)
    listed, engines = told["heuristic"][:5], told["engines"]
    assert names[:5] == listed
    tried = {name.partition("_")[0] for name in listed}
    assert names[5:] == [
        name
        for one in engines
        if (name := f"eng{one['engine']}") not in tried and one["workspace_bytes"] is not None
    ]
    assert FrontEnd("9").plan(problem(shape=shape), 0).algorithm == listed[0]
    for one in engines[:4]:
        if one["workspace_bytes"] is not None:
            plan = FrontEnd("9").plan(problem(f"eng{one['engine']}", shape=shape), 0)
            assert plan.workspace_bytes == one["workspace_bytes"]


def test_a_plan_is_found_by_its_full_name_and_an_engine_by_its_number(module):
    """Its notes are cuDNN's; the scratch memory is what the plan asks for."""
    front_end = FrontEnd("9.26.0")
    for name in front_end.names(problem(), 0, 4)[:6]:
        found = front_end.plan(problem(f"{name}@9.1.0"), 0)  # found with another version
        assert found.name == name
        assert found.call == f"cudnnGraphExecute:{name}"
        assert module.log[-1] == ("size", name, found.workspace_bytes)
    assert front_end.plan(problem("eng12"), 0).notes == "WINOGRAD WINOGRAD_TILE_4x4"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("eng53_k2=77", "cuDNN 9.26.0: eng53_k2=77: it proposes no such plan for this shape on"),
        ("eng53_k2=77@9.20.0", "eng53_k2=77 (found with cuDNN 9.20.0): it proposes no such plan"),
        ("eng9999@9.20.0", "cuDNN 9.26.0: eng9999 (found with cuDNN 9.20.0): Invalid engine id."),
        ("eng9999@9.26.0", "cuDNN 9.26.0: eng9999: Invalid engine id."),
    ],
)
def test_a_plan_that_is_not_there_is_refused_with_both_versions(module, name, words):
    """It is tried; the version it was found with may be part of the name."""
    with pytest.raises(NotSupported, match=re.escape(words)):
        FrontEnd("9.26.0").plan(problem(name), 0)


@with_front_end
def test_engines_of_a_shape_are_asked_for_once_however_many_plans_it_has(monkeypatch, real):
    """Each time cuDNN would try to build every engine, for 50 ms or more."""
    library = CudnnGraph(real.path)
    graphs = Graphs.of(library, gpus.cudnn_properties("l40"))
    asked = []

    class Counting:
        def ask(self, shape):
            asked.append(shape)
            return graphs.ask(shape)

    monkeypatch.setattr(Graphs, "here", lambda _library, _device: Counting())
    monkeypatch.setattr(FrontEnd, "module", _Module())
    front_end = FrontEnd("9.26.0")
    for name in front_end.names(problem(), 0, 3)[:3]:
        assert front_end.plan(problem(name), 0).algorithm == name
    other = replace(SHAPE, n=2)
    front_end.plan(problem(shape=other), 0)
    assert asked == [SHAPE, other]


@pytest.mark.parametrize(
    ("dtype", "switches", "left_out"),
    [
        ("float32", {"tf32": False},
         ["TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION"]),
        ("float32", {"tf32": True}, None),
        ("float16", {"tf32": False}, None),
        ("float16", {"tf32": False, "deterministic": True}, ["NONDETERMINISTIC"]),
    ],
)  # fmt: skip
def test_the_switches_of_the_point_leave_plans_out(module, dtype, switches, left_out):
    """As the framework does: without TF32 no tensor cores in float32."""
    FrontEnd("9").plan(problem(shape=replace(SHAPE, dtype=dtype), **switches), 0)
    found = [words for what, words, *_ in module.log if what == "deselected"]
    assert found == ([sorted(left_out)] if left_out else [])


@as_in_9_26
@pytest.mark.parametrize(
    ("shape", "is_first", "is_any"),
    [
        (ConvShape(1, 64, 14, 14, 64, 1, 1), True, True),
        (SHAPE, False, True),
        (ConvShape(1, 2048, 7, 7, 512, 1, 1), False, False),
    ],
)
def test_if_the_first_plan_is_refused_a_later_one_runs_and_without_any_the_call_falls_back(
    module, backend, shape, is_first, is_any
):
    """Without TF32 a library for tensor cores refuses most of what its heuristic proposes."""
    with torch.backends.cudnn.flags(allow_tf32=False):
        reason = backend.unsupported("heuristic", shape)
        _, plan, _ = backend.about("heuristic", shape)
    (first, *_) = FrontEnd("9.26.0").names(problem(shape=shape), 0, 1)
    assert (plan == first) == is_first
    if is_any:
        assert reason is None
        return
    assert reason.startswith(
        "cuDNN 9.26.0: heuristic: no plan can be built without DOWN_CONVERT_INPUTS, "
        "REDUCED_PRECISION_REDUCTION, TENSOR_CORE: "
    )


@pytest.mark.parametrize(
    ("gpu", "dtype"), [("v100", "bfloat16"), ("l40", "float32"), ("h100", "float64")]
)
def test_every_listed_plan_can_be_built(told_of, gpu, dtype):
    """So `plans` of them are tried; what the library cannot describe or list has none."""
    told_of(gpu)
    front_end = FrontEnd("9.26.0")
    depthwise = ConvShape(1, 32, 28, 28, 32, 3, 3, 1, 1, 1, 1, groups=32, dtype=dtype)
    large_filter = ConvShape(1, 3, 224, 224, 64, 11, 11, 4, 4, 2, 2, dtype=dtype)
    for shape in (depthwise, large_filter):
        asked = problem(shape=shape, tf32=False, deterministic=True)
        names = front_end.names(asked, 0, 20)
        assert bool(names) == ((gpu, dtype) != ("v100", "bfloat16"))
        for name in names:
            assert front_end.plan(replace(asked, algorithm=name), 0).algorithm.startswith(name)
        if not names:
            with pytest.raises(NotSupported, match=r"no engine .* proposed a plan"):
                front_end.plan(asked, 0)


@pytest.mark.parametrize("layout", ["nchw", NHWC])
def test_forward_and_gradients_run_and_are_those_of_the_framework(module, backend, layout):
    """Gradients of a plan take the heuristic's, since a plan is of one direction."""
    memory = torch.channels_last if layout == NHWC else torch.contiguous_format
    net = nn.Sequential(nn.Conv2d(4, 8, 3, 1, 1), nn.Conv2d(8, 8, 3, 2)).to(memory_format=memory)
    x = torch.randn(2, 4, 9, 9).to(memory_format=memory).requires_grad_()
    wanted = net(x)
    of_wanted = torch.autograd.grad(wanted.sum(), [x, *net.parameters()])
    swap(net)
    calls = shape_pass(net, x).convolutions
    names = [FrontEnd("9").names(problem(shape=shape), 0, 3)[1] for _, shape in calls]
    picked = assign(net, calls, dict(zip("01", names, strict=True)), "error", backend)
    module.log.clear()
    found = net(x)
    torch.testing.assert_close(found, wanted)
    ran = [words for what, words, *_ in module.log if what == "ran"]
    assert ran == names == [one.plan for one in picked]
    of_found = torch.autograd.grad(found.sum(), [x, *net.parameters()])
    torch.testing.assert_close(of_found, of_wanted)
    gradients = [choice.backward_choice(one, choice.gradients_of(one, backend)) for one in picked]
    assert {one.used for one in gradients} == {"heuristic"}
    assert all(isinstance(layer, ExplicitConv2d) for layer in net)


def test_the_evidence_names_the_plan_of_each_call(module, backend):
    """By the range around the library's call; its gradients name theirs."""
    net = nn.Sequential(nn.Conv2d(4, 8, 3, 1, 1))
    x = torch.randn(1, 4, 9, 9)
    swap(net)
    picked = assign(net, shape_pass(net, x).convolutions, "heuristic", "error", backend)
    proof = profiled_passes.prove_forward(net, lambda: net(x), picked, backend)
    assert picked[0].plan.startswith("eng")
    assert [cell(call) for call in proof.calls] == [f"api: cudnnGraphExecute:{picked[0].plan}"]
    of_gradients = profiled_passes.prove_backward(
        net, lambda: net(x).sum().backward(), picked, backend
    )
    assert not any(call.problem for call in of_gradients)
    assert "cudnnGraphExecute:eng" in cell(of_gradients[0])


def test_without_the_package_the_extra_is_named(monkeypatch):
    """And not only that something is missing."""
    monkeypatch.setitem(sys.modules, "cudnn", None)
    with pytest.raises(LibraryUnusable, match=r"pip install 'hpcsweep\[nvidia\]'"):
        FrontEnd("9").plan(problem(), 0)


@with_front_end
def test_without_a_gpu_the_real_front_end_makes_no_handle():
    """The error says which library, and why."""
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(LibraryUnusable, match="cuDNN finds no NVIDIA GPU here"):
        FrontEnd("9").plan(problem(), 0)


REAL = FACTS / "cudnn"
SHAPES = [
    ConvShape(1, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1),
    ConvShape(8, 3, 224, 224, 64, 7, 7, 2, 2, 3, 3),
    ConvShape(1, 256, 14, 14, 1024, 1, 1),
]


@pytest.fixture(scope="module")
def library(real):
    """Return the graph interface of the libcudnn of torch's own wheel."""
    return CudnnGraph(real.path)


@pytest.mark.parametrize("gpu", ["t4", "a100", "l40", "h100"])
def test_a_device_that_another_hand_typed_has_the_same_answers(library, gpu):
    """Its properties are those of public sheets, as are the table's."""
    typed = Graphs.of(library, json.loads((REAL / f"{gpu}.json").read_text()))
    by_table = Graphs.of(library, gpus.cudnn_properties(gpu))
    for shape in SHAPES:
        found = typed.ask(shape)
        assert [one["engine"] for one in by_table.ask(shape)["engines"]] == [
            one["engine"] for one in found["engines"]
        ]


@pytest.mark.parametrize("gpu", gpus.known_to_cudnn())
def test_every_gpu_of_the_table_is_one_that_cudnn_takes(library, gpu):
    """Each has engines for a plain convolution; Winograd ends with Hopper."""
    found = Graphs.of(library, gpus.cudnn_properties(gpu)).ask(SHAPES[0])
    winograd = any("WINOGRAD" in one["notes"] for one in found["engines"])
    assert found["engines"]
    assert found["heuristic"]
    no_winograd = {"h100", "h200"}
    if library.version >= 92600:  # 9.19 still has it on a V100
        no_winograd.add("v100")
    assert winograd == (gpu not in no_winograd)


@pytest.mark.parametrize(
    "shape",
    [
        ConvShape(1, 64, 8, 8, 64, 3, 3, 1, 1, 1, 1, groups=64),
        ConvShape(1, 64, 8, 8, 64, 3, 3, 1, 1, 1, 1, groups=4, dtype="bfloat16", layout=NHWC),
        ConvShape(1, 8, 9, 7, 8, 3, 1, 1, 1, 2, 0, dilation_h=2, bias=True),
        ConvShape(1, 8, 9, 7, 8, 3, 1, dtype="float64"),
        ConvShape(1, 8, 2, 2, 8, 3, 3),
    ],
    ids=["depthwise", "grouped", "dilated", "float64", "impossible"],
)
def test_odd_convolutions_have_an_answer_too(library, shape):
    """What cuDNN cannot describe has no engine."""
    found = Graphs.of(library, gpus.cudnn_properties("a100")).ask(shape)
    assert bool(found["engines"]) == (shape.in_h > 2)


def test_properties_that_are_none_are_refused(library):
    """Text that is no JSON object of a device."""
    with pytest.raises(CudnnError):
        Graphs.of(library, {})


def test_a_cudnn_that_knows_only_the_gpu_that_is_here_is_told(real, monkeypatch):
    """Before 9.8 no device can be given as JSON."""
    monkeypatch.setenv(environment.CUDNN, real.path)
    monkeypatch.setattr(cudnn_plans, "_TAKES_JSON", 99_900)
    with pytest.raises(LibraryUnusable, match=r"answers only for the GPU that is here; 9\.99\.0"):
        cudnn_plans.load()


ASKS_A_MUTE_LIBRARY = """
from hpcsweep.catalog import gpus
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.conv.libraries import cudnn_plans
library = cudnn_plans.load()
h100 = gpus.cudnn_properties("h100")
graphs = cudnn_plans.Graphs
for ask in (lambda: graphs.of(library, h100), lambda: graphs.here(library, 0)):
    try:
        ask()
    except LibraryUnusable as error:
        print([str(error)])
"""


def test_a_cudnn_whose_graph_interface_is_mute_is_told_with_what_to_do(said):
    """Its functions say "success" and answer nothing: no exception of Python's own."""
    words = r".* at .*libcudnn\.so\.9 does not answer .*; take that of torch's wheel.*"
    found = said(ASKS_A_MUTE_LIBRARY)
    assert len(found) == 2
    assert all(re.fullmatch(words, text) for (text,) in found), found


def test_an_answer_without_a_value_is_told_as_mute(library, monkeypatch):
    """A number that is not there, and properties that are no JSON, of descriptors that are."""
    graphs = Graphs.of(library, gpus.cudnn_properties("h100"))
    monkeypatch.setattr(cudnn_library.Described, "_got", lambda *_: [])
    with pytest.raises(LibraryUnusable, match="does not answer"):
        graphs.ask(SHAPES[0])
    monkeypatch.setattr(CudnnGraph, "make", lambda *_, **__: graphs.device)
    with pytest.raises(LibraryUnusable, match="does not answer"):
        cudnn_plans.properties_here(library)


def test_the_properties_of_this_machines_gpu_need_one(library):
    """Without a driver cuDNN says so."""
    if torch.cuda.is_available():
        found = cudnn_plans.properties_here(library)
        assert Graphs.of(library, found).ask(SHAPES[0])["engines"]
        assert found.keys() >= {"deviceVer", "multiProcessorCount"}
        return
    with pytest.raises(CudnnError):
        cudnn_plans.properties_here(library)
