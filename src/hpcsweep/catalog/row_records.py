"""The records of rows: every cell but those of axes and checks, by who fills it.

A cell is a column of the same name, in the order that stands in `columns`, which tells what
`clocked` and the kinds mean. Reference, shards and tables follow from here. Cells are never renamed
within a major version of the schema.
"""

from __future__ import annotations

from typing import Any

from hpcsweep.catalog.record import Cells, cell


class NamedAxes(Cells):
    """Axes under the names of the predecessor; all others stand in `axes.csv`."""

    model: str | None = cell("network")
    algorithm: str | None = cell("convolution algorithm as requested")
    device: str | None = cell("short name of the device; the same as `gpu`")
    batch_size: int | None = cell("images per pass")
    input_size: int | None = cell(
        "height of the network's input; its width too, if `input_width` is empty"
    )


class KeyCells(Cells):
    """What every reader of rows asks first."""

    point_id: str | None = cell("16 hex digits of SHA-256 over everything that changes the number")
    status: str | None = cell("how the point ended; see the list of statuses")


class TimeCells(Cells):
    """The timed passes, or steps; the statistics are those of `measure/timing/stats.py`."""

    mean_ms: float | None = cell("mean time of a pass", clocked=True)
    std_ms: float | None = cell("standard deviation, with n - 1", clocked=True)
    min_ms: float | None = cell("fastest pass", clocked=True)
    max_ms: float | None = cell("slowest pass", clocked=True)
    median_ms: float | None = cell("median: quote this number", clocked=True)
    n: int | None = cell("timed passes")
    warmup_n: int | None = cell("warm-up passes, the first call among them")
    p5_ms: float | None = cell("5th percentile (n >= 20)", clocked=True)
    q1_ms: float | None = cell("first quartile", clocked=True)
    q3_ms: float | None = cell("third quartile", clocked=True)
    p95_ms: float | None = cell("95th percentile (n >= 20)", clocked=True)
    p99_ms: float | None = cell("99th percentile (n >= 100)", clocked=True)
    iqr_rel: float | None = cell("(q3 - q1) / median", clocked=True)
    std_rel: float | None = cell("std / mean", clocked=True)
    ci95_lo_ms: float | None = cell(
        "95 % confidence interval of the median in this visit, low end; empty: too few blocks "
        "of passes, or a drift",
        clocked=True,
    )
    ci95_hi_ms: float | None = cell(
        "95 % confidence interval of the median in this visit, high end", clocked=True
    )
    stop_reason: str | None = cell("why the timing loop ended; see the list of stop reasons")
    timer: str | None = cell("host clock, device events, or graph replay")
    first_call_ms: float | None = cell(
        "very first pass: compilation, autotuning, allocation", clocked=True
    )
    throughput_ips: float | None = cell(
        "images per second, from the median pass or step", clocked=True
    )


class ChoiceCells(Cells):
    """The choice of algorithms for the convolutions of the network."""

    algorithm_setup_ms: float | None = cell(
        "time to choose: support, plans, compilation; less if known"
    )


class LayerPassCells(Cells):
    """The layer pass, against the clean pass."""

    layer_rows: int | None = cell("rows of this point in layers.csv")
    layer_pass_mean_ms: float | None = cell("mean of a pass with layer timers", clocked=True)
    event_floor_ms: float | None = cell(
        "what a pair of events reads around nothing; part of layer times", clocked=True
    )
    layer_pass_parts: int | None = cell(
        "passes that a layer pass is made of; each times some layers"
    )
    hook_overhead_pct: float | None = cell(
        "layer pass over the clean pass next to it, minus 1; median", clocked=True
    )
    layer_sum_over_total: float | None = cell(
        "sum of layers divided by the clean pass next to it; median", clocked=True
    )
    other_pct: float | None = cell(
        "share of the layer pass outside all layers, such as additions", clocked=True
    )


class TrainingCells(Cells):
    """What a training learnt, and how long its epochs took."""

    steps: int | None = cell("steps of the training: epochs times steps per epoch")
    resumed_epoch: int | None = cell("epochs done by an earlier attempt; not in the times")
    train_samples: int | None = cell("training images per epoch")
    val_samples: int | None = cell("images of the validation data")
    train_s: float | None = cell("seconds of all epochs, without validation")
    epoch_s: float | None = cell("mean seconds of an epoch, without validation")
    validation_s: float | None = cell("mean seconds of a validation")
    throughput_sps: float | None = cell("training images per second: all images divided by train_s")
    train_loss: float | None = cell("mean training loss of the last epoch")
    train_accuracy: float | None = cell("share of right answers in the last epoch, 0 to 1")
    val_loss_before: float | None = cell("validation loss before the first step")
    val_accuracy_before: float | None = cell("validation accuracy before the first step, 0 to 1")
    val_loss_after: float | None = cell("validation loss after the last epoch")
    val_accuracy_after: float | None = cell("validation accuracy after the last epoch, 0 to 1")
    learning_valid: bool | None = cell("every loss was finite")
    lr_used: float | None = cell("learning rate, also where the axis `lr` is unset")
    weight_decay_used: float | None = cell(
        "weight decay, also where the axis `weight_decay` is unset"
    )
    epochs_s: list[float] | None = cell("JSON list: seconds of each epoch")
    epochs_train_loss: list[float] | None = cell("JSON list: training loss of each epoch")
    epochs_train_accuracy: list[float] | None = cell("JSON list: training accuracy of each epoch")
    epochs_val_loss: list[float] | None = cell("JSON list: validation loss after each epoch")
    epochs_val_accuracy: list[float] | None = cell(
        "JSON list: validation accuracy after each epoch"
    )


class PhaseCells(Cells):
    """The phases of a training step, from a pass of their own."""

    phase_data_ms: float | None = cell("waiting for the next batch, mean per step")
    phase_h2d_ms: float | None = cell("copy of the batch to the device, mean per step")
    phase_forward_ms: float | None = cell("forward pass, mean per step")
    phase_loss_ms: float | None = cell("loss, and counting right answers, mean per step")
    phase_backward_ms: float | None = cell("backward pass, mean per step")
    phase_optimizer_ms: float | None = cell("optimizer, gradient scaler, schedule; mean per step")
    phase_step_ms: float | None = cell(
        "whole step of the phase pass, by a separate clock, mean per step"
    )
    phase_sum_over_step: float | None = cell("sum of the phases divided by the step")
    phase_overhead_pct: float | None = cell("median step, divided by that of the training, minus 1")
    phase_steps: int | None = cell("steps of the phase pass")
    data_total_s: float | None = cell("phase_data_ms times `steps`")
    h2d_total_s: float | None = cell("phase_h2d_ms times `steps`")
    forward_total_s: float | None = cell("phase_forward_ms times `steps`")
    loss_total_s: float | None = cell("phase_loss_ms times `steps`")
    backward_total_s: float | None = cell("phase_backward_ms times `steps`")
    optimizer_total_s: float | None = cell("phase_optimizer_ms times `steps`")


class WorkCells(Cells):
    """The work of a pass, and its share of the peaks of the device."""

    params: int | None = cell("parameters of the network")
    flops: int | None = cell("floating-point operations of convolutions and matrix products")
    macs: int | None = cell("multiply-adds: flops / 2")
    flops_convention: str | None = cell("2mac: a multiply-add counts as 2")
    bytes_min: int | None = cell(
        "bytes of inputs, weights and outputs of all layers, and of convolutions and products "
        "between them, each once; empty where compiled or scripted code hides layers"
    )
    arith_intensity: float | None = cell("flops / bytes_min")
    achieved_tflops: float | None = cell("flops divided by the median time", clocked=True)
    achieved_gbs: float | None = cell(
        "bytes_min divided by the median time, 10^9 bytes per second", clocked=True
    )
    pct_peak_compute: float | None = cell("share of the dense peak of that dtype", clocked=True)
    pct_peak_bw: float | None = cell("share of the peak memory bandwidth", clocked=True)
    peak_source: str | None = cell("entry of the table of peaks")


class LoadCells(Cells):
    """What was going on on the machine."""

    mem_avg_bytes: int | None = cell("training: mean memory use at the ends of phases")
    load_avg_1min: float | None = cell("load average of the node before the point")


class AttemptCells(Cells):
    """The attempt that measured: the same in all its rows."""

    schema_version: str | None = cell("version of these columns")
    sweep: str | None = cell("name of the sweep")
    workload: str | None = cell("inference, training, noop or command")
    profile: str | None = cell("cluster profile that the point ran with")
    submission: str | None = cell("id of the submission")
    chunk: int | None = cell("number of the chunk in the submission, from 0")
    attempt: int | None = cell("number of the attempt of that chunk, from 0")


class PointCells(Cells):
    """The place of a point in its chunk; the axes of a command."""

    place: int | None = cell("place of the point in the order of its chunk, from 0")
    order_seed: int | None = cell("seed of that order")
    own_axes: dict[str, Any] | None = cell(
        "JSON: the axes of a command; `collect` gives each a column", kind="str"
    )


class OutcomeCells(Cells):
    """How a point ended, and what may be quoted of it."""

    own_results: dict[str, Any] | None = cell(
        "JSON: what a command said; `collect` gives each value a column", kind="str"
    )
    status_reason: str | None = cell("the reason, if `status` is not ok")
    valid: bool | None = cell("`status` is ok and no flag makes the times unreliable")
    flags: str | None = cell("flags, separated by semicolons; see the list of flags")
    left_behind: str | None = cell(
        "older rows: what the network changed in its process, or left there"
    )
    max_rel_error: float | None = cell(
        "older rows: largest error of an output over its largest value in float64"
    )
    fresh_ms: float | None = cell(
        "older rows: median of passes on inputs that were never seen", clocked=True
    )
    seen_ms: float | None = cell(
        "older rows: median of passes on one input in turn with those", clocked=True
    )
    profiler: str | None = cell(
        "profiler that the point ran under: nsys, ncu, rocprofv3; empty: none"
    )
    checks_missing: str | None = cell(
        "checks after the times that were not made: the one in which the process ended, and "
        "how; those after it"
    )
    artifacts: str | None = cell("files of profilers beside the shard, separated by semicolons")


class WallCells(Cells):
    """When a point was measured, and how long all of it took."""

    started_at: str | None = cell("when the point started, UTC", kind="time")
    suspended_s: float | None = cell(
        "seconds that the job was suspended while the point was measured; empty: it was not, "
        "or the point was measured again"
    )
    wall_s: float | None = cell("seconds that the whole point took, with its preparation")
    timed_share: float | None = cell(
        "share of `wall_s` in timed passes, layer passes included; no warm-up", clocked=True
    )


class NeighbourCells(Cells):
    """Who measured beside a point, in a job with several GPUs, and what that cost."""

    neighbours: int | None = cell(
        "other GPUs of its job that measured at its beginning or end; empty: a job of one GPU"
    )
    alone_ms: float | None = cell(
        "of the first point of such a job: its median while the other GPUs were idle", clocked=True
    )
    neighbour_slowdown_pct: float | None = cell(
        "of the same point: its median, which neighbours were beside, over `alone_ms`; minus 1",
        clocked=True,
    )
    neighbour_noise_pct: float | None = cell(
        "of the same point: how far the 95 % confidence intervals of both medians may move that",
        clocked=True,
    )


class MachineCells(Cells):
    """The device and its software, as the worker found them: the same in all rows of an attempt."""

    device_name: str | None = cell("name that the device reports")
    device_uuid: str | None = cell("GPU UUID")
    node: str | None = cell("name of the node (SLURMD_NODENAME, or the host name)")
    torch_version: str | None = cell("version of torch")
    cuda_version: str | None = cell("version of CUDA or HIP of this torch build")
    cudnn_version: str | None = cell("version of cuDNN or MIOpen")
    driver_version: str | None = cell("version of the GPU driver")


class OriginCells(Cells):
    """The code and the job behind a row."""

    hpcsweep_version: str | None = cell("version of hpcsweep; between releases with its commit")
    git_sha: str | None = cell("git commit of the folder from which you submitted")
    git_dirty: bool | None = cell("that folder had uncommitted changes")
    own_files: str | None = cell(
        "digests of your own files that it is made of: code of `model` and `dataset`, `weights`"
    )
    slurm_job_id: str | None = cell("id of the Slurm job")
    slurm_array_task_id: str | None = cell("id of the array task")


class LayerCells(Cells):
    """A call of a layer, or the rest of the pass."""

    model: str | None = cell("network")
    layer: str | None = cell("qualified name of the module; `__other__` is the rest of the pass")
    algorithm: str | None = cell("convolution algorithm as requested")
    device: str | None = cell("short name of the device; the same as `gpu`")
    batch_size: int | None = cell("images per pass")
    input_size: int | None = cell("height of the *network's* input, pixels, as in overall")
    in_channels: int | None = cell("input channels")
    out_channels: int | None = cell("output channels")
    kernel_size: str | None = cell("height, or `HxW` if height and width differ")
    stride: str | None = cell("vertical stride, or `HxW` if the strides differ")
    padding: str | None = cell("vertical padding, or `HxW` if the paddings differ")
    mean_ms: float | None = cell("mean time of a pass")
    std_ms: float | None = cell("standard deviation, with n - 1")
    min_ms: float | None = cell("fastest pass")
    max_ms: float | None = cell("slowest pass")
    median_ms: float | None = cell("median: quote this number")
    percentage: float | None = cell(
        "share of the layer pass; rows sum to 100, but for `layers: unique`"
    )
    point_id: str | None = cell("joins overall.csv")
    gpu: str | None = cell("GPU type")
    dtype: str | None = cell("type of weights and activations")
    direction: str | None = cell(
        "forward, or backward (training, convolutions); imported also backward_data, "
        "backward_weights"
    )
    call_index: int | None = cell(
        "position in the pass; a module that is called twice has two rows"
    )
    op: str | None = cell("module class in lower case: conv2d, batchnorm2d, relu, ...")
    unique_key: str | None = cell("operation and shapes; calls with equal keys do equal work")
    in_h: int | None = cell(
        "height of the layer's input, with what a convolution pads before its call (`pad_h` 0)"
    )
    in_w: int | None = cell("width of the layer's input, as `in_h`")
    out_h: int | None = cell("height of the layer's output")
    out_w: int | None = cell("width of the layer's output")
    kernel_h: int | None = cell("kernel height")
    kernel_w: int | None = cell("kernel width")
    stride_h: int | None = cell("stride, vertical")
    stride_w: int | None = cell("stride, horizontal")
    pad_h: int | None = cell("padding at the top, and the same at the bottom")
    pad_w: int | None = cell("padding at the left, and the same at the right")
    dilation_h: int | None = cell("dilation, vertical")
    dilation_w: int | None = cell("dilation, horizontal")
    groups: int | None = cell("groups of channels")
    bias: bool | None = cell("the layer adds a bias")
    n: int | None = cell("timed passes")
    q1_ms: float | None = cell("first quartile")
    q3_ms: float | None = cell("third quartile")
    layer_timer: str | None = cell(
        "how the call was timed: host, events, graph, isolated, batched, plans, kernels"
    )
    cold: str | None = cell(
        "timed alone: what no cache held before a call, by its size: input+weights, input, none"
    )
    params: int | None = cell("parameters of the layer")
    flops: int | None = cell("floating-point operations; a multiply-add counts as 2")
    bytes_min: int | None = cell("bytes of input, weights and output, each counted once")


class SampleCells(Cells):
    """One timed pass."""

    point_id: str | None = cell("joins overall.csv")
    i: int | None = cell("number of the pass, from 0")
    ms: float | None = cell("time of the pass")


class CollectedCells(Cells):
    """What `collect` adds to a row."""

    orphan: bool | None = cell(
        "the sweep, as last submitted, no longer has this point; empty: unknown"
    )
    source: str | None = cell("where an imported row comes from; empty: measured for this folder")
