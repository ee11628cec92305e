"""Imports a PyTorch profiler's trace: a row for each convolution call, with its kernels' time.

A step of the profiler is a visit of one point. Shapes are those that the trace recorded; where it
lacks strides, the sizes of both sides still tell the work. The kernels' names say the algorithm,
and how surely. A profiler changes times, so the flag `foreign` puts all rows in doubt.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, abc, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hpcsweep.catalog import AUTO, gpus
from hpcsweep.catalog.columns import FOREIGN, KERNELS, Row
from hpcsweep.conv.proof.kernels import UNKNOWN, Grade, kernel_word, recognise
from hpcsweep.conv.shape import NCHW, NHWC, ConvShape
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.importing import submission, trace_events
from hpcsweep.importing.trace_events import Argument, Operator, Trace, TracedCall, as_list
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

_NAME: Final = re.compile(
    r"(.+?)(?:\.pt)?(?:\.trace)?(?:\.json|\.json\.gz|(?<!\.csv)\.gz)", re.IGNORECASE
)
_TYPES: Final = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
}  # fmt: skip
_SIZES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_MAKERS: Final = re.compile(r"\b(nvidia|amd|tesla|instinct|radeon|geforce)\b", re.IGNORECASE)
_AMD: Final = re.compile(r"\b(amd|instinct|radeon|gfx\w+)\b", re.IGNORECASE)
_PROCESSORS: Final = 9  # that a node may have, each an agent of ROCm: 8 of four MI300A, and none
_GRAPHS: Final = "; kernels of a replayed graph name no operator: profile without graphs"
_INTS: Final = re.compile(r"\[(\d+)(?:, (\d+))?\]")
_SHOWN: Final = 4  # kernels of a call


# The arguments of operators, as they are declared.
_PLAIN: Final = "input weight bias stride padding dilation groups"
_ADDING: Final = "input weight added factor bias stride padding dilation groups"
_FULL: Final = "input weight bias stride padding dilation transposed output_padding groups"
_LIBRARY: Final = "input weight bias padding stride dilation groups"
_BACKWARD: Final = (
    "gradient input weight bias_sizes stride padding dilation transposed output_padding groups "
    "wanted"
)
_OLD_BACKWARD: Final = (
    "input gradient weight padding stride dilation groups benchmark deterministic allow_tf32 wanted"
)
_SCHEMAS: Final = {
    **dict.fromkeys(("conv2d", "cudnn_convolution_relu", "miopen_convolution_relu"), _PLAIN),
    **dict.fromkeys(("cudnn_convolution_add_relu", "miopen_convolution_add_relu"), _ADDING),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), _FULL),
    **dict.fromkeys(("miopen_convolution", "miopen_depthwise_convolution"), _LIBRARY),
    "mkldnn_convolution": _LIBRARY,
    "cudnn_convolution": "input weight padding stride dilation groups",
    "convolution_backward": _BACKWARD,
    **dict.fromkeys(("cudnn_convolution_backward", "miopen_convolution_backward"), _OLD_BACKWARD),
}

Given = Mapping[str, Argument]  # the arguments of an operator, by name


def is_one(path: Path) -> bool:
    """Say whether a path is named as a trace is: JSON, packed by gzip or not."""
    return path.is_file() and _NAME.fullmatch(path.name) is not None


def sweep_name(path: Path) -> str:
    """Return the name of the sweep that a trace becomes."""
    match = _NAME.fullmatch(path.name)
    return match[1] if match else path.name


def bring(path: Path, sweep_dir: SweepDir, device: str = "") -> tuple[str, tuple[str, ...]]:
    """Write the convolution calls of a trace as a submission; return its source and notes.

    `ResultsError` where it cannot be read or no convolution launched a kernel, `UsageError` where
    it is no trace.
    """
    events, head = trace_events.read(path)
    try:
        trace = Trace(events)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    every = trace.calls()
    calls = [call for call in every if call.kernels]
    if not calls:
        raise ResultsError(
            f"{path}: no convolution that launched a kernel: {count(len(events), 'event')}, "
            f"{count(len(trace.kernels), 'kernel')}, {count(len(every), 'convolution')}"
            f"{_GRAPHS if trace.graphs else ''}"
        )
    device = device or _device(head, trace.devices)
    entry = gpus.by_device_name(device)
    gpu = gpus.product(device) if entry else gpus.by_label(device)
    gpu = gpu or re.sub(r"\W+", "_", _MAKERS.sub("", device)).strip("_").lower() or UNKNOWN
    outputs = trace.output_sizes()
    steps = sorted(trace.steps)
    by_step: dict[int, list[Row]] = defaultdict(list)
    for call in calls:
        rows = by_step[bisect_right(steps, call.start)]
        rows.append(_row(call, len(rows), outputs))
    with submission.opened(sweep_dir, path.name, path) as file:
        for visit, step in enumerate(sorted(by_step), 1):
            axes = {
                "model": sweep_dir.name, "algorithm": AUTO, "gpu": gpu, "input_size": None,
                "batch_size": _common(by_step[step], "batch_size"), "visit": visit,
                "dtype": _common(by_step[step], "dtype"),
                "tf32": any("tf32" in kernel.name for call in calls for kernel in call.kernels),
            }  # fmt: skip
            total = sum(row["kernel_ms"] for row in by_step[step])
            for row in by_step[step]:
                row["percentage"] = 100 * row["kernel_ms"] / total if total else None
            peak = entry or gpus.GPUS.get(gpu)
            about = {"device_name": device, "peak_source": peak.name if peak else None}
            file.commit_calls(path.name, axes, about, by_step[step])
    notes = [*_notes(every, by_step, gpu), *file.notes()]
    return path.name, (*notes, *(["the profile has" + _GRAPHS[1:]] if trace.graphs else []))


def _notes(
    every: Sequence[TracedCall], by_step: Mapping[int, Sequence[Row]], gpu: str
) -> Iterator[str]:
    rows = [row for of_step in by_step.values() for row in of_step]
    backward = sum(row["direction"] == "backward" for row in rows)
    yield (f"{count(len(rows), 'convolution call')} ({backward} backward) in "
           f"{count(len(by_step), 'step')} on {gpu}")  # fmt: skip
    grades = Counter(str(row["algorithm_evidence"]).split(" ", 2)[1] for row in rows)
    yield f"algorithm {', '.join(f'{name} {number}' for name, number in grades.most_common())}"
    if lacking := sum("flops" not in row for row in rows):
        yield f"{count(lacking, 'call')} without recorded shapes of both sides"
    if left := len(every) - len(rows):
        yield f"left out: {count(left, 'call')} that launched no kernel"
    if gpu == UNKNOWN:
        yield "the trace names no device: --device does"
    yield f"flagged {FOREIGN}: measured by PyTorch's profiler, not here"


def _device(head: Mapping[str, Any], numbers: abc.Set[int | None]) -> str:
    """Return the name of the devices that ran kernels; `unknown` where no list tells it.

    Of CUDA the number of an event is the id of a device. ROCm counts the processors before its
    GPUs, so that its numbers are ids and a constant, which the list must leave no choice of.
    """
    listed = [of for of in as_list(head.get("deviceProperties")) if isinstance(of, dict)]
    names = {entry.get("id"): str(entry.get("name") or "") for entry in listed}
    shifts = range(_PROCESSORS) if any(map(_AMD.search, names.values())) else (0,)
    if len({*names.values()}) > 1:
        shifted = ([names.get(n - by) for n in numbers if n is not None] for by in shifts)
        named = {name for of in shifted if None not in of for name in of}
    else:
        named = {*names.values()}  # whatever its number is
    return (named.pop() if len(named) == 1 else "") or UNKNOWN


def _common(rows: Sequence[Row], name: str) -> Any:  # noqa: ANN401 - of a cell
    values = {row.get(name) for row in rows}
    return values.pop() if len(values) == 1 else None


def _row(call: TracedCall, index: int, outputs: Mapping[int | None, tuple[int, ...]]) -> Row:
    names = dict.fromkeys(kernel.name for kernel in call.telling)
    used, grade = _algorithms(call)
    leaf = call.operators[-1].name.removeprefix("aten::")
    library = next((name for name in ("cudnn", "miopen") if name in leaf), None)
    words = " ".join(map(kernel_word, [*names][:_SHOWN]))
    return {
        "layer": f"{call.operators[0].name.removeprefix('aten::')} {index}", "op": "convolution",
        **_work(call, outputs),
        "call_index": index, "direction": "backward" if call.backward else "forward",
        **dict.fromkeys(("mean_ms", "median_ms", "kernel_ms"), call.milliseconds), "n": 1,
        "layer_timer": KERNELS, "backend": library, "algorithm_used": used,
        "algorithm_evidence": f"profiler: {grade.value} by {words}",
    }  # fmt: skip


def _algorithms(call: TracedCall) -> tuple[str, Grade]:
    """Return what the kernels of a call belong to: of each gradient, where operators part them."""
    parts: dict[str, list[str]] = defaultdict(list)
    for kernel in call.telling:
        parts[kernel.operator].append(kernel.name)
    parted = [recognise(kernels) for kernels in parts.values()]
    sets = {names for part in parted for _, names in part.telling} or {frozenset([UNKNOWN])}
    if len(parted) > 1:
        sets = {part.algorithms for part in parted}
    elif common := frozenset.intersection(*sets):
        sets = {common}
    used = {" or ".join(sorted(names)) or UNKNOWN for names in sets}
    sure = all(part.telling and not part.unknown for part in parted)
    sure = sure and not any(" or " in names for names in used)
    return "+".join(sorted(used)), Grade.RECOGNISED if sure else Grade.COMPATIBLE


def _given(operator: Operator) -> Given:
    """Return the arguments of an operator by name; nothing if its declaration is not known."""
    names = _SCHEMAS.get(operator.name.removeprefix("aten::"), "").split()
    return defaultdict(Argument, zip(names, operator.arguments, strict=False))


def _work(call: TracedCall, outputs: Mapping[int | None, tuple[int, ...]]) -> Row:
    """Return the cells of a call's shape and work, as far as the trace recorded it."""
    for given in map(_given, reversed(call.operators)):
        image = given["input"].sizes
        weight = given["weight"].sizes
        transposed = given["transposed"].value == "True"
        if not transposed and len(image) == len(weight) == 4:
            output = given["gradient"].sizes or next(
                (outputs[op.sequence] for op in call.operators if op.sequence in outputs), ()
            )
            return _cells(call, given, output)
        if kind := {3: "1d", 4: "2d", 5: "3d"}.get(len(image)):
            return {"op": f"conv{'transpose' if transposed else ''}{kind}"}
    return {}


def _shape(call: TracedCall, given: Given) -> ConvShape | None:
    """Return the whole shape; None where strides are not recorded, or sizes do not agree."""
    pairs = [_INTS.fullmatch(given[name].value) for name in ("stride", "padding", "dilation")]
    numbers = [(int(pair[1]), int(pair[2] or pair[1])) for pair in pairs if pair]
    groups = given["groups"].value
    dtype = _TYPES.get(given["input"].type)
    if len(numbers) < len(pairs) or not (groups.isdecimal() and int(groups) and dtype):
        return None
    (stride_h, stride_w), (pad_h, pad_w), (dilation_h, dilation_w) = numbers
    bias = _given(call.operators[0])["bias"].sizes or given["bias_sizes"].value.strip("[0]")
    n, channels, height, width = given["input"].sizes
    filters, of_group, down, across = given["weight"].sizes
    shape = ConvShape(
        n, channels, height, width, filters, down, across, stride_h, stride_w, pad_h, pad_w,
        dilation_h, dilation_w, groups=int(groups), bias=bool(bias), dtype=dtype,
        layout=NHWC if _is_nhwc(given["input"]) or _is_nhwc(given["weight"]) else NCHW,
    )  # fmt: skip
    return shape if submission.agrees(shape) and of_group * shape.groups == channels else None


def _is_nhwc(operand: Argument) -> bool:
    """Say whether the channels of an operand lie last in memory."""
    if len(operand.strides) != 4:
        return False
    _, channels, height, width = operand.sizes
    return operand.strides[1] == 1 and operand.strides[3] == channels > 1 and height * width > 1


def _cells(call: TracedCall, given: Given, output: tuple[int, ...]) -> Row:
    image = given["input"].sizes
    weight = given["weight"].sizes
    dtype = _TYPES.get(given["input"].type)
    if shape := _shape(call, given):
        row = submission.work_cells(shape)
        output = shape.output_size
    else:
        n, channels, height, width = image
        groups = channels // weight[1] if weight[1] and channels % weight[1] == 0 else None
        name = f"n{n}_c{channels}_{height}x{width}_k{weight[0]}_{weight[2]}x{weight[3]}"
        row = {
            "op": "conv2d", "batch_size": n, "in_channels": channels, "in_h": height, "in_w": width,
            "out_channels": weight[0], "kernel_h": weight[2], "kernel_w": weight[3],
            "groups": groups, "dtype": dtype,
        }  # fmt: skip
        if len(output) == 4:
            row |= {"out_h": output[2], "out_w": output[3]}
            name += f"_to_{output[2]}x{output[3]}"
        row |= {"layer": name, "unique_key": f"conv2d_{name}_g{groups}_{dtype or UNKNOWN}"}
    if len(output) != 4 or dtype is None:
        return row
    gradients = _gradients(call, given) if call.backward else 1
    moved = [_SIZES[dtype] * math.prod(sizes) for sizes in (image, weight, output)]
    return row | {
        "params": math.prod(weight),
        "flops": 2 * gradients * output[0] * math.prod(output[2:]) * math.prod(weight),
        "bytes_min": gradients * sum(moved) - (gradients - 1) * moved[2],  # the output's is shared
    }


def _gradients(call: TracedCall, given: Given) -> int:
    """Return how many gradients a backward call computed, without the bias'."""
    mask = given["wanted"].value.strip("[]").split(", ")[:2]
    inner = sum(op.name.endswith(("backward_input", "backward_weight")) for op in call.operators)
    return mask.count("True") or inner or 2
