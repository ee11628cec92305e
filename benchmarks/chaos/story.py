"""One sweep on its way through some faults to its end, and what was found then."""

from __future__ import annotations

import re
import subprocess
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from benchmarks.chaos import disk, faults, on_slurm, reading
from benchmarks.chaos.place import HangsError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from random import Random

    from benchmarks.chaos.faults import Struck
    from benchmarks.chaos.place import Place

_FAULTS: Final = (8, 24)  # that a sweep meets, about
_STRIKES: Final = 0.7  # share of runs in which faults strike what measures
_IN_A_ROW: Final = (2, 10)  # strikes at a run
_TRIES: Final = 12  # of submitting without a fault, until nothing is missing
_PER_FAULT: Final = 3  # points that may be measured again: those of each worker
_UNPACKED: Final = 3  # bundles, of those that were written
_FAILED: Final = 3  # the exit code that says that points failed
_FRAMES: Final = re.compile(r'File "([^"]+)"')
_UNEXPECTED: Final = ("Traceback (most recent call last)", "hpcsweep: unexpected ")


@dataclass
class Told:
    """What a sweep met, and which promises were broken."""

    name: str
    points: int
    struck: list[Struck] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    rows: reading.Rows = field(default_factory=set)  # every one that was whole and has to stay
    removed: reading.Rows = field(default_factory=set)  # by `rm`, since another one counts
    lost: int = 0
    doubled: int = 0
    twice: int = 0
    retried: int = 0

    def case(self) -> str:
        """Return what it met."""
        return "; ".join(struck.told for struck in self.struck)

    def counts(self) -> dict[str, int]:
        """Return what adds up."""
        return {
            "sweeps": 1, "points": self.points, "faults": len(self.struck), "lost": self.lost,
            "doubled in the tables": self.doubled, "measured twice": self.twice,
            "failed and tried again": self.retried, "broken": int(bool(self.wrong)),
        }  # fmt: skip


def tell(place: Place, rng: Random) -> Told:
    """Let a sweep meet some faults, finish it, and look."""
    told = Told(place.folder.name, place.points)
    place.prepare()
    try:
        _meet_faults(place, rng, told)
        _finish(place, told)
        _look(place, told)
    except HangsError as error:
        told.wrong.append(f"hangs: {error}")
    except Exception:  # noqa: BLE001 - whatever it is, the next sweep counts, too
        told.wrong.append(traceback.format_exc(limit=4))
    told.wrong += _unexpected(place)
    if told.wrong:
        _mend(place)
    return told


def _meet_faults(place: Place, rng: Random, told: Told) -> None:
    wanted = rng.randint(*_FAULTS)
    for _ in range(wanted):  # some find nothing to strike
        commands, strikes = _those_for(place)
        before = reading.good_rows(place.sweep)
        removals = place.removals
        if rng.random() < _STRIKES:
            told.struck += _strike(place, rng, strikes)
        else:
            struck = rng.choice(commands)(place, rng)
            told.struck += [struck] if struck else []
        told.rows |= reading.whole_rows(place.sweep)
        if place.removals > removals:
            allow_removal(place, told, before)
        complete = _is_complete(place)
        if len(told.struck) >= wanted or (complete and rng.random() < 0.5):
            break  # there is little left to strike


def allow_removal(place: Place, told: Told, before: reading.Rows) -> None:
    """Let rows be gone that `rm` may remove: a good one only where another one was there before.

    What was measured since does not excuse it: it may have been measured because the row was gone.
    """
    now = reading.whole_rows(place.sweep)
    left = {point for point, _began in before & now}
    for row in told.rows - now:
        if row not in before or row[0] in left:
            told.removed.add(row)
    told.rows -= told.removed


def _those_for(place: Place) -> tuple[Sequence[faults.Fault], Sequence[faults.Fault]]:
    if place.launcher == "local":
        return faults.COMMANDS, faults.STRIKES
    # half of the strikes are those that only jobs can meet
    return (*faults.COMMANDS, *on_slurm.COMMANDS), (*faults.STRIKES, *on_slurm.STRIKES)


def _strike(place: Place, rng: Random, strikes: Sequence[faults.Fault]) -> list[Struck]:
    """Let some faults strike what measures, one after the other."""
    children = place.measuring(rng)
    found = []
    for _ in range(rng.randint(*_IN_A_ROW)):
        if not place.is_measuring():
            break
        if struck := rng.choice(strikes)(place, rng):
            found.append(struck)
        time.sleep(rng.uniform(0, 0.8))
    place.end(", ".join(struck.told for struck in found), *children)
    return found


def _finish(place: Place, told: Told) -> None:
    """Submit, as a person would, until nothing is missing; and collect."""
    for _ in range(_TRIES):
        code = _run(place, place.submit(), "the last submit")
        if code == _FAILED:
            told.retried += 1
            code = _run(place, place.retry(), "retry")
        place.settle()
        if not code and _is_complete(place):
            break
    else:
        told.wrong.append(f"never complete: {place.said[-3:]}")
    ends = [("collect", place.collect())]
    if place.copies():
        ends.append(("import", place.import_copy(there=True)))
    for verb, words in ends:
        _must(place, told, verb, words)
    _must(place, told, "bundle", place.bundle())
    # one that was cut short is not there, so each that is there is whole
    for bundle in place.bundles()[:_UNPACKED]:
        _must(place, told, "import of a bundle", place.import_from(bundle, there=True))


def _must(place: Place, told: Told, verb: str, words: list[str]) -> None:
    if code := _run(place, words, verb):
        told.wrong.append(f"{verb} ended with {code}: {place.said[-1:]}")


def _run(place: Place, words: list[str], told: str) -> int:
    child = place.start(words)
    place.end(told, child)
    return child.returncode


def _is_complete(place: Place) -> bool:
    return len(reading.measured(place.sweep)) == place.points


def _look(place: Place, told: Told) -> None:
    measured = reading.measured(place.sweep)
    merged = reading.merged(place.sweep)
    told.twice = measured.total() - len(measured)
    told.lost = place.points - len(merged)
    told.doubled = merged.total() - len(merged)
    rows = reading.whole_rows(place.sweep)
    gone = told.rows - rows
    invented = reading.invented(place.sweep)
    theirs = reading.whole_rows(place.twin)
    known = rows | told.removed | told.rows
    for copy in place.copies():
        known |= reading.whole_rows(copy)
    for count, what in (
        (told.lost, "points are not in the table"),
        (told.doubled, "rows too many in the table"),
        (len(gone), "rows were whole and are gone"),
        (len(invented), "rows of the table are in no shard"),
        (len(rows - theirs), "rows are not where copies were imported"),
        (len(theirs - known), "rows are where copies were imported, and were nowhere else"),
        (len([*place.results.rglob(".import-*")]), "folders of imports are left"),
    ):
        if count:
            told.wrong.append(f"{count} {what}")
    if told.twice > _PER_FAULT * len(told.struck):
        told.wrong.append(f"{told.twice} points were measured twice")


def _unexpected(place: Place) -> list[str]:
    """Return what no command and no log may say."""
    found = [line for line in place.said if any(words in line for words in _UNEXPECTED)]
    logs = [path for path in place.sweep.glob("submissions/*/logs/**/*") if path.is_file()]
    for log in logs:
        text = log.read_text(errors="replace")
        _, words, after = text.partition(_UNEXPECTED[0])
        found += [f"{log.name}: {after[-1500:]}"] if words and not _is_theirs(log, after) else []
    return found


def _is_theirs(log: Path, traceback: str) -> bool:
    """Say whether Python was interrupted while it started, or submitit died of a fault."""
    text = traceback.partition("\n\n")[0]
    frames = _FRAMES.findall(text.partition("Error: ")[0])
    theirs = log.parent.name == "submitit" and not (frames and "/hpcsweep/" in frames[-1])
    return theirs or "\nKeyboardInterrupt" in text


def _mend(place: Place) -> None:
    """Undo what a fault left that was cut short, so that the results can be copied."""
    if place.disk is None:
        return
    with suppress(subprocess.CalledProcessError):
        disk.uncover(place.results)
    with suppress(RuntimeError):
        place.disk.allow_writing()
    place.disk.clean()
