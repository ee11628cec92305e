"""Reads the CSV export of NVIDIA Nsight Compute: values and units by launch and metric.

There are two layouts, which differ in their header. `--page raw` has one row per launch, a column
per metric, and a row of units below the header. `--page details` has one row per metric, with the
columns "Metric Name", "Metric Unit" and "Metric Value". Launches are told apart by "ID" and never
by kernel name, since a network launches the same kernel many times.

ncu scales every value for reading and gives each a unit of its own. Units are decimal: a Kbyte is
1000 bytes. An unknown unit, number or layout is refused: a wrong number is worse than none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pandas as pd

from hpcsweep.analysis.roofline import export_file
from hpcsweep.errors import UsageError

HOW: Final = (
    "collect with: ncu --csv --page raw --metrics $(hpcsweep roofline --metrics ncu) PROGRAM > "
    "kernels.csv"
)

# Units by quantity, as patterns; the first group is a prefix, and the second that of a divisor.
SECONDS: Final = r"([mun]?)(?:s|sec|second)"
BYTES: Final = rf"([KMGTP]?)(?:byte|B)(?:/{SECONDS})?"  # or bytes per second
OPERATIONS: Final = r"(?:([KMGTP]?)(?:inst|ops?)|1?)(?:/cycle)?"  # older versions write no unit
CYCLES: Final = rf"([KMGTP]?)(?:[Hh]z|cycle(?:/{SECONDS})?)"  # per second
_PREFIXES: Final = dict(zip("numKMGTP", (1e-9, 1e-6, 1e-3, 1e3, 1e6, 1e9, 1e12, 1e15), strict=True))
_NUMBER: Final = r"-?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?([eE][+-]?\d+)?"
_NOT_MEASURED: Final = ("", "n/a", "(!) n/a", "nan")
_NAME, _VALUE, _UNIT = "Metric Name", "Metric Value", "Metric Unit"
_IDENTITY: Final = ("ID", "Kernel Name", "Process ID", "CC")


@dataclass(frozen=True)
class Launches:
    """The kernel launches of an export, labelled by ID."""

    path: Path
    kernels: pd.Series[str]
    capabilities: pd.Series[str]
    metrics: dict[str, pd.DataFrame]  # with the columns "Metric Value" and "Metric Unit"

    def name(self, ident: str) -> str:
        """Return how a message names a launch."""
        return f"{self.path}: ID {ident} ({self.kernels[ident][:60]})"

    def values(self, metric: str, known_units: str) -> pd.Series[float]:
        """Return a metric of every launch in base units, of which `known_units` is the pattern.

        Raises:
            UsageError: a launch lacks it, or its number or unit is unknown.
        """
        cells = self.metrics[metric].reindex(self.kernels.index, fill_value="")
        texts, units = cells[_VALUE].str.strip(), cells[_UNIT].str.strip()
        for ident in texts.index[texts.isin(_NOT_MEASURED)]:
            raise UsageError(
                f"{self.name(ident)} lacks {metric}: the export was cut, or ncu could not measure "
                f"it; {HOW}"
            )
        for ident in texts.index[~texts.str.fullmatch(_NUMBER)]:
            raise UsageError(
                f"{self.name(ident)}: {metric} is '{texts[ident]}', which is no number as ncu "
                "writes it (1,234.5); export with LC_ALL=C"
            )
        factors = units.map(lambda unit: factor(unit, known_units)).astype(float)
        for ident in texts.index[factors.isna()]:
            raise UsageError(
                f"{self.name(ident)}: the unit '{units[ident]}' of {metric} is not known; export "
                "with --print-units base"
            )
        return texts.str.replace(",", "").astype(float) * factors


def factor(unit: str, known_units: str) -> float:
    """Return how many base units a unit is; NaN where the pattern does not match it."""
    match = re.fullmatch(known_units, unit[:1].upper() + unit[1:] if "hz" in unit else unit)
    if match is None:
        return math.nan
    scale, divisor = (_PREFIXES.get(prefix or "", 1.0) for prefix in (*match.groups(), "")[:2])
    return scale / divisor


def is_export(line: str) -> bool:
    """Tell whether a line is the header of an export."""
    return line.startswith(('"ID"', "ID,")) and "Kernel Name" in line


def read(path: Path) -> Launches:
    """Read the launches of an export.

    Raises:
        UsageError: it is no export, it was cut, or there are several in one file.
    """
    lines = export_file.text(path).splitlines()
    rows = _rows(path, lines)
    identity = [name for name in _IDENTITY if name in rows]
    launches = rows[identity].drop_duplicates()
    for line, row in launches[launches["ID"].duplicated()].iterrows():
        raise UsageError(
            f"{line}: ID {row['ID']} again, for another launch; give one export at a time"
        )
    rows = rows.drop_duplicates(["ID", _NAME, _VALUE, _UNIT])
    again = rows.duplicated(["ID", _NAME])
    # names for people ("Memory Throughput") stand in several sections; counters do not differ
    for line, row in rows[again & rows[_NAME].str.contains("__")].iterrows():
        raise UsageError(f"{line}: '{row[_NAME]}' of ID {row['ID']} has two values")
    announced = sum(line.startswith("==PROF== Profiling ") for line in lines)
    if launches.empty or announced > len(launches):
        raise UsageError(
            f"{path}: {len(launches)} launches, and ncu announced {announced or 'some'}: the "
            f"export was cut; {HOW}"
        )
    launches = launches.set_index("ID")
    metrics = {str(name): cells.set_index("ID") for name, cells in rows[~again].groupby(_NAME)}
    capabilities = launches.get("CC", pd.Series("", launches.index))
    return Launches(path, launches["Kernel Name"], capabilities, metrics)


def _rows(path: Path, lines: Sequence[str]) -> pd.DataFrame:
    """Return a row per launch and metric, as `--page details` has them."""
    start = next((number for number, line in enumerate(lines) if is_export(line)), None)
    if start is None:
        raise UsageError(f'{path}: no line begins with "ID", so this is no ncu export; {HOW}')
    # the program's own output and ncu's remarks may stand between the rows
    quote = '"' if lines[start].startswith('"') else ""
    table = [x if x.startswith(quote) and not x.startswith("==") else "" for x in lines]
    rows = export_file.table(path, table, start, HOW)
    for line in rows.index[(rows == rows.columns).all(axis=1)]:
        raise UsageError(f"{line}: a second table; give one export at a time")
    long = _NAME in rows
    needed = ["ID", "Kernel Name", *((_UNIT, _VALUE) if long else ())]
    export_file.check_columns(path, rows, needed, HOW)
    if long:
        return rows
    if rows.empty or rows["ID"].iloc[0]:
        raise UsageError(f"{path}: no row of units below the header; {HOW}")
    identity = [name for name in _IDENTITY if name in rows]
    units, rows = rows.iloc[0], rows.iloc[1:]
    rows = rows.melt(identity, var_name=_NAME, value_name=_VALUE, ignore_index=False)
    return rows.assign(**{_UNIT: rows[_NAME].map(units)})
