"""Makes the tables of the page: all points, failures, flags, the environment of each GPU."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.analysis import columns, dataset
from hpcsweep.catalog.columns import FLAGS, MUST_AGREE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import pandas as pd

    from hpcsweep.analysis.dataset import Dataset
    from hpcsweep.analysis.page.frames import Layout

_POINT: Final = (
    "status", "median_ms", "ci95_lo_ms", "ci95_hi_ms", "throughput_ips", "throughput_sps", "n",
    "algorithm_coverage_pct", "mem_peak_bytes", "energy_j", "flags", "point_id",
)  # fmt: skip
_MACHINE: Final = (
    *("device_name", "node", *MUST_AGREE, "backend", "hpcsweep_version", "profile"),
    *("power_limit_w", "sm_clock_mhz_mean", "num_threads"),
)
_FEW: Final = 6  # values of a cell that are named


@dataclass(frozen=True)
class Table:
    """Heads with their columns, and rows of cells as text; a number cell is a (text, value)."""

    heads: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[tuple[str, Any]]]


def points(rows: pd.DataFrame, seen: Layout) -> Table:
    """Return a row per point, measured or not."""
    wanted = dict.fromkeys(("gpu", "model", *seen.axes, *_POINT))
    names = [name for name in wanted if name in rows and rows[name].notna().any()]
    return Table([(name, columns.label(name)) for name in names], [*_cells(rows, names)])


def failures(data: Dataset) -> Table:
    """Return why points were not measured, as the report tells it."""
    heads = [(name, name) for name in ("status", "reason", "points", "first")]
    rows = [[(str(cell), cell) for cell in astuple(one)] for one in data.failures()]
    return Table(heads, rows)


def flags(rows: pd.DataFrame) -> Table:
    """Return the flags that rows carry, what they mean, and how many points have them."""
    found = rows["flags"].dropna().str.split(";").explode() if "flags" in rows else rows.iloc[:0, 0]
    counts = found[found != ""].value_counts()
    cells = [
        [(str(flag), flag), (FLAGS.get(str(flag), ""), ""), (str(number), int(number))]
        for flag, number in counts.items()
    ]
    return Table([("flag", "flag"), ("meaning", "meaning"), ("points", "points")], cells)


def environment(rows: pd.DataFrame) -> Table:
    """Return what is known of each GPU: a column per GPU, and a row per fact."""
    gpus = list(rows["gpu"].dropna().unique())
    facts = [name for name in _MACHINE if name in rows and rows[name].notna().any()]
    groups = [rows[rows["gpu"] == gpu] for gpu in gpus]
    cells = [
        [(columns.label(name), name), *((_values(group, name), "") for group in groups)]
        for name in facts
    ]
    return Table([("fact", ""), *((gpu, gpu) for gpu in gpus)], cells)


def _values(rows: pd.DataFrame, name: str) -> str:
    """Return the values of a column in order; of many numbers the lowest and the highest."""
    values = sorted(rows[name].dropna().unique())
    if len(values) > _FEW and not isinstance(values[0], str):
        return (
            f"{dataset.format_value(name, values[0])} to {dataset.format_value(name, values[-1])}"
        )
    more = f", ... ({len(values)})" if len(values) > _FEW else ""
    return ", ".join(dataset.format_value(name, value) for value in values[:_FEW]) + more


def _cells(rows: pd.DataFrame, names: Sequence[str]) -> Iterable[list[tuple[str, Any]]]:
    """Return the cells of rows: the text, and the value that sorts them."""
    for record in rows[[*names]].itertuples(index=False):
        pairs = (
            (name, dataset.to_json(name, value)) for name, value in zip(names, record, strict=True)
        )
        yield [
            ("" if value is None else _text(value), "" if value is None else value)
            for _, value in pairs
        ]


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
