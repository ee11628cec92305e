"""The point that every tool runs: note that it ran, and return its row."""

from __future__ import annotations

import csv
import os
import sys
import time
from pathlib import Path

TABLE = "table.csv"
CALLS = "calls.txt"


def measure(number: int, out: str) -> float:
    """Return the time of a point; a line in the calls' file shows a point that ran twice."""
    time.sleep(float(os.environ.get("STUDY_SLEEP", "0")))
    with Path(out, CALLS).open("a") as file:  # O_APPEND: whole lines from several processes
        file.write(f"{number}\n")
    return float(number)


def write_row(number: int, out: str, path: Path) -> None:
    """Measure a point into a file of its own, for tools that pass files."""
    partial = path.with_suffix(".partial")
    partial.write_text(f"{number},{measure(number, out)}\n")
    partial.replace(path)


def write_table(rows: list[tuple[int, float]], out: str) -> None:
    """Write the table of all points."""
    with Path(out, TABLE).open("w", newline="") as file:
        csv.writer(file).writerows([("point", "ms"), *rows])


def merge(folder: Path, out: str) -> None:
    """Write the table from files that hold a row each."""
    rows = [path.read_text().strip().split(",") for path in folder.glob("**/*.row")]
    write_table(sorted((int(number), float(ms)) for number, ms in rows), out)


if __name__ == "__main__":
    write_row(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
