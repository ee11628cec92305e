"""Counters of rocprofv3: AMD's published formulas, joined over passes by dispatch."""

from __future__ import annotations

import csv
import re

import pandas as pd
import pytest

from hpcsweep.analysis.roofline import exports, rocprof
from hpcsweep.analysis.roofline.roofs import units_of
from hpcsweep.errors import UsageError

HEAD = (
    "Correlation_Id", "Dispatch_Id", "Agent_Id", "Queue_Id", "Process_Id", "Thread_Id",
    "Grid_Size", "Kernel_Id", "Kernel_Name", "Workgroup_Size", "LDS_Block_Size", "Scratch_Size",
    "VGPR_Count", "Accum_VGPR_Count", "SGPR_Count", "Counter_Name", "Counter_Value",
    "Start_Timestamp", "End_Timestamp",
)  # fmt: skip
KERNELS = ("void igemm<float, 3>(float*, int)", "relu(float*)", "void igemm<float, 3>(float*, int)")
MI200 = (*rocprof.VALU, *rocprof.MFMA, *rocprof.MI200_BYTES)


def write(path, names, process=77, kernels=KERNELS, value=lambda _dispatch, _name: 1):
    """Write the counters of one pass as rocprofv3 does."""
    lines = [",".join(f'"{name}"' for name in HEAD)]
    for i, kernel in enumerate(kernels, 1):
        begin = 317_095_766_765_717 + 1000 * i
        lines += [
            f'{i},{i},"Agent 4",1,{process},{process},64,1,"{kernel}",64,0,0,8,0,16,"{name}",'
            f"{value(i, name):.6f},{begin},{begin + 500}"
            for name in names
        ]
    path.write_text("\n".join(lines) + "\n")
    return path


def only(**counters):
    """Return counter values: those that are given, else 0."""
    return lambda _dispatch, name: counters.get(name, 0)


def read(tmp_path, value, names=MI200):
    """Return the first dispatch of an export."""
    return exports.read([write(tmp_path / "c.csv", names, value=value)]).work.iloc[0]


def test_a_vector_instruction_is_64_operations_and_an_fma_128(tmp_path):
    """Formula of ROCm Compute Profiler's empirical roofline."""
    counters = {f"SQ_INSTS_VALU_{op}_F32": n for op, n in zip(
        ("ADD", "MUL", "TRANS", "FMA"), (1, 10, 100, 1000), strict=True)}  # fmt: skip
    found = read(tmp_path, only(**counters))
    assert found["fp32"] == 64 * (1 + 10 + 100 + 2 * 1000)
    assert units_of(found.index) == ["fp32"]


@pytest.mark.parametrize(
    ("delimiter", "decimal", "thousands"), [(",", ".", ""), (",", ",", "."), (";", ",", "\u202f")]
)
def test_counters_are_the_same_in_the_notation_of_any_country(
    tmp_path, delimiter, decimal, thousands
):
    """As a spreadsheet saves them; a counter has no fraction but zeros."""
    path = write(tmp_path / "c.csv", MI200, value=lambda at, _name: 65_536 * at)
    right = exports.read([path]).work
    rows = []
    for row in csv.reader(path.read_text().splitlines()):
        row[-3] = re.sub(r"\.0+$", f"{decimal}00", row[-3])
        for at in (-3, -2, -1):
            row[at] = re.sub(r"(?<=\d)(?=(\d{3})+(?!\d))", thousands, row[at], count=9)
        rows.append(row)
    with path.open("w", newline="", encoding="utf-16") as file:
        csv.writer(file, delimiter=delimiter).writerows(rows)
    pd.testing.assert_frame_equal(exports.read([path]).work, right)


def test_a_matrix_unit_is_512_operations(tmp_path):
    """The counter counts in units of 512, whatever the type."""
    counters = {f"SQ_INSTS_VALU_MFMA_MOPS_{t}": 3 for t in ("F16", "BF16", "F32", "F64")}
    found = read(tmp_path, only(**counters))
    assert {unit: found[unit] for unit in units_of(found.index)} == {
        f"{kind} matrix": 1536 for kind in ("fp16", "bf16", "fp32", "fp64")
    }


def test_requests_of_mi200_are_32_or_64_bytes(tmp_path):
    """32B reads are part of all reads, 64B writes of all writes."""
    counters = {
        "TCC_EA_RDREQ_sum": 100,
        "TCC_EA_RDREQ_32B_sum": 30,
        "TCC_EA_WRREQ_sum": 50,
        "TCC_EA_WRREQ_64B_sum": 40,
    }
    assert read(tmp_path, only(**counters))["bytes"] == 30 * 32 + 70 * 64 + 40 * 64 + 10 * 32


def test_requests_of_mi300_may_be_128_bytes(tmp_path):
    """`TCC_BUBBLE` counts them, and they are part of all reads."""
    counters = {
        "TCC_BUBBLE_sum": 20,
        "TCC_EA0_RDREQ_sum": 100,
        "TCC_EA0_RDREQ_32B_sum": 30,
        "TCC_EA0_WRREQ_sum": 50,
        "TCC_EA0_WRREQ_64B_sum": 40,
    }
    names = (*rocprof.VALU, *rocprof.MFMA, *rocprof.MI300_BYTES)
    found = read(tmp_path, only(**counters), names)
    assert found["bytes"] == 20 * 128 + 30 * 32 + 50 * 64 + 40 * 64 + 10 * 32


def test_passes_are_joined_by_dispatch_though_each_is_a_process_of_its_own(tmp_path):
    """The hardware counts a few at a time, so rocprofv3 runs the program again."""
    paths = [
        write(tmp_path / f"pass_{i}.csv", names, process=1000 + i, value=lambda d, _name: d)
        for i, names in enumerate((list(rocprof.VALU), [*rocprof.MFMA, *rocprof.MI200_BYTES]))
    ]
    work = exports.read(paths).work
    assert work[["id", "name"]].to_numpy().tolist() == [
        *map(list, zip("123", KERNELS, strict=True))
    ]
    assert work["fp32"][2] == 3 * (3 * 64 + 128)
    assert work["seconds"][2] == pytest.approx(500e-9)


def test_passes_of_different_runs_are_refused(tmp_path):
    """The same dispatch has to be the same kernel."""
    one = write(tmp_path / "1.csv", rocprof.VALU)
    two = write(tmp_path / "2.csv", rocprof.MFMA, kernels=("other(int)",) * 3)
    with pytest.raises(UsageError, match="passes of one run"):
        exports.read([one, two])


def test_a_pass_that_is_not_there_is_told(tmp_path):
    """By its name, whichever of the files it is."""
    there = write(tmp_path / "1.csv", rocprof.VALU)
    with pytest.raises(UsageError, match=r"2\.csv: No such file"):
        exports.read([there, tmp_path / "2.csv"])


@pytest.mark.parametrize("wrong", ["many", ""])
def test_a_cell_that_is_no_number_is_refused_with_its_line(tmp_path, wrong):
    """Half of a number is not skipped either."""
    path = write(tmp_path / "c.csv", MI200)
    lines = path.read_text().splitlines(keepends=True)
    lines[3] = lines[3].replace("1.000000", wrong)
    path.write_text("".join(lines))
    with pytest.raises(UsageError, match=r"c\.csv, line 4: .*no number"):
        exports.read([path])


def test_a_counter_that_a_pass_has_twice_is_refused_with_its_line(tmp_path):
    """Two passes in one file would be taken for one."""
    path = write(tmp_path / "c.csv", MI200)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines, lines[1]]))
    with pytest.raises(UsageError, match=rf"line {len(lines) + 1}: {MI200[0]} of dispatch 1 again"):
        exports.read([path])


def test_missing_counters_are_named_with_the_command(tmp_path):
    """Half of the FLOPs is no number."""
    path = write(tmp_path / "c.csv", [n for n in MI200 if n != "SQ_INSTS_VALU_FMA_F32"])
    with pytest.raises(UsageError, match=r"lacks SQ_INSTS_VALU_FMA_F32; .*rocprofv3 -i"):
        exports.read([path])


@pytest.mark.parametrize("cut", [1, 20, 3000])
def test_an_export_that_was_cut_is_refused(tmp_path, cut):
    """Also inside the last number, which would still look like one."""
    path = write(tmp_path / "c.csv", MI200)
    path.write_text(path.read_text()[:-cut])
    with pytest.raises(UsageError, match=r"cut|lacks"):
        exports.read([path])


def test_an_export_cut_between_rows_is_refused(tmp_path):
    """Every dispatch must have every counter."""
    path = write(tmp_path / "c.csv", MI200)
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-2]))
    with pytest.raises(UsageError, match=r"dispatch 3 \(void igemm.* lacks TCC_EA_WRREQ"):
        exports.read([path])


@pytest.mark.parametrize("name", ["Counter_Value", "Dispatch_Id", "Kernel_Name", "End_Timestamp"])
def test_an_export_with_other_columns_is_refused(tmp_path, name):
    """Of another version, or edited; so is an empty file."""
    path = write(tmp_path / "c.csv", MI200)
    path.write_text(path.read_text().replace(f'"{name}"', '"Something"'))
    with pytest.raises(UsageError, match=f"no column {name}"):
        exports.read([path])
    path.write_text("\n")
    with pytest.raises(UsageError, match="no export of a known profiler"):
        exports.read([path])


def test_the_list_to_collect_has_every_counter_once(tmp_path):
    """In passes that the hardware can take."""
    passes = [line.removeprefix("pmc: ").split() for line in rocprof.passes().splitlines()]
    assert sorted(name for one in passes for name in one) == sorted(MI200)
    assert max(map(len, passes)) <= 8


def test_values_without_names_are_refused(tmp_path):
    """The header is damaged: it is no table with a column per counter."""
    path = write(tmp_path / "c.csv", MI200)
    path.write_text(path.read_text().replace("Counter_Name", "Counter_Nome"))
    with pytest.raises(
        UsageError, match=r"no export of a known profiler; .*counter_collection\.csv"
    ):
        exports.read([path])
