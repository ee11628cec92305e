"""The checks of a point, without torch: what each finds, its columns and flags, and its cost.

A check is one module here and one of the same name in `measure/checks/`, which does the work.
Columns, flags, reference and shards follow from the record here.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Final

from hpcsweep.catalog.record import CheckRecord

# In the order in which they run after the timed passes: what reads the state of the device first,
# then what runs passes of its own, last what needs a quiet machine. One name adds or removes one.
NAMES: Final = (
    "memory",
    "telemetry",
    "host",
    "compiling",
    "energy",
    "algorithm",
    "numerics",
    "control",
)
CHECKS: Final[Mapping[str, CheckRecord]] = {
    name: import_module(f"{__name__}.{name}").RECORD for name in NAMES
}
