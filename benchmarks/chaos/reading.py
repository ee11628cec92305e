"""Reads results without hpcsweep: what is in the tables, and what was measured."""

from __future__ import annotations

import csv
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Rows = set[tuple[str, str]]


def merged(sweep: Path) -> Counter[str]:
    """Return how many `ok` rows the merged table has of each point."""
    with (sweep / "overall.csv").open(newline="") as file:
        return Counter(row["point_id"] for row in csv.DictReader(file) if row["status"] == "ok")


def measured(sweep: Path) -> Counter[str]:
    """Return how many whole `ok` rows the shards have of each point; torn ends do not count."""
    return Counter(row["point_id"] for row in _rows(sweep) if row["status"] == "ok")


def whole_rows(sweep: Path) -> Rows:
    """Return id and begin of every row that was ever measured: each must stay."""
    return {(row["point_id"], row["started_at"]) for row in _rows(sweep)}


def good_rows(sweep: Path) -> Rows:
    """Return id and begin of every whole `ok` row."""
    return {(row["point_id"], row["started_at"]) for row in _rows(sweep) if row["status"] == "ok"}


def invented(sweep: Path) -> Rows:
    """Return the rows of the merged table that no shard has."""
    with (sweep / "overall.csv").open(newline="") as file:
        found = {(row["point_id"], row["started_at"]) for row in csv.DictReader(file)}
    return found - whole_rows(sweep)


def _rows(sweep: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = []
    for shard in sweep.glob("shards/*/*.overall.csv"):
        lines = shard.read_text(errors="replace").split("\n")
        whole = lines[:-1]  # what follows the last line end was never finished
        found += csv.DictReader(whole)
    return found
