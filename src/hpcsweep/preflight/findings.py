"""What was looked at and how it is, as `hpcsweep doctor` and `submit` tell it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from hpcsweep.text import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: how it is, and what to do where it is not well."""

    level: Level  # fail: cannot work as it is
    what: str
    detail: str
    do: str = ""
    where: str = ""  # FILE:LINE of what is to be changed

    def complaint(self) -> str:
        """Return it as an error message: where, what, and in a second line what to do."""
        place = f"{self.where}: " if self.where else ""
        advice = f"\n  -> {self.do}" if self.do else ""
        return f"{place}{self.what}: {self.detail}{advice}"


def text(findings: Sequence[Finding]) -> str:
    """Return one line per finding, and a second one where there is something to do."""
    rows = []
    for finding in findings:
        place = f" ({finding.where})" if finding.where and finding.level != "ok" else ""
        rows.append((f"{finding.level:<4}", finding.what, f"{finding.detail}{place}"))
        if finding.do:
            rows.append(("", "", f"-> {finding.do}"))
    return "\n".join(aligned(rows))


def to_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Return the plain records."""
    return [asdict(finding) for finding in findings]
