"""cuDNN's C interface: every value and signature that of the headers, every failure typed."""

from __future__ import annotations

import ctypes
import re

import pytest
import torch

from hpcsweep import environment
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.conv.libraries import Descriptor, cudnn_library
from hpcsweep.conv.libraries.cudnn_library import CudnnError, CudnnLibrary


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
    assert status["CUDNN_STATUS_NOT_SUPPORTED"] // 1000 == cudnn_library._NOT_SUPPORTED
    for kind, name in ((2, "BAD_PARAM"), (3, "NOT_SUPPORTED"), (5, "EXECUTION_FAILED")):
        of_kind = [v for k, v in status.items() if k.startswith(f"CUDNN_STATUS_{name}")]
        assert {value // 1000 for value in of_kind} == {kind}


def test_every_number_is_that_of_the_header(header):
    """Descriptors, types, attributes, notes and the heuristic's mode."""
    for names, stem, tail in (
        (cudnn_library.DESCRIPTORS, "CUDNN_BACKEND_", "_DESCRIPTOR"),
        (cudnn_library.TYPES, "CUDNN_TYPE_", ""),
        ({n: v for n, (v, _) in cudnn_library.ATTRIBUTES.items()}, "CUDNN_ATTR_", ""),
        ({n: v for v, n in enumerate(cudnn_library.NOTES)}, "CUDNN_NUMERICAL_NOTE_", ""),
        ({"MODE_A": cudnn_library.HEUR_MODE_A}, "CUDNN_HEUR_", ""),
    ):
        for name, value in names.items():
            found = re.search(rf"\b{stem}{name}{tail}\s*=\s*(\d+)", header)
            assert found, name
            assert int(found[1]) == value, name


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
    again = CudnnLibrary(real.path)
    assert again.version == real.version
    assert len(set(cudnn_library.loaded())) == 1


def test_a_parameter_that_cudnn_refuses_is_a_typed_error_with_its_words(real):
    """A stride of 0 and an unheard-of type."""
    descriptor = Descriptor(real, "cudnnCreateConvolutionDescriptor")
    with pytest.raises(CudnnError, match=r"cudnnSetConvolution2dDescriptor: CUDNN_STATUS"):
        real.call("cudnnSetConvolution2dDescriptor", descriptor, 0, 0, 0, 0, 1, 1, 1, 0)
    tensor = Descriptor(real, "cudnnCreateTensorDescriptor")
    with pytest.raises(CudnnError):
        real.call("cudnnSetTensor4dDescriptorEx", tensor, 99, 1, 1, 1, 1, 1, 1, 1, 1)


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


def test_another_major_version_is_refused(fake):
    """With what to do."""
    fake.version(8907)
    with pytest.raises(LibraryUnusable, match=r"cuDNN 8\.9\.7 is not of version 9; give this"):
        CudnnLibrary(fake.library.path)
