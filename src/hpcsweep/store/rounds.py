"""The rounds of `submit --until-error` by device: `until.json` in a sweep's folder.

The file records in which round each point was chosen, so that a fit can be judged by points that it
had not seen; its errors are for `status`. The measured values are in the shards.
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

    from hpcsweep.store.folders import SweepDir


@dataclass(frozen=True, kw_only=True)
class Round:
    """The points that were chosen together, and the error of a fit without them, once known."""

    points: tuple[str, ...]
    error: float | None = None  # mean over `held_out` points
    held_out: int = 0


@dataclass(frozen=True, kw_only=True)
class AdaptiveRun:
    """The target and rounds of one device."""

    device: str
    target: float
    of: int = 0  # points of the sweep
    rounds: tuple[Round, ...] = ()
    outcome: str = ""  # why there is no further round; empty until then

    def text(self) -> str:
        """Return a line on the progress."""
        points = sum(len(round_.points) for round_ in self.rounds)
        sizes = f"round {len(self.rounds)}, {points:,} of {count(self.of, 'point')} asked for"
        text = f"{sizes}; {self.error_text()}"
        return f"{text}: {self.outcome}" if self.outcome else text

    def error_text(self) -> str:
        """Return the error of the last round that has one, and the target."""
        target = f"target {100 * self.target:g} %"
        for round_ in reversed(self.rounds):
            if round_.error is not None:
                points = count(round_.held_out, "point")
                return f"held-out error {100 * round_.error:.1f} % (mean of {points}), {target}"
        return f"held-out error not known yet, {target}"

    def to_json(self) -> dict[str, Any]:
        """Return the plain record, with numbers of points instead of ids."""
        record: dict[str, Any] = typed_json.to_plain(self)
        for round_ in record["rounds"]:
            round_["points"] = len(round_["points"])
        return record


def read_rounds(sweep_dir: SweepDir) -> dict[str, AdaptiveRun]:
    """Read the rounds of each device; `ResultsError` where the file cannot be read."""
    if not sweep_dir.until.exists():
        return {}
    remedy = "remove it: all rows stay, and count as measured before the first round"
    try:
        records = files.read_json(sweep_dir.until)
        return {device: _read(device, record) for device, record in records.items()}
    except ResultsError as error:
        raise ResultsError(f"{error}; {remedy}") from error
    except (AttributeError, ValueError) as error:
        raise ResultsError(f"{sweep_dir.until}: damaged ({error}); {remedy}") from error


def write_rounds(
    sweep_dir: SweepDir, others: Mapping[str, AdaptiveRun], until: AdaptiveRun
) -> None:
    """Write the rounds of one device beside `others`; the caller holds the lock."""
    records = {}
    for device, run in {**others, until.device: until}.items():
        records[device] = typed_json.sealed(typed_json.to_plain(run))
    files.write_json(sweep_dir.until, records)


def _read(device: str, record: Mapping[str, Any]) -> AdaptiveRun:
    """Read the rounds of a device; `ValueError` where the record is damaged."""
    typed_json.prove(record)
    until = typed_json.from_plain(AdaptiveRun, record)
    # somebody copied it: one device would be judged by the points of another
    if until.device != device:
        raise ValueError(f"what stands under {device!r:.80} is about {until.device!r:.80}")
    return until
