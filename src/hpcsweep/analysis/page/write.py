"""Writes the page: one file that needs no network, with the script that draws inside."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

import jinja2
import pandas as pd

from hpcsweep import catalog
from hpcsweep.analysis import dataset, formats, output, report
from hpcsweep.analysis.command_report import CommandReport
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.page import frames, sections
from hpcsweep.analysis.page.frames import Layout
from hpcsweep.analysis.page.sections import Drawn
from hpcsweep.analysis.report import Report, TrainingReport
from hpcsweep.catalog.columns import FLAGS, MUST_AGREE
from hpcsweep.errors import HpcsweepError
from hpcsweep.spec import space, sweep_file
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.state import PointStatus
from hpcsweep.text import count, printable, tally
from hpcsweep.version import __version__

Row = dict[str, Any]

_ESCAPED: Final = re.compile(r"\\\\|\\u([0-9a-fA-F]{4})")  # of JSON


def write_page(sweep_dir: SweepDir, path: Path, where: str = "") -> list[str]:
    """Write the page of a collected sweep, or of the points that have the values `where`.

    Return notes on what it leaves out. `UsageError` where the sweep was not collected, or the file
    cannot be written or is no page of hpcsweep.
    """
    output.check(path, _is_page)
    data = dataset.read_dataset(sweep_dir, where)
    data = replace(data, rows=_for_people(data.rows), failed=_for_people(data.failed))
    seen = frames.layout(data.rows)
    drawn = sections.make(data, seen)
    drawn.notes.extend(data.of_earlier_files())
    with output.writing(path, _is_page) as file:
        file.write(_render(data, seen, drawn).encode())
    return drawn.notes


def _for_people(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(mem_peak_gib=rows["mem_peak_bytes"] / 2**30)


def _is_page(text: bytes) -> bool:
    """Say whether a file is a page, of any sweep and version, by how it begins."""
    begin = _resource("page.html").partition("{{")[0].encode()
    return text.startswith(begin) and b" - hpcsweep</title>" in text[:1000]


def _render(data: dataset.Dataset, seen: Layout, drawn: Drawn) -> str:
    everything = pd.concat([data.rows, data.failed])
    points = _all_points(everything, seen)
    figures = {figure.ident: figure.spec for part in drawn.sections for figure in part.figures}
    made = report.make(data)
    script = _resource("figures.js")
    styles = output.styles(dataset.ordered(everything, seen.colour))
    specs = {"figures": figures, "styles": styles, "palette": output.PALETTE}
    columns = {name for frame in drawn.data.values() for name in map(str, frame)}
    env = jinja2.Environment(autoescape=True, finalize=shown, trim_blocks=True, lstrip_blocks=True)
    return env.from_string(_resource("page.html")).render(
        name=data.sweep_dir.name, counts=data.counts(), headline=_headline(data, made),
        notes=drawn.notes, when=when(data.rows), version=__version__, how=how(data),
        controls=_controls(data.rows, seen, drawn),
        switches=_SWITCHES if seen.x != seen.colour else _SWITCHES[:1] + _SWITCHES[2:],
        colour=seen.colour, legend=styles.items() if seen.colour in points else (),
        shapes=dict(_SHAPE.findall(script)),
        sections=drawn.sections,
        report=[_report(view, space.legend(data.maps)) for view in made.views()],
        heads={name: formats.label(str(name)) for name in points},
        failures=pd.DataFrame(map(asdict, data.failures())), flags=_flags(data.rows),
        copies=_copies(data), machines=_environment(data.rows),
        css=_resource("page.css"), script=script + _resource("page.js"),
        specs=_harmless(json.dumps(specs, separators=(",", ":"))),
        labels=_harmless(json.dumps({name: formats.label(name) for name in sorted(columns)})),
        data=_embedded(drawn.data), rows=_harmless(
            points.assign(doubtful=dataset.doubtful(everything)).to_json(orient="values")
        ),
    )  # fmt: skip


def _controls(rows: pd.DataFrame, seen: Layout, drawn: Drawn) -> list[dict[str, Any]]:
    """Return the page's controls; of an axis that has no place in the figures the first value."""
    shown = [(text, name) for name, text in drawn.ys.items()]
    controls: list[tuple[str, str, list[tuple[str, str]], str]] = [("y", "show", shown, "")]
    for axis in dict.fromkeys(("gpu", seen.colour, *seen.filters)):
        values = dataset.ordered(rows, axis)
        chosen = values[0] if axis in seen.filters else ""
        controls.append((axis, formats.label(axis), [*zip(values, values, strict=True)], chosen))
    if drawn.places and seen.x != seen.colour:
        places = [*zip(drawn.places, drawn.places, strict=True)]
        controls.append(("at", f"layers at {formats.label(seen.x)}", places, drawn.places[-1]))
    return [
        {"name": name, "label": label, "choices": choices, "chosen": chosen,
         "all": name not in {"y", "at"}}
        for name, label, choices, chosen in controls
        if len(choices) > 1 or name == "at"
    ]  # fmt: skip


def _report(view: View, legend: Sequence[str]) -> dict[str, Any]:
    texts = view.texts.apply(lambda column: column.str.strip())
    rest = len(texts) - _MOST_ROWS
    more = [f"... and {count(rest, 'row')} more: hpcsweep report --all"] if rest > 0 else []
    marks = [*more, *view.marks, *legend]
    return {"title": view.title, "texts": texts.head(_MOST_ROWS), "marks": marks}


def when(rows: pd.DataFrame) -> str:
    """Return the first and the last day of measuring; of one day that."""
    days = sorted(rows["started_at"].dropna().str[:10].unique()) if "started_at" in rows else []
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else ""


def how(data: dataset.Dataset) -> str:
    """Say in one line how the points were measured."""
    rows = data.rows

    def told(name: str) -> str:
        return values_in(rows, name) if name in rows else ""

    visits = count(max(1, rows["visit"].nunique()) if "visit" in rows else 1, "visit")
    settings = "unknown"
    with suppress(HpcsweepError):  # of an older version, or of another program
        measure = sweep_file.load(data.sweep_dir.sweep_file, name=data.sweep_dir.name).measure
        defaults = {name: setting.default for name, setting in catalog.SETTINGS.items()}
        own = (f"{name}: {of}" for name, of in measure.items() if defaults.get(name) != of)
        settings = ", ".join(own) or "defaults"
    if data.is_of_command:
        return f"Each point ran the command once in {visits}. Settings of the sweep: {settings}."
    return (
        f"Each point ran {told('warmup_n') or 'no'} warm-up passes and {told('n')} timed passes "
        f"({told('timer') or 'unknown timer'}) in {visits}; {int(dataset.valid(rows).sum())} of "
        f"{count(len(rows), 'measured point')} are valid. Settings of the sweep: {settings}."
    )


def citation(data: dataset.Dataset) -> str:
    """Return how to cite the rows."""
    versions, commits = (values_in(data.rows, name) if name in data.rows else "" for name in _CITED)
    return (
        f"{data.sweep_dir.name}: times of convolutional networks, measured {when(data.rows)} with "
        f"hpcsweep {versions}; sweep at commit {commits or 'unknown'}."
    )


def _copies(data: dataset.Dataset) -> list[tuple[str, str]]:
    sweep_dir = data.sweep_dir
    names = values_in(data.rows, "profile") if "profile" in data.rows else ""
    clusters = [
        f"hpcsweep submit sweep.yaml --cluster {name}" for name in names.split(", ") if name
    ]
    commands = [*clusters, *(f"hpcsweep {name} {sweep_dir.name}" for name in _COMMANDS)]
    file = sweep_dir.sweep_file
    texts = {"Commands": "\n".join(commands), "Citation": citation(data)}
    if file.is_file():
        texts["Sweep file: sweep.yaml"] = file.read_text(encoding="utf-8", errors="replace")
    return [*texts.items()]


def _embedded(data: dict[str, pd.DataFrame]) -> str:
    texts = (frame.to_json(orient="records", double_precision=9) for frame in data.values())
    parts = (f'"{name}":{text}' for name, text in zip(data, texts, strict=True))
    return _harmless("{" + ",".join(parts) + "}")


def shown(value: object) -> object:
    """Return a value of a template with its control characters shown."""
    return printable(value) if type(value) is str else value


def _harmless(text: str) -> str:
    """Return JSON that cannot end the script element that it stands in; it shows controls."""

    def visible(escape: re.Match[str]) -> str:
        letter = chr(int(escape[1], 16)) if escape[1] else ""
        return escape[0] if printable(letter) == letter else f"\\{escape[0]}"

    # pandas writes a DEL as it is, where Python escapes it
    return _ESCAPED.sub(visible, text).replace("<", "\\u003c").replace("\x7f", r"\\x7f")


def _resource(name: str) -> str:
    return resources.files("hpcsweep.analysis.page").joinpath(name).read_text(encoding="utf-8")


_POINT: Final = (
    "status", "median_ms", "ci95_lo_ms", "ci95_hi_ms", "throughput_ips", "throughput_sps", "n",
    "algorithm_coverage_pct", "mem_peak_gib", "energy_j", "flags", "point_id",
)  # fmt: skip
_MACHINE: Final = (
    *("device_name", "node", *MUST_AGREE, "backend", "hpcsweep_version", "profile"),
    *("power_limit_w", "sm_clock_mhz_mean", "num_threads"),
)
_CITED: Final = ("hpcsweep_version", "git_sha")
_COMMANDS: Final = ("report", "layers", "best", "bundle")
_SWITCHES: Final = (("reliable", "only reliable"), ("logx", "log x"), ("logy", "log y"))
_SHAPE: Final = re.compile(r'[{ ]"?(\S)"?: "(M[^"]+)"')  # of figures.js: a mark and its outline
_MOST_ROWS: Final = 300  # of the report
_FEW: Final = 6  # values of a cell that are named
_FEW_NAMED: Final = 3  # values of an axis that the headline names


def _all_points(rows: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    wanted = dict.fromkeys(("gpu", "model", *seen.axes, *dataset.own_results(rows), *_POINT))
    return rows[[name for name in wanted if name in rows and rows[name].notna().any()]]


def _flags(rows: pd.DataFrame) -> pd.DataFrame:
    counts = dataset.flags(rows).replace("", None).value_counts()
    meanings = [FLAGS.get(str(flag), "") for flag in counts.index]
    table = {"flag": counts.index, "meaning": meanings, "points": counts.to_numpy()}
    return pd.DataFrame(table)


def _environment(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what is known of each GPU: a column per GPU, a row per fact."""
    facts = [name for name in _MACHINE if name in rows and rows[name].notna().any()]
    table = {"fact": [formats.label(name) for name in facts]}
    for gpu in rows["gpu"].dropna().unique():
        table[gpu] = [values_in(rows[rows["gpu"] == gpu], name) for name in facts]
    return pd.DataFrame(table)


def values_in(rows: pd.DataFrame, name: str) -> str:
    """Return the values of a column in order; of many numbers the lowest and the highest."""
    values = sorted(rows[name].dropna().unique())
    texts = [dataset.format_value(name, value) for value in values]
    if len(values) <= _FEW:
        return ", ".join(texts)
    several = f"{', '.join(texts[:_FEW])}, ... ({len(values)})"
    return several if isinstance(values[0], str) else f"{texts[0]} to {texts[-1]}"


def _headline(
    data: dataset.Dataset, made: Report | TrainingReport | CommandReport
) -> Iterable[str]:
    """Say what was found: failures first, what is fastest where, how sure, on what."""
    if isinstance(made, CommandReport):
        return _doubts(data)
    fastest = _training(made) if isinstance(made, TrainingReport) else _algorithms(made)
    rows = data.rows
    models = dataset.ordered(data.rows, "model")
    named = ", ".join(models) if len(models) <= _FEW_NAMED else count(len(models), "network")
    gpus = ", ".join(map(str, rows["gpu"].dropna().unique()))
    return [*_doubts(data), *fastest, f"{named} on {dataset.hardware(rows) or gpus}."]


def _doubts(data: dataset.Dataset) -> Iterable[str]:
    """Say in one line what was not measured, and what is flagged."""
    rows = data.rows
    lines = []
    if failed := len(data.failed):
        groups = tally(Counter(map(str, data.failed["status"])), PointStatus)
        points = count(failed + len(rows), "point")
        lines.append(f"{failed:,} of {points} were not measured: {groups}.")
    if flagged := int((dataset.doubtful(rows) | ~dataset.valid(rows)).sum()):
        why = ", ".join(f"{flag} {points}" for flag, points in dataset.doubts(rows).items())
        bad = f"{flagged:,} are flagged, {data.tally.not_valid:,} of them not valid"
        lines.append(f"Of {count(len(rows), 'measured point')}, {bad} ({why or 'valid is false'}).")
    return [" ".join(lines)] if lines else []


def _algorithms(made: Report) -> Iterable[str]:
    by_name: dict[tuple[bool, str], list[Row]] = defaultdict(list)
    for row in made.rows:
        if name := row["fastest"] or row["fastest_here"]:
            by_name[bool(row["fastest"]), name].append(row)
    several = [row for row in made.rows if len(row[made.metric]) > 1]
    for (sure, name), rows in sorted(by_name.items(), key=lambda of: (not of[0][0], -len(of[1]))):
        ahead = _span([row["ahead_pct"] for row in rows], "{:.0f}")
        of = f"{len(rows)} of {count(len(several), 'configuration')}"
        how = _how_sure(rows, sure=sure)
        yield f"{name} is fastest in {of}{_where(rows, made)}, by {ahead} % ({how})."
    if several and (undecided := len(several) - sum(map(len, by_name.values()))):
        which = count(undecided, "configuration")
        yield f"In {which} no algorithm is ahead by more than the noise."
    if not several and made.rows:
        values = [value for row in made.rows for value in row[made.metric].values()]
        yield f"A pass takes {_span(values, '{:.4g}')} ms{_where(made.rows, made)}."


def _how_sure(rows: Sequence[Row], *, sure: bool) -> str:
    visits = min(row["visits"] for row in rows)
    if sure:
        few = f"varies between {visits} visits" if visits > 1 else "single visits vary"
        return f"more than {few}"
    few = "in too few valid visits to be sure"
    return few if any(row["repeated"] for row in rows) else "measured once: not repeated"


def _training(made: TrainingReport) -> Iterable[str]:
    rows = [row for row in made.rows if row.get("throughput_sps") and not row["doubtful"]]
    if not rows:
        yield "No training step was measured reliably."
        return
    best = max(rows, key=lambda row: float(row["throughput_sps"]))
    what = ", ".join(dataset.format_labelled(key, best[key]) for key in made.keys)
    yield (
        f"{what} trains fastest: {best['throughput_sps']:.4g} samples/s, a step takes "
        f"{best['median_ms']:.4g} ms (of {count(len(rows), 'configuration')})."
    )


def _where(rows: Sequence[Row], made: Report) -> str:
    """Say which values of the varying axes these rows have, if that is not all of them."""
    parts = []
    for key in made.keys:
        own, every = (list(dict.fromkeys(row[key] for row in of)) for of in (rows, made.rows))
        if own != every and key != "point_id":
            few = ", ".join(dataset.format_value(key, value) for value in own[:_FEW_NAMED])
            if len(own) > _FEW_NAMED:
                numeric = all(isinstance(value, int | float) for value in own)
                few = _span(own, "{:.10g}") if numeric else f"{few}, ..."
            parts.append(f"{formats.label(key).partition(' (')[0]} {few}")
    return f" ({'; '.join(parts)})" if parts else ""


def _span(values: Sequence[float], form: str) -> str:
    texts = dict.fromkeys(form.format(value) for value in (min(values), max(values)))
    return " to ".join(texts)
