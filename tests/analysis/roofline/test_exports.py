"""What people have: each tool's table is read, or named, with the command of that tool."""

from __future__ import annotations

import shutil

import pandas as pd
import pytest

from hpcsweep.analysis.roofline import exports, rocprof
from hpcsweep.analysis.roofline.roofs import units_of
from hpcsweep.errors import UsageError
from paths import TESTS

MI200 = (*rocprof.VALU, *rocprof.MFMA, *rocprof.MI200_BYTES)
KERNEL = '"void igemm<float, 3>(float*, int) [clone .kd]"'
ROCPROF_IDENTITY = (
    "Index,KernelName,gpu-id,queue-id,queue-index,pid,tid,grd,wgr,lds,scr,arch_vgpr,accum_vgpr,"
    "sgpr,wave_size,sig,obj"
)
PERF_IDENTITY = (
    "Dispatch_ID,Kernel_Name,GPU_ID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,"
    "Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,wave_size,obj"
)
ROCPROFV2_IDENTITY = (
    "Dispatch_ID,GPU_ID,Queue_ID,PID,TID,Grid_Size,Workgroup_Size,LDS_Per_Workgroup,"
    "Scratch_Per_Workitem,Arch_VGPR,Accum_VGPR,SGPR,Wave_Size,Kernel_Name,Start_Timestamp,"
    "End_Timestamp,Correlation_ID,Kernel_ID"
)
DETAILS = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size",'
    '"Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
LAUNCH = '"0","4713","python3.9","127.0.0.1","k","1","7","(8, 8, 1)","(1024, 2, 1)","0","7.5",'


def by_rocprof(counters):
    """Return `results.csv` of rocprof with `--timestamp on`: a column per counter."""
    head = f"{ROCPROF_IDENTITY},{','.join(MI200)},DispatchNs,BeginNs,EndNs,CompleteNs\n"
    values = ",".join(f"{counters.get(name, 0)}.0000000000" for name in MI200)
    identity = f"0,{KERNEL},2,0,0,415,415,1048576,256,0,0,8,0,16,64,0x0,0x7f7aee850ec0"
    times = "1412702536482286,1412702536508356,1412702536508856,1412702536542951"
    return f"{head}{identity},{values},{times}\n"


def by_rocprofv2(counters):
    """Return the table of rocprofv2, with an empty line below the header."""
    values = ",".join(f"{counters.get(name, 0)}.000000" for name in MI200)
    identity = f"1,4,1,415,415,1048576,256,0,0,8,0,16,64,{KERNEL},2000,2500,1,7"
    return f"{ROCPROFV2_IDENTITY},{','.join(MI200)}\n\n{identity},{values}\n"


def by_omniperf(counters):
    """Return `pmc_perf.csv`: joined passes with columns of each, times that are means."""
    flops, traffic = MI200[:-4], MI200[-4:]
    head = f"{PERF_IDENTITY},{','.join(flops)},wave_size_1,obj_1,TCC_HIT[0],{','.join(traffic)}"
    cells = [[f"{counters.get(name, 0)}.0" for name in names] for names in (flops, traffic)]
    identity = f"0,{KERNEL},2,1048576,256,0,0,8,0,16,64,0x7f7aee850ec0"
    row = f"{identity},{','.join(cells[0])},64,0,12.0,{','.join(cells[1])}"
    return f"{head},Start_Timestamp,End_Timestamp\n{row},716380685145736.5,716380685146236.5\n"


@pytest.mark.parametrize("written", [by_rocprof, by_rocprofv2, by_omniperf])
def test_a_table_with_a_column_per_counter_is_read(tmp_path, written):
    """As rocprof, rocprofv2 and ROCm Compute Profiler (Omniperf) write it."""
    counters = {"SQ_INSTS_VALU_FMA_F32": 3, "SQ_INSTS_VALU_MFMA_MOPS_F16": 2}
    counters |= {"TCC_EA_RDREQ_sum": 10, "TCC_EA_RDREQ_32B_sum": 4}
    path = tmp_path / "pmc_perf.csv"
    path.write_text(written(counters))
    work = exports.read([path]).work
    assert work["name"].tolist() == [KERNEL.strip('"')]
    assert {unit: work[unit][0] for unit in units_of(work)} == {
        "fp32": 3 * 128,
        "fp16 matrix": 2 * 512,
    }
    assert work["bytes"].tolist() == [4 * 32 + 6 * 64]
    assert work["seconds"][0] == pytest.approx(500e-9)


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (by_rocprof, r"lacks TCC_EA_RDREQ_sum; .*rocprof -i counters\.txt --timestamp on"),
        (by_rocprofv2, r"lacks TCC_EA_RDREQ_sum; .*rocprofv2 -i counters\.txt"),
        (by_omniperf, "lacks TCC_EA_RDREQ_sum; .*rocprof-compute profile .*--roof-only"),
    ],
)
def test_what_it_lacks_is_told_with_the_command_of_its_tool(tmp_path, written, words):
    """The counter is missing, empty, or no counter is one of a roofline."""
    path = tmp_path / "x.csv"
    text = written({"TCC_EA_RDREQ_sum": 987})
    path.write_text(text.replace("TCC_EA_RDREQ_sum", "TCC_BUSY_sum"))
    with pytest.raises(UsageError, match=words):
        exports.read([path])
    value = next(cell for cell in text.split(",") if cell.startswith("987"))
    path.write_text(text.replace(f",{value},", ",,"))
    with pytest.raises(UsageError, match=words):
        exports.read([path])
    path.write_text(text.replace("SQ_", "GRBM_").replace("TCC_", "TCP_"))
    with pytest.raises(UsageError, match=r"has a counter of a roofline; .*(counters|roof-only)"):
        exports.read([path])


def test_rocprof_without_times_is_told_what_adds_them(tmp_path):
    """`--timestamp on` is not its default."""
    path = tmp_path / "results.csv"
    lines = by_rocprof({}).splitlines()
    path.write_text("".join(line.rsplit(",", 4)[0] + "\n" for line in lines))
    with pytest.raises(UsageError, match=r"Start_Timestamp, End_Timestamp; .*--timestamp on"):
        exports.read([path])


TIMES_ALONE = [
    (
        "a_cuda_gpu_kern_sum.csv",
        "cuda_gpu_kern_sum (Nsight Systems) has times, and no FLOPs or bytes",
        "collect with: ncu --csv --page raw --metrics",
    ),
    (
        "old_gpukernsum.csv",
        "Nsight Systems counts neither, Nsight Compute does",
        "ncu --csv --page raw --metrics",
    ),
    (
        "kern_sum.txt",
        "cuda_gpu_kern_sum (Nsight Systems) has times, and no FLOPs or bytes",
        "ncu --csv --page raw --metrics",
    ),
    (
        "ncu.txt",
        "ncu (Nsight Compute) has no IDs of launches: it was written without --csv",
        "ncu --csv --page raw --metrics",
    ),
    (
        "a_cuda_gpu_sum.csv",
        "a summary of nsys stats (Nsight Systems) has times",
        "ncu --csv --page raw --metrics",
    ),
    ("a_cuda_gpu_trace.csv", "cuda_gpu_trace (Nsight Systems)", "ncu --csv --page raw --metrics"),
    (
        "1_kernel_stats.csv",
        "kernel_stats.csv (rocprofv3) has times, and no FLOPs or bytes",
        "rocprofv3 -i counters.txt --output-format csv -- PROGRAM",
    ),
    (
        "1_kernel_trace.csv",
        "1_kernel_trace.csv: kernel_trace.csv (rocprofv3) has times",
        "rocprofv3 -i counters.txt --output-format csv -- PROGRAM",
    ),
    (
        "results.stats.csv",
        "results.stats.csv (rocprof) has times, and no FLOPs or bytes",
        "rocprof -i counters.txt --timestamp on -o results.csv PROGRAM",
    ),
    (
        "summary.csv",
        "ncu (Nsight Compute) has no IDs of launches",
        "ncu --csv --page raw --metrics",
    ),
]


@pytest.mark.parametrize(("name", "what", "command"), TIMES_ALONE)
def test_what_has_times_alone_is_named_with_the_command_of_its_tool(desk, name, what, command):
    """File, tool, what is missing and what to type, in a line."""
    shutil.copy(TESTS / "data/profilers" / name, desk.folder)
    done = desk.run("roofline", name, "--peak-compute", "8.1", "--peak-bw", "300")
    assert done.returncode == 2, done.stdout
    assert done.stderr.startswith(f"hpcsweep: {name}: ")
    assert what in done.stderr
    assert command in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a.nsys-rep", "ncu --csv --page raw"),
        ("a.sqlite", "ncu --csv --page raw"),
        ("k.csv.gz", "unpack it first: gunzip k.csv.gz"),
        ("a_results.db", "rocpd convert -i a_results.db --output-format csv"),
        ("a.ncu-rep", "ncu --import a.ncu-rep --csv --page raw > kernels.csv"),
    ],
)
def test_a_report_that_is_no_table_is_told_how_it_becomes_one(desk, name, words):
    """Before its bytes are read."""
    (desk.folder / name).write_bytes(b"SQLite format 3\x00\xff")
    done = desk.run("roofline", name)
    assert done.returncode == 2
    assert f"{name}: " in done.stderr
    assert words in done.stderr


def test_percentages_alone_are_told_with_all_that_is_missing(desk):
    """Shares of a peak are no FLOPs: no peak on the command line makes them any."""
    rows = "".join(
        f'{LAUNCH}"Command line profiler metrics","{name}","{unit}","{value}"\n'
        for name, unit, value in (
            ("dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "27.90"),
            ("gpu__time_duration.sum", "usecond", "272.26"),
            ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "51.34"),
        )
    )
    (desk.folder / "sample_metrics.csv").write_text(f"{DETAILS}\n{rows}")
    done = desk.run(
        "roofline", "sample_metrics.csv", "--peak-compute", "8.1", "--peak-bw", "300",
        "--label", "RN18 FP32 BS128 (one NVTX step)", "--out", "sample_roofline.png",
    )  # fmt: skip
    assert done.returncode == 2
    assert "sample_metrics.csv: the export lacks dram__bytes.sum, smsp__sass" in done.stderr
    assert "op_fadd_pred_on.sum, smsp__" in done.stderr
    assert "op_ffma_pred_on.sum; percentages of a peak tell neither FLOPs nor bytes" in done.stderr
    assert "collect with: ncu --csv --page raw --metrics $(hpcsweep" in done.stderr
    assert "gpu__time_duration.sum" not in done.stderr


def test_the_default_page_of_ncu_is_told_with_all_that_is_missing(tmp_path):
    """Its sections name metrics for people."""
    sections = (
        ("GPU Speed Of Light Throughput", "Duration", "us", "272.26"),
        ("GPU Speed Of Light Throughput", "DRAM Throughput", "%", "27.90"),
        ("GPU Speed Of Light Throughput", "Memory Throughput", "%", "27.90"),
        ("Memory Workload Analysis", "Memory Throughput", "Gbyte/second", "83.70"),
    )
    path = tmp_path / "details.csv"
    quoted = ['","'.join(row) for row in sections]
    rows = "".join(f'{LAUNCH}"{row}"\n' for row in quoted)
    path.write_text(f'==PROF== Profiling "k" - 0: 0%....100% - 8 passes\n{DETAILS}\n{rows}')
    with pytest.raises(UsageError, match="percentages") as told:
        exports.read([path])
    for metric in ("gpu__time_duration.sum", "dram__bytes.sum", "op_fmul_pred_on.sum"):
        assert metric in str(told.value)


def test_files_of_two_forms_are_not_joined(tmp_path):
    """Passes of one run are of one tool."""
    one, two = tmp_path / "1.csv", tmp_path / "2.csv"
    one.write_text(by_rocprof({}))
    two.write_text(by_omniperf({}))
    with pytest.raises(UsageError, match=r"2\.csv: pmc_perf\.csv .*, not results\.csv \(rocprof"):
        exports.read([one, two])


def test_any_other_table_is_told_with_the_known_ones(tmp_path):
    """Each that is read, by the name of its tool."""
    path = tmp_path / "loss.csv"
    path.write_text("epoch,loss\n0,2.3\n")
    with pytest.raises(UsageError, match=r"loss\.csv: no export of a known profiler") as told:
        exports.read([path])
    for form in exports.FORMS:
        assert (form.name in str(told.value)) == (form.read is not None)


@pytest.mark.parametrize(("delimiter", "encoding"), [("\t", "utf-8"), (";", "utf-8-sig")])
def test_a_header_is_recognised_whatever_parts_and_encodes_it(tmp_path, delimiter, encoding):
    """As a spreadsheet or a shell of another system saves it."""
    path = tmp_path / "k.csv"
    text = by_omniperf({"SQ_INSTS_VALU_FMA_F32": 3}).replace(KERNEL, "k")
    path.write_text(text)
    right = exports.read([path]).work
    path.write_text(text.replace(",", delimiter), encoding=encoding)
    pd.testing.assert_frame_equal(exports.read([path]).work, right)
