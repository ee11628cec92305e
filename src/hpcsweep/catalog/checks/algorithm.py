"""Which algorithm each convolution ran, by whose word, and how much of the network that is."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog.record import Cells, CheckRecord, Flag, cell


class AlgorithmCells(Cells):
    """The convolutions of a pass together."""

    backend: str | None = cell(
        "back-end that ran the convolutions: framework, reference, cudnn, miopen"
    )
    algorithm_used: str | None = cell(
        "algorithm that ran; several, joined by `+`, if layers differ"
    )
    algorithm_evidence: str | None = cell("where the proof comes from: profiler, api, none")
    algorithm_coverage_pct: float | None = cell(
        "share of convolution FLOPs in the requested algorithm"
    )
    algorithm_coverage_time_pct: float | None = cell(
        "share of their time in the requested algorithm", clocked=True
    )
    algorithm_uncovered: str | None = cell(
        "what no back-end can run: share of FLOPs, operator, layer"
    )
    conv_calls: int | None = cell("convolutions in a pass, whoever calls them")
    conv_fallbacks: int | None = cell("convolutions that ran another algorithm than requested")
    fallback_reason: str | None = cell("most frequent reason of the fallbacks")
    workspace_bytes: int | None = cell("largest workspace of a convolution")


class LayerAlgorithm(Cells):
    """One convolution call, or its backward pass."""

    backend: str | None = cell("back-end that ran the convolution")
    algorithm_used: str | None = cell("algorithm that ran")
    algorithm_evidence: str | None = cell("operators, library calls, kernels that the profiler saw")
    fallback_reason: str | None = cell("why another algorithm than the requested one ran")
    workspace_bytes: int | None = cell("workspace of the convolution")
    plan: str | None = cell("the library's plan that ran: engine and knobs, or solution")
    plan_notes: str | None = cell("the library's notes on it, such as TENSOR_CORE")
    kernel_ms: float | None = cell(
        "kernels of the call in the profiled pass, without gaps and events"
    )


# Doubts: the time would stand under the name of an algorithm that did not run.
MISMATCH: Final = Flag(
    "algorithm_mismatch",
    "the profiler saw another algorithm than the requested one",
    doubt=True,
    lasting=True,
)
ABSENT: Final = Flag(
    "algorithm_absent",
    "no convolution at all ran the requested algorithm",
    doubt=True,
    lasting=True,
)
# No doubts: what ran is known, and `algorithm_coverage_pct` says how much of it was as asked.
FALLBACK: Final = Flag("fallback", "some convolutions ran another algorithm than the requested one")
UNCOVERED: Final = Flag(
    "uncovered", "convolutions ran that no back-end can run; `algorithm_uncovered` names them"
)
# A doubt: what could have been proven, and was not, may be any algorithm.
UNPROVEN: Final = Flag(
    "unproven",
    "an explicit algorithm whose evidence was wanted and could be had: the profiler did not see "
    "its calls, or no kernel of them; of a graph, no kernel of its replay",
    doubt=True,
    lasting=True,
)
# No doubt: it is of the machine, where the operators and calls still are evidence.
KERNELS_UNSEEN: Final = Flag(
    "kernels_unseen",
    "the profiler shows this process no kernels at all (no CUPTI, or no permission): operators and "
    "library calls are all the evidence, and of a graph's replay there is none",
)
# No doubt: the times are of what ran here; it is what is computed of them that is not.
WORK_UNKNOWN: Final = Flag(
    "work_unknown",
    "the profiled pass ran other convolutions or products than the shape pass, on the meta device: "
    "the network's path depends on the device (`x.is_cuda`) or on values, or it kept what it "
    "computed; FLOPs, rates and shares of work are not those of this device",
)
RECORD: Final = CheckRecord(
    finds="another algorithm than the row's name says; what the algorithm does not cover",
    costs="a profiled pass, up to three on a GPU; `evidence: false` leaves it out",
    overall=AlgorithmCells,
    layers=LayerAlgorithm,
    flags=(MISMATCH, ABSENT, UNPROVEN, KERNELS_UNSEEN, FALLBACK, UNCOVERED, WORK_UNKNOWN),
)
