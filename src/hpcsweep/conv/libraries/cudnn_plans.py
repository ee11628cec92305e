"""Plans of cuDNN: which there are, on a GPU that need not be here, and how one is run.

The graph interface tells the engines. Since 9.8 cuDNN takes the properties of a device as JSON, so
neither a GPU nor a driver is needed. NVIDIA's own front-end (package nvidia-cudnn-frontend) builds
and runs plans.

`heuristic` is the first plan of heuristic mode A that can be built, `eng12` an engine with its
default knobs, and a longer name a plan as mode A proposes it. Without TF32, float32 takes no plan
that uses tensor cores or rounds its inputs, as in the framework.

Not proven on hardware: descriptions, names, refusals and built plans are those of the real library,
which needs a GPU to run a plan.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from hpcsweep import catalog, environment, extras
from hpcsweep.conv.backend import Direction, LibraryUnusable
from hpcsweep.conv.libraries import (
    Handles,
    LibraryError,
    NotSupported,
    Plan,
    Problem,
    cudnn_library,
    first_usable,
    no_gpu,
    strides,
)
from hpcsweep.conv.libraries.cudnn_library import (
    HEUR_MODE_A,
    NOTES,
    CudnnError,
    CudnnGraph,
    Described,
    mute,
    version_text,
)
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import first_line

_CALL: Final = "cudnnGraphExecute"
# numbers of the tensors of a graph, by which a run is given their addresses
_FIRST = 1
_SECOND = 2
_RESULT = 3
# names of `cudnn.data_type` in NVIDIA's front-end
_DTYPES: Final = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BFLOAT16",
    "float64": "DOUBLE",
}
# cuDNN's notes on engines that give up digits of float32, which is TF32 or less
_REDUCED: Final = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")
# 9.8.0, the version since which devices are told as JSON
_TAKES_JSON: Final = 90800
# Room for the configurations of a heuristic and the knobs of an engine: cuDNN fills what it is
# given, and a descriptor is made for each before. Of more, the last ones would not be listed.
_MOST: Final = 64
# room for the properties of a device; those of an H100 take 750
_JSON_BYTES: Final = 1 << 16

# bytes; what torch allocates has more
_ALIGNMENT: Final = 16


@dataclass(frozen=True)
class Graphs:
    """Answers questions about the engines of a device, which cuDNN takes no other way."""

    library: CudnnGraph
    device: Described

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

    def _engine(self, graph: Described, index: int) -> dict[str, Any] | None:
        make = self.library.make
        try:
            engine = make(
                "ENGINE", OPERATION_GRAPH=graph, GLOBAL_INDEX=index, DEVICEPROP=self.device
            )
        except CudnnError:
            return None
        # room for twice as many as are known: a later cuDNN may have more
        numbers = engine.values("NUMERICAL_NOTE", 2 * len(NOTES))
        notes = [NOTES[one] if one < len(NOTES) else f"note {one}" for one in numbers]
        try:
            chosen = make("ENGINECFG", ENGINE=engine)
            plan = make("EXECUTION_PLAN", ENGINE_CONFIG=chosen, DEVICEPROP=self.device)
            workspace: int | None = plan.number("WORKSPACE_SIZE")
        except CudnnError:
            workspace = None
        return {"engine": index, "notes": notes, "workspace_bytes": workspace}

    def _heuristic(self, graph: Described) -> list[str]:
        """Return the names of the plans that heuristic mode A proposes, the first one first."""
        try:
            heuristic = self.library.make(
                "ENGINEHEUR", OPERATION_GRAPH=graph, MODE=HEUR_MODE_A, DEVICEPROP=self.device
            )
            return [_name(one) for one in heuristic.inside("RESULTS", "ENGINECFG", _MOST)]
        except CudnnError:
            return []

    def _graph(self, shape: ConvShape) -> Described:
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
        tensors = list[Described]()
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


def _name(config: Described) -> str:
    """Return a plan's name as cuDNN's front-end prints it: eng53_k2=5_k13=1."""
    engine = config.inside("ENGINE", "ENGINE")[0]
    name = f"eng{engine.number('GLOBAL_INDEX')}"
    for choice in config.inside("KNOB_CHOICES", "KNOB_CHOICE", _MOST):
        name += f"_k{choice.number('KNOB_TYPE')}={choice.number('KNOB_VALUE')}"
    return name


def load() -> CudnnGraph:
    """Return the libcudnn of this Python, if it can answer for devices that are not here.

    Raises:
        LibraryUnusable: there is none, or it cannot.
    """
    found = first_usable(cudnn_library.candidates(), CudnnGraph, environment.CUDNN)
    if found.version < _TAKES_JSON:
        raise LibraryUnusable(
            f"cuDNN {version_text(found.version)} at {found.path} answers only for the GPU that "
            f"is here; {version_text(_TAKES_JSON)} and later for others, too"
        )
    return found


@dataclass
class FrontEnd:
    """NVIDIA's front-end, with a handle per thread and device; `version` is that of cuDNN."""

    version: str
    _answers: dict[tuple[ConvShape, int], dict[str, Any]] = field(default_factory=dict)

    @cached_property
    def module(self) -> Any:  # noqa: ANN401 - it has no types
        """The package.

        Raises:
            LibraryUnusable: it is not installed.
        """
        try:
            return importlib.import_module("cudnn")
        except ImportError as error:
            why = f"plans of cuDNN need nvidia-cudnn-frontend: {extras.install('nvidia')} ({error})"
            raise LibraryUnusable(why) from error

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """The errors that say that the library cannot do a problem.

        Its own class for that is no `RuntimeError`; other statuses are, or a `ValueError`
        (`throw_if` in its python/pycudnn.cpp).
        """
        return RuntimeError, ValueError, self.module.cudnnGraphNotSupportedError

    def plan(self, problem: Problem, device: int) -> Plan:
        """Build the plan of a problem, with cuDNN's notes; `NotSupported` where there is none."""
        name, _, version = problem.algorithm.partition("@")
        handle = self._handles.get(device, 0)
        try:
            graph = self._graph(problem, handle)
            places = self._places(graph, name)
            index = self._built(graph, places, problem)
        except self.refusals as error:
            other = f" (found with cuDNN {version})" if version not in {"", self.version} else ""
            why = f"cuDNN {self.version}: {name}{other}: {first_line(error)}"
            raise NotSupported(why) from error
        full_name = graph.get_plan_name_at_index(index)
        size = int(graph.get_workspace_size_plan_at_index(index))
        engine = graph.get_engine_and_knobs_at_index(index)[0]
        notes = " ".join(self._notes(problem, device, engine))
        handle_of = self._handles.get

        def run(first: int, second: int, out: int, workspace: int, stream: int) -> None:
            tensors = {_FIRST: first, _SECOND: second, _RESULT: out}
            handle = handle_of(device, stream)
            try:
                graph.execute_plan_at_index(tensors, workspace, index, handle=handle)
            except self.refusals as error:
                raise LibraryError(f"{_CALL}:{full_name}: {error}") from error

        return Plan(problem, _CALL, full_name, size, run, name=full_name, notes=notes)

    def names(self, problem: Problem, device: int, most: int) -> list[str]:
        """Return the names of mode A's plans, at most so many, then the engines left out.

        What the point's switches forbid is left out, since it would be refused.

        Raises:
            LibraryUnusable: this cuDNN does not tell.
        """
        asked = self._asked(problem, device)
        unwanted = _unwanted(problem)
        forbidden = set[str]()
        others = list[str]()
        for one in asked["engines"]:
            if not unwanted.isdisjoint(one["notes"]):
                forbidden.add(f"eng{one['engine']}")
            elif one["workspace_bytes"] is not None:  # it has a plan
                others.append(f"eng{one['engine']}")
        allowed = [name for name in asked["heuristic"] if _engine(name) not in forbidden]
        listed = allowed[:most]
        tried = {_engine(name) for name in listed}
        return listed + [name for name in others if name not in tried]

    def _graph(self, problem: Problem, handle: Any) -> Any:  # noqa: ANN401 - the front-end's own
        """Describe a problem."""
        frontend = self.module
        shape = problem.shape
        kind = getattr(frontend.data_type, _DTYPES[shape.dtype])
        compute = kind if shape.dtype == "float64" else frontend.data_type.FLOAT
        graph = frontend.pygraph(
            handle=handle,
            io_data_type=kind,
            intermediate_data_type=kind,
            compute_data_type=compute,
        )
        operands = []
        *operand_sizes, size = problem.sizes
        for uid, operand_size in zip((_FIRST, _SECOND), operand_sizes, strict=True):
            stride = [*strides(operand_size, problem.layout)]
            operand = graph.tensor(uid=uid, data_type=kind, dim=[*operand_size], stride=stride)
            operands.append(operand)
        first, second = operands
        padding = [*shape.padding]
        steps = {"stride": [*shape.stride], "dilation": [*shape.dilation]}
        geometry = {"pre_padding": padding, "post_padding": padding, **steps}
        if problem.way is Direction.FORWARD:
            result = graph.conv_fprop(image=first, weight=second, **geometry)
        elif problem.way is Direction.DATA:
            result = graph.conv_dgrad(loss=first, filter=second, **geometry)
        else:
            result = graph.conv_wgrad(image=second, loss=first, **geometry)
        result.set_output(True).set_uid(_RESULT).set_data_type(kind)
        result.set_dim([*size]).set_stride([*strides(size, problem.layout)])
        graph.validate()
        graph.build_operation_graph()
        return graph

    @cached_property
    def _handles(self) -> Handles[Any]:
        return Handles(self._new_handle, self.module.set_stream)

    def _new_handle(self) -> Any:  # noqa: ANN401 - the front-end's own
        try:
            return self.module.create_handle()
        except RuntimeError as error:
            raise no_gpu("cuDNN", "NVIDIA", error) from error

    def _places(self, graph: Any, name: str) -> list[int]:  # noqa: ANN401
        """Return where in the graph's list of plans those of a name are."""
        if "_" not in name and name != catalog.HEURISTIC:
            graph.create_execution_plan(int(name.removeprefix("eng")), {})
            return [0]
        graph.create_execution_plans([self.module.heur_mode.A])
        places = range(graph.get_execution_plan_count())
        if name == catalog.HEURISTIC:
            return list(places)
        named = [i for i in places if graph.get_plan_name_at_index(i) == name]
        if not named:
            raise NotSupported("it proposes no such plan for this shape on this GPU")
        return named

    def _built(self, graph: Any, places: list[int], problem: Problem) -> int:  # noqa: ANN401
        """Return the first of these plans that can be built under the point's switches."""
        unwanted = _unwanted(problem)
        if unwanted:
            notes = self.module.numerical_note
            graph.deselect_numeric_notes([getattr(notes, name) for name in sorted(unwanted)])
        refusal: Exception | None = None
        for index in places:
            try:
                graph.build_plan_at_index(index)
            except self.refusals as error:  # noqa: PERF203 - mostly one of the first is built
                refusal = error
            else:
                return index
        without = f" without {', '.join(sorted(unwanted))}" if unwanted else ""
        raise NotSupported(f"no plan can be built{without}: {refusal}")

    def _asked(self, problem: Problem, device: int) -> dict[str, Any]:
        """Return what cuDNN tells of a shape's engines; asked once, since it tries to build all."""
        key = problem.shape, device
        if key not in self._answers:
            graphs = Graphs.here(load(), device)
            self._answers[key] = graphs.ask(problem.shape)
        return self._answers[key]

    def _notes(self, problem: Problem, device: int, engine: int) -> list[str]:
        """Return cuDNN's notes on an engine, if it tells them.

        Those on engines of gradients are not asked for.
        """
        if problem.way is not Direction.FORWARD:
            return []
        try:
            engines = self._asked(problem, device)["engines"]
        except LibraryUnusable:
            return []
        for answer in engines:
            if answer["engine"] == engine:
                notes: list[str] = answer["notes"]
                return notes
        return []


def _engine(plan: str) -> str:
    return plan.partition("_")[0]


def _unwanted(problem: Problem) -> set[str]:
    """Return the numerical notes of plans that the point's switches forbid."""
    unwanted = set[str]()
    if problem.shape.dtype == "float32" and not problem.tf32:
        unwanted.update(_REDUCED)
    if problem.deterministic:
        unwanted.add("NONDETERMINISTIC")
    return unwanted


def properties_here(library: CudnnGraph, device: int = 0) -> dict[str, Any]:
    """Return the properties of a GPU of this machine, as cuDNN tells them.

    Raises:
        CudnnError: there is no such GPU.
        LibraryUnusable: this cuDNN does not tell.
    """
    described = library.make("DEVICEPROP", DEVICE_ID=device)
    text = b"".join(described.values("JSON_REPRESENTATION", _JSON_BYTES)).rstrip(b"\0")
    try:
        properties: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise mute(library) from error
    return properties


if __name__ == "__main__":  # as `doctor` runs it: a crash of the library ends this process alone
    print(json.dumps(properties_here(load())))  # noqa: T201 - `doctor` reads it
