"""Reads the CSV export of NVIDIA Nsight Compute into launches: texts and units by metric.

Two layouts are known, and told apart by their header: `--page raw` has one row per launch, a
column per metric and a row of units below the header; `--page details` has one row per metric,
with the columns "Metric Name", "Metric Unit" and "Metric Value". Launches are joined by "ID",
never by kernel name: a network launches the same kernel many times.

ncu scales every value for reading, each with a unit of its own (decimal: a Kbyte is 1000 bytes), so
each is converted by its own unit. A unit, a number or a layout that is not understood is refused:
a wrong number is worse than none.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

HOW: Final = (
    "collect with: ncu --csv --page raw --metrics $(hpcsweep roofline --metrics ncu) PROGRAM > "
    "kernels.csv"
)

_PREFIXES: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SECONDS: Final = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("ms", "msecond"), 1e-3),
    **dict.fromkeys(("us", "usecond"), 1e-6),
    **dict.fromkeys(("ns", "nsecond"), 1e-9),
}
_NUMBER: Final = re.compile(r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d+)?")
_UNKNOWN: Final = frozenset({"", "n/a", "(!) n/a", "nan"})
_PROFILED: Final = re.compile(r"==PROF== Profiling ")

Row = dict[str, str]


@dataclass
class Launch:
    """One kernel launch as it stands in the file."""

    ident: str
    kernel: str
    process: str
    capability: str
    cells: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Return how a message names it."""
        return f"ID {self.ident} ({self.kernel[:60]})"


def is_export(line: str) -> bool:
    """Tell whether a line is the header of an export."""
    return line.startswith(('"ID"', "ID,")) and "Kernel Name" in line


def read(path: Path) -> list[Launch]:
    """Read the launches of an export.

    Raises:
        UsageError: it is no export, it was cut, or there are several in one file.

    """
    lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    start = next((number for number, line in enumerate(lines) if is_export(line)), None)
    if start is None:
        raise UsageError(f'{path}: no line begins with "ID", so this is no ncu export; {HOW}')
    header, *rows = _rows(path, lines, start)
    missing = {"ID", "Kernel Name"} - set(header[1])
    if "Metric Name" in header[1]:
        missing |= {"Metric Unit", "Metric Value"} - set(header[1])
    if missing:
        raise UsageError(f"{path}: no column {', '.join(sorted(missing))}; {HOW}")
    named = [(number, dict(zip(header[1], cells, strict=True))) for number, cells in rows]
    found = _long(path, named) if "Metric Name" in header[1] else _wide(path, named)
    announced = sum(bool(_PROFILED.match(line)) for line in lines)
    if not found or announced > len(found):
        raise UsageError(
            f"{path}: {len(found)} launches, and ncu announced {announced or 'some'}: the export "
            f"was cut; {HOW}"
        )
    return found


def _rows(path: Path, lines: list[str], start: int) -> list[tuple[int, list[str]]]:
    """Return line number and cells of the header and of every row."""
    quoted = lines[start].startswith('"')
    found: list[tuple[int, list[str]]] = []
    for number, line in enumerate(lines[start:], start + 1):
        # the program's own output and ncu's remarks may stand between the rows
        if not line or line.startswith("==") or (quoted and not line.startswith('"')):
            continue
        cells = _cells(path, number, line)
        if found and cells == found[0][1]:
            raise UsageError(f"{path}, line {number}: a second table; give one export at a time")
        if found and len(cells) != len(found[0][1]):
            raise _cut(path, number, f"{len(cells)} of {len(found[0][1])} cells")
        found.append((number, cells))
    return found


def _cells(path: Path, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise _cut(path, number, str(error)) from error


def _cut(path: Path, number: int, why: str) -> UsageError:
    return UsageError(f"{path}, line {number}: {why}: the export was cut; {HOW}")


def _long(path: Path, rows: list[tuple[int, Row]]) -> list[Launch]:
    found: dict[str, Launch] = {}
    for number, row in rows:
        launch = found.setdefault(row["ID"], _launch(row))
        if (launch.kernel, launch.process) != (row["Kernel Name"], row.get("Process ID", "")):
            raise _twice(path, number, row["ID"])
        name, cell = row["Metric Name"], (row["Metric Value"], row["Metric Unit"])
        known = launch.cells.setdefault(name, cell)
        # names for people ("Memory Throughput") stand in several sections; counters do not differ
        if known != cell and "__" in name:
            raise UsageError(f"{path}, line {number}: '{name}' of {launch.text} has two values")
    return list(found.values())


def _wide(path: Path, rows: list[tuple[int, Row]]) -> list[Launch]:
    if not rows or rows[0][1]["ID"]:
        raise UsageError(f"{path}: no row of units below the header; {HOW}")
    units = rows[0][1]
    found: dict[str, Launch] = {}
    for number, row in rows[1:]:
        if row["ID"] in found:
            raise _twice(path, number, row["ID"])
        launch = found[row["ID"]] = _launch(row)
        launch.cells = {name: (text, units[name]) for name, text in row.items()}
    return list(found.values())


def _launch(row: Mapping[str, str]) -> Launch:
    return Launch(row["ID"], row["Kernel Name"], row.get("Process ID", ""), row.get("CC", ""))


def _twice(path: Path, number: int, ident: str) -> UsageError:
    return UsageError(
        f"{path}, line {number}: ID {ident} again, for another launch; give one export at a time"
    )


def value(path: Path, launch: Launch, name: str, convert: Callable[[str], float | None]) -> float:
    """Return a metric of a launch in base units.

    Raises:
        UsageError: the launch lacks it, or its number or unit is not understood.

    """
    text, unit = (cell.strip() for cell in launch.cells.get(name, ("", "")))
    if text in _UNKNOWN:
        raise UsageError(
            f"{path}: {launch.text} lacks {name}: the export was cut, or ncu could not measure it; "
            f"{HOW}"
        )
    if not _NUMBER.fullmatch(text):
        raise UsageError(
            f"{path}: {launch.text}: {name} is '{text}', which is no number as ncu writes it "
            "(1,234.5); export with LC_ALL=C"
        )
    factor = convert(unit)
    if factor is None:
        raise UsageError(
            f"{path}: {launch.text}: the unit '{unit}' of {name} is not known; export with "
            "--print-units base"
        )
    return float(text.replace(",", "")) * factor


def duration(unit: str) -> float | None:
    """Return seconds."""
    return _SECONDS.get(unit)


def _scaled(unit: str, bases: tuple[str, ...]) -> float | None:
    for base in bases:
        if unit.endswith(base) and unit[: len(unit) - len(base)] in _PREFIXES:
            return _PREFIXES[unit[: len(unit) - len(base)]]
    return None


def size(unit: str) -> float | None:
    """Return bytes, or bytes per second."""
    return _per(unit, ("byte", "B"))


def count(unit: str) -> float | None:
    """Return instructions or operations, or such per cycle; older versions write no unit."""
    counted = unit.removesuffix("/cycle")
    return 1.0 if counted in {"", "1"} else _scaled(counted, ("inst", "ops", "op"))


def rate(unit: str) -> float | None:
    """Return cycles per second."""
    hertz = _scaled(unit[:1].upper() + unit[1:].lower(), ("hz", "Hz"))
    return hertz if hertz is not None else _per(unit, ("cycle",))


def _per(unit: str, bases: tuple[str, ...]) -> float | None:
    """Return the factor of a unit, or of one that is divided by a time."""
    counted, slash, time = unit.partition("/")
    factor, seconds = _scaled(counted, bases), _SECONDS.get(time) if slash else 1.0
    return None if factor is None or seconds is None else factor / seconds
