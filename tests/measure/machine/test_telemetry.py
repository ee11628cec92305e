"""Telemetry through a stand-in for NVML: a driver and a GPU cannot be had everywhere."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from hpcsweep.catalog import columns
from hpcsweep.measure.machine import telemetry
from hpcsweep.measure.machine.telemetry import Telemetry


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

        def call(*_arguments):
            values = self.answers[name]
            value = values.pop(0) if len(values) > 1 else values[0]
            if value is None:
                raise self.NVMLError("Not Supported")
            return value

        return call


def _watching(samples=3, **answers):
    watch = telemetry.connect(_FakeNvml(**answers), None, 0, frozenset({7}))
    watch.begin()
    for _ in range(samples):
        watch.sample()
    return watch


def _running(*pids):
    return [SimpleNamespace(pid=pid) for pid in pids]


def test_the_state_of_a_calm_gpu_fills_the_columns_and_raises_no_flag():
    """Clocks, limit and temperatures in their units; every key is a column."""
    watch = _watching(nvmlDeviceGetTemperature=[40, 41, 55, 60])
    cells = watch.cells()
    assert set(cells) <= set(columns.OVERALL_COLUMNS)
    assert cells["sm_clock_mhz_mean"] == cells["sm_clock_mhz_min"] == 1980
    assert (cells["power_limit_w"], cells["temp_c_start"], cells["temp_c_end"]) == (700, 40, 60)
    assert watch.flags() == []


def test_a_resting_clock_before_the_work_is_no_drift():
    """The look before the first block may find an idle GPU."""
    assert _watching(nvmlDeviceGetClockInfo=[345, 1980]).flags() == []


@pytest.mark.parametrize(
    ("answers", "flags"),
    [
        ({"nvmlDeviceGetClockInfo": [1400]}, ["throttled"]),
        ({"nvmlDeviceGetClockInfo": [1980, 1980, 1980, 1700]}, ["clock_drift"]),
        ({"nvmlDeviceGetCurrentClocksEventReasons": [0, 0x40, 0]}, ["throttled"]),
        ({"nvmlDeviceGetCurrentClocksEventReasons": [0x5]}, []),
        ({"nvmlDeviceGetComputeRunningProcesses": [[], _running(7, 9), []]}, ["shared_gpu"]),
        ({"nvmlDeviceGetComputeRunningProcesses": [_running(7)]}, []),
    ],
)
def test_what_puts_a_number_in_doubt_is_flagged(answers, flags):
    """Slow or moving clocks, thermal reasons, neighbours; idle and the power cap are normal."""
    assert _watching(**answers).flags() == flags


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
    assert watch.cells()["throttle_reasons"] == "sw_power_cap+hw_thermal+0x8000"


def test_an_older_nvml_has_the_older_name():
    """The call was renamed; both are understood."""
    nvml = _FakeNvml(nvmlDeviceGetCurrentClocksThrottleReasons=[0x80])
    del nvml.answers["nvmlDeviceGetCurrentClocksEventReasons"]
    watch = telemetry.connect(nvml, None, 0, frozenset())
    watch.begin()
    assert watch.flags() == ["throttled"]


def test_what_a_gpu_does_not_answer_stays_empty():
    """Virtual and consumer GPUs refuse some questions; the others still count."""
    watch = _watching(
        nvmlDeviceGetClockInfo=[None],
        nvmlDeviceGetEnforcedPowerLimit=[None],
        nvmlDeviceGetTemperature=[None],
        nvmlDeviceGetComputeRunningProcesses=[None],
    )
    cells = watch.cells()
    assert cells["sm_clock_mhz_mean"] is cells["power_limit_w"] is cells["temp_c_end"] is None
    assert watch.flags() == []
    assert watch.provenance()["driver_version"] == "580.1"


def test_energy_is_the_counters_growth_shared_by_the_passes(monkeypatch):
    """A window of 1.5 s; millijoules over the passes that fit into it."""
    clock = iter(range(100))
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: next(clock))
    passes = []
    watch = _watching(nvmlDeviceGetTotalEnergyConsumption=[0, 1000, 9000])
    cells = watch.energy_of(lambda: passes.append(1), lambda: None)
    assert cells == {"energy_j": 8.0 / len(passes), "energy_method": "counter"}


def test_without_a_counter_there_is_no_energy():
    """Watts are never multiplied by time: the cells stay empty, and no pass runs."""
    ran = []
    assert _watching().energy_of(lambda: ran.append(1), lambda: None) == {}
    assert not ran


def test_connecting_finds_the_gpu_by_uuid_or_index_and_gives_up_quietly():
    """No driver means no telemetry, not an error."""
    found = _FakeNvml(nvmlInit=[0], nvmlDeviceGetHandleByUUID=["by uuid"])
    assert telemetry.connect(found, "GPU-1", 0, frozenset()).watches
    found = _FakeNvml(nvmlInit=[0], nvmlDeviceGetHandleByIndex=["by index"])
    assert telemetry.connect(found, None, 0, frozenset()).watches
    nothing = telemetry.connect(_FakeNvml(nvmlInit=[None]), None, 0, frozenset())
    assert type(nothing) is Telemetry


def test_without_the_package_every_answer_is_empty(monkeypatch):
    """nvidia-ml-py is optional."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    nothing = telemetry.watch("GPU-1", 0, frozenset())
    nothing.begin()
    nothing.sample()
    assert (nothing.cells(), nothing.flags(), nothing.others()) == ({}, [], [])
    assert nothing.energy_of(lambda: None, lambda: None) == nothing.provenance() == {}
