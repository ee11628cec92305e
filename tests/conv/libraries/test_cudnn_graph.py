"""cuDNN's graph interface, asked about GPUs that are not here: the real library answers."""

from __future__ import annotations

import json
import re

import pytest

from hpcsweep import environment
from hpcsweep.catalog import gpus
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.conv.libraries import cudnn_graph
from hpcsweep.conv.libraries.cudnn_graph import Graphs
from hpcsweep.conv.libraries.cudnn_library import CudnnError
from hpcsweep.conv.shape import NHWC, ConvShape
from paths import FACTS

REAL = FACTS / "cudnn"
SHAPES = [
    ConvShape(1, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1),
    ConvShape(8, 3, 224, 224, 64, 7, 7, 2, 2, 3, 3),
    ConvShape(1, 256, 14, 14, 1024, 1, 1),
]


@pytest.fixture(scope="module")
def library(real):
    """Return the graph interface of the libcudnn of torch's own wheel."""
    return cudnn_graph.CudnnGraph(real.path)


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


def test_every_number_is_that_of_the_header(header):
    """Descriptors, types, attributes, notes and the heuristic's mode."""
    for names, stem, tail in (
        (cudnn_graph.DESCRIPTORS, "CUDNN_BACKEND_", "_DESCRIPTOR"),
        (cudnn_graph.TYPES, "CUDNN_TYPE_", ""),
        ({n: v for n, (v, _) in cudnn_graph.ATTRIBUTES.items()}, "CUDNN_ATTR_", ""),
        ({n: v for v, n in enumerate(cudnn_graph.NOTES)}, "CUDNN_NUMERICAL_NOTE_", ""),
        ({"MODE_A": cudnn_graph.HEUR_MODE_A}, "CUDNN_HEUR_", ""),
    ):
        for name, value in names.items():
            found = re.search(rf"\b{stem}{name}{tail}\s*=\s*(\d+)", header)
            assert found, name
            assert int(found[1]) == value, name


def test_a_cudnn_that_knows_only_the_gpu_that_is_here_is_told(real, monkeypatch):
    """Before 9.8 no device can be given as JSON."""
    monkeypatch.setenv(environment.CUDNN, real.path)
    monkeypatch.setattr(cudnn_graph, "_TAKES_JSON", 99_900)
    with pytest.raises(LibraryUnusable, match=r"answers only for the GPU that is here; 9\.99\.0"):
        cudnn_graph.load()


ASKS_A_MUTE_LIBRARY = """
from hpcsweep.catalog import gpus
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.conv.libraries import cudnn_graph
library = cudnn_graph.load()
h100 = gpus.cudnn_properties("h100")
graphs = cudnn_graph.Graphs
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
    monkeypatch.setattr(cudnn_graph._Descriptor, "_got", lambda *_: [])
    with pytest.raises(LibraryUnusable, match="does not answer"):
        graphs.ask(SHAPES[0])
    monkeypatch.setattr(cudnn_graph.CudnnGraph, "make", lambda *_, **__: graphs.device)
    with pytest.raises(LibraryUnusable, match="does not answer"):
        cudnn_graph.properties_here(library)


def test_the_properties_of_this_machines_gpu_need_one(library):
    """Without a driver cuDNN says so."""
    import torch

    if torch.cuda.is_available():
        found = cudnn_graph.properties_here(library)
        assert Graphs.of(library, found).ask(SHAPES[0])["engines"]
        assert found.keys() >= {"deviceVer", "multiProcessorCount"}
        return
    with pytest.raises(CudnnError):
        cudnn_graph.properties_here(library)
