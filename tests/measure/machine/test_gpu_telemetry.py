"""Telemetry through a stand-in for NVML: a driver and a GPU cannot be had everywhere."""

from __future__ import annotations

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import pretendgpu
from hpcsweep.measure.checks.energy import EnergyCheck
from hpcsweep.measure.machine import drivers, gpu_telemetry

_REASONS = "nvmlDeviceGetCurrentClocksEventReasons"
_APPLICATIONS = "nvmlDeviceGetApplicationsClock"


class _FakeNvml:
    """Answers as pynvml does: functions by name, `NVMLError` for what a GPU does not know."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    def __init__(self, **answers):
        self.answers = {
            "nvmlInit": [0],
            "nvmlDeviceGetHandleByIndex": ["handle"],
            "nvmlDeviceGetClockInfo": [1980],
            "nvmlDeviceGetTemperature": [40],
            "nvmlDeviceGetCurrentClocksEventReasons": [0],
            "nvmlDeviceGetEnforcedPowerLimit": [700_000],
            "nvmlDeviceGetMaxClockInfo": [1980],
            "nvmlDeviceGetUUID": ["GPU-1234"],
            "nvmlSystemGetDriverVersion": ["580.1"],
            "nvmlDeviceGetComputeRunningProcesses": [[]],
        } | {name: list(values) for name, values in answers.items()}

    def __getattr__(self, name):
        if not name.startswith("nvml") or name not in self.answers:
            raise AttributeError(name)

        def call(*arguments):
            self.asked = arguments
            values = self.answers[name]
            value = values.pop(0) if len(values) > 1 else values[0]
            if value is None:
                raise self.NVMLError("Not Supported")
            return value

        return call


def _connect(nvml, uuid=None, own_pids=frozenset()):
    return gpu_telemetry.Telemetry(drivers.nvml(nvml, uuid, 0, own_pids, "0000:c1:00."))


def _watching(samples=3, **answers):
    watch = _connect(_FakeNvml(**answers), own_pids=frozenset({7}))
    watch.begin()
    for _ in range(samples):
        watch.sample()
    return watch


def _points(series, reasons):
    """Return the flags of points that follow each other, from recorded clocks and reasons."""
    nvml = _FakeNvml()
    watch = _connect(nvml)
    found = []
    for clocks, whys in zip(series, reasons, strict=True):
        nvml.answers |= {
            "nvmlDeviceGetClockInfo": [210, *clocks],
            _REASONS: [whys[0] and 0x1, *whys],
        }
        watch.begin()
        for _ in clocks:
            watch.sample()
        assert watch.flags() == watch.flags()  # asking changes nothing
        found.append(watch.flags())
    return found


def _running(*pids):
    return [SimpleNamespace(pid=pid) for pid in pids]


def test_the_state_of_a_calm_gpu_fills_the_columns_and_raises_no_flag():
    """Clocks, power, limit and temperatures in their units; every key is a column."""
    watch = _watching(
        nvmlDeviceGetTemperature=[40, 41, 55, 60],
        nvmlDeviceGetPowerUsage=[70_000, 600_000, 700_000, 650_000],
    )
    cells = watch.cells()
    assert (cells.power_mean_w, cells.power_std_w) == (650, 50)  # not of the look before
    assert (cells.power_min_w, cells.power_max_w) == (600, 700)
    assert cells.power_scope == "gpu"
    assert cells.sm_clock_mhz_mean == cells.sm_clock_mhz_min == 1980
    assert (cells.power_limit_w, cells.temp_c_start, cells.temp_c_end) == (700, 40, 60)
    assert watch.flags() == []


@pytest.mark.parametrize(
    ("answers", "flags"),
    [
        # the clocks that a driver explains, or that it need not explain
        ({"nvmlDeviceGetClockInfo": [1850], "nvmlDeviceGetMaxClockInfo": [2520]}, []),
        ({"nvmlDeviceGetClockInfo": [1560], _REASONS: [0x4]}, ["power_capped"]),
        ({"nvmlDeviceGetClockInfo": [1560], _REASONS: [0x20]}, ["throttled"]),
        ({"nvmlDeviceGetClockInfo": [1560], _REASONS: [0x84]}, ["throttled", "power_capped"]),
        ({"nvmlDeviceGetClockInfo": [None], _REASONS: [0x4]}, ["power_capped"]),
        ({"nvmlDeviceGetClockInfo": [1965], _REASONS: [0x4]}, []),
        ({"nvmlDeviceGetClockInfo": [1410], _APPLICATIONS: [1410], _REASONS: [0x2]}, []),
        ({"nvmlDeviceGetClockInfo": [1410], _APPLICATIONS: [1410], _REASONS: [0x6]}, []),
        (
            {"nvmlDeviceGetClockInfo": [1200], _APPLICATIONS: [1410], _REASONS: [0x6]},
            ["power_capped"],
        ),
        # single looks, looks at a resting GPU, and the look before the work
        ({"nvmlDeviceGetClockInfo": [1980, 1980, 1980, 1700]}, []),
        ({"nvmlDeviceGetClockInfo": [345, 1980]}, []),
        ({"nvmlDeviceGetClockInfo": [210, 345, 1980], _REASONS: [0x1, 0x1, 0]}, []),
        ({_REASONS: [0x40, 0]}, []),
        ({_REASONS: [0, 0x40, 0]}, ["throttled"]),
        ({_REASONS: [0x5]}, []),
        ({_REASONS: [0, 0, 0x200, 0]}, ["throttled"]),
        ({"nvmlDeviceGetComputeRunningProcesses": [[], _running(7, 9), []]}, ["shared_gpu"]),
        ({"nvmlDeviceGetComputeRunningProcesses": [_running(7)]}, []),
    ],
)
def test_what_puts_a_number_in_doubt_is_flagged(answers, flags):
    """The driver's reasons, moving clocks, neighbours; no share of a highest clock."""
    assert _watching(**answers).flags() == flags


def test_a_clock_under_the_power_cap_is_compared_with_the_same_work_at_liberty():
    """Not with a highest clock that heavy work never has: an L40S works at 1850 of 2520 MHz."""
    capped = [1830] * 10 + [1700] * 10, [0] * 10 + [0x4] * 10
    barely = [1850] * 10 + [1845] * 10, [0] * 10 + [0x4] * 10
    once = [1850] * 19 + [1700], [0] * 19 + [0x4]
    later = [1600] * 8, [0x4] * 8
    flags = _points(*zip(barely, once, capped, later, strict=True))
    assert flags == [[], [], ["power_capped", "clock_drift"], ["power_capped"]]


def test_a_driver_without_reasons_is_judged_by_the_points_before():
    """The first one sets the measure; a tenth less is doubtful, a twentieth is not."""
    series = [[1850] * 5, [1780] * 5, [1560] * 5, [1850, 1850, 900, 1850, 1850]]
    assert _points(series, [[None] * 5] * 4) == [[], [], ["throttled"], []]


def test_the_clock_of_earlier_points_comes_from_the_worker_before():
    """Each network has a worker of its own; recorded clocks of a GPU that was throttled."""
    clocks = "nvmlDeviceGetClockInfo"
    mute = {_REASONS: [None], "nvmlDeviceGetCurrentClocksThrottleReasons": [None]}
    first = _watching(**mute, **{clocks: [1850]})
    assert first.unlimited_mhz == 1850
    second = _watching(**mute, **{clocks: [1560]})
    assert second.flags() == []
    second.unlimited_mhz = first.unlimited_mhz
    assert (second.flags(), second.unlimited_mhz) == (["throttled"], 1850)


@pytest.mark.parametrize(
    ("clocks", "drifts"),
    [
        ([1980] * 9 + [1700], False),
        ([900] + [1980] * 9, False),
        ([900, 1500, 1800] + [1980] * 9, True),
        ([1980] * 5 + [1850] * 5, True),
        ([1980, 1700] * 5, True),
        ([1980, 1700], False),
    ],
)
def test_a_clock_drifts_when_more_than_single_looks_say_so(clocks, drifts):
    """Steps, ramps within the measurement, and clocks that alternate."""
    assert _points([clocks], [[0] * len(clocks)]) == [["clock_drift"] if drifts else []]


def test_a_part_of_a_gpu_that_tells_no_clock_has_no_flags():
    """MIG instances answer few questions, and their reasons are those of the whole GPU."""
    assert _points([[None] * 4, [None] * 4], [[None] * 4, [0] * 4]) == [[], []]
    assert _points([[None] * 4], [[0x8] * 4]) == [["throttled"]]


@pytest.mark.parametrize(
    ("listed", "others"),
    [((), []), ((7,), []), ((7, 40), [40]), ((4711,), []), ((4711, 4712), [4712])],
)
def test_a_container_is_no_neighbour_of_itself(listed, others):
    """There the driver tells the host's number of this very process, or tells nothing."""
    watch = _watching(nvmlDeviceGetComputeRunningProcesses=[_running(*listed)])
    assert watch.others() == others


def test_reasons_are_named_as_nvml_names_them():
    """Known bits by name, unknown bits as they are, and idle between blocks is not news."""
    watch = _watching(nvmlDeviceGetCurrentClocksEventReasons=[0x1 | 0x4 | 0x40 | 0x8000])
    assert watch.cells().throttle_reasons == "sw_power_cap+hw_thermal+0x8000"


@pytest.mark.parametrize("named", [False, True])
def test_an_older_nvml_has_the_older_name(named):
    """The call was renamed; both are understood, also where the driver is older than its module."""
    nvml = _FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=[0x80])
    del nvml.answers[_REASONS]
    nvml.answers |= {_REASONS: [None]} if named else {}
    watch = _connect(nvml)
    watch.begin()
    watch.sample()
    assert watch.flags() == ["throttled"]


class _Metered:
    """A stand-in for a driver whose counter steps with the real clock; its power is another one."""

    def __init__(self, watts=500.0, step_s=0.1, sampled=500.0):
        self.watts, self.step_s, self.sampled = watts, step_s, sampled

    def energy_j(self):
        return 7e6 + self.watts * self.step_s * (time.monotonic() // self.step_s)

    def read(self):
        return drivers.Reading(power_w=self.sampled)


def _joules_of(driver):
    """Return the energy columns, and the joules of the counter in the time of a pass."""
    passes = []
    began = time.monotonic()

    def run():
        time.sleep(0.01)
        passes.append(time.monotonic())

    cells = gpu_telemetry.Telemetry(driver).energy_of(run, lambda: None)
    return cells, (passes[-1] - began) / len(passes) * driver.watts


def test_energy_is_that_between_two_updates_of_the_counter():
    """With 100 ms between updates an unaligned window of 1.5 s is wrong by up to 7 %."""
    # what a reader of the counter saw: 500 W, in steps of 100 ms, the first of them at 0.06 s
    updates = [
        gpu_telemetry.Update(10.06 + step / 10, 7e6 + 50 * step, 80.0 if step < 10 else 490.0)
        for step in range(15)
    ]
    cells = gpu_telemetry.energy_cells(updates, 10.0, 0.02)
    assert cells.energy_j == pytest.approx(500 * 0.02)
    assert cells.energy_sampled_j == pytest.approx(490 * 0.02)  # its average knows the work
    assert cells.energy_update_ms == pytest.approx(100)
    assert cells.energy_method == "counter"
    assert gpu_telemetry.energy_cells(updates[:10], 10.0, 0.02) is None
    mute = [one._replace(watts=None) for one in updates]
    assert gpu_telemetry.energy_cells(mute, 10.0, 0.02).energy_sampled_j is None


def test_counter_and_sampled_power_are_both_kept():
    """A published pair: 187 J by the one and 327 J by the other."""
    cells, truth = _joules_of(_Metered(watts=187.0, sampled=327.0))
    assert cells.energy_j == pytest.approx(truth, rel=0.25)
    assert cells.energy_sampled_j / cells.energy_j == pytest.approx(327 / 187, rel=0.25)


def test_a_counter_that_stood_still_is_not_waited_for_again(monkeypatch):
    """Five seconds for one point, not for each; a later worker knows it by the history."""
    monkeypatch.setattr(gpu_telemetry, "LONGEST_S", 0.2)
    rig = SimpleNamespace(telemetry=gpu_telemetry.Telemetry(_Metered(step_s=1e9)))
    first = EnergyCheck(rig)
    assert (rig.telemetry.counts_energy, first.history) == (True, False)
    assert rig.telemetry.energy_of(lambda: time.sleep(0.01), lambda: None) is None
    assert (rig.telemetry.counts_energy, first.history) == (False, True)
    later = SimpleNamespace(telemetry=gpu_telemetry.Telemetry(_Metered(step_s=1e9)))
    EnergyCheck(later).history = first.history
    assert not later.telemetry.counts_energy


def test_without_a_counter_there_is_no_energy():
    """Watts are never multiplied by time: the cells stay empty, and no pass runs."""
    ran = []
    assert _watching().energy_of(lambda: ran.append(1), lambda: None) is None
    assert not ran


_SLICE = {
    name: [None]
    for name in (
        "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature", "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetMigMode", _REASONS,
    )
}  # fmt: skip


def test_a_slice_that_answers_few_questions_has_empty_cells_and_no_flags():
    """Its own processes are what it does tell."""
    nvml = _FakeNvml(nvmlDeviceGetHandleByUUID=["slice"], **_SLICE)
    watch = _connect(nvml, "MIG-1", frozenset({7}))
    watch.begin()
    watch.sample()
    assert watch.cells().filled() == {"throttle_reasons": ""}
    assert (watch.flags(), watch.counts_energy) == ([], False)
    assert watch.provenance()["driver_version"] == "580.1"
    nvml.answers["nvmlDeviceGetComputeRunningProcesses"] = [_running(7, 9)]
    assert watch.others() == [9]


def test_a_divided_gpu_tells_a_slice_neither_energy_nor_neighbours():
    """An older torch knows no UUID, so NVML is asked about the whole: only clocks are shared."""
    watch = _watching(
        nvmlDeviceGetMigMode=[[1, 1]],
        nvmlDeviceGetTotalEnergyConsumption=[0, 1000, 9000],
        nvmlDeviceGetComputeRunningProcesses=[_running(7, 40)],
        nvmlDeviceGetUtilizationRates=[SimpleNamespace(gpu=90)],
        nvmlDeviceGetPowerUsage=[690_000],
        nvmlDeviceGetCurrentClocksEventReasons=[0x40],
    )
    ran = []
    assert not watch.counts_energy
    assert watch.energy_of(lambda: ran.append(1), lambda: None) is None
    assert (watch.others(), watch.flags(), ran) == ([], ["throttled"], [])
    assert watch.cells().gpu_util_pct is watch.cells().power_mean_w is None
    assert watch.cells().sm_clock_mhz_mean == 1980
    assert watch.provenance()["mig"] is True


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
    nvml = _FakeNvml(nvmlDeviceGetUUID=[told])
    for name in ("ByUUID", "ByPciBusId", "ByIndex"):
        whole = f"nvmlDeviceGetHandle{name}"
        nvml.answers[whole] = [whole if whole in answers else None]
    if told == "GPU-1234":
        drivers.nvml(nvml, told, 0, frozenset(), "0000:c1:00.").others()
        assert nvml.asked == answers
        return
    with pytest.raises(drivers.NoDriver, match="does not find this GPU: Not Supported"):
        drivers.nvml(nvml, "GPU-1234", 0, frozenset(), "0000:c1:00.")


class _OtherError(Exception):
    """Of no class of the package, as pynvml's NVMLLibraryMismatchError is."""


def test_what_a_driver_lacks_is_an_empty_cell_whatever_the_class_of_its_error(monkeypatch):
    """Each function raises, and a function that is left still tells."""
    nvml = _FakeNvml()

    def lacking(*_):
        raise _OtherError

    watch = _connect(nvml)
    lost = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetTemperature", _REASONS)
    for name in (*lost, "nvmlDeviceGetTotalEnergyConsumption", "nvmlSystemGetDriverVersion"):
        monkeypatch.setattr(nvml, name, lacking, raising=False)
    watch.begin()
    watch.sample()
    cells = watch.cells()
    assert (cells.temp_c_end, cells.sm_clock_mhz_mean) == (None, 1980)
    assert (watch.others(), watch.counts_energy) == ([], False)
    assert watch.provenance()["driver_version"] is None
    nvml.nvmlDeviceGetComputeRunningProcesses_v2 = lambda _: _running(7, 9)
    assert watch.others() == [9]


def test_without_a_driver_the_reason_is_kept(monkeypatch):
    """NVML does not start, or the package is not there: then every answer is empty."""
    monkeypatch.setitem(sys.modules, "pynvml", _FakeNvml(nvmlInit=[None]))
    lacking = gpu_telemetry.watch("GPU-1", 0, frozenset()).lacking
    assert lacking.startswith("NVML does not start (Not Supported): see what nvidia-smi says")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nothing = gpu_telemetry.watch("GPU-1", 0, frozenset())
    assert nothing.lacking == "nvidia-ml-py is not installed: pip install 'hpcsweep[nvidia]'"
    nothing.begin()
    nothing.sample()
    assert (nothing.cells().filled(), nothing.flags(), nothing.others()) == ({}, [], [])
    assert nothing.energy_of(lambda: None, lambda: None) is None
    assert nothing.provenance() == {}


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
