"""Writes the sample export of `hpcsweep roofline --example`: computed, not measured.

::

    python docs/sample_export.py

One inference pass of ResNet-18 (224 pixels, batch 32, TF32) becomes one kernel launch per
layer call, as an ncu export of the page `raw` would show it. FLOPs and bytes are those of the
shapes; times are what an A100 would take at a fixed share of its peaks, plus 2 us per launch.
"""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import torch
import torchvision

from hpcsweep.catalog.gpus import GPUS
from hpcsweep.measure import shape_pass

TARGET = Path(__file__).parents[1] / "src/hpcsweep/analysis/roofline/sample_ncu.csv"
GPU = GPUS["a100"]
BATCH = 32
COMPUTE_SHARE, MEMORY_SHARE, LAUNCH_SECONDS = 0.45, 0.8, 2e-6
OPS = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
TENSOR = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"


def text() -> str:
    """Return the export."""
    rows = [launch(index, call) for index, call in enumerate(calls())]
    out = io.StringIO()
    out.write("==SAMPLE== computed from the shapes of resnet18 by docs/sample_export.py\n")
    table = csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n")
    columns = list(rows[0])
    table.writerow(columns)
    # each column has one unit, that of its largest value
    units = {name: unit([row[name] for row in rows]) for name in columns}
    table.writerow([units[name][0] for name in columns])
    for row in rows:
        table.writerow([shown(row[name], units[name][1]) for name in columns])
    return out.getvalue()


def calls() -> list[shape_pass.LayerCall]:
    """Return the layer calls of the pass."""
    model = torchvision.models.resnet18().eval()
    return list(shape_pass.shape_pass(model, torch.empty(BATCH, 3, 224, 224)).calls)


def launch(index: int, call: shape_pass.LayerCall) -> dict[str, Any]:
    """Return the row of one launch: texts, seconds, bytes and counts in base units."""
    elements = sum(math.prod(size) for size in call.outputs)
    tensor = bool(call.flops) and call.op == "conv2d"
    fma = call.flops // 2 if call.flops and not tensor else 0
    fma += elements if call.op == "batchnorm2d" else 0
    add = elements if call.op in {"relu", "maxpool2d", "adaptiveavgpool2d"} else 0
    peak = (GPU.tf32_tflops if tensor else GPU.fp32_tflops) * 1e12
    compute = (call.flops or 2 * fma + add) / (peak * COMPUTE_SHARE)
    memory = call.bytes_min / (GPU.bandwidth_gbs * 1e9 * MEMORY_SHARE)
    return {
        "ID": str(index),
        "Kernel Name": kernel(call),
        "CC": "8.0",
        "device__attribute_display_name": "NVIDIA A100-SXM4-80GB",
        "gpu__time_duration.sum": ("second", max(compute, memory) + LAUNCH_SECONDS),
        "dram__bytes.sum": ("byte", call.bytes_min),
        OPS.format("fadd"): ("inst", add),
        OPS.format("fmul"): ("inst", 0),
        OPS.format("ffma"): ("inst", fma),
        TENSOR: ("", call.flops if tensor else 0),
    }


def kernel(call: shape_pass.LayerCall) -> str:
    """Return a name that repeats where a library would launch the same kernel."""
    if call.conv is None:
        return f"{call.op}_kernel(float *, const float *, int)"
    side, step = call.conv.kernel_h, call.conv.stride_h
    return f"void implicit_gemm_tf32<(int){side}, (int){step}>(float *, const float *, int)"


def unit(values: list[Any]) -> tuple[str, float]:
    """Return unit and factor of a column, scaled as ncu does it."""
    if isinstance(values[0], str):
        return "", 1.0
    base, highest = values[0][0], max(value for _, value in values)
    if base == "second":
        return ("msecond", 1e-3) if highest >= 1e-3 else ("usecond", 1e-6)
    if base == "byte":
        return ("Mbyte", 1e6) if highest >= 1e6 else ("Kbyte", 1e3)
    return base, 1.0


def shown(value: str | tuple[str, float], factor: float) -> str:
    """Return a cell: thousands separated by commas, fractions to six digits."""
    if isinstance(value, str):
        return value
    scaled = value[1] / factor
    return f"{scaled:,.0f}" if factor == 1.0 else f"{scaled:,.6f}"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
