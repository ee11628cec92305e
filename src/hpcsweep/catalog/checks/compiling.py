"""Whether torch compiled while passes were timed."""

from __future__ import annotations

from typing import Final

from hpcsweep.catalog.record import CheckRecord, Flag

# A doubt: the seconds of the compiler are in the times.
COMPILING: Final = Flag(
    "compiling",
    "torch compiled while passes or steps were timed",
    doubt=True,
    lasting=True,
)
# No doubts: the times are without the compiler; of layers there are none.
RECOMPILED: Final = Flag(
    "recompiled",
    "torch compiled again after the first pass; nothing of that is in the times, but after eight "
    "times it runs without compiling",
)
LAYERS_COMPILED: Final = Flag(
    "layers_compiled", "layers inside compiled code have no rows: timers would break it up"
)
RECORD: Final = CheckRecord(
    finds="compilation inside timed passes; layers inside compiled code",
    costs="reads torch's counters; no pass",
    flags=(COMPILING, RECOMPILED, LAYERS_COMPILED),
)
