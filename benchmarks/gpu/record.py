"""The file of a step: written anew after everything that the step finds.

`found` maps the key of each item to its facts, `failed` to the reason; `planned` has every key, so
that a file tells what is missing. A file whose state is `running` and that nobody writes any more
is of a step that was killed.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import files
from hpcsweep.errors import ResultsError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

# 1: the first; 2: without options; 3: fewer steps, with remarks
FORMAT: Final = 3
RUNNING: Final = "running"
COMPLETE: Final = "complete"
LATE: Final = "out of time"
STOPPED: Final = "stopped"  # the reason is in `note`
# what two files must agree in before their figures stand side by side
IDENTITY: Final = ("kind", "name", "driver_version", "torch", "cuda", "hip", "cudnn", "hpcsweep")


@dataclass
class Record:
    """What a step planned, found and could not find."""

    step: str
    environment: dict[str, Any]
    state: str = RUNNING
    note: str = ""
    seconds: float = 0.0
    planned: list[str] = field(default_factory=list)
    found: dict[str, dict[str, Any]] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)  # on how it came about
    folder: Path | None = None  # where it is written; nowhere without one

    @property
    def missing(self) -> list[str]:
        """Return the keys that were planned, and neither found nor failed."""
        return [key for key in self.planned if key not in self.found and key not in self.failed]

    @property
    def identity(self) -> tuple[str, ...]:
        """Return device and software: files that differ in it are never compared."""
        return identity_of(self.environment)

    def plan(self, keys: Iterable[str]) -> None:
        """Add keys to those that are to be found."""
        self.planned += [key for key in keys if key not in self.planned]
        self.write()

    def put(self, key: str, facts: dict[str, Any]) -> None:
        """Keep the facts of a key."""
        self.found[key] = facts
        self.failed.pop(key, None)
        self.write()

    def fail(self, key: str, reason: str) -> None:
        """Keep why there are no facts."""
        self.failed[key] = reason
        self.write()

    def end(self, state: str, note: str = "") -> None:
        """Say how the step ended."""
        self.state = state
        self.note = note
        self.write()

    def write(self) -> None:
        """Write the file, so that a reader sees the old or the new one, never half."""
        if self.folder is None:
            return
        kept = {"format": FORMAT, **asdict(self)}
        del kept["folder"]
        files.write_json(self.folder / f"{self.step}.json", kept)


def identity_of(environment: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what tells a device with its software from others."""
    return tuple(str(environment.get(name)) for name in IDENTITY)


def read(path: Path) -> Record:
    """Return the record of a file.

    Raises:
        ResultsError: it cannot be read, or is no such file.

    """
    kept = files.read_json(path)
    if kept.pop("format", None) != FORMAT or "step" not in kept:
        raise ResultsError(f"{path}: not a file of `python -m benchmarks.gpu`")
    return Record(**kept, folder=path.parent)


def begun(folder: Path, step: str, environment: Mapping[str, Any]) -> Record | None:
    """Return a step's file, if it is of the same device and software; else None."""
    try:
        earlier = read(folder / f"{step}.json")
    except (ResultsError, TypeError):
        return None
    return earlier if earlier.identity == identity_of(environment) else None


def standing(record: Record) -> str:
    """Return how far the step came, in a few words."""
    words = f"{record.state}, {len(record.found)} of {len(record.planned)} items"
    words += f", {len(record.failed)} failed" if record.failed else ""
    told = "; ".join(filter(None, [record.note, *record.remarks]))
    return f"{words} ({told})" if told else words


def reason(error: BaseException) -> str:
    """Return the first line of what an exception says, without folders."""
    said = str(error).strip() or type(error).__name__
    return re.sub(r"(?:/[^/\s:]+)+/", "", said.splitlines()[0])[:300]
