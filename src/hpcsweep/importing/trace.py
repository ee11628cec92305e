"""Imports a PyTorch profiler's trace: a row for each convolution call, with its kernels' time.

A step of the profiler is a visit of one point. Shapes are those that the trace recorded; where it
lacks strides, the sizes of both sides still tell the work. The kernels' names say the algorithm,
and how surely. A profiler changes times, so the flag `foreign` puts all rows in doubt.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple

from hpcsweep.catalog import AUTO, gpus
from hpcsweep.catalog.columns import FOREIGN, KERNELS, Row
from hpcsweep.conv.proof.kernels import UNKNOWN, Grade, kernel_word, recognise
from hpcsweep.conv.shape import NCHW, NHWC, ConvShape
from hpcsweep.errors import ResultsError
from hpcsweep.importing import delimited, submission, trace_events
from hpcsweep.importing.delimited import TAKEN
from hpcsweep.importing.trace_events import Operator, Sizes, Trace, TracedCall, as_list
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

_NAME: Final = re.compile(
    r"(.+?)(?:\.pt)?(?:\.trace)?(?:\.json|\.json\.gz|(?<!\.csv)\.gz)", re.IGNORECASE
)
_TYPES: Final = {
    "float": "float32", "double": "float64", "c10::Half": "float16", "c10::BFloat16": "bfloat16",
}  # fmt: skip
_BYTES: Final = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
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


class Argument(NamedTuple):
    """What a trace recorded of an argument; empty where it did not."""

    sizes: Sizes = ()
    type: str = ""
    strides: Sizes = ()
    value: str = ""


Given = Mapping[str, Argument]  # the arguments of an operator, by name


def sweep_name(path: Path) -> str:
    """Return the name of the sweep that a trace becomes; "" for a file that is named as none is."""
    match = _NAME.fullmatch(path.name)
    return match[1] if match else ""


def bring(path: Path, sweep_dir: SweepDir, device: str = "") -> tuple[str, tuple[str, ...]]:
    """Write the convolution calls of a trace as a submission; return its source and notes.

    `ResultsError` where it cannot be read or no convolution launched a kernel, `UsageError` where
    it is no trace.
    """
    events, head = trace_events.read(path)
    trace = Trace(path, events)
    calls = trace.calls()
    kernels = [kernel.name for call in calls for kernel in call.kernels]
    alone = len(trace.kernels) - len(kernels)
    silent = sum(len(call.operators) for call in calls if not call.kernels)
    trace.counts[TAKEN] -= alone + silent
    trace.counts["of kernels that no convolution launched, such as a replayed graph's"] = alone
    trace.counts["of convolutions that launched no kernel"] = silent
    account = delimited.account(trace.counts, "event")
    if not kernels:
        text = f"no convolution that launched a kernel: {'; '.join(account)}"
        raise ResultsError(f"{path}: {text}")
    device = device or _device(head)
    gpu = gpus.of_text(device)
    sheet = gpus.sheet(gpu)
    about = {"device_name": device, "peak_source": sheet.name if sheet else None}
    axes = {
        "model": sweep_dir.name, "algorithm": AUTO, "gpu": gpu, "input_size": None,
        "tf32": any("tf32" in name for name in kernels),
    }  # fmt: skip
    steps = _by_step(trace, calls)
    with submission.opened(sweep_dir, path.name, path) as file:
        for visit, rows in enumerate(steps, 1):
            shared = {name: _common(rows, name) for name in ("batch_size", "dtype")}
            file.commit_calls(path.name, {**axes, **shared, "visit": visit}, about, rows)
    notes = [*_notes(steps, gpu), *account, *file.notes()]
    notes.append(f"flagged {FOREIGN}: measured by PyTorch's profiler, not here")
    return path.name, tuple(notes)


def _by_step(trace: Trace, calls: Sequence[TracedCall]) -> list[list[Row]]:
    """Return the rows of the calls that launched kernels, by the profiler's steps."""
    begins = sorted(trace.steps)
    steps: dict[int, list[Row]] = defaultdict(list)
    for call in calls:
        if call.kernels:
            rows = steps[bisect_right(begins, call.start)]
            rows.append(_row(call, len(rows), trace.outputs))
    for rows in steps.values():
        total = sum(row["kernel_ms"] for row in rows)
        for row in rows:
            row["percentage"] = 100 * row["kernel_ms"] / total if total else None
    return [steps[step] for step in sorted(steps)]


def _notes(steps: Sequence[Sequence[Row]], gpu: str) -> list[str]:
    rows = [row for of_step in steps for row in of_step]
    backward = sum(row["direction"] == "backward" for row in rows)
    calls = f"{count(len(rows), 'convolution call')} ({backward} backward)"
    grades = Counter(str(row["algorithm_evidence"]).split(" ", 2)[1] for row in rows)
    notes = [
        f"{calls} in {count(len(steps), 'step')} on {gpu}",
        f"algorithm {', '.join(f'{name} {number}' for name, number in grades.most_common())}",
    ]
    lacking = sum("flops" not in row for row in rows)
    if lacking:
        notes.append(f"{count(lacking, 'call')} without recorded shapes of both sides")
    if gpu == UNKNOWN:
        notes.append("the trace names no device, or several: --device does")
    return notes


def _device(head: Mapping[str, Any]) -> str:
    """Return the name of the GPUs in a trace's list; `unknown` where they have none or several.

    Of several, the number of an event does not tell which ran: ROCm counts processors, too.
    """
    names = set()
    for entry in as_list(head.get("deviceProperties")):
        if isinstance(entry, dict):
            names.add(str(entry.get("name") or UNKNOWN))
    return names.pop() if len(names) == 1 else UNKNOWN


def _common(rows: Sequence[Row], name: str) -> Any:  # noqa: ANN401 - of a cell
    values = {row.get(name) for row in rows}
    return values.pop() if len(values) == 1 else None


def _row(call: TracedCall, index: int, outputs: Mapping[int | None, Sizes]) -> Row:
    first = call.operators[0].name.removeprefix("aten::")
    last = call.operators[-1].name
    names = dict.fromkeys(kernel.name for kernel in call.telling)
    words = " ".join(map(kernel_word, [*names][:_SHOWN]))
    used, grade = _algorithms(call)
    ms = sum(kernel.duration for kernel in call.kernels) / 1000
    return {
        "layer": f"{first} {index}", "op": "convolution", **_work(call, outputs),
        "call_index": index, "direction": "backward" if call.backward else "forward",
        "mean_ms": ms, "median_ms": ms, "kernel_ms": ms, "n": 1, "layer_timer": KERNELS,
        "backend": next((name for name in ("cudnn", "miopen") if name in last), None),
        "algorithm_used": used, "algorithm_evidence": f"profiler: {grade.value} by {words}",
    }  # fmt: skip


def _algorithms(call: TracedCall) -> tuple[str, Grade]:
    """Return what the kernels of a call belong to: of each gradient, where they differ."""
    parts: dict[str, list[str]] = defaultdict(list)
    for kernel in call.telling:
        parts[kernel.operator].append(kernel.name)
    used = set()
    sure = True
    for kernels in parts.values():
        found = recognise(kernels)
        sets = {names for _, names in found.telling} or {frozenset([UNKNOWN])}
        common = frozenset.intersection(*sets)
        for names in [common] if common else sets:
            used.add(" or ".join(sorted(names)))
            sure = sure and len(names) == 1
        sure = sure and bool(found.telling) and not found.unknown
    return "+".join(sorted(used)), Grade.RECOGNISED if sure else Grade.COMPATIBLE


def _given(operator: Operator) -> Given:
    """Return the arguments of an operator by name; nothing if its declaration is not known."""
    names = _SCHEMAS.get(operator.name.removeprefix("aten::"), "").split()
    recorded = ("input dims", "input type", "input strides", "concrete inputs")
    columns = [as_list(operator.args.get(name)) for name in recorded]
    given: dict[str, Argument] = defaultdict(Argument)
    for name, dims, type_, strides, value in zip_longest(names, *columns, fillvalue=""):
        steps = trace_events.sizes(strides)
        given[name] = Argument(trace_events.sizes(dims), str(type_), steps, str(value))
    return given


def _work(call: TracedCall, outputs: Mapping[int | None, Sizes]) -> Row:
    """Return the cells of a call's shape and work, as far as the trace recorded it."""
    for given in map(_given, reversed(call.operators)):
        image = given["input"].sizes
        transposed = given["transposed"].value == "True"
        if not transposed and len(image) == len(given["weight"].sizes) == 4:
            return _cells(call, given, outputs)
    return {}


def _cells(call: TracedCall, given: Given, outputs: Mapping[int | None, Sizes]) -> Row:
    image = given["input"].sizes
    weight = given["weight"].sizes
    dtype = _TYPES.get(given["input"].type)
    shape = _shape(call, given)
    if shape:
        row = submission.work_cells(shape)
        output: Sizes = shape.output_size
    else:
        numbers = [trace_events.whole(op.args.get("sequence number")) for op in call.operators]
        known = [outputs[number] for number in numbers if number in outputs]
        output = given["gradient"].sizes or next(iter(known), ())
        row = _sizes_alone(image, weight, output, dtype)
    if len(output) != 4 or dtype is None:
        return row
    gradients = _gradients(call, given) if call.backward else 1
    moved = [_BYTES[dtype] * math.prod(sizes) for sizes in (image, weight, output)]
    return row | {
        "params": math.prod(weight),
        "flops": 2 * gradients * output[0] * math.prod(output[2:]) * math.prod(weight),
        "bytes_min": gradients * sum(moved) - (gradients - 1) * moved[2],  # the output's is shared
    }


def _shape(call: TracedCall, given: Given) -> ConvShape | None:
    """Return the whole shape; None where strides are not recorded, or sizes do not agree."""
    ways = [submission.sides(given[name].value) for name in ("stride", "padding", "dilation")]
    stride, padding, dilation = ways
    groups = submission.sides(given["groups"].value)
    dtype = _TYPES.get(given["input"].type)
    if not (stride and padding and dilation and groups and dtype):
        return None
    n, channels, height, width = given["input"].sizes
    filters, of_group, down, across = given["weight"].sizes
    bias = _given(call.operators[0])["bias"].sizes or given["bias_sizes"].value.strip("[0]")
    nhwc = _is_nhwc(given["input"]) or _is_nhwc(given["weight"])
    shape = ConvShape(
        n, channels, height, width, filters, down, across, *stride, *padding, *dilation, groups[0],
        bool(bias), dtype, NHWC if nhwc else NCHW,
    )  # fmt: skip
    return shape if submission.agrees(shape) and of_group * shape.groups == channels else None


def _is_nhwc(operand: Argument) -> bool:
    """Say whether the channels of an operand lie last in memory."""
    if len(operand.strides) != 4:
        return False
    _, channels, height, width = operand.sizes
    return operand.strides[1] == 1 and operand.strides[3] == channels > 1 and height * width > 1


def _sizes_alone(image: Sizes, weight: Sizes, output: Sizes, dtype: str | None) -> Row:
    """Return the cells of a shape without strides, which has a key of its own."""
    n, channels, height, width = image
    filters, of_group, down, across = weight
    groups = channels // of_group if of_group and channels % of_group == 0 else None
    name = f"n{n}_c{channels}_{height}x{width}_k{filters}_{down}x{across}"
    row: Row = {
        "op": "conv2d", "batch_size": n, "in_channels": channels, "in_h": height, "in_w": width,
        "out_channels": filters, "kernel_h": down, "kernel_w": across, "groups": groups,
        "dtype": dtype,
    }  # fmt: skip
    if len(output) == 4:
        row |= {"out_h": output[2], "out_w": output[3]}
        name += f"_to_{output[2]}x{output[3]}"
    return {**row, "layer": name, "unique_key": f"conv2d_{name}_g{groups}_{dtype or UNKNOWN}"}


def _gradients(call: TracedCall, given: Given) -> int:
    """Return how many gradients a backward call computed, without the bias'."""
    mask = given["wanted"].value.strip("[]").split(", ")[:2]
    inner = sum(op.name.endswith(("backward_input", "backward_weight")) for op in call.operators)
    return mask.count("True") or inner or 2
