"""Says in words what a sweep found: failures first, what is fastest where, how sure, on what."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Final

from hpcsweep.analysis import dataset, formats
from hpcsweep.analysis.report import Report, TrainingReport
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count, tally

Row = dict[str, Any]

_FEW: Final = 3  # values of an axis that are named


def lines(data: dataset.Dataset, found: Report | TrainingReport) -> list[str]:
    """Return the sentences, the most important first."""
    told = [*_failures(data)]
    told += _training(found) if isinstance(found, TrainingReport) else _algorithms(found)
    return [*told, _on(data)]


def _failures(data: dataset.Dataset) -> Iterator[str]:
    if failed := len(data.failed):
        groups = tally(Counter(map(str, data.failed["status"])), PointStatus)
        points = count(failed + len(data.rows), "point")
        yield f"{failed:,} of {points} were not measured: {groups}."
    if bad := data.tally.not_valid:
        why = ", ".join(dataset.doubts(data.rows)) or "not valid"
        yield f"Of {count(len(data.rows), 'measured point')}, {bad:,} are not valid ({why})."


def _algorithms(found: Report) -> Iterator[str]:
    by_name: dict[tuple[str, bool], list[Row]] = defaultdict(list)
    for row in found.rows:
        if name := row["fastest"] or row["fastest_here"]:
            by_name[name, bool(row["fastest"])].append(row)
    several = [row for row in found.rows if len(row[found.metric]) > 1]
    for (name, sure), rows in sorted(
        by_name.items(), key=lambda one: (not one[0][1], -len(one[1]))
    ):
        ahead = _span([row["ahead_pct"] for row in rows], "{:.0f}")
        where = _where(rows, found)
        of = f"{len(rows)} of {count(len(several), 'configuration')}"
        how = (
            f"more than varies between {min(row['visits'] for row in rows)} visits"
            if sure and min(row["visits"] for row in rows) > 1
            else "more than the machine varies"
            if sure
            else "measured once: not repeated"
        )
        yield f"{name} is fastest in {of}{where}, by {ahead} % ({how})."
    if several and (undecided := len(several) - sum(map(len, by_name.values()))):
        which = count(undecided, "configuration")
        yield f"In {which} no algorithm is ahead by more than the noise."
    if not several and found.rows:
        values = [value for row in found.rows for value in row[found.metric].values()]
        yield f"A pass takes {_span(values, '{:.4g}')} ms{_where(found.rows, found)}."


def _training(found: TrainingReport) -> Iterator[str]:
    rows = [row for row in found.rows if row.get("throughput_sps") and not row["doubtful"]]
    if not rows:
        yield "No training step was measured reliably."
        return
    best = max(rows, key=lambda row: float(row["throughput_sps"]))
    what = ", ".join(dataset.format_labelled(key, best[key]) for key in found.keys)
    yield (
        f"{what} trains fastest: {best['throughput_sps']:.4g} samples/s, a step takes "
        f"{best['median_ms']:.4g} ms (of {count(len(rows), 'configuration')})."
    )


def _where(rows: Sequence[Row], found: Report) -> str:
    """Say which values of the varying axes these rows have, if that is not all of them."""
    told = []
    for key in found.keys:
        own = list(dict.fromkeys(row[key] for row in rows))
        every = list(dict.fromkeys(row[key] for row in found.rows))
        if own != every and key != "point_id":
            numeric = all(isinstance(value, int | float) for value in own)
            short = len(own) <= _FEW or not numeric
            values = ", ".join(
                dataset.format_value(key, value) for value in own[: _FEW if short else 0]
            )
            more = ", ..." if short and len(own) > _FEW else ""
            told.append(f"{formats.label(key).partition(' (')[0]} "
                        f"{f'{values}{more}' if short else _span(own, '{:.10g}')}")  # fmt: skip
    return f" ({'; '.join(told)})" if told else ""


def _on(data: dataset.Dataset) -> str:
    """Say what was measured on what."""
    rows = data.rows
    models = dataset.ordered(rows, "model")
    named = ", ".join(models) if len(models) <= _FEW else count(len(models), "network")
    gpus = ", ".join(map(str, rows["gpu"].dropna().unique()))
    return f"{named} on {dataset.hardware(rows) or gpus}."


def _span(values: Sequence[float], form: str) -> str:
    texts = dict.fromkeys(form.format(value) for value in (min(values), max(values)))
    return " to ".join(texts)
