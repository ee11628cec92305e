"""What `submit --until-error` was asked for and sent, by device: `until.json` in a sweep's folder.

The rows say what was measured. This file says in which round each point was chosen, so that it is
known which points a fit had not seen; the errors stand there for `status`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcsweep import files
from hpcsweep.errors import ResultsError
from hpcsweep.store import typed_json
from hpcsweep.text import count

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hpcsweep.store.rundir import RunDir


@dataclass(frozen=True, kw_only=True)
class Round:
    """The points that were chosen together; what a fit without them was wrong by, once known."""

    points: tuple[str, ...]
    again: tuple[str, ...] = ()  # measured a second time, to know the noise
    error: float | None = None  # median over `held_out` points
    held_out: int = 0


@dataclass(frozen=True, kw_only=True)
class Until:
    """The rounds of one device, the first one first."""

    device: str
    target: float
    of: int = 0  # points of the sweep
    max_gpu_hours: float | None = None
    rounds: tuple[Round, ...] = ()
    outcome: str = ""  # why no further round comes; empty while one does

    def text(self) -> str:
        """Return how far it is, for people."""
        asked = sum(len(one.points) for one in self.rounds)
        sizes = f"round {len(self.rounds)}, {asked:,} of {count(self.of, 'point')} asked for"
        return f"{sizes}; {self.error_text()}{f': {self.outcome}' if self.outcome else ''}"

    def error_text(self) -> str:
        """Return the error of the last round that was judged, and the target."""
        target = f"target {100 * self.target:g} %"
        judged = next((one for one in reversed(self.rounds) if one.error is not None), None)
        if judged is None or judged.error is None:
            return f"held-out error not known yet, {target}"
        points = count(judged.held_out, "point")
        return f"held-out error {100 * judged.error:.1f} % (median of {points}), {target}"

    def to_json(self) -> dict[str, Any]:
        """Return the plain record, with numbers of points instead of ids."""
        counts = [
            {**typed_json.write(one), "points": len(one.points), "again": len(one.again)}
            for one in self.rounds
        ]
        return {**typed_json.write(self), "rounds": counts}


def read(run: RunDir) -> dict[str, Until]:
    """Return what is known of each device; `ResultsError` where the file cannot be read."""
    if not run.until.exists():
        return {}
    remedy = "remove it: all rows stay, and count as measured before the first round"
    try:
        found = files.read_json(run.until)
        return {device: _read(device, one) for device, one in found.items()}
    except ResultsError as error:
        raise ResultsError(f"{error}; {remedy}") from error
    except (AttributeError, ValueError) as error:
        raise ResultsError(f"{run.until}: damaged ({error}); {remedy}") from error


def write(run: RunDir, known: Mapping[str, Until], one: Until) -> None:
    """Keep what is known of one device beside the others; the caller holds the lock."""
    kept = {**known, one.device: one}
    records = {device: typed_json.sealed(typed_json.write(each)) for device, each in kept.items()}
    files.write_json(run.until, records)


def _read(device: str, record: Mapping[str, Any]) -> Until:
    """Return what is known of a device; `ValueError` where the record is damaged."""
    typed_json.prove(record)
    found = typed_json.read(Until, record)
    if found.device != device:
        raise ValueError(f"what stands under {device!r:.80} is about {found.device!r:.80}")
    return found
