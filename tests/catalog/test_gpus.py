"""The table of peaks: dense figures, per device."""

from __future__ import annotations

import pytest
import yaml

from hpcsweep.catalog.gpus import DEVICES, GPUS, Gpu, by_device_name, by_label, sheet
from paths import ROOT

# What the data sheets print for two-to-four sparsity; none of it is reachable by a convolution.
SPARSE = {
    "L40": (181, 362),
    "L40S": (366, 733),
    "A100": (312.5, 624),
    "H100": (989, 1979),
    "H200": (989, 1979),
}
# The whole module of two dies, as its data sheet has it: FP64, FP64 matrix, FP16, GB/s, MB of L2.
MODULES = {
    "MI250 GCD": (45.3, 90.5, 362.1, 3277, 16),
    "MI250X GCD": (47.9, 95.7, 383.0, 3277, 16),
}


def named(name: str) -> Gpu:
    """Return a device of the table."""
    return next(gpu for gpu in DEVICES if gpu.name == name)


@pytest.mark.parametrize(
    ("device_name", "name"),
    [
        ("Tesla V100-SXM2-16GB", "V100 SXM2"),
        ("Tesla V100-SXM2-32GB", "V100 SXM2"),
        ("Tesla V100-PCIE-32GB", "V100 PCIe"),
        ("Tesla V100S-PCIE-32GB", "V100S PCIe"),
        ("NVIDIA L40", "L40"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A100-SXM4-40GB", "A100 SXM4 40GB"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200 SXM"),
        ("NVIDIA L4", "L4"),
        ("Tesla T4", "T4"),
        ("AMD Instinct MI250", "MI250 GCD"),
        ("AMD Instinct MI250X", "MI250X GCD"),
    ],
)
def test_a_device_is_found_by_the_name_that_it_gives_itself(device_name: str, name: str) -> None:
    """The particular before the general: an L40S is no L40."""
    found = by_device_name(device_name)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "device_name",
    [
        "",
        "cpu",
        "NVIDIA GH200 480GB",
        "NVIDIA H100 NVL",
        "NVIDIA H200 NVL",
        "NVIDIA L20",
        "NVIDIA T400 4GB",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "Tesla V100-SXM3-32GB",
    ],
)
def test_what_is_not_in_the_table_has_no_peak(device_name: str) -> None:
    """A wrong roof is worse than none; a slice of a device is not the device."""
    assert by_device_name(device_name) is None


@pytest.mark.parametrize(
    ("word", "name"),
    [
        ("v100", "V100 SXM2"),
        ("MI100", "MI100"),
        ("gfx908_120", "MI100"),
        ("gfx1030_36", "RX 6800 XT"),
        ("mi300x", "MI300X"),
        ("a10", "A10"),
        ("NVIDIA A100-PCIE-40GB", "A100 PCIe 40GB"),
        ("AMD Instinct MI60", "MI60"),
        ("gfx906", None),
        ("", None),
        ("cpu", None),
    ],
)
def test_a_sheet_is_found_by_any_name_of_a_device(word: str, name: str | None) -> None:
    """A value of `gpu`, a name in the table, AMD's chip with its units, the driver's name."""
    assert getattr(sheet(word), "name", None) == name


def test_compute_units_tell_the_two_cdna2_modules_apart() -> None:
    """ROCm gives both the same name."""
    for shared in ("AMD Instinct MI250X/MI250", "AMD Instinct MI250X / MI250"):
        assert by_device_name(shared, 104) is named("MI250 GCD")
        assert by_device_name(shared, 110) is named("MI250X GCD")
        assert by_device_name(shared) is None


def test_every_short_name_of_a_sweep_has_an_entry() -> None:
    """The `gpu` values of the documentation and of the shipped profiles; each is one row's."""
    profiles = (ROOT / "cluster_profiles").glob("*.yaml")
    shipped = {yaml.safe_load(path.read_text()).get("gpu") for path in profiles} - {None}
    assert {"v100", "l40", "l40s", "a100", "h100", "h200", "mi250"} | shipped <= {*GPUS, "cpu"}
    assert len(GPUS) == len([gpu for gpu in DEVICES if gpu.short])
    assert {name: by_label(name) for name in GPUS} == {name: name for name in GPUS}


@pytest.mark.parametrize("gpu", DEVICES, ids=lambda gpu: gpu.name)
def test_half_precision_is_twice_tf32(gpu: Gpu) -> None:
    """On every tensor core that has both; the L40's and L40S' sheets round."""
    if gpu.tf32_tflops is not None:
        assert gpu.fp16_tflops == pytest.approx(2 * gpu.tf32_tflops, rel=0.02)


@pytest.mark.parametrize("gpu", DEVICES, ids=lambda gpu: gpu.name)
def test_rates_of_a_device_are_in_a_sane_order(gpu: Gpu) -> None:
    """Wider types are never faster, matrix units never slower; every figure has a source."""
    fp32 = max(gpu.fp32_tflops, gpu.fp32_matrix_tflops or 0)
    assert gpu.fp64_tflops <= gpu.fp32_tflops <= fp32
    slow = "FP16 1/64 of FP32" in gpu.source  # chips of Pascal for graphics
    assert gpu.fp16_tflops == pytest.approx(fp32 / 64, rel=0.01) if slow else fp32 < gpu.fp16_tflops
    assert gpu.bf16_tflops in {None, gpu.fp16_tflops, gpu.fp16_tflops / 2}  # half: the MI100
    assert gpu.fp64_matrix_tflops is None or gpu.fp64_matrix_tflops >= gpu.fp64_tflops
    assert gpu.source
    assert 190 <= gpu.bandwidth_gbs < 10_000  # a P4 has 192 GB/s; HBM3e, for now the fastest, 8,000


@pytest.mark.parametrize("gpu", DEVICES, ids=lambda gpu: gpu.name)
def test_no_figure_counts_on_sparsity(gpu: Gpu) -> None:
    """Data sheets print the double first."""
    for part, (tf32, fp16) in SPARSE.items():
        if gpu.name.split()[0] == part:
            assert gpu.fp16_tflops < 0.7 * fp16
            assert gpu.tf32_tflops is not None
            assert gpu.tf32_tflops < 0.7 * tf32


@pytest.mark.parametrize("name", MODULES)
def test_a_die_is_half_of_its_module(name: str) -> None:
    """A framework sees one die as one device, so the module's peak would halve every share."""
    gpu = named(name)
    die = (
        gpu.fp64_tflops,
        gpu.fp64_matrix_tflops,
        gpu.fp16_tflops,
        gpu.bandwidth_gbs,
        gpu.l2_mb,
    )
    assert [2 * value for value in die] == pytest.approx(MODULES[name], rel=0.005)
    assert (gpu.fp32_tflops, gpu.fp32_matrix_tflops) == die[:2]
    assert gpu.tdp_w is None


def test_a_dtype_has_the_peak_of_the_units_that_compute_it() -> None:
    """TF32 counts only where it is asked for and exists; a V100 has no bfloat16."""
    a100, v100, mi250 = GPUS["a100"], GPUS["v100"], GPUS["mi250"]
    assert a100.peak("float32") == 19.5
    assert a100.peak("float32", tf32=True) == 156.0
    assert a100.peak("float64") == 19.5
    assert v100.peak("float32", tf32=True) == 15.7
    assert v100.peak("float16") == 125.0
    assert v100.peak("bfloat16") is None
    assert mi250.peak("float32") == 45.3
    assert mi250.peak("int8") is None


def test_ridge_points_are_the_published_ones() -> None:
    """FLOP per byte where memory stops being the limit, FP32 vector units."""
    ridges = {
        name: 1000 * GPUS[name].fp32_tflops / GPUS[name].bandwidth_gbs
        for name in ("v100", "l40s", "a100", "h100", "h200", "mi250")
    }
    assert ridges == pytest.approx(
        {"v100": 17.4, "l40s": 106, "a100": 9.6, "h100": 20, "h200": 13.9, "mi250": 13.8}, rel=0.01
    )
