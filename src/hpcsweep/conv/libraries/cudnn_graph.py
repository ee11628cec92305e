"""Which engines cuDNN has for a convolution on a GPU that need not be here: its graph interface.

Since 9.8 cuDNN takes the properties of a device as JSON, so neither a GPU nor a driver is needed.
Values are those of `cudnn_graph.h`, with which the tests compare them.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from contextlib import suppress
from ctypes import POINTER, c_float, c_int, c_int64, c_void_p
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from hpcsweep import environment
from hpcsweep.conv.backend import LibraryUnusable
from hpcsweep.conv.libraries import cudnn_library
from hpcsweep.conv.libraries.cudnn_library import CudnnError, CudnnLibrary, version_text
from hpcsweep.conv.libraries.driver import first_usable, strides
from hpcsweep.conv.shape import ConvShape

_TAKES_JSON: Final = 90800  # the version since which devices are told as JSON
# Room for the configurations of a heuristic and the knobs of an engine: cuDNN fills what it is
# given, and a descriptor is made for each before. Of more, the last ones would not be listed.
_MOST: Final = 64
_JSON_BYTES: Final = (
    1 << 16
)  # room for the properties of a device, of which those of an H100 take 750

# cudnnBackendDescriptorType_t
DESCRIPTORS: Final[Mapping[str, int]] = {
    "CONVOLUTION": 1, "ENGINE": 2, "ENGINECFG": 3, "ENGINEHEUR": 4, "EXECUTION_PLAN": 5,
    "KNOB_CHOICE": 7, "OPERATION_CONVOLUTION_FORWARD": 10, "OPERATIONGRAPH": 15, "TENSOR": 17,
    "DEVICEPROP": 38,
}  # fmt: skip
# cudnnBackendAttributeType_t
TYPES: Final[Mapping[str, int]] = {
    "DATA_TYPE": 1, "INT64": 3, "FLOAT": 4, "CONVOLUTION_MODE": 7, "HEUR_MODE": 8,
    "KNOB_TYPE": 9, "NUMERICAL_NOTE": 11, "BACKEND_DESCRIPTOR": 15, "INT32": 23, "CHAR": 24,
}  # fmt: skip
_C_TYPES: Final[Mapping[str, Any]] = {
    "INT64": c_int64, "FLOAT": c_float, "BACKEND_DESCRIPTOR": c_void_p,
    "CHAR": ctypes.c_char,
}  # fmt: skip
# cudnnBackendAttributeName_t, by the type of their values
_BY_TYPE: Final[Mapping[str, Mapping[str, int]]] = {
    "DATA_TYPE": {"CONVOLUTION_COMP_TYPE": 100, "TENSOR_DATA_TYPE": 901},
    "CONVOLUTION_MODE": {"CONVOLUTION_CONV_MODE": 101},
    "INT64": {
        "CONVOLUTION_DILATIONS": 102, "CONVOLUTION_FILTER_STRIDES": 103,
        "CONVOLUTION_POST_PADDINGS": 104, "CONVOLUTION_PRE_PADDINGS": 105,
        "CONVOLUTION_SPATIAL_DIMS": 106, "EXECUTION_PLAN_WORKSPACE_SIZE": 402,
        "KNOB_CHOICE_KNOB_VALUE": 601, "OPERATIONGRAPH_ENGINE_GLOBAL_COUNT": 802,
        "TENSOR_BYTE_ALIGNMENT": 900, "TENSOR_DIMENSIONS": 902, "TENSOR_STRIDES": 903,
        "TENSOR_UNIQUE_ID": 906, "ENGINE_GLOBAL_INDEX": 1301,
    },
    "FLOAT": {
        "OPERATION_CONVOLUTION_FORWARD_ALPHA": 700, "OPERATION_CONVOLUTION_FORWARD_BETA": 701,
    },
    "HEUR_MODE": {"ENGINEHEUR_MODE": 200},
    "KNOB_TYPE": {"KNOB_CHOICE_KNOB_TYPE": 600},
    "NUMERICAL_NOTE": {"ENGINE_NUMERICAL_NOTE": 1303},
    "BACKEND_DESCRIPTOR": {
        "ENGINEHEUR_OPERATION_GRAPH": 201, "ENGINEHEUR_RESULTS": 202, "ENGINEHEUR_DEVICEPROP": 204,
        "ENGINECFG_ENGINE": 300, "ENGINECFG_KNOB_CHOICES": 302,
        "EXECUTION_PLAN_ENGINE_CONFIG": 401, "EXECUTION_PLAN_DEVICEPROP": 407,
        "OPERATION_CONVOLUTION_FORWARD_CONV_DESC": 702, "OPERATION_CONVOLUTION_FORWARD_W": 703,
        "OPERATION_CONVOLUTION_FORWARD_X": 704, "OPERATION_CONVOLUTION_FORWARD_Y": 705,
        "OPERATIONGRAPH_OPS": 801, "ENGINE_OPERATION_GRAPH": 1300, "ENGINE_DEVICEPROP": 1307,
    },
    "INT32": {"DEVICEPROP_DEVICE_ID": 2700},
    "CHAR": {"DEVICEPROP_JSON_REPRESENTATION": 2702},
}  # fmt: skip
ATTRIBUTES: Final = {
    name: (value, kind) for kind, values in _BY_TYPE.items() for name, value in values.items()
}
# cudnnBackendNumericalNote_t, in the order of its values
NOTES: Final = (
    "TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION", "FFT", "NONDETERMINISTIC",
    "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6", "WINOGRAD_TILE_13x13", "STRICT_NAN_PROP",
)  # fmt: skip
HEUR_MODE_A: Final = 3  # cudnnBackendHeurMode_t
_ALIGNMENT: Final = 16  # bytes; what torch allocates has more


class CudnnGraph(CudnnLibrary):
    """A loaded libcudnn with its graph interface."""

    signatures: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "cudnnBackendCreateDescriptor": (c_int, POINTER(c_void_p)),
        "cudnnBackendDestroyDescriptor": (c_void_p,),
        "cudnnBackendFinalize": (c_void_p,),
        "cudnnBackendSetAttribute": (c_void_p, c_int, c_int, c_int64, c_void_p),
        "cudnnBackendGetAttribute": (
            *(c_void_p, c_int, c_int, c_int64),
            *(POINTER(c_int64), c_void_p),
        ),
    }

    def make(self, kind: str, **attributes: Any) -> _Descriptor:  # noqa: ANN401
        """Return a finished descriptor; attributes are named without the kind.

        Raises:
            CudnnError: cuDNN refuses it, which is its answer to many questions.
        """
        descriptor = _Descriptor(self, kind)
        for name, values in attributes.items():
            descriptor.put(name, values)
        self.call("cudnnBackendFinalize", descriptor.address)
        return descriptor


class _Descriptor:
    """A descriptor of the graph interface; it keeps those that it was made of."""

    def __init__(self, library: CudnnGraph, kind: str) -> None:
        self._library = library
        self._kind = kind
        self._parts = list[object]()
        self.address = c_void_p()
        number = DESCRIPTORS[kind]
        library.call("cudnnBackendCreateDescriptor", number, ctypes.byref(self.address))
        if not self.address:
            raise _mute(library)

    def __del__(self) -> None:
        with suppress(CudnnError, TypeError, AttributeError):  # when the interpreter ends
            self._library.call("cudnnBackendDestroyDescriptor", self.address)

    def put(self, name: str, values: object) -> None:
        """Set an attribute to a value, or to several."""
        number, kind = ATTRIBUTES[f"{self._kind}_{name}"]
        plain = list(values) if isinstance(values, list | tuple | bytes) else [values]
        for place, value in enumerate(plain):
            if isinstance(value, _Descriptor):
                plain[place] = value.address.value
        self._parts.append(values)
        c_type = _C_TYPES.get(kind, c_int) * len(plain)
        content = (TYPES[kind], len(plain), c_type(*plain))
        self._library.call("cudnnBackendSetAttribute", self.address, number, *content)

    def numbers(self, name: str, most: int = 1) -> list[Any]:
        """Return the values of an attribute, at most so many."""
        number, kind = ATTRIBUTES[f"{self._kind}_{name}"]
        c_type = _C_TYPES.get(kind, c_int) * most
        return self._got(number, kind, c_type())

    def number(self, name: str) -> int:
        """Return the one value of an attribute.

        Raises:
            LibraryUnusable: it has none, or several.
        """
        found = self.numbers(name)
        if len(found) != 1:
            raise _mute(self._library)
        return int(found[0])

    def inside(self, name: str, kind: str, most: int = 1) -> list[_Descriptor]:
        """Return the descriptors of a kind that an attribute holds, at most so many."""
        number, _ = ATTRIBUTES[f"{self._kind}_{name}"]
        descriptors = [_Descriptor(self._library, kind) for _ in range(most)]
        room = (c_void_p * most)(*(descriptor.address.value for descriptor in descriptors))
        return descriptors[: len(self._got(number, "BACKEND_DESCRIPTOR", room))]

    def _got(self, number: int, kind: str, room: Any) -> list[Any]:  # noqa: ANN401 - an array
        count = c_int64()
        asked = (self.address, number, TYPES[kind], len(room))
        self._library.call("cudnnBackendGetAttribute", *asked, ctypes.byref(count), room)
        return list(room[: count.value])


@dataclass(frozen=True)
class Graphs:
    """Answers questions about the engines of a device, which cuDNN takes no other way."""

    library: CudnnGraph
    device: _Descriptor

    @classmethod
    def here(cls, library: CudnnGraph, device: int) -> Graphs:
        """Take a GPU of this process."""
        return cls(library, library.make("DEVICEPROP", DEVICE_ID=device))

    @classmethod
    def of(cls, library: CudnnGraph, properties: Mapping[str, Any]) -> Graphs:
        """Take the properties of a device, as in `gpus.cudnn_properties`."""
        text = json.dumps(properties).encode()
        return cls(library, library.make("DEVICEPROP", JSON_REPRESENTATION=text))

    def ask(self, shape: ConvShape) -> dict[str, Any]:
        """Return the engines of a forward convolution, and the order of heuristic mode A.

        Each engine has its number, its numerical notes, and the workspace of its default plan,
        which is None where there is no such plan.
        """
        try:
            graph = self._graph(shape)
        except CudnnError:  # of which it knows no convolution
            return {"engines": [], "heuristic": []}
        engines = []
        for index in range(graph.number("ENGINE_GLOBAL_COUNT")):
            engine = self._engine(graph, index)
            if engine:
                engines.append(engine)
        return {"engines": engines, "heuristic": self._heuristic(graph)}

    def _engine(self, graph: _Descriptor, index: int) -> dict[str, Any] | None:
        make = self.library.make
        try:
            engine = make(
                "ENGINE", OPERATION_GRAPH=graph, GLOBAL_INDEX=index, DEVICEPROP=self.device
            )
        except CudnnError:
            return None
        # room for twice as many as are known: a later cuDNN may have more
        numbers = engine.numbers("NUMERICAL_NOTE", 2 * len(NOTES))
        notes = [NOTES[one] if one < len(NOTES) else f"note {one}" for one in numbers]
        try:
            chosen = make("ENGINECFG", ENGINE=engine)
            plan = make("EXECUTION_PLAN", ENGINE_CONFIG=chosen, DEVICEPROP=self.device)
            workspace: int | None = plan.number("WORKSPACE_SIZE")
        except CudnnError:
            workspace = None
        return {"engine": index, "notes": notes, "workspace_bytes": workspace}

    def _heuristic(self, graph: _Descriptor) -> list[str]:
        """Return the names of the plans that heuristic mode A proposes, the first one first."""
        try:
            heuristic = self.library.make(
                "ENGINEHEUR", OPERATION_GRAPH=graph, MODE=HEUR_MODE_A, DEVICEPROP=self.device
            )
            return [_name(one) for one in heuristic.inside("RESULTS", "ENGINECFG", _MOST)]
        except CudnnError:
            return []

    def _graph(self, shape: ConvShape) -> _Descriptor:
        """Describe a convolution without its bias, which is an operation of its own."""
        make = self.library.make
        dtypes = cudnn_library.DATA_TYPES
        compute = dtypes["float64" if shape.dtype == "float64" else "float32"]
        convolution = make(
            "CONVOLUTION",
            SPATIAL_DIMS=2,
            COMP_TYPE=compute,
            CONV_MODE=cudnn_library.CROSS_CORRELATION,
            DILATIONS=shape.dilation,
            FILTER_STRIDES=shape.stride,
            PRE_PADDINGS=shape.padding,
            POST_PADDINGS=shape.padding,
        )
        tensors = list[_Descriptor]()
        for size in (shape.input_size, shape.filter_size, shape.output_size):
            tensor = make(
                "TENSOR",
                DATA_TYPE=dtypes[shape.dtype],
                DIMENSIONS=size,
                STRIDES=strides(size, shape.layout),
                UNIQUE_ID=len(tensors) + 1,
                BYTE_ALIGNMENT=_ALIGNMENT,
            )
            tensors.append(tensor)
        x, weight, y = tensors
        factors = {"ALPHA": 1.0, "BETA": 0.0}  # of the result, and of what was in its memory
        kind = "OPERATION_CONVOLUTION_FORWARD"
        convolve = make(kind, CONV_DESC=convolution, W=weight, X=x, Y=y, **factors)
        return make("OPERATIONGRAPH", OPS=convolve)


def _name(config: _Descriptor) -> str:
    """Return a plan's name as cuDNN's front-end prints it: eng53_k2=5_k13=1."""
    engine = config.inside("ENGINE", "ENGINE")[0]
    name = f"eng{engine.number('GLOBAL_INDEX')}"
    for choice in config.inside("KNOB_CHOICES", "KNOB_CHOICE", _MOST):
        name += f"_k{choice.number('KNOB_TYPE')}={choice.number('KNOB_VALUE')}"
    return name


def _mute(library: CudnnLibrary) -> LibraryUnusable:
    """Return the error of a library whose functions say "success" and tell nothing."""
    return LibraryUnusable(
        f"cuDNN {version_text(library.version)} at {library.path} does not answer through its "
        f"graph interface; take that of torch's wheel: see {environment.CUDNN}, LD_LIBRARY_PATH"
    )


def load() -> CudnnGraph:
    """Return the libcudnn of this Python, if it can answer for devices that are not here.

    Raises:
        LibraryUnusable: there is none, or it cannot.
    """
    found = first_usable(cudnn_library.candidates(), CudnnGraph)
    if found.version < _TAKES_JSON:
        raise LibraryUnusable(
            f"cuDNN {version_text(found.version)} at {found.path} answers only for the GPU that "
            f"is here; {version_text(_TAKES_JSON)} and later for others, too"
        )
    return found


def properties_here(library: CudnnGraph, device: int = 0) -> dict[str, Any]:
    """Return the properties of a GPU of this machine, as cuDNN tells them.

    Raises:
        CudnnError: there is no such GPU.
        LibraryUnusable: this cuDNN does not tell.
    """
    described = library.make("DEVICEPROP", DEVICE_ID=device)
    text = b"".join(described.numbers("JSON_REPRESENTATION", _JSON_BYTES)).rstrip(b"\0")
    try:
        properties: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise _mute(library) from error
    return properties


if __name__ == "__main__":  # as `doctor` runs it: a crash of the library ends this process alone
    print(json.dumps(properties_here(load())))  # noqa: T201 - `doctor` reads it
