"""The row schema: all column names and flags (statuses: `store.state`).

Columns and flags of a check stand in its record, in `catalog/checks/`; the others stand here.
`docs/reference/results.md` is generated from both, so it cannot drift.

Two tables, joined by `point_id`: `overall` has one row per point, `layers` one row per layer call
of a point. `samples` holds the raw times. Names that a published predecessor used come first, in
its order, so that its notebooks run unchanged; those that compute with `kernel_size`, `stride` or
`padding` do so for square kernels only. Units are suffixes; an empty cell is unknown, never zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from hpcsweep import catalog
from hpcsweep.catalog.checks import CHECKS
from hpcsweep.catalog.record import Flag, cells_of, clocked

# 1.0  first release. A reader refuses a newer major version, and keeps columns that are new to it.
SCHEMA_VERSION: Final = "1.0"

STOP_REASONS: Final[Mapping[str, str]] = {
    "fixed": "the number of passes that the sweep asked for was reached",
    "converged": "the relative IQR, or the confidence interval of the median, reached its target",
    "stable_noise": "the noise stopped decreasing; more samples would not help",
    "timeout": "the time limit was reached first",
}

FOREIGN: Final = "foreign"
KERNELS: Final = "kernels"  # a call's time is that of its kernels, in a trace made elsewhere
# Flags of no check: of the times, of a training, of imports, and what `collect` finds in a table.
_OTHER_FLAGS: Final = (
    Flag("very_noisy", "relative IQR above 25 %", doubt=True),
    Flag(
        "profiled",
        "a profiler ran at the same time and changed the times",
        doubt=True,
        lasting=True,
    ),
    Flag(
        "lonely",
        "ten times as long as both neighbours over an axis of numbers, or as all other "
        "repetitions, and no flag says why; `collect` finds it",
        doubt=True,
    ),
    Flag(
        FOREIGN,
        "imported: measured by another program in a way of its own, never the fastest here; of a "
        "command: nothing proves what it said, and the time of its run is valid",
        doubt=True,
        lasting=True,
    ),
    Flag(
        "old_files",
        "measured with an earlier version of your own files than the sweep's latest rows",
        doubt=True,
    ),
    Flag(
        "above_peak",
        "more operations a second than the device has: what multiplies less than it counts, such "
        "as Winograd, or less work than the row says",
    ),
    Flag("noisy", "relative IQR above 10 %"),
    Flag("few_samples", "fewer than 10 samples"),
    Flag(
        "layers_uncaptured", "no layer rows: this torch (ROCm, or old) cannot time inside a graph"
    ),
    Flag("hook_overhead", "the layer pass was more than 5 % slower than the clean pass"),
    Flag(
        "layer_starved",
        "the host could not keep the GPU busy in layer passes: their times hold waits",
    ),
    Flag("left_behind", "older rows: changed its process, as the column of that name says"),
    Flag(
        "synthetic_data",
        "CIFAR was not below HPCSWEEP_DATA: as many random images took its place, so accuracies "
        "mean nothing, and times of loading are theirs",
    ),
    Flag("unverified_data", "the data set has not the published checksums: the times are good"),
    Flag("nan_loss", "a loss was not finite: accuracies mean nothing, the times are good"),
    Flag("phase_sum", "the phases of a training step differ from the step by more than 5 %"),
    Flag("host_copies", "imported: convolutions copied tensors between host and GPU in every call"),
    Flag("version_mix", "measured with other library versions than most rows of this sweep"),
)
_FLAGS: Final = sorted(
    (*(flag for check in CHECKS.values() for flag in check.flags), *_OTHER_FLAGS),
    key=lambda flag: not flag.doubt,
)
FLAGS: Final[Mapping[str, str]] = {flag.name: flag.doc for flag in _FLAGS}
DOUBTFUL: Final = frozenset(flag.name for flag in _FLAGS if flag.doubt)
# doubts of what a point is, not of what disturbed it: measured again, it would have them again
LASTING: Final = frozenset(flag.name for flag in _FLAGS if flag.lasting)


def is_valid(status: str, flags: Iterable[str]) -> bool:
    """Say whether the times of a row may be quoted.

    The point was measured to its end; no check that applied doubts its times; and none that was
    wanted could not be had, for which it has a doubtful flag, too.
    """
    return status == "ok" and DOUBTFUL.isdisjoint(flags)


@dataclass(frozen=True)
class Column:
    """One column: its name, the kind of its cells, and the group of the documentation."""

    name: str
    kind: str
    doc: str
    group: str


def _group(group: str, *rows: tuple[str, str, str]) -> tuple[Column, ...]:
    return tuple(Column(name, kind, doc, group) for name, kind, doc in rows)


def _of_checks(table: Literal["overall", "layers"]) -> Iterator[Column]:
    """Yield the columns of the checks' records in one of the tables."""
    for name, check in CHECKS.items():
        yield from _group(name.replace("_", " "), *cells_of(getattr(check, table)))


# fmt: off
_TIME_SEED = (
    ("mean_ms", "float", "mean time of a pass"),
    ("std_ms", "float", "standard deviation, with n - 1"),
    ("min_ms", "float", "fastest pass"),
    ("max_ms", "float", "slowest pass"),
    ("median_ms", "float", "median: quote this number"),
)

_SEED_OVERALL = _group(
    "names of the predecessor",
    ("model", "str", "network"),
    ("algorithm", "str", "convolution algorithm as requested"),
    ("device", "str", "short name of the device; the same as `gpu`"),
    ("batch_size", "int", "images per pass"),
    ("input_size", "int",
        "height of the network's input; its width too, if `input_width` is empty"),
    *_TIME_SEED,
)

_SEED_LAYERS = _group(
    "names of the predecessor",
    ("model", "str", "network"),
    ("layer", "str", "qualified name of the module; `__other__` is the rest of the pass"),
    ("algorithm", "str", "convolution algorithm as requested"),
    ("device", "str", "short name of the device; the same as `gpu`"),
    ("batch_size", "int", "images per pass"),
    ("input_size", "int", "height of the *network's* input, pixels, as in overall"),
    ("in_channels", "int", "input channels"),
    ("out_channels", "int", "output channels"),
    ("kernel_size", "str", "height, or `HxW` if height and width differ"),
    ("stride", "str", "vertical stride, or `HxW` if the strides differ"),
    ("padding", "str", "vertical padding, or `HxW` if the paddings differ"),
    *_TIME_SEED,
    ("percentage", "float", "share of the layer pass; rows sum to 100, but for `layers: unique`"),
)

_IDENTITY = _group(
    "identity",
    ("schema_version", "str", "version of these columns"),
    ("sweep", "str", "name of the sweep"),
    ("workload", "str", "inference, training, noop or command"),
    ("profile", "str", "cluster profile that the point ran with"),
    ("submission", "str", "id of the submission"),
    ("chunk", "int", "number of the chunk in the submission, from 0"),
    ("attempt", "int", "number of the attempt of that chunk, from 0"),
    ("place", "int", "place of the point in the order of its chunk, from 0"),
    ("order_seed", "int", "seed of that order"),
    ("own_axes", "str", "JSON: the axes of a command; `collect` gives each a column"),
    ("own_results", "str", "JSON: what a command said; `collect` gives each value a column"),
    ("status_reason", "str", "the reason, if `status` is not ok"),
    ("valid", "bool", "`status` is ok and no flag makes the times unreliable"),
    ("flags", "str", "flags, separated by semicolons; see the list of flags"),
    ("left_behind", "str", "older rows: what the network changed in its process, or left there"),
    ("profiler", "str", "profiler that the point ran under: nsys, ncu, rocprofv3; empty: none"),
    ("artifacts", "str", "files of profilers beside the shard, separated by semicolons"),
    ("started_at", "time", "when the point started, UTC"),
    ("wall_s", "float", "seconds that the whole point took, with its preparation"),
    ("timed_share", "float",
        "share of `wall_s` in timed passes, layer passes included; no warm-up"),
)

_ALGORITHM = _group(
    "algorithm",
    ("algorithm_setup_ms", "float", "time to choose: support, plans, compilation; less if known"),
)

_TIME = _group(
    "time",
    ("n", "int", "timed passes"),
    ("warmup_n", "int", "warm-up passes"),
    ("p5_ms", "float", "5th percentile (n >= 20)"),
    ("q1_ms", "float", "first quartile"),
    ("q3_ms", "float", "third quartile"),
    ("p95_ms", "float", "95th percentile (n >= 20)"),
    ("p99_ms", "float", "99th percentile (n >= 100)"),
    ("iqr_rel", "float", "(q3 - q1) / median"),
    ("std_rel", "float", "std / mean"),
    ("ci95_lo_ms", "float", "95 % confidence interval of the median, low end (order statistics)"),
    ("ci95_hi_ms", "float", "95 % confidence interval of the median, high end"),
    ("stop_reason", "str", "why the timing loop ended; see the list of stop reasons"),
    ("timer", "str", "host clock, device events, or graph replay"),
    ("first_call_ms", "float", "very first pass: compilation, autotuning, allocation"),
    ("throughput_ips", "float", "images per second, from the median pass or step"),
)

# A mean is that of the phase pass; a total is the mean times the steps of the training.
_PHASES = _group(
    "phases of a training step",
    ("phase_data_ms", "float", "waiting for the next batch, mean per step"),
    ("phase_h2d_ms", "float", "copy of the batch to the device, mean per step"),
    ("phase_forward_ms", "float", "forward pass, mean per step"),
    ("phase_loss_ms", "float", "loss, and counting right answers, mean per step"),
    ("phase_backward_ms", "float", "backward pass, mean per step"),
    ("phase_optimizer_ms", "float", "optimizer, gradient scaler, schedule; mean per step"),
    ("phase_step_ms", "float", "whole step of the phase pass, by a separate clock, mean per step"),
    ("phase_sum_over_step", "float", "sum of the phases divided by the step"),
    ("phase_overhead_pct", "float", "median step, divided by that of the training, minus 1"),
    ("phase_steps", "int", "steps of the phase pass"),
    *(
        (f"{phase}_total_s", "float", f"phase_{phase}_ms times `steps`")
        for phase in ("data", "h2d", "forward", "loss", "backward", "optimizer")
    ),
)

_LEARNING = _group(
    "training",
    ("steps", "int", "steps of the training: epochs times steps per epoch"),
    ("resumed_epoch", "int", "epochs done by an earlier attempt; not in the times"),
    ("train_samples", "int", "training images per epoch"),
    ("val_samples", "int", "images of the validation data"),
    ("train_s", "float", "seconds of all epochs, without validation"),
    ("epoch_s", "float", "mean seconds of an epoch, without validation"),
    ("validation_s", "float", "mean seconds of a validation"),
    ("throughput_sps", "float", "training images per second: all images divided by train_s"),
    ("train_loss", "float", "mean training loss of the last epoch"),
    ("train_accuracy", "float", "share of right answers in the last epoch, 0 to 1"),
    ("val_loss_before", "float", "validation loss before the first step"),
    ("val_accuracy_before", "float", "validation accuracy before the first step, 0 to 1"),
    ("val_loss_after", "float", "validation loss after the last epoch"),
    ("val_accuracy_after", "float", "validation accuracy after the last epoch, 0 to 1"),
    ("learning_valid", "bool", "every loss was finite"),
    ("epochs_s", "list", "JSON list: seconds of each epoch"),
    ("epochs_train_loss", "list", "JSON list: training loss of each epoch"),
    ("epochs_train_accuracy", "list", "JSON list: training accuracy of each epoch"),
    ("epochs_val_loss", "list", "JSON list: validation loss after each epoch"),
    ("epochs_val_accuracy", "list", "JSON list: validation accuracy after each epoch"),
)

_LAYER_PASS = _group(
    "layer pass",
    ("layer_rows", "int", "rows of this point in layers.csv"),
    ("layer_pass_mean_ms", "float", "mean of a pass with layer timers"),
    ("event_floor_ms", "float", "what a pair of events reads around nothing; part of layer times"),
    ("layer_pass_parts", "int", "passes that a layer pass is made of; each times some layers"),
    ("hook_overhead_pct", "float", "layer pass over the clean pass next to it, minus 1; median"),
    ("layer_sum_over_total", "float", "sum of layers divided by the clean pass next to it; median"),
    ("other_pct", "float", "share of the layer pass outside all layers, such as additions"),
)

_WORK = _group(
    "work",
    ("params", "int", "parameters of the network"),
    ("flops", "int", "floating-point operations of convolutions and matrix products"),
    ("macs", "int", "multiply-adds: flops / 2"),
    ("flops_convention", "str", "2mac: a multiply-add counts as 2"),
    ("bytes_min", "int", "bytes of all layers' inputs, weights and outputs, each once"),
    ("arith_intensity", "float", "flops / bytes_min"),
    ("achieved_tflops", "float", "flops divided by the median time"),
    ("achieved_gbs", "float", "bytes_min divided by the median time, 10^9 bytes per second"),
    ("pct_peak_compute", "float", "share of the dense peak of that dtype"),
    ("pct_peak_bw", "float", "share of the peak memory bandwidth"),
    ("peak_source", "str", "entry of the table of peaks"),
)

_STATE = _group(
    "state of the machine",
    ("mem_avg_bytes", "int", "training: mean memory use at the ends of phases"),
    ("load_avg_1min", "float", "load average of the node before the point"),
)

_PROVENANCE = _group(
    "provenance (env.json of the attempt has all of it)",
    ("device_name", "str", "name that the device reports"),
    ("device_uuid", "str", "GPU UUID"),
    ("node", "str", "name of the node (SLURMD_NODENAME, or the host name)"),
    ("torch_version", "str", "version of torch"),
    ("cuda_version", "str", "version of CUDA or HIP of this torch build"),
    ("cudnn_version", "str", "version of cuDNN or MIOpen"),
    ("driver_version", "str", "version of the GPU driver"),
    ("hpcsweep_version", "str", "version of hpcsweep; between releases with its commit"),
    ("git_sha", "str", "git commit of the folder from which you submitted"),
    ("git_dirty", "bool", "that folder had uncommitted changes"),
    ("own_files", "str",
        "digests of your own files that it is made of: code of `model` and `dataset`, `weights`"),
    ("slurm_job_id", "str", "id of the Slurm job"),
    ("slurm_array_task_id", "str", "id of the array task"),
)

_LAYER_ONLY = _group(
    "layer",
    ("point_id", "str", "joins overall.csv"),
    ("gpu", "str", "GPU type"),
    ("dtype", "str", "type of weights and activations"),
    ("direction", "str", "forward, or backward (training, convolutions)"),
    ("call_index", "int", "position in the pass; a module that is called twice has two rows"),
    ("op", "str", "module class in lower case: conv2d, batchnorm2d, relu, ..."),
    ("unique_key", "str", "operation and shapes; calls with equal keys do equal work"),
    ("in_h", "int", "height of the layer's input"),
    ("in_w", "int", "width of the layer's input"),
    ("out_h", "int", "height of the layer's output"),
    ("out_w", "int", "width of the layer's output"),
    ("kernel_h", "int", "kernel height"),
    ("kernel_w", "int", "kernel width"),
    ("stride_h", "int", "stride, vertical"),
    ("stride_w", "int", "stride, horizontal"),
    ("pad_h", "int", "padding at the top, and the same at the bottom"),
    ("pad_w", "int", "padding at the left, and the same at the right"),
    ("dilation_h", "int", "dilation, vertical"),
    ("dilation_w", "int", "dilation, horizontal"),
    ("groups", "int", "groups of channels"),
    ("bias", "bool", "the layer adds a bias"),
    ("n", "int", "timed passes"),
    ("q1_ms", "float", "first quartile"),
    ("q3_ms", "float", "third quartile"),
    ("layer_timer", "str",
        "how the call was timed: host, events, graph, isolated, batched, plans, kernels"),
    ("cold", "str",
        "timed alone: what no cache held before a call, by its size: input+weights, input, none"),
    ("params", "int", "parameters of the layer"),
    ("flops", "int", "floating-point operations; a multiply-add counts as 2"),
    ("bytes_min", "int", "bytes of input, weights and output, each counted once"),
)

OWN: Final = ("own_axes", "own_results")  # of a command
# What collect adds to the rows of the merged table, after the columns of the shards.
COLLECTED: Final = _group(
    "added by collect",
    ("orphan", "bool", "the sweep, as last submitted, no longer has this point; empty: unknown"),
    ("source", "str", "where an imported row comes from; empty: measured for this folder"),
)
# fmt: on

# The commit protocol's own columns: in shards only, always last (see `shards`).
COMMIT: Final = ("layers_offset", "layers_bytes", "samples_offset", "samples_bytes", "row_crc")


OVERALL: Final[tuple[Column, ...]] = (
    *_SEED_OVERALL,
    *_group(
        "identity",
        ("point_id", "str", "16 hex digits of SHA-256 over everything that changes the number"),
        ("status", "str", "how the point ended; see the list of statuses"),
    ),
    *(
        Column(name, axis.kind, axis.doc, "axes")
        for name, axis in catalog.AXES.items()
        if name not in {column.name for column in _SEED_OVERALL}
    ),
    *_TIME,
    *_ALGORITHM,
    *_of_checks("overall"),
    *_LAYER_PASS,
    *_LEARNING,
    *_PHASES,
    *_WORK,
    *_STATE,
    *_IDENTITY,
    *_PROVENANCE,
)
# The cells that stay empty in a row of a profiled run: times, and what is computed from times.
CLOCKED: Final = frozenset(
    {
        *(name for name, kind, _doc in _TIME_SEED if kind == "float"),
        *(column.name for column in (*_TIME, *_LAYER_PASS) if column.kind == "float"),
        *(column.name for column in _WORK if column.name.startswith(("ach", "pct_"))),
        *(name for check in CHECKS.values() for name in clocked(check.overall)),
        "timed_share",
    }
)
LAYERS: Final[tuple[Column, ...]] = (*_SEED_LAYERS, *_LAYER_ONLY, *_of_checks("layers"))
SAMPLES: Final[tuple[Column, ...]] = _group(
    "samples",
    ("point_id", "str", "joins overall.csv"),
    ("i", "int", "number of the pass, from 0"),
    ("ms", "float", "time of the pass"),
)

OVERALL_COLUMNS: Final = tuple(column.name for column in OVERALL)
LAYER_COLUMNS: Final = tuple(column.name for column in LAYERS)
SAMPLE_COLUMNS: Final = tuple(column.name for column in SAMPLES)

MERGED_COLUMNS: Final = (*OVERALL_COLUMNS, *(column.name for column in COLLECTED))

# Shards begin with the two cells that `status` needs, so that it can ignore the rest of a line.
SHARD_COLUMNS: Final = (
    "point_id",
    "status",
    *(name for name in OVERALL_COLUMNS if name not in {"point_id", "status"}),
    *COMMIT,
)

# Rows of one sweep can be compared only if these cells are equal.
MUST_AGREE: Final = ("torch_version", "cuda_version", "cudnn_version", "driver_version")

Row = dict[str, Any]


def axis_cells(axes: Mapping[str, Any]) -> Row:
    """Return the cells of a point's axes, and the cell `device`."""
    cells = {name: value for name, value in axes.items() if name in catalog.AXES}
    cells["device"] = axes.get("gpu")
    return cells


def cell(value: object) -> str:
    """Return the text of one cell: one line, empty for unknown, seven significant digits."""
    if written := _TEXTS.get(type(value)):
        return written(value)
    if isinstance(value, float):  # numpy's
        return f"{value:.7g}"
    if isinstance(value, dict | list | tuple):
        from hpcsweep.point import canonical_json  # noqa: PLC0415 - only maps of algorithms

        return canonical_json(value)
    return _one_line(str(value))


def _one_line(text: str) -> str:
    if text.isalnum():  # most texts, at a third of the time
        return text
    return " ".join(text.replace("\0", " ").split())


_TEXTS: Final[Mapping[type, Callable[[Any], str]]] = {
    type(None): lambda _: "",
    str: _one_line,
    float: "{:.7g}".format,
    int: repr,
    bool: lambda value: "true" if value else "false",
}


def cells(row: Mapping[str, Any], columns: Iterable[str]) -> list[str]:
    """Return the cells of a row as texts, in the order of the columns."""
    return ["" if value is None else cell(value) for value in map(row.get, columns)]
