"""The row schema: the only place where column names and flags exist (statuses: `store.state`).

`docs/reference/results.md` is generated from the tables below, so it cannot drift.

Two tables, joined by `point_id`: `overall` has one row per point, `layers` one row per layer call
of a point. `samples` holds the raw times. Names that a published predecessor used come first, in
its order, so that notebooks written for it run unchanged. Units are suffixes; an empty cell means
unknown, never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import catalog

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# History. A reader accepts every version that is listed here, and refuses a newer major one.
# 1.0  first release
SCHEMA_VERSION: Final = "1.0"

STOP_REASONS: Final[Mapping[str, str]] = {
    "fixed": "the number of passes that the sweep asked for",
    "converged": "the relative IQR, or the confidence interval of the median, reached its target",
    "stable_noise": "the noise stopped shrinking; more samples would not help",
    "timeout": "the time cap was reached first",
}

FLAGS: Final[Mapping[str, str]] = {
    "noisy": "relative IQR above 10 %",
    "very_noisy": "relative IQR above 25 %",
    "few_samples": "fewer than 10 samples",
    "hook_overhead": "the layer pass was more than 5 % slower than the clean pass",
    "algorithm_mismatch": "the profiler saw something else than the algorithm that was asked for",
    "fallback": "some convolutions ran another algorithm than the one asked for",
    "shared_cpu": "several workers measured on this machine at the same time",
    "throttled": "the GPU ran below 75 % of its default clock, or named a reason for throttling",
    "shared_gpu": "another process was on the same GPU",
    "clock_drift": "the SM clock moved by more than 5 % during the measurement",
    "launch_bound": "the host could not keep the GPU busy: the time is the host's",
    "nan_loss": "a loss was not finite: what was learned is void, the times stand",
    "phase_sum": "the phases of a training step differ from the step by more than 5 %",
    "inaccurate": "the output differs from float64 by more than the dtype explains",
    "profiled": "a profiler ran along: this is not the network's own time",
    "version_mix": "measured with other library versions than most rows of this sweep",
}

# Flags that put a row's times in doubt: `valid` is false. The others explain.
DOUBTFUL: Final = frozenset(
    {
        "very_noisy",
        "algorithm_mismatch",
        "shared_cpu",
        "throttled",
        "shared_gpu",
        "clock_drift",
        "launch_bound",
        "inaccurate",
        "profiled",
    }
)


@dataclass(frozen=True)
class Column:
    """One column: its name, what a cell holds, and the group it is documented under."""

    name: str
    kind: str
    doc: str
    group: str


def _group(group: str, *rows: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(name, kind, doc, group) for name, kind, doc in rows)


_TIME_SEED = (
    ("mean_ms", "float", "mean"),
    ("std_ms", "float", "standard deviation (n - 1)"),
    ("min_ms", "float", "fastest"),
    ("max_ms", "float", "slowest"),
    ("median_ms", "float", "median: the number to quote"),
)

_SEED_OVERALL = _group(
    "names of the predecessor",
    ("model", "str", "network"),
    ("algorithm", "str", "convolution algorithm as requested"),
    ("device", "str", "short name of the device; the same as `gpu`"),
    ("batch_size", "int", "images per pass"),
    ("input_size", "int", "height and width of the network's input, pixels"),
    *_TIME_SEED,
)

_SEED_LAYERS = _group(
    "names of the predecessor",
    ("model", "str", "network"),
    ("layer", "str", "qualified module name; `__other__` is the rest of the pass"),
    ("algorithm", "str", "convolution algorithm as requested"),
    ("device", "str", "short name of the device; the same as `gpu`"),
    ("batch_size", "int", "images per pass"),
    ("input_size", "int", "height and width of the *network's* input, pixels, as in overall"),
    ("in_channels", "int", "channels in"),
    ("out_channels", "int", "channels out"),
    ("kernel_size", "str", "height, or `HxW` where they differ"),
    ("stride", "str", "height, or `HxW` where they differ"),
    ("padding", "str", "height, or `HxW` where they differ"),
    *_TIME_SEED,
    ("percentage", "float", "mean over the layer pass's mean; a point's rows sum to 100"),
)

_IDENTITY = _group(
    "identity",
    ("schema_version", "str", "version of these columns"),
    ("sweep", "str", "sweep's name"),
    ("workload", "str", "inference, training or noop"),
    ("profile", "str", "cluster profile that it ran under"),
    ("submission", "str", "submission's id"),
    ("chunk", "int", "chunk within the submission"),
    ("attempt", "int", "run of that chunk, from 0"),
    ("status_reason", "str", "why, where status is not ok"),
    ("valid", "bool", "status is ok and no flag puts the number in doubt"),
    ("flags", "str", "semicolon-joined; see the list of flags"),
    ("profiler", "str", "profiler that ran along: nsys, ncu, rocprofv3; empty: none"),
    ("artifacts", "str", "files of profilers beside the shard, semicolon-joined"),
    ("started_at", "time", "UTC"),
    ("wall_s", "float", "seconds that the whole point took, preparation included"),
)

_ALGORITHM = _group(
    "algorithm",
    ("backend", "str", "who ran the convolutions: framework, reference, cudnn, miopen"),
    ("algorithm_used", "str", "what ran, joined by `+` where layers differ"),
    ("algorithm_evidence", "str", "where the proof comes from: profiler, api, none"),
    ("algorithm_coverage_pct", "float", "share of convolution FLOPs done by the request"),
    ("algorithm_coverage_time_pct", "float", "share of convolution time done by the request"),
    ("conv_calls", "int", "convolution calls in a pass"),
    ("conv_fallbacks", "int", "of which ran another algorithm than requested"),
    ("fallback_reason", "str", "the commonest reason"),
    ("workspace_bytes", "int", "largest workspace of a convolution"),
    ("algorithm_setup_ms", "float", "deciding: support, plans, compilation; less once known"),
    ("max_rel_error", "float", "largest error over largest value of the float64 output"),
)

_TIME = _group(
    "time",
    ("n", "int", "timed passes"),
    ("warmup_n", "int", "passes before them"),
    ("p5_ms", "float", "5th percentile (n >= 20)"),
    ("q1_ms", "float", "first quartile"),
    ("q3_ms", "float", "third quartile"),
    ("p95_ms", "float", "95th percentile (n >= 20)"),
    ("p99_ms", "float", "99th percentile (n >= 100)"),
    ("iqr_rel", "float", "(q3 - q1) / median"),
    ("std_rel", "float", "std / mean"),
    ("ci95_lo_ms", "float", "95 % confidence interval of the median, low end (order statistics)"),
    ("ci95_hi_ms", "float", "high end"),
    ("stop_reason", "str", "why the loop ended"),
    ("timer", "str", "host clock, device events, or graph replay"),
    ("host_ms", "float", "median host time to issue one pass"),
    ("launch_bound", "bool", "the host was the bottleneck"),
    ("first_call_ms", "float", "very first pass: compilation, autotuning, allocation"),
    ("throughput_ips", "float", "images per second, from the median pass or step"),
)

# means are of the phase pass; totals are those means times the steps of the training
_PHASES = _group(
    "phases of a training step",
    ("phase_data_ms", "float", "waiting for the next batch; mean of a step, as all of these"),
    ("phase_h2d_ms", "float", "copy of the batch to the device"),
    ("phase_forward_ms", "float", "forward pass"),
    ("phase_loss_ms", "float", "loss, and counting the right answers"),
    ("phase_backward_ms", "float", "backward pass"),
    ("phase_optimizer_ms", "float", "optimizer, gradient scaler, schedule, zeroing of gradients"),
    ("phase_step_ms", "float", "the whole step in the phase pass, by a clock of its own"),
    ("phase_sum_over_step", "float", "sum of the phases over the step"),
    (
        "phase_overhead_pct",
        "float",
        "median step of the phase pass over that of the training, minus 1",
    ),
    ("phase_steps", "int", "steps of the phase pass"),
    ("data_total_s", "float", "phase_data_ms times `steps`: its share of the whole training"),
    ("h2d_total_s", "float", "the same of the copy"),
    ("forward_total_s", "float", "of the forward pass"),
    ("loss_total_s", "float", "of the loss"),
    ("backward_total_s", "float", "of the backward pass"),
    ("optimizer_total_s", "float", "of the optimizer"),
)

_LEARNING = _group(
    "training",
    ("steps", "int", "steps of the training: epochs times steps of an epoch"),
    ("resumed_epoch", "int", "epochs that an earlier attempt had done; times are of the rest"),
    ("train_samples", "int", "images of an epoch"),
    ("val_samples", "int", "images of the validation data"),
    ("train_s", "float", "seconds of all epochs, validation apart"),
    ("epoch_s", "float", "mean of an epoch, validation apart"),
    ("validation_s", "float", "mean of a validation"),
    ("throughput_sps", "float", "training images per second: all images over train_s"),
    ("train_loss", "float", "mean over the last epoch"),
    ("train_accuracy", "float", "share of right answers in the last epoch, 0 to 1"),
    ("val_loss_before", "float", "validation before the first step"),
    ("val_accuracy_before", "float", "share of right answers, 0 to 1"),
    ("val_loss_after", "float", "validation after the last epoch"),
    ("val_accuracy_after", "float", "share of right answers, 0 to 1"),
    ("learning_valid", "bool", "every loss was finite"),
    ("epochs_s", "list", "JSON list: seconds of each epoch"),
    ("epochs_train_loss", "list", "JSON list: training loss of each epoch"),
    ("epochs_train_accuracy", "list", "JSON list"),
    ("epochs_val_loss", "list", "JSON list: after each epoch"),
    ("epochs_val_accuracy", "list", "JSON list"),
)

_LAYER_PASS = _group(
    "layer pass",
    ("layer_rows", "int", "rows of this point in layers.csv"),
    ("layer_pass_mean_ms", "float", "mean of a pass with layer timers"),
    ("hook_overhead_pct", "float", "layer pass over the clean pass next to it, minus 1; median"),
    ("layer_sum_over_total", "float", "sum of layers over the clean pass next to it; median"),
    ("other_pct", "float", "share of the layer pass outside every layer (residual adds, Python)"),
)

_WORK = _group(
    "work",
    ("params", "int", "parameters"),
    ("flops", "int", "floating-point operations of convolutions and matrix products"),
    ("macs", "int", "multiply-adds: flops / 2"),
    ("flops_convention", "str", "2mac: a multiply-add counts 2"),
    ("bytes_min", "int", "inputs, weights and outputs of every layer, each once"),
    ("arith_intensity", "float", "flops / bytes_min"),
    ("achieved_tflops", "float", "flops over the median"),
    ("achieved_gbs", "float", "bytes_min over the median, 10^9 bytes per second"),
    ("pct_peak_compute", "float", "of the dense peak of that dtype"),
    ("pct_peak_bw", "float", "of the memory bandwidth"),
    ("peak_source", "str", "entry of the peak table"),
)

_STATE = _group(
    "state of the machine",
    ("mem_peak_bytes", "int", "highest memory use during the point"),
    ("mem_limit_bytes", "int", "memory that there is"),
    ("mem_source", "str", "cuda_allocator, vm_hwm or max_rss"),
    ("mem_avg_bytes", "int", "training: mean at the ends of phases"),
    ("mem_reserved_bytes", "int", "training: most that torch's allocator held of the GPU"),
    ("mem_fragmentation_pct", "float", "training: share of that which was never in use at once"),
    ("gpu_util_pct", "float", "GPU utilisation as NVML tells it, mean at the ends of blocks"),
    ("threads", "int", "CPU threads that an operator used"),
    ("sm_clock_mhz_mean", "float", "SM clock at the ends of blocks, mean"),
    ("sm_clock_mhz_min", "float", "lowest of them"),
    ("throttle_reasons", "str", "as NVML names them"),
    ("throttled_median_ms", "float", "median of a first, throttled try; the rest is of the second"),
    ("power_limit_w", "float", "power limit"),
    ("energy_j", "float", "energy of one pass, from the energy counter over 1 s or more"),
    ("energy_method", "str", "counter, or empty"),
    ("temp_c_start", "float", "GPU temperature before"),
    ("temp_c_end", "float", "and after"),
    ("load_avg_1min", "float", "load average of the node before the point"),
)

_PROVENANCE = _group(
    "provenance (all of it is in the attempt's env.json)",
    ("device_name", "str", "the device's own name"),
    ("device_uuid", "str", "GPU UUID"),
    ("node", "str", "node's name (SLURMD_NODENAME, else the host's)"),
    ("torch_version", "str", "torch"),
    ("cuda_version", "str", "CUDA or HIP of this torch build"),
    ("cudnn_version", "str", "cuDNN or MIOpen"),
    ("driver_version", "str", "GPU driver"),
    ("hpcsweep_version", "str", "hpcsweep"),
    ("git_sha", "str", "commit of the folder that was submitted from"),
    ("git_dirty", "bool", "it had uncommitted changes"),
    ("slurm_job_id", "str", "job"),
    ("slurm_array_task_id", "str", "array task"),
)

_LAYER_ONLY = _group(
    "layer",
    ("point_id", "str", "joins overall.csv"),
    ("gpu", "str", "GPU type"),
    ("dtype", "str", "type of weights and activations"),
    ("direction", "str", "forward, or backward (training, convolutions)"),
    ("call_index", "int", "position in the pass; a module that is called twice has two rows"),
    ("op", "str", "module class in lower case: conv2d, batchnorm2d, relu, ..."),
    ("unique_key", "str", "operation and shapes; equal keys are equal work"),
    ("in_h", "int", "input height of the layer"),
    ("in_w", "int", "input width"),
    ("out_h", "int", "output height"),
    ("out_w", "int", "output width"),
    ("kernel_h", "int", "kernel height"),
    ("kernel_w", "int", "kernel width"),
    ("stride_h", "int", "stride, vertical"),
    ("stride_w", "int", "stride, horizontal"),
    ("pad_h", "int", "padding, above and below each"),
    ("pad_w", "int", "padding, left and right each"),
    ("dilation_h", "int", "dilation, vertical"),
    ("dilation_w", "int", "dilation, horizontal"),
    ("groups", "int", "groups of channels"),
    ("bias", "bool", "it adds a bias"),
    ("backend", "str", "who ran the convolution"),
    ("algorithm_used", "str", "what ran"),
    (
        "algorithm_evidence",
        "str",
        "operators, library calls and kernels that the profiler saw in it",
    ),
    ("fallback_reason", "str", "why it is not the one requested"),
    ("workspace_bytes", "int", "workspace of the convolution"),
    ("max_rel_error", "float", "against float64 of its own input, if `numerics: layers`"),
    ("n", "int", "timed passes"),
    ("q1_ms", "float", "first quartile"),
    ("q3_ms", "float", "third quartile"),
    ("layer_timer", "str", "host, events, graph or isolated"),
    ("params", "int", "parameters of the layer"),
    ("flops", "int", "2 per multiply-add"),
    ("bytes_min", "int", "input, weights and output, each once"),
)

# What collect adds to the rows of the merged table, after the columns of the shards.
COLLECTED: Final = _group(
    "added by collect",
    ("orphan", "bool", "the sweep, as last submitted, no longer has this point; empty: unknown"),
)

# The commit protocol's own columns: in shards only, always last (see `shards`).
COMMIT: Final = ("layers_offset", "layers_bytes", "samples_offset", "samples_bytes", "row_crc")


def _axis_columns() -> tuple[Column, ...]:
    seed = {column.name for column in _SEED_OVERALL}
    return tuple(
        Column(axis.name, axis.kind, axis.doc, "axes")
        for axis in catalog.AXES.values()
        if axis.name not in seed
    )


_KEY = _group(
    "identity",
    ("point_id", "str", "16 hex digits of SHA-256 over all that changes the number"),
    ("status", "str", "one per point; see the list of statuses"),
)

OVERALL: Final[tuple[Column, ...]] = (
    *_SEED_OVERALL,
    *_KEY,
    *_axis_columns(),
    *_TIME,
    *_ALGORITHM,
    *_LAYER_PASS,
    *_LEARNING,
    *_PHASES,
    *_WORK,
    *_STATE,
    *_IDENTITY,
    *_PROVENANCE,
)
# What a row of a profiled run leaves empty: all that was read off a clock, or follows from it.
CLOCKED: Final = frozenset(
    {
        *(name for name, kind, _doc in _TIME_SEED if kind == "float"),
        *(column.name for column in (*_TIME, *_LAYER_PASS) if column.kind == "float"),
        *(name for name in (column.name for column in _WORK) if name.startswith(("ach", "pct_"))),
        "algorithm_coverage_time_pct",
        "launch_bound",
        "throttled_median_ms",
        "energy_j",
    }
)
LAYERS: Final[tuple[Column, ...]] = (*_SEED_LAYERS, *_LAYER_ONLY)
SAMPLES: Final[tuple[Column, ...]] = _group(
    "samples",
    ("point_id", "str", "joins overall.csv"),
    ("i", "int", "pass, from 0"),
    ("ms", "float", "time of the pass"),
)

OVERALL_COLUMNS: Final = tuple(column.name for column in OVERALL)
LAYER_COLUMNS: Final = tuple(column.name for column in LAYERS)
SAMPLE_COLUMNS: Final = tuple(column.name for column in SAMPLES)

MERGED_COLUMNS: Final = (*OVERALL_COLUMNS, *(column.name for column in COLLECTED))

# Shards lead with what `status` needs, so that it never parses the rest of a line.
SHARD_COLUMNS: Final = (
    "point_id",
    "status",
    *(name for name in OVERALL_COLUMNS if name not in {"point_id", "status"}),
    *COMMIT,
)

# Rows of one sweep are comparable only where these agree.
MUST_AGREE: Final = ("torch_version", "cuda_version", "cudnn_version", "driver_version")

Row = dict[str, Any]


def axis_cells(axes: Mapping[str, Any]) -> Row:
    """Return the cells that a point's axes fill, `device` included."""
    cells = {name: value for name, value in axes.items() if name in catalog.AXES}
    cells["device"] = axes.get("gpu")
    return cells


def cell(value: object) -> str:
    """Return the text of one cell: one line, empty for unknown, seven significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.7g}"
    if isinstance(value, dict | list | tuple):
        from hpcsweep.point import canonical_json  # noqa: PLC0415 - only maps of algorithms

        return canonical_json(value)
    return " ".join(str(value).replace("\0", " ").split()) if value else str(value)


def cells(row: Mapping[str, Any], columns: Iterable[str]) -> list[str]:
    """Return the texts of a row in column order; a key that is no column is a mistake of ours."""
    return [cell(row.get(name)) for name in columns]
