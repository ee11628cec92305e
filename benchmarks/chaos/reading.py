"""Reads results without hpcsweep: what is in the tables, and what was measured."""

from __future__ import annotations

import csv
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def merged(sweep: Path) -> Counter[str]:
    """Return how many `ok` rows the merged table has of each point."""
    with (sweep / "overall.csv").open(newline="") as file:
        return Counter(row["point_id"] for row in csv.DictReader(file) if row["status"] == "ok")


def measured(sweep: Path) -> Counter[str]:
    """Return how many whole `ok` rows the shards have of each point; torn ends do not count."""
    found: Counter[str] = Counter()
    for shard in sweep.glob("shards/*/*.overall.csv"):
        lines = shard.read_text(errors="replace").split("\n")
        whole = lines[:-1]  # what follows the last line end was never finished
        rows = csv.DictReader(whole)
        found.update(row["point_id"] for row in rows if row["status"] == "ok")
    return found
