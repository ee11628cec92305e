"""What a report or plot prints."""

from __future__ import annotations

from typing import Any

from hpcsweep.analysis import formats


def table_of(found: Any) -> str:
    """Return the tables for a terminal."""
    return formats.written(found.views, "table")


def record_of(found: Any) -> dict[str, Any]:
    """Return the record for a machine."""
    record: dict[str, Any] = found.views[0].to_json()
    return record
