"""What launches did, from the metrics of Nsight Compute."""

from __future__ import annotations

import pytest

import ncufiles
from hpcsweep.analysis.roofline import ncu
from hpcsweep.errors import UsageError
from ncufiles import DRAM, OPS, TIME, Launch

WRITERS = pytest.mark.parametrize("write", [ncufiles.write_long, ncufiles.write_wide])
TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
TENSOR_NAME = "ampere_sgemm_tf32_s1688gemm_128x128"


def read_one(path, **changes):
    """Return the work of an export of one launch."""
    launch = Launch(0, changes.pop("kernel", "k"), **changes)
    (work,) = ncu.read(ncufiles.write_wide(path / "k.csv", [launch])).work
    return work


@WRITERS
def test_a_step_of_98_launches_has_98_rows_and_its_flops_add_up(tmp_path, write):
    """Launches are joined by ID: 34 kernels repeat, and none is joined with another."""
    launches = ncufiles.step()
    work = ncu.read(write(tmp_path / "step.csv", launches)).work
    assert [int(piece.ident) for piece in work] == list(range(98))
    assert len({piece.name for piece in work}) == 34
    assert sum(piece.total for piece in work) == ncufiles.flops(launches)
    assert sum(piece.bytes for piece in work) == pytest.approx(sum(x.bytes for x in launches))
    assert sum(piece.seconds for piece in work) == pytest.approx(sum(x.ns for x in launches) / 1e9)


def test_a_fused_multiply_add_is_two_operations(tmp_path):
    """Additions and products are one."""
    work = read_one(tmp_path, counts={"fadd": 3, "fmul": 5, "ffma": 7})
    assert work.flops == {"fp32": 3 + 5 + 14}


def test_half_and_double_precision_are_units_of_their_own(tmp_path):
    """Each with its own roof later."""
    counts = {OPS.format(kind + op): 10 for kind in "dh" for op in ("add", "mul", "fma")}
    assert read_one(tmp_path, counts=counts).flops == {"fp32": 0, "fp64": 40, "fp16": 40}


def test_tensor_cores_count_their_own_operations(tmp_path):
    """A sum is taken once where its parts stand beside it; integers are no FLOPs."""
    counts = {
        TF32: 500,
        TF32.replace(".sum", "_sparsity_off.sum"): 500,
        TF32.replace(".sum", "_sparsity_on.sum"): 0,
        "sm__ops_path_tensor_src_fp16_dst_fp32_sparsity_off.sum": 40,
        "sm__ops_path_tensor_src_fp16_dst_fp32_sparsity_on.sum": 2,
        "sm__ops_path_tensor_src_bf16.sum": 9,
        "sm__ops_path_tensor_src_bf16_dst_fp32.sum": 9,
        "sm__ops_path_tensor_src_int8.sum": 1_000_000,
    }
    found = read_one(tmp_path, counts=counts, kernel=TENSOR_NAME).flops
    assert found == {"fp32": 0, "tf32 tensor": 500, "fp16 tensor": 42, "bf16 tensor": 9}


def test_a_tensor_kernel_without_tensor_counters_is_refused(tmp_path):
    """Its FP32 instructions alone would be a wrong number."""
    with pytest.raises(UsageError, match=r"ID 0 .*tensor cores.*ncu --query-metrics"):
        read_one(tmp_path, kernel=TENSOR_NAME)


def test_tensor_instructions_count_512_on_volta_and_are_refused_later(tmp_path):
    """What an instruction is worth differs by chip."""
    launch = Launch(0, "volta_h884gemm", counts={"sm__inst_executed_pipe_tensor.sum": 10})
    path = ncufiles.write_wide(tmp_path / "k.csv", [launch])
    with pytest.raises(UsageError, match="differs by chip"):
        ncu.read(path)
    path.write_text(path.read_text().replace('"8.0"', '"7.0"'))
    assert ncu.read(path).work[0].flops["fp16 tensor"] == 5120


def test_families_that_were_not_collected_are_named(tmp_path):
    """The reader has to know what the FLOPs leave out."""
    export = ncu.read(ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "k")]))
    assert export.notes == ("not in this export, so not counted: FP64, FP16, tensor cores",)


@WRITERS
@pytest.mark.parametrize("name", [TIME, DRAM, OPS.format("ffma")])
def test_an_export_without_a_needed_metric_names_it_and_the_command(tmp_path, write, name):
    """One line: what is missing, and what to type."""
    path = write(tmp_path / "k.csv", [Launch(0, "k"), Launch(1, "k")])
    path.write_text(path.read_text().replace(name, "some__other.metric"))
    with pytest.raises(UsageError) as told:
        ncu.read(path)
    assert name in str(told.value)
    assert "ncu --csv --page raw --metrics" in str(told.value)
    assert "\n" not in str(told.value)


def test_rates_per_cycle_of_a_roofline_set_are_enough(tmp_path):
    """`--set roofline` has rates, the clock and a derived FMA count instead of sums."""
    rate = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
    names = [
        "ID", "Kernel Name", TIME, "dram__bytes.sum.per_second",
        "smsp__cycles_elapsed.avg.per_second", rate.format("fadd"), rate.format("fmul"),
        "derived__smsp__sass_thread_inst_executed_op_ffma_pred_on_x2",
    ]  # fmt: skip
    units = ["", "", "usecond", "Gbyte/second", "cycle/nsecond", "inst/cycle", "inst/cycle", "inst"]
    values = ["0", "k", "100.00", "50.00", "1.50", "10.00", "6.00", "2,000.00"]
    path = tmp_path / "k.csv"
    path.write_text(ncufiles.lines([names, units, values]))
    export = ncu.read(path)
    assert export.work[0].flops["fp32"] == pytest.approx(2016 * 1.5e9 * 100e-6)
    assert export.work[0].bytes == pytest.approx(5_000_000)
    assert "which ncu rounds" in export.notes[-1]


def test_read_and_written_bytes_are_as_good_as_their_sum(tmp_path):
    """Many exports have the parts only."""
    path = ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "k", bytes=100, counts={
        "dram__bytes_write.sum": 11})])  # fmt: skip
    text = path.read_text().replace(DRAM, "dram__bytes_read.sum")
    path.write_text(text.replace('"inst"\n', '"byte"\n'))
    assert ncu.read(path).work[0].bytes == 111


def test_what_to_collect_is_what_is_read(tmp_path):
    """An export of exactly the listed metrics is complete, but for the tensor cores."""
    names = [name for name in ncu.metrics() if name not in {TIME, DRAM}]
    counts = {name: 0 for name in names if "_f" not in name}
    export = ncu.read(ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "k", counts=counts)]))
    assert export.notes == ("not in this export, so not counted: tensor cores",)
    assert len(names) == 9
