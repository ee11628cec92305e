"""Ratios with their intervals, and packages in a folder of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcsweep.measure.timing import stats

if TYPE_CHECKING:
    from collections.abc import Sequence

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
PACKAGES: Final = _CACHE / "hpcsweep" / "measurement"


def ratio(firsts: Sequence[float], seconds: Sequence[float]) -> str:
    """Return the median of `seconds` over `firsts`, pair by pair, and its interval."""
    found = stats.summarise([b / a for a, b in zip(firsts, seconds, strict=True)])
    low, high = found.ci95 or (float("nan"), float("nan"))
    return f"{found.median:.3f} [{low:.3f}, {high:.3f}]"


def need(requirement: str) -> None:
    """Make a package importable that the project itself does not need."""
    folder = PACKAGES / requirement.replace("==", "-")
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        print(f"installing {requirement}", file=sys.stderr)
        subprocess.run([*pip, "--target", folder, requirement], check=True)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
