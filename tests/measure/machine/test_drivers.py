"""The drivers of GPUs by stand-ins for their packages: such GPUs cannot be had everywhere.

Names, units and "N/A" of AMD are those of amdsmi 7.0.2; the milliwatts are of four dies on two
boards.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from types import SimpleNamespace

import pytest

import pretendgpu
from fakenvml import FakeNvml, running
from hpcsweep.measure.checks.telemetry import TelemetryCheck
from hpcsweep.measure.machine import drivers

_RECORDED_MW = [89000, 0, 93000, 0]
_COUNTED = [10_000_000, 0, 20_000_000, 0]
_BUSES = ["0000:c1:00.0", "0000:c6:00.0", "0000:c9:00.0", "0000:ce:00.0"]
_UNTOLD = (1 << 64) - 1


class _Metrics(ctypes.Structure):
    _fields_ = (("indep_throttle_status", ctypes.c_uint64),)


class _StandIn:
    """Answers as the package amdsmi does for each die; what it does not know raises."""

    class AmdSmiException(Exception):
        pass

    AmdSmiClkType = SimpleNamespace(GFX=1)
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT=1)
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT=0)

    def __init__(self, milliwatts=_RECORDED_MW, status=0, **answers):
        self.milliwatts = milliwatts
        self.status = status
        self.answers = {
            "clock_info": {"clk": 1700, "max_clk": 1700, "min_clk": 500},
            "gpu_activity": {"gfx_activity": 98, "mm_activity": "N/A"},
            "power_cap_info": {"power_cap": 560_000_000},
            "temp_metric": 61,
            "gpu_driver_info": {"driver_version": "6.12.12"},
        } | answers
        self.amdsmi_wrapper = SimpleNamespace(
            amdsmi_gpu_metrics_t=_Metrics, amdsmi_get_gpu_metrics_info=self._metrics
        )

    def amdsmi_init(self):
        if not self.milliwatts:
            raise self.AmdSmiException("no driver")

    def amdsmi_get_processor_handles(self):
        return list(range(len(self.milliwatts)))

    def amdsmi_get_gpu_device_bdf(self, die):
        return _BUSES[die]

    def amdsmi_get_power_info(self, die):
        watts = self.milliwatts[die]
        watts = watts if watts == "N/A" else watts // 1000
        return {"average_socket_power": watts, "current_socket_power": "N/A"}

    def amdsmi_get_energy_count(self, die):
        return {"energy_accumulator": _COUNTED[die], "counter_resolution": 15.3, "timestamp": 1}

    def __getattr__(self, name):
        answer = self.answers.get(name.removeprefix("amdsmi_get_"))
        if answer is None:
            raise AttributeError(name)

        def call(*_arguments):
            if answer == "refused":
                raise self.AmdSmiException(name)
            return answer

        return call

    def _metrics(self, _die, metrics):
        metrics._obj.indep_throttle_status = self.status
        return 0


def _die(index, smi=None):
    return drivers.amdsmi(smi or _StandIn(), f"{_BUSES[index][:-1]}")


def _cells(index, smi=None):
    return _found(_die(index, smi)).cells


def _found(driver):
    watch = TelemetryCheck(SimpleNamespace(driver=driver))
    watch.settled(None)
    watch.look()
    return watch.after(None, None, None)


def test_the_first_die_tells_the_power_of_its_board_and_the_second_one_none():
    """An empty cell, not 0 W: a mean of it and of the first die would halve the board's power."""
    told = [(_cells(die).power_mean_w, _cells(die).power_scope) for die in range(4)]
    assert told == [(89, "board"), (None, None), (93, "board"), (None, None)]


def test_the_energy_counter_is_in_joules_and_missing_on_a_second_die():
    """Steps of 15.3 microjoules; where it is missing no pass is run for it."""
    assert [_die(die).energy_j() for die in range(4)] == [153.0, None, 306.0, None]
    assert _die(0).provenance()["energy_resolution_uj"] == 15.3


def test_a_gpu_of_one_die_tells_its_own_power():
    """Its neighbours have power, too."""
    assert _cells(0, _StandIn([300_000, 310_000])).power_scope == "gpu"


def test_the_other_readings_are_each_dies_own():
    """Clock, heat, utilisation and limit."""
    cells = _cells(1)
    assert (cells.sm_clock_mhz_mean, cells.temp_c_end, cells.gpu_util_pct) == (
        1700,
        61,
        98,
    )
    assert cells.power_limit_w == 560
    assert _die(0).provenance()["driver_version"] == "6.12.12"


@pytest.mark.parametrize(
    ("status", "reasons", "flags"),
    [
        (0, "", []),
        (1 << 0 | 1 << 16, "sw_power_cap", []),
        (1 << 36, "hw_thermal", ["throttled"]),
        (1 << 57, "hw_slowdown", ["throttled"]),
        (_UNTOLD, "", []),
    ],
)
def test_throttling_is_told_in_the_words_of_nvml(status, reasons, flags):
    """Bits of amdgpu_smu.h: power and current, heat, others; all of them set means not told."""
    found = _found(_die(0, _StandIn(status=status)))
    assert (found.cells.throttle_reasons, [*found.raised()]) == (reasons, flags)


def test_what_is_refused_or_not_available_stays_empty():
    """N/A, an error, and a function that an older version lacks."""
    smi = _StandIn(
        ["N/A"], _UNTOLD, temp_metric="refused", power_cap_info=None, clock_info={"clk": "N/A"}
    )
    smi.answers["gpu_activity"] = "refused"
    assert _die(0, smi).read() == drivers.Reading()
    assert _die(0, smi).energy_j() is None


@pytest.mark.parametrize(
    ("milliwatts", "bus", "energy"),
    [
        (_RECORDED_MW, "0000:c9:00.", 306.0),
        (_RECORDED_MW, "0001:00:00.", None),
        (_RECORDED_MW, "", None),
        (_RECORDED_MW[:1], "", 153.0),
        ([], "0000:c1:00.", None),
    ],
)
def test_a_die_is_found_by_its_bus_or_as_the_only_one(milliwatts, bus, energy):
    """The order of the driver need not be that of torch, and a variable may hide some."""
    if energy is None:
        with pytest.raises(drivers.NoDriver, match="amdsmi"):
            drivers.amdsmi(_StandIn(milliwatts), bus)
        return
    assert drivers.amdsmi(_StandIn(milliwatts), bus).energy_j() == energy


def test_an_amdsmi_without_its_metrics_tells_no_reasons():
    """A function of C that a version lacks is no error of the package's own."""
    smi = _StandIn()
    smi.amdsmi_wrapper = SimpleNamespace()
    assert _die(0, smi).read().reasons is None
    smi.answers["temp_metric"] = None
    assert _die(0, smi).read().temperature_c is None


def test_rocms_own_folder_is_searched_and_a_package_without_its_library_is_no_driver(
    tmp_path, monkeypatch
):
    """ROCm brings the package beside its library; from a registry it comes without."""
    folder = tmp_path / "share" / "amd_smi"
    folder.mkdir(parents=True)
    package = folder / "amdsmi.py"
    package.write_text("raise KeyError('libamd_smi.so')")
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    before = list(sys.path)
    with pytest.raises(drivers.NoDriver):
        drivers.find(None, 0, frozenset(), "")
    monkeypatch.setitem(sys.modules, "amdsmi", _StandIn())
    found = drivers.find(None, 0, frozenset(), "0000:c1:00.")
    assert found.energy_j() == 153.0
    assert sys.path == before


@pytest.mark.parametrize(
    ("listed", "others"),
    [((), []), ((7,), []), ((7, 40), [40]), ((4711,), []), ((4711, 4712), [4712])],
)
def test_a_container_is_no_neighbour_of_itself(listed, others):
    """There the driver tells the host's number of this very process, or tells nothing."""
    nvml = FakeNvml(nvmlDeviceGetComputeRunningProcesses=[running(*listed)])
    assert drivers.nvml(nvml, None, 0, frozenset({7})).others() == others


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        (("nvmlDeviceGetHandleByUUID",), "GPU-1234"),
        (("nvmlDeviceGetHandleByPciBusId",), "GPU-1234"),
        (("nvmlDeviceGetHandleByIndex",), "GPU-1234"),
        (("nvmlDeviceGetHandleByIndex",), "GPU-5678"),
        ((), ""),
    ],
)
def test_a_gpu_is_found_by_uuid_else_by_bus_else_by_index(answers, told):
    """A driver may refuse each; the GPU of the index must not tell another UUID."""
    nvml = FakeNvml(nvmlDeviceGetUUID=[told])
    for name in ("ByUUID", "ByPciBusId", "ByIndex"):
        whole = f"nvmlDeviceGetHandle{name}"
        nvml.answers[whole] = [whole if whole in answers else None]
    if told == "GPU-1234":
        drivers.nvml(nvml, told, 0, frozenset(), "0000:c1:00.").others()
        assert nvml.asked == answers
        return
    with pytest.raises(drivers.NoDriver, match="does not find this GPU: Not Supported"):
        drivers.nvml(nvml, "GPU-1234", 0, frozenset(), "0000:c1:00.")


def test_without_a_driver_the_reason_is_told(monkeypatch):
    """NVML does not start, or the package is not there."""
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(nvmlInit=[None]))
    with pytest.raises(drivers.NoDriver, match=r"^NVML does not start \(Not Supported\): see what"):
        drivers.find("GPU-1", 0, frozenset(), "")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    install = r"^nvidia-ml-py is not installed: pip install 'hpcsweep\[nvidia\]'$"
    with pytest.raises(drivers.NoDriver, match=install):
        drivers.find("GPU-1", 0, frozenset(), "")


_ASKS = """
from hpcsweep.measure.machine import drivers
found = drivers.find(None, 0, frozenset(), "")
print(found.others(), found.read().clock_mhz)
"""


@pytest.mark.parametrize("failing", ["nvmlDeviceGetComputeRunningProcesses_v3=13", None])
def test_a_driver_that_lacks_a_function_tells_the_rest(pretend_gpu, tmp_path, failing):
    """The library answers with that status, or has no such symbol: pynvml's own classes of errors.

    The older function of the same meaning is asked instead.
    """
    folders = pretend_gpu.folder
    if failing is None:
        source = pretendgpu.SOURCES / "nvml.c"
        hidden = "-DnvmlDeviceGetComputeRunningProcesses_v3=hidden"
        library = tmp_path / "libnvidia-ml.so.1"
        built = ["gcc", "-shared", "-fPIC", "-w", hidden, source, "-o", library, "-lpthread"]
        subprocess.run(built, check=True)
        folders = f"{tmp_path}:{folders}"
    more = {"PRETEND_FAIL": failing or "", "LD_LIBRARY_PATH": str(folders)}
    done = pretend_gpu.run(sys.executable, "-c", _ASKS, **more)
    assert (done.returncode, done.stdout.strip()) == (0, "[] 1980"), done.stderr
