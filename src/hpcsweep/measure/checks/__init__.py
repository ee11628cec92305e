"""What looks at a point beside its times: the class of every check. Each module here is a check.

A check is two modules of one name: `catalog/checks/` says what it finds, with columns, flags and
thresholds, and needs no torch; the one here does the work, in a subclass of `PointCheck` that is
called `CHECK`. Of one that watches the timed passes these are called, in this order::

    begin(network)          once a point, before the warm-up
    settled(network)        when the passes are about to be timed
    look()                  after each block of timed passes, outside of the times
    disturbed(median_ms)    when they are timed; if any check says yes, they are timed once more,
                            from `settled` on, and then nobody is asked again
    end()                   when the last pass was timed
    after(network, ...)     when all times are there: what was found; passes of its own run here

`tests/fixtures/check/` has such a check as an example: a test adds it to a copy of the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hpcsweep.catalog.record import Cells, Flag
from hpcsweep.measure.machine.rig import Rig
from hpcsweep.measure.network import Choices, Network, Times

if TYPE_CHECKING:
    from hpcsweep.conv.proof import Proof


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a check found: its record, its flags, its records of layer rows.

    `layers` are those of the convolution calls, gradients last; `others` cells of other calls;
    `artifacts` the names of files, separated by semicolons.
    """

    cells: Cells | None = None
    flags: dict[Flag, bool] = field(default_factory=dict)
    layers: Sequence[Cells] = ()
    others: Sequence[Cells] = ()
    proof: Proof | None = None
    artifacts: str = ""

    def raised(self) -> Iterator[str]:
        """Yield the names of the flags."""
        return (flag.name for flag, is_raised in self.flags.items() if is_raised)


class PointCheck:
    """What looks at a point beside its times; each overrides what it needs, and `after`.

    `history` is what points showed of the machine, for those of the next worker. A check that
    `runs` something of its own may end the process, so it comes after those that only read.
    """

    history: Any = None
    runs = True

    def __init__(self, rig: Rig) -> None:
        """Look at the points of one device, one after the other."""
        self.rig = rig

    def begin(self, network: Network) -> None:
        """Begin to look, before the warm-up."""

    def settled(self, network: Network) -> None:
        """Begin to look at the timed passes, or at those that are timed once more."""

    def look(self) -> None:
        """Look between two blocks of timed passes; what this does is in no time."""

    def disturbed(self, median_ms: float) -> bool:
        """Say whether the passes, of this median, should be timed once more."""
        return False

    def end(self) -> None:
        """End the look at the timed passes."""

    def after(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Return what was found, after passes of its own, if it runs any."""
        raise NotImplementedError

    def without(self, network: Network, choices: Choices, times: Times) -> Finding:
        """Return what is known where `after` ended the process."""
        return Finding()
