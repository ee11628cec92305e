"""NVIDIA's counters: what they are worth, and exports that cannot be trusted."""

from __future__ import annotations

import contextlib
import csv
import re

import pandas as pd
import pytest

import ncufiles
from hpcsweep.analysis.roofline import exports, ncu
from hpcsweep.analysis.roofline.roofs import units_of
from hpcsweep.errors import UsageError
from ncufiles import DRAM, OPS, TIME, Launch

TF32 = "sm__ops_path_tensor_src_tf32_dst_fp32.sum"
TENSOR_NAME = "ampere_sgemm_tf32_s1688gemm_128x128"


def read_one(path, **changes):
    """Return the operations by unit of an export of one launch."""
    launch = Launch(0, changes.pop("kernel", "k"), **changes)
    work = exports.read([ncufiles.write_wide(path / "k.csv", [launch])]).work
    assert len(work) == 1
    return {unit: work[unit][0] for unit in units_of(work)}


def test_a_step_of_98_launches_has_98_rows_and_its_flops_add_up(tmp_path):
    """Launches are joined by ID: 34 kernels repeat, and none is joined with another."""
    launches = ncufiles.step()
    work = exports.read([ncufiles.write_wide(tmp_path / "step.csv", launches)]).work
    assert work["id"].astype(int).tolist() == list(range(98))
    assert work["name"].nunique() == 34
    assert work[units_of(work)].to_numpy().sum() == ncufiles.flops(launches)
    assert work["bytes"].sum() == pytest.approx(sum(x.bytes for x in launches))
    assert work["seconds"].sum() == pytest.approx(sum(x.ns for x in launches) / 1e9)


def test_half_and_double_precision_are_units_of_their_own(tmp_path):
    """Each with its own roof later. A fused multiply-add is two operations, the others are one."""
    counts = {OPS.format(kind + op): 10 for kind in "dh" for op in ("add", "mul", "fma")}
    counts |= {"fadd": 3, "fmul": 5, "ffma": 7}
    assert read_one(tmp_path, counts=counts) == {"fp64": 40, "fp16": 40, "fp32": 3 + 5 + 14}


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
    found = read_one(tmp_path, counts=counts, kernel=TENSOR_NAME)
    assert found == {"tf32 tensor": 500, "fp16 tensor": 42, "bf16 tensor": 9}


def test_a_tensor_kernel_without_tensor_counters_is_refused(tmp_path):
    """Its FP32 instructions alone would be a wrong number."""
    with pytest.raises(UsageError, match=r"ID 0 .*tensor cores.*ncu --query-metrics"):
        read_one(tmp_path, kernel=TENSOR_NAME)


def test_tensor_instructions_count_512_on_volta_and_are_refused_later(tmp_path):
    """What an instruction is worth differs by chip."""
    launch = Launch(0, "volta_h884gemm", counts={"sm__inst_executed_pipe_tensor.sum": 10})
    path = ncufiles.write_wide(tmp_path / "k.csv", [launch])
    with pytest.raises(UsageError, match="differs by chip"):
        exports.read([path])
    path.write_text(path.read_text().replace('"8.0"', '"7.0"'))
    assert exports.read([path]).work["fp16 tensor"].tolist() == [5120]


def test_families_that_were_not_collected_are_named(tmp_path):
    """The reader has to know what the FLOPs leave out."""
    export = exports.read([ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "k")])])
    assert export.notes == ("not in this export, so not counted: FP64, FP16, tensor cores",)


@pytest.mark.parametrize("name", [TIME, DRAM, OPS.format("ffma")])
def test_an_export_without_a_needed_metric_names_it_and_the_command(tmp_path, name):
    """One line: what is missing, and what to type."""
    path = ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "k"), Launch(1, "k")])
    path.write_text(path.read_text().replace(name, "some__other.metric"))
    with pytest.raises(UsageError) as told:
        exports.read([path])
    assert name in str(told.value)
    assert "ncu --csv --page raw --metrics" in str(told.value)
    assert "\n" not in str(told.value)


def test_read_and_written_bytes_are_as_good_as_their_sum(tmp_path):
    """Many exports have the parts only."""
    path = ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "k", bytes=100, counts={
        "dram__bytes_write.sum": 11})])  # fmt: skip
    text = path.read_text().replace(DRAM, "dram__bytes_read.sum")
    path.write_text(text.replace('"inst"\n', '"byte"\n'))
    assert exports.read([path]).work["bytes"].tolist() == [111]


def test_what_to_collect_is_what_is_read(tmp_path):
    """An export of exactly the listed metrics is complete, but for the tensor cores."""
    names = [name for name in ncu.metrics() if name not in {TIME, DRAM}]
    counts = {name: 0 for name in names if "_f" not in name}
    export = exports.read(
        [ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "k", counts=counts)])]
    )
    assert export.notes == ("not in this export, so not counted: tensor cores",)
    assert len(names) == 9


@pytest.mark.parametrize(
    ("known_units", "unit", "factor"),
    [
        (ncu.BYTES, "Kbyte", 1e3),
        (ncu.SECONDS, "us", 1e-6),
        (ncu.SECONDS, "\u00b5s", 1e-6),
        (ncu.SECONDS, "\u03bcsecond", 1e-6),
        (ncu.SECONDS, "seconds", 1),
        (ncu.SECONDS, "Ksecond", 1e3),
        (ncu.SECONDS, "Msecond", None),
        (ncu.BYTES, "kB", 1e3),
        (ncu.BYTES, "GB", 1e9),
        (ncu.BYTES, "mbyte", None),
        (ncu.BYTES, "Gbyte/second", None),
        (ncu.OPERATIONS, "inst", 1),
        (ncu.OPERATIONS, "", 1),
        (ncu.OPERATIONS, "inst/cycle", None),
        (ncu.OPERATIONS, "Minst", 1e6),
        (ncu.BYTES, "KiB", None),
        (ncu.SECONDS, "Kbyte", None),
        (ncu.OPERATIONS, "%", None),
    ],
)
def test_units_are_decimal_and_known_or_refused(known_units, unit, factor):
    """A Kbyte is 1000 bytes; a unit of another quantity is as unknown as one from nowhere."""
    found = ncu.factor_of(unit, known_units)
    assert found == (None if factor is None else pytest.approx(factor))


def test_no_cut_gives_a_wrong_number(tmp_path):
    """A cut that falls between two launches, where nothing shows it, leaves whole ones."""
    launches = ncufiles.step(4, 2)
    path = ncufiles.write_wide(tmp_path / "step.csv", launches)
    whole = path.read_bytes()
    right = {str(x.ident): (ncufiles.flops([x]), x.bytes, x.ns / 1e9) for x in launches}
    for length in range(0, len(whole), 17):
        path.write_bytes(whole[:length])
        with contextlib.suppress(UsageError):
            work = exports.read([path]).work
            total = work[units_of(work)].sum(axis=1)
            for piece, flops in zip(work.itertuples(), total, strict=True):
                found = (flops, piece.bytes, piece.seconds)
                assert found == pytest.approx(right[piece.id])


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({'"Kernel Name"': '"Something"'}, "no export of a known profiler"),
        ({'"ID"': '"Something"'}, "no export of a known profiler"),
        ({'"Kernel Name"': '"My Kernel Name"'}, "no export of a known profiler"),
        ({'"888"': '"n/a"'}, r"lacks dram__bytes\.sum"),
        ({"nsecond": "fortnight"}, r"'fortnight' of gpu__time_duration\.sum is not known"),
        ({'"999"': '"1.234,5"'}, "LC_ALL=C"),
        ({'"999"': '"four"'}, "LC_ALL=C"),
        ({'"999"': '"1,234,567"', '"888"': '"65.536"'}, r"'65\.536', which is no number"),
    ],
)
def test_what_is_not_as_ncu_writes_it_is_refused(tmp_path, edits, message):
    """Another version, an edit, no value, a unit or a number of another country: never a guess."""
    path = ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "k", ns=999, bytes=888)])
    text = path.read_text()
    for old, new in edits.items():
        assert old in text
        text = text.replace(old, new)
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        exports.read([path])


def test_an_export_cut_between_rows_is_refused(tmp_path):
    """Ncu said how many kernels it profiled."""
    path = tmp_path / "k.csv"
    said = "".join(f'==PROF== Profiling "k" - {i}: 0%....100% - 8 passes\n' for i in range(3))
    ncufiles.write_wide(path, [Launch(0, "k"), Launch(1, "k")], said)
    with pytest.raises(UsageError, match="2 launches, and ncu announced 3: the export was cut"):
        exports.read([path])


@pytest.mark.parametrize(
    ("thousands", "encoding"),
    [(",", "utf-16"), (".", "utf-16-le"), ("'", "utf-8"), ("\u202f", "utf-8-sig"), ("", "utf-8")],
)
def test_an_export_is_the_same_in_the_notation_of_any_country(tmp_path, thousands, encoding):
    """A count has no fraction, so 65.536 instructions are many; all cells are read as that says."""
    launches = ncufiles.step(6, 3)
    path = ncufiles.write_wide(tmp_path / "step.csv", launches)
    right = exports.read([path]).work
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", thousands, path.read_text())
    path.write_bytes(text.encode(encoding))
    pd.testing.assert_frame_equal(exports.read([path]).work, right)


def test_a_fraction_tells_the_notation_of_all_cells(tmp_path):
    """With prefixes of units, as ncu shows them: 14,91 microseconds and 1.234,5 Kbyte."""
    path = ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "k", ns=999, bytes=888)])
    text = path.read_text().replace("nsecond", "usecond").replace('"byte"', '"Kbyte"')
    path.write_text(text.replace('"999"', '"14,91"').replace('"888"', '"1.234"'))
    work = exports.read([path]).work
    assert (work["seconds"][0], work["bytes"][0]) == pytest.approx((14.91e-6, 1.234e6))
    path.write_text(text.replace('"999"', '"14.912"').replace('"888"', '"1.234"'))
    with pytest.raises(UsageError, match=r"may be .*, and no other cell tells which; .*LC_ALL=C"):
        exports.read([path])


def test_the_sums_of_multiprocessors_are_those_of_their_parts(tmp_path):
    """NERSC's and others' scripts collect them by this name; of both, one counts."""
    path = ncufiles.write_wide(tmp_path / "k.csv", ncufiles.step(4, 2))
    right = exports.read([path]).work
    path.write_text(path.read_text().replace("smsp__sass", "sm__sass"))
    pd.testing.assert_frame_equal(exports.read([path]).work, right)


def test_an_export_of_a_row_per_metric_is_the_same(tmp_path):
    """As ncu writes it without `--page raw`; each metric has its unit beside it."""
    path = ncufiles.write_wide(tmp_path / "k.csv", ncufiles.step(4, 2))
    right = exports.read([path]).work
    names, units, *launches = csv.reader(x for x in path.read_text().splitlines() if '","' in x)
    names = [*names[:4], "Section Name", "Metric Name", "Metric Unit", "Metric Value"]
    metrics = next(csv.reader([x for x in path.read_text().splitlines() if "ID" in x]))[4:]
    rows = [
        [*launch[:4], "Command line profiler metrics", metric, unit, value]
        for launch in launches
        for metric, unit, value in zip(metrics, units[4:], launch[4:], strict=True)
    ]
    path.write_text(ncufiles.PREAMBLE + ncufiles.lines([names, *rows]))
    pd.testing.assert_frame_equal(exports.read([path]).work, right)
    path.write_text(ncufiles.PREAMBLE + ncufiles.lines([names, *rows[:-1]]))
    with pytest.raises(UsageError, match="lacks"):
        exports.read([path])
    # without `--print-units base` each row has the unit that suits its value
    rows[0][6] = "usecond"
    path.write_text(ncufiles.PREAMBLE + ncufiles.lines([names, *rows]))
    seconds = right["seconds"].to_numpy() * [1000, 1, 1, 1]
    assert exports.read([path]).work["seconds"].tolist() == pytest.approx([*seconds])


def test_two_exports_in_one_file_are_refused(tmp_path):
    """Their IDs would be joined."""
    path = ncufiles.write_wide(tmp_path / "k.csv", [Launch(0, "a")])
    first = path.read_text()
    path.write_text(first + ncufiles.write_wide(path, [Launch(0, "b")], "").read_text())
    with pytest.raises(UsageError, match="second table"):
        exports.read([path])
    rows = [line for line in path.read_text().splitlines(keepends=True) if line.startswith('"')]
    header = next(line for line in rows if line.startswith('"ID"'))
    path.write_text("".join([header, *(line for line in rows if line != header)]))
    with pytest.raises(UsageError, match="ID 0 again"):
        exports.read([path])
