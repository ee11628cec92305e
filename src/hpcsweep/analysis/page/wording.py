"""Says in words what a sweep found, and how it was measured: for the page, and for bundles.

The headline has failures first, then what is fastest where, how sure that is, and on what machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import catalog
from hpcsweep.analysis import dataset, formats, reliability
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.report import Report
from hpcsweep.errors import HpcsweepError
from hpcsweep.spec import sweep_file
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count, printable, tally

if TYPE_CHECKING:
    import pandas as pd

Row = dict[str, Any]

# what is told of all rows, beside what each report reads
READ: Final = {
    "started_at", "warmup_n", "timer", "n", "hpcsweep_version", "git_sha", "profile", "workload",
}  # fmt: skip
# values of a cell that are named: as many as fit a cell of the page in one or two lines
_FEW: Final = 6
_FEW_NAMED: Final = 3  # values of an axis that the headline names: it is a sentence


def shown(value: object) -> object:
    """Return a value of a template with its control characters shown."""
    return printable(value) if type(value) is str else value


def values_in(rows: pd.DataFrame, name: str) -> str:
    """Return the values of a column in order; of many numbers the lowest and the highest."""
    if name not in rows:
        return ""
    values = sorted(rows[name].dropna().unique())
    texts = [formats.format_value(name, value) for value in values]
    if len(values) <= _FEW:
        return ", ".join(texts)
    if isinstance(values[0], str):
        return f"{', '.join(texts[:_FEW])}, ... ({len(values)})"
    return f"{texts[0]} to {texts[-1]}"


def when(rows: pd.DataFrame) -> str:
    """Return the first and the last day of measuring; of one day that."""
    if "started_at" not in rows:
        return ""
    days = rows["started_at"].dropna().str[:10]
    return " to ".join(dict.fromkeys([days.min(), days.max()])) if len(days) else ""


def how(data: Dataset) -> str:
    """Say in one line how the points were measured."""
    rows = data.rows
    visits = count(max(1, rows["visit"].nunique()) if "visit" in rows else 1, "visit")
    settings = _settings(data)
    if data.is_of_command:
        return f"Each point ran the command once in {visits}. Settings of the sweep: {settings}."
    warmups = values_in(rows, "warmup_n") or "no"
    timer = values_in(rows, "timer") or "unknown timer"
    valid = int(reliability.valid(rows).sum())
    return (
        f"Each point ran {warmups} warm-up passes and {values_in(rows, 'n')} timed passes "
        f"({timer}) in {visits}; {valid} of {count(len(rows), 'measured point')} are valid. "
        f"Settings of the sweep: {settings}."
    )


def _settings(data: Dataset) -> str:
    """Return the settings of the sweep file that are not default."""
    own = []
    try:
        measure = sweep_file.load(data.sweep_dir.sweep_file, name=data.sweep_dir.name).measure
    except HpcsweepError:  # of an older version, or of another program
        return "unknown"
    for name, value in measure.items():
        setting = catalog.SETTINGS.get(name)
        default = setting.default if setting else None
        if value != default:
            own.append(f"{name}: {value}")
    return ", ".join(own) or "defaults"


def citation(data: Dataset) -> str:
    """Return how to cite the rows."""
    rows = data.rows
    versions = values_in(rows, "hpcsweep_version")
    commits = values_in(rows, "git_sha") or "unknown"
    return (
        f"{data.sweep_dir.name}: times of convolutional networks, measured {when(rows)} with "
        f"hpcsweep {versions}; sweep at commit {commits}."
    )


def headline(data: Dataset, made: Report) -> list[str]:
    """Say what was found: failures first, what is fastest where, how sure, on what."""
    lines = _doubts(data)
    if data.is_of_command:
        return lines
    lines += _algorithms(made) if made.metric else _training(made)
    rows = data.rows
    models = dataset.ordered(rows, "model")
    named = ", ".join(models) if len(models) <= _FEW_NAMED else count(len(models), "network")
    machine = dataset.hardware(rows) or ", ".join(map(str, rows["gpu"].dropna().unique()))
    return [*lines, f"{named} on {machine}."]


def _doubts(data: Dataset) -> list[str]:
    """Say in one line what was not measured, and what is flagged."""
    rows = data.rows
    sentences = []
    failed = len(data.failed)
    if failed:
        groups = tally(Counter(map(str, data.failed["status"])), PointStatus)
        points = count(failed + len(rows), "point")
        sentences.append(f"{failed:,} of {points} were not measured: {groups}.")
    flagged = int(reliability.suspect(rows).sum())
    if flagged:
        doubts = reliability.doubts(rows).items()
        why = ", ".join(f"{flag} {points}" for flag, points in doubts) or "valid is false"
        bad = f"{flagged:,} are flagged, {data.tally.not_valid:,} of them not valid"
        sentences.append(f"Of {count(len(rows), 'measured point')}, {bad} ({why}).")
    return [" ".join(sentences)] if sentences else []


def _algorithms(made: Report) -> Iterable[str]:
    by_name: dict[tuple[bool, str], list[Row]] = defaultdict(list)
    for row in made.rows:
        if row["fastest"]:
            by_name[True, row["fastest"]].append(row)
        elif row["fastest_here"]:
            by_name[False, row["fastest_here"]].append(row)
    several = [row for row in made.rows if len(row[made.metric]) > 1]
    configurations = count(len(several), "configuration")
    decided = 0
    for (sure, name), rows in sorted(by_name.items(), key=_by_weight):
        decided += len(rows)
        ahead = formats.span([row["ahead_pct"] for row in rows], ".0f")
        where = _where(rows, made)
        yield (
            f"{name} is fastest in {len(rows)} of {configurations}{where}, by {ahead} % "
            f"({_how_sure(rows, sure=sure)})."
        )
    undecided = len(several) - decided
    if several and undecided:
        which = count(undecided, "configuration")
        yield f"In {which} no algorithm is ahead by more than the noise."
    if not several and made.rows:
        values = [value for row in made.rows for value in row[made.metric].values()]
        yield f"A pass takes {formats.span(values, '.4g')} ms{_where(made.rows, made)}."


def _by_weight(entry: tuple[tuple[bool, str], list[Row]]) -> tuple[bool, int]:
    """Return a sort key: what is sure first, then what is fastest most often."""
    (sure, _name), rows = entry
    return not sure, -len(rows)


def _how_sure(rows: Sequence[Row], *, sure: bool) -> str:
    visits = min(row["visits"] for row in rows)
    if sure and visits > 1:
        return f"more than varies between {visits} visits"
    if sure:
        return "more than single visits vary"
    if any(row["repeated"] for row in rows):
        return "in too few valid visits to be sure"
    return "measured once: not repeated"


def _training(made: Report) -> list[str]:
    rows = [row for row in made.rows if row.get("throughput_sps") and not row["doubtful"]]
    if not rows:
        return ["No training step was measured reliably."]
    best = max(rows, key=lambda row: float(row["throughput_sps"]))
    what = ", ".join(formats.format_labelled(key, best[key]) for key in made.keys)
    speed = f"{best['throughput_sps']:.4g} samples/s"
    step = f"a step takes {best['median_ms']:.4g} ms"
    return [f"{what} trains fastest: {speed}, {step} (of {count(len(rows), 'configuration')})."]


def _where(rows: Sequence[Row], made: Report) -> str:
    """Say which values of the varying axes these rows have, if that is not all of them."""
    parts = []
    for key in made.keys:
        own = list(dict.fromkeys(row[key] for row in rows))
        every = list(dict.fromkeys(row[key] for row in made.rows))
        if own == every or key == "point_id":
            continue
        few = ", ".join(formats.format_value(key, value) for value in own[:_FEW_NAMED])
        if len(own) > _FEW_NAMED:
            numeric = all(isinstance(value, int | float) for value in own)
            few = formats.span(own, ".10g") if numeric else f"{few}, ..."
        parts.append(f"{formats.label(key).partition(' (')[0]} {few}")
    return f" ({'; '.join(parts)})" if parts else ""
