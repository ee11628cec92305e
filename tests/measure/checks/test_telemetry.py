"""The state of a GPU through a stand-in for NVML."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fakenvml import REASONS, FakeNvml, running
from hpcsweep.measure.checks.telemetry import TelemetryCheck
from hpcsweep.measure.machine import drivers

_APPLICATIONS = "nvmlDeviceGetApplicationsClock"


def _connect(nvml, uuid=None, own_pids=frozenset()):
    driver = drivers.nvml(nvml, uuid, 0, own_pids, "0000:c1:00.")
    return TelemetryCheck(SimpleNamespace(driver=driver))


def _found(watch):
    return watch.after(None, None, None)


def _flags(watch):
    return [*_found(watch).raised()]


def _watching(samples=3, **answers):
    watch = _connect(FakeNvml(**answers), own_pids=frozenset({7}))
    watch.settled(None)
    for _ in range(samples):
        watch.look()
    return watch


def _points(series, reasons):
    """Return the flags of points that follow each other, from recorded clocks and reasons."""
    nvml = FakeNvml()
    watch = _connect(nvml)
    found = []
    for clocks, whys in zip(series, reasons, strict=True):
        nvml.answers |= {
            "nvmlDeviceGetClockInfo": [210, *clocks],
            REASONS: [whys[0] and 0x1, *whys],
        }
        watch.settled(None)
        for _ in clocks:
            watch.look()
        assert _flags(watch) == _flags(watch)  # asking changes nothing
        found.append(_flags(watch))
    return found


def test_the_state_of_a_calm_gpu_fills_the_columns_and_raises_no_flag():
    """Clocks, power, limit and temperatures in their units; every key is a column."""
    watch = _watching(
        nvmlDeviceGetTemperature=[40, 41, 55, 60],
        nvmlDeviceGetPowerUsage=[70_000, 600_000, 700_000, 650_000],
    )
    cells = _found(watch).cells
    assert (cells.power_mean_w, cells.power_std_w) == (650, 50)  # not of the look before
    assert (cells.power_min_w, cells.power_max_w) == (600, 700)
    assert cells.power_scope == "gpu"
    assert cells.sm_clock_mhz_mean == cells.sm_clock_mhz_min == 1980
    assert (cells.power_limit_w, cells.temp_c_start, cells.temp_c_end) == (700, 40, 60)
    assert _flags(watch) == []


@pytest.mark.parametrize(
    ("answers", "flags"),
    [
        # the clocks that a driver explains, or that it need not explain
        ({"nvmlDeviceGetClockInfo": [1850], "nvmlDeviceGetMaxClockInfo": [2520]}, []),
        ({"nvmlDeviceGetClockInfo": [1560], REASONS: [0x4]}, ["power_capped"]),
        ({"nvmlDeviceGetClockInfo": [1560], REASONS: [0x20]}, ["throttled"]),
        ({"nvmlDeviceGetClockInfo": [1560], REASONS: [0x84]}, ["throttled", "power_capped"]),
        ({"nvmlDeviceGetClockInfo": [None], REASONS: [0x4]}, ["power_capped"]),
        ({"nvmlDeviceGetClockInfo": [1965], REASONS: [0x4]}, []),
        ({"nvmlDeviceGetClockInfo": [1410], _APPLICATIONS: [1410], REASONS: [0x2]}, []),
        ({"nvmlDeviceGetClockInfo": [1410], _APPLICATIONS: [1410], REASONS: [0x6]}, []),
        (
            {"nvmlDeviceGetClockInfo": [1200], _APPLICATIONS: [1410], REASONS: [0x6]},
            ["power_capped"],
        ),
        # single looks, looks at a resting GPU, and the look before the work
        ({"nvmlDeviceGetClockInfo": [1980, 1980, 1980, 1700]}, []),
        ({"nvmlDeviceGetClockInfo": [345, 1980]}, []),
        ({"nvmlDeviceGetClockInfo": [210, 345, 1980], REASONS: [0x1, 0x1, 0]}, []),
        ({REASONS: [0x40, 0]}, []),
        ({REASONS: [0, 0x40, 0]}, ["throttled"]),
        ({REASONS: [0x5]}, []),
        ({REASONS: [0, 0, 0x200, 0]}, ["throttled"]),
        ({"nvmlDeviceGetComputeRunningProcesses": [[], running(7, 9), []]}, ["shared_gpu"]),
        ({"nvmlDeviceGetComputeRunningProcesses": [running(7)]}, []),
    ],
)
def test_what_puts_a_number_in_doubt_is_flagged(answers, flags):
    """The driver's reasons, moving clocks, neighbours; no share of a highest clock."""
    assert _flags(_watching(**answers)) == flags


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
    mute = {REASONS: [None], "nvmlDeviceGetCurrentClocksThrottleReasons": [None]}
    first = _watching(**mute, **{clocks: [1850]})
    assert (_flags(first), first.history) == ([], 1850)
    second = _watching(**mute, **{clocks: [1560]})
    assert _flags(second) == []
    second.history = first.history
    assert (_flags(second), second.history) == (["throttled"], 1850)


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


def test_reasons_are_named_as_nvml_names_them():
    """Known bits by name, unknown bits as they are, and idle between blocks is not news."""
    watch = _watching(nvmlDeviceGetCurrentClocksEventReasons=[0x1 | 0x4 | 0x40 | 0x8000])
    assert _found(watch).cells.throttle_reasons == "sw_power_cap+hw_thermal+0x8000"


@pytest.mark.parametrize("named", [False, True])
def test_an_older_nvml_has_the_older_name(named):
    """The call was renamed; both are understood, also where the driver is older than its module."""
    nvml = FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=[0x80])
    del nvml.answers[REASONS]
    nvml.answers |= {REASONS: [None]} if named else {}
    watch = _connect(nvml)
    watch.settled(None)
    watch.look()
    assert _flags(watch) == ["throttled"]


_SLICE = {
    name: [None]
    for name in (
        "nvmlDeviceGetClockInfo", "nvmlDeviceGetTemperature", "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTotalEnergyConsumption",
        "nvmlDeviceGetMigMode", REASONS,
    )
}  # fmt: skip


def test_a_slice_that_answers_few_questions_has_empty_cells_and_no_flags():
    """Its own processes are what it does tell."""
    nvml = FakeNvml(nvmlDeviceGetHandleByUUID=["slice"], **_SLICE)
    watch = _connect(nvml, "MIG-1", frozenset({7}))
    watch.settled(None)
    watch.look()
    assert _found(watch).cells.filled() == {"throttle_reasons": ""}
    assert (_flags(watch), watch.rig.driver.energy_j()) == ([], None)
    assert watch.rig.driver.provenance()["driver_version"] == "580.1"
    nvml.answers["nvmlDeviceGetComputeRunningProcesses"] = [running(7, 9)]
    assert watch.rig.driver.others() == [9]


def test_a_divided_gpu_tells_a_slice_neither_energy_nor_neighbours():
    """An older torch knows no UUID, so NVML is asked about the whole: only clocks are shared."""
    watch = _watching(
        nvmlDeviceGetMigMode=[[1, 1]],
        nvmlDeviceGetTotalEnergyConsumption=[0, 1000, 9000],
        nvmlDeviceGetComputeRunningProcesses=[running(7, 40)],
        nvmlDeviceGetUtilizationRates=[SimpleNamespace(gpu=90)],
        nvmlDeviceGetPowerUsage=[690_000],
        nvmlDeviceGetCurrentClocksEventReasons=[0x40],
    )
    assert watch.rig.driver.energy_j() is None
    assert (watch.rig.driver.others(), _flags(watch)) == ([], ["throttled"])
    assert _found(watch).cells.gpu_util_pct is _found(watch).cells.power_mean_w is None
    assert _found(watch).cells.sm_clock_mhz_mean == 1980
    assert watch.rig.driver.provenance()["mig"] is True


class _OtherError(Exception):
    """Of no class of the package, as pynvml's NVMLLibraryMismatchError is."""


def test_what_a_driver_lacks_is_an_empty_cell_whatever_the_class_of_its_error(monkeypatch):
    """Each function raises, and a function that is left still tells."""
    nvml = FakeNvml()

    def lacking(*_):
        raise _OtherError

    watch = _connect(nvml)
    lost = ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetTemperature", REASONS)
    for name in (*lost, "nvmlDeviceGetTotalEnergyConsumption", "nvmlSystemGetDriverVersion"):
        monkeypatch.setattr(nvml, name, lacking, raising=False)
    watch.settled(None)
    watch.look()
    cells = _found(watch).cells
    assert (cells.temp_c_end, cells.sm_clock_mhz_mean) == (None, 1980)
    assert (watch.rig.driver.others(), watch.rig.driver.energy_j()) == ([], None)
    assert watch.rig.driver.provenance()["driver_version"] is None
    nvml.nvmlDeviceGetComputeRunningProcesses_v2 = lambda _: running(7, 9)
    assert watch.rig.driver.others() == [9]


def test_without_a_driver_there_is_nothing_to_tell():
    """As on a processor, or where no package reports the GPU: empty cells, no flags, no rest."""
    watch = TelemetryCheck(SimpleNamespace(driver=None))
    watch.begin(None)
    watch.settled(None)
    watch.look()
    assert not watch.disturbed(1.0)
    assert (_found(watch).cells.filled(), _flags(watch), watch.history) == ({}, [], 0.0)
