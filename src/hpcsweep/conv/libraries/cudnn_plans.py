"""Plans of cuDNN, run by NVIDIA's own front-end (package nvidia-cudnn-frontend).

`heuristic` is the first plan of heuristic mode A that can be built, `eng12` an engine with its
default knobs, and a longer name a plan as mode A proposes it. Without TF32, float32 takes no plan
that uses tensor cores or rounds its inputs, as in the framework.

Not proven on hardware: descriptions, names, refusals and built plans are those of the real library,
which needs a GPU to run a plan.
"""

from __future__ import annotations

import importlib
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from hpcsweep import catalog, extras
from hpcsweep.conv.backend import Direction, LibraryUnusable
from hpcsweep.conv.libraries import cudnn_graph
from hpcsweep.conv.libraries.driver import (
    LibraryError,
    NotSupported,
    Plan,
    Problem,
    no_gpu,
    strides,
)
from hpcsweep.conv.shape import ConvShape
from hpcsweep.errors import first_line

_CALL: Final = "cudnnGraphExecute"
# numbers of the tensors of a graph, by which a run is given their addresses
_FIRST = 1
_SECOND = 2
_RESULT = 3
_DTYPES: Final = {
    "float32": "FLOAT",
    "float16": "HALF",
    "bfloat16": "BFLOAT16",
    "float64": "DOUBLE",
}
_REDUCED: Final = ("TENSOR_CORE", "DOWN_CONVERT_INPUTS", "REDUCED_PRECISION_REDUCTION")


@dataclass(frozen=True)
class CudnnGraphPlan(Plan):
    """A built plan of a graph, by its full name, with cuDNN's notes on its engine."""

    front_end: FrontEnd
    graph: Any
    index: int
    notes: str

    @property
    def name_and_notes(self) -> tuple[str, str]:
        """The full name, and the notes."""
        return self.algorithm, self.notes

    def run(self, first: int, second: int, out: int, workspace: int, stream: int) -> None:
        """Queue the convolution."""
        tensors = {_FIRST: first, _SECOND: second, _RESULT: out}
        handle = self.front_end.handle(self.device, stream)
        try:
            self.graph.execute_plan_at_index(tensors, workspace, self.index, handle=handle)
        except self.front_end.refusals as error:
            raise LibraryError(f"{self.call}: {error}") from error


@dataclass
class FrontEnd:
    """NVIDIA's front-end, with a handle per thread and device; `version` is that of cuDNN."""

    version: str
    _handles: threading.local = field(default_factory=threading.local)
    _answers: dict[tuple[ConvShape, int], dict[str, Any]] = field(default_factory=dict)

    @property
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

    def plan(self, problem: Problem, device: int) -> CudnnGraphPlan:
        """Build the plan of a problem; `NotSupported` where there is none."""
        name, _, version = problem.algorithm.partition("@")
        handle = self.handle(device, 0)
        try:
            graph = self.graph(problem, handle=handle)
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
        no_descriptors = ()  # the graph has what describes it
        return CudnnGraphPlan(
            *(_CALL, full_name, device, no_descriptors, size), self, graph, index, notes
        )

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

    def graph(self, problem: Problem, **how: Any) -> Any:  # noqa: ANN401 - the front-end's own
        """Describe a problem: `handle`, or `device_property` for a device that is not here."""
        frontend = self.module
        shape = problem.shape
        kind = getattr(frontend.data_type, _DTYPES[shape.dtype])
        compute = kind if shape.dtype == "float64" else frontend.data_type.FLOAT
        graph = frontend.pygraph(
            io_data_type=kind, intermediate_data_type=kind, compute_data_type=compute, **how
        )

        def layout(size: tuple[int, ...]) -> dict[str, list[int]]:
            return {"dim": [*size], "stride": [*strides(size, problem.layout)]}

        first_size, second_size, size = problem.sizes
        first = graph.tensor(uid=_FIRST, data_type=kind, **layout(first_size))
        second = graph.tensor(uid=_SECOND, data_type=kind, **layout(second_size))
        geometry = {
            "pre_padding": [*shape.padding], "post_padding": [*shape.padding],
            "stride": [*shape.stride], "dilation": [*shape.dilation],
        }  # fmt: skip
        if problem.way is Direction.FORWARD:
            result = graph.conv_fprop(image=first, weight=second, **geometry)
        elif problem.way is Direction.DATA:
            result = graph.conv_dgrad(loss=first, filter=second, **geometry)
        else:
            result = graph.conv_wgrad(image=second, loss=first, **geometry)
        result.set_output(True).set_uid(_RESULT).set_data_type(kind)
        result.set_dim([*size]).set_stride(layout(size)["stride"])
        graph.validate()
        graph.build_operation_graph()
        return graph

    def handle(self, device: int, stream: int) -> Any:  # noqa: ANN401 - the front-end's own
        """Return this thread's handle of a device, set to a stream."""
        handles: dict[int, Any] = self._handles.__dict__.setdefault("of", {})
        if device not in handles:
            try:
                handles[device] = self.module.create_handle()
            except RuntimeError as error:
                raise no_gpu("cuDNN", "NVIDIA", error) from error
        self.module.set_stream(handles[device], stream)
        return handles[device]

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
            graphs = cudnn_graph.Graphs.here(cudnn_graph.load(), device)
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
