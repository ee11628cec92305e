"""What a check found, and how `hpcsweep doctor` and `submit` print it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hpcsweep.text import aligned

Level = Literal["ok", "none", "warn", "fail"]

_SHOWN: Final = 8  # names in one line


@dataclass(frozen=True)
class Finding:
    """The result of one check, and how to fix what it found."""

    level: Level  # none: an option that is not installed; fail: cannot work as it is
    what: str  # what was checked, such as a key of the profile
    detail: str
    do: str = ""
    where: str = ""  # FILE:LINE of what to change

    def complaint(self) -> str:
        """Return an error message: where and what, and in a second line what to do."""
        place = f"{self.where}: " if self.where else ""
        advice = f"\n  -> {self.do}" if self.do else ""
        return f"{place}{self.what}: {self.detail}{advice}"


def listed(names: Iterable[str]) -> str:
    """Return names in one line, cut short where there are many."""
    every = sorted(set(names))
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return (", ".join(every[:_SHOWN]) + more) or "none"


def text(findings: Sequence[Finding]) -> str:
    """Return one line per finding, and a second one where there is something to do."""
    rows = []
    for finding in findings:
        place = f" ({finding.where})" if finding.where and finding.level != "ok" else ""
        rows.append((f"{finding.level:<4}", finding.what, f"{finding.detail}{place}"))
        if finding.do:
            rows.append(("", "", f"-> {finding.do}"))
    return "\n".join(aligned(rows))
