"""The control check: a fixed piece of work after the point, and the switches of the process."""

from __future__ import annotations

from typing import Final

import torch

from hpcsweep.catalog.checks.control import (
    CONTENDED,
    MACHINE_SHIFT,
    SHARED_CPU,
    SWITCHED,
    SWITCHED_BACK,
    ControlCells,
)
from hpcsweep.measure import switches
from hpcsweep.measure.checks import Finding, PointCheck
from hpcsweep.measure.convolutions import Choices
from hpcsweep.measure.machine import control_work, framework
from hpcsweep.measure.machine.provenance import Rig
from hpcsweep.measure.network import Network, Times
from hpcsweep.sources import FACTORIES


class ControlCheck(PointCheck):
    """Times the control, and compares it with those of earlier points."""

    def __init__(self, rig: Rig) -> None:
        super().__init__(rig)
        self._control = control_work.Control(rig.device.torch_device)

    @property
    def history(self) -> list[float]:
        """The controls of earlier points, in ms."""
        return self._control.earlier_ms

    @history.setter
    def history(self, found: list[float]) -> None:
        self._control.earlier_ms = found

    def begin(self, network: Network) -> None:
        """Begin to count what is taken away from the process."""
        self._control.begin()

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Run the control; look which switches of its point the network turned."""
        now = switches.turned()
        when_built = switches.turned_by(map(network.point.axes.get, FACTORIES))
        cells, raised = self._control.row()
        on_cpu = self.rig.device.type == "cpu"
        return Finding(
            cells=ControlCells(
                **cells,
                threads=torch.get_num_threads(),
                switches_turned="; ".join([*(f"{told} (set back)" for told in when_built), *now])
                or None,
            ),
            flags={
                CONTENDED: CONTENDED.name in raised,
                MACHINE_SHIFT: MACHINE_SHIFT.name in raised,
                SHARED_CPU: on_cpu and framework.shares_cpu(),
                SWITCHED: bool(now),
                SWITCHED_BACK: bool(when_built),
            },
        )


CHECK: Final = ControlCheck
