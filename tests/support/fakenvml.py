"""A stand-in for NVML's package: a driver and a GPU cannot be had everywhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

REASONS = "nvmlDeviceGetCurrentClocksEventReasons"


class FakeNvml:
    """Answers as pynvml does: functions by name, `NVMLError` for what a GPU does not know."""

    NVML_CLOCK_SM = 1
    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        """What a GPU does not know."""

    def __init__(self, **answers: Any) -> None:
        usual: dict[str, list[Any]] = {
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
        }
        self.answers = usual | {name: list(values) for name, values in answers.items()}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvml") or name not in self.answers:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.asked = arguments
            values = self.answers[name]
            value = values.pop(0) if len(values) > 1 else values[0]
            if value is None:
                raise self.NVMLError("Not Supported")
            return value

        return call


def running(*pids: int) -> list[SimpleNamespace]:
    """Return what NVML answers for processes."""
    return [SimpleNamespace(pid=pid) for pid in pids]
