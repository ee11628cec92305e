"""Chooses the columns of `overall.csv`, which people read; all others stand in `details.csv`.

A table has only columns that its sweep fills. Readers join both tables, and see every column.
`columns_1.0.csv` has the columns of the first schema, frozen: tables of earlier versions have
columns that are no longer in `catalog.columns`.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

from hpcsweep import catalog
from hpcsweep.catalog.columns import (
    COLLECTED,
    LAYER_COLUMNS,
    LAYERS,
    MERGED_COLUMNS,
    MUST_AGREE,
    OVERALL,
    OVERALL_COLUMNS,
    OWN,
    SAMPLE_COLUMNS,
    SAMPLES,
)
from hpcsweep.catalog.record import packaged

if TYPE_CHECKING:
    from collections import abc
    from collections.abc import Iterable, Mapping

FROZEN: Final = "columns_1.0.csv"
SEED: Final = OVERALL_COLUMNS[:10]  # names of the predecessor
# what joins a row of details.csv to its row of overall.csv, also across runs of a sweep
JOINED: Final = ("point_id", "visit", "submission")
# the cells of a point that each of its layer rows repeats, at the end of the row
OF_POINT: Final = ("valid", "flags", "visit")
# what readers see of each table, filled or not
KNOWN: Final[Mapping[str, tuple[str, ...]]] = {
    "overall": tuple(name for name in MERGED_COLUMNS if name not in OWN),
    "layers": (*LAYER_COLUMNS, *OF_POINT),
    "samples": SAMPLE_COLUMNS,
}
# after the names of the predecessor and the axes that the sweep names
READ: Final = (
    "point_id", "status", "status_reason", "valid", "flags", "visit",
    "algorithm_used", "algorithm_coverage_pct",
    "n", "ci95_lo_ms", "ci95_hi_ms", "throughput_ips",
    "train_s", "throughput_sps", "train_accuracy", "val_accuracy_after",
    "flops", "achieved_tflops", "mem_peak_bytes", "energy_j",
    "device_name", *MUST_AGREE, "hpcsweep_version",
    "sweep", "submission", "started_at", "orphan", "source",
)  # fmt: skip
_SAME_AS_DEVICE: Final = "gpu"  # people read the predecessor's name
DETAILS: Final = tuple(name for name in MERGED_COLUMNS if name not in {*SEED, *READ})
_ALWAYS: Final = frozenset({*SEED, *JOINED, *OF_POINT, "status", "orphan"})


def split(
    filled: abc.Set[str],
    named: abc.Set[str],
    own_axes: Iterable[str] = (),
    own_results: Iterable[str] = (),
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the columns of overall.csv and details.csv.

    `filled` are the columns that some row fills, `named` the axes that the sweep names, others are
    a command's own.
    """
    axes = [axis for axis in catalog.AXES if axis in named and axis not in {*READ, _SAME_AS_DEVICE}]
    own = [*own_axes, *own_results]
    wanted = [*SEED, *axes, *own]
    if "own_results" in filled:
        wanted.append("wall_s")  # of a command, which has no other time
    wanted += READ
    there = {*filled, *own, *_ALWAYS}
    overall = tuple(name for name in dict.fromkeys(wanted) if name in there)
    rest = {*filled}.difference(overall)
    known = [name for name in MERGED_COLUMNS if name in rest]
    return overall, (*JOINED, *known, *sorted(rest.difference(MERGED_COLUMNS)))


def every_column(table: str, there: Iterable[str]) -> list[str]:
    """Return the columns of a table as readers see them: those of the reference, then all others.

    `there` are those that its files have.
    """
    return [*dict.fromkeys((*KNOWN.get(table, ()), *there))]


@cache
def kinds() -> Mapping[str, str]:
    """Return the kind of every column of any table, by name, those of earlier versions included."""
    frozen = {row["column"]: row["kind"] for row in packaged(FROZEN)}
    now = (*SAMPLES, *LAYERS, *OVERALL, *COLLECTED)
    return {**frozen, **{column.name: column.kind for column in now}}
