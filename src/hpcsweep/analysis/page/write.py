"""Writes the page: one file that needs no network, with the script that draws inside."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any, Final

import jinja2
import pandas as pd

from hpcsweep.analysis import dataset, drawing, formats, reliability, report
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.formats import View
from hpcsweep.analysis.page import figures, wording
from hpcsweep.analysis.page.figures import Drawn, Layout
from hpcsweep.catalog.columns import FLAGS, MUST_AGREE
from hpcsweep.spec import space
from hpcsweep.store import named_file
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count, printable
from hpcsweep.version import __version__

_ESCAPED: Final = re.compile(r"\\\\|\\u([0-9a-fA-F]{4})")  # of JSON
_SHAPE: Final = re.compile(r'[{ ]"?(\S)"?: "(M[^"]+)"')  # of figures.js: a mark and its outline
_TITLE: Final = b" - hpcsweep</title>"
_BEGINNING: Final = 1000  # bytes in which the title stands
_POINT: Final = (
    "status", "median_ms", "ci95_lo_ms", "ci95_hi_ms", "throughput_ips", "throughput_sps", "n",
    "algorithm_coverage_pct", "mem_peak_gib", "energy_j", "flags", "point_id",
)  # fmt: skip
_MACHINE: Final = (
    "device_name", "node", *MUST_AGREE, "backend", "hpcsweep_version", "profile", "power_limit_w",
    "sm_clock_mhz_mean", "num_threads",
)  # fmt: skip
_COMMANDS: Final = ("report", "layers", "best", "bundle")
_RELIABLE: Final = ("reliable", "only reliable")
_LOG_X: Final = ("logx", "log x")
_LOG_Y: Final = ("logy", "log y")
_MOST_ROWS: Final = 300  # of the report: a browser lays out more of them slowly
_MOST_LINES: Final = 20_000  # of the table of points: it is read and sorted whole by a browser
_READ: Final = {*_POINT, *_MACHINE, *figures.READ, *report.READ, *wording.READ}
_DIGITS: Final = 9  # behind the point: two more than cells have


def write_page(sweep_dir: SweepDir, path: Path, where: str = "") -> list[str]:
    """Write the page of a collected sweep, or of the points that have the values `where`.

    Return notes on what it leaves out. `UsageError` where the sweep was not collected, or the file
    cannot be written or is no page of hpcsweep.
    """
    named_file.check(path, _is_page)
    made = report.read_report(sweep_dir, where=where)  # before the frames: neither needs the other
    data = dataset.read_dataset(sweep_dir, where, _READ)
    frames: dict[str, Any] = {name: _for_people(getattr(data, name)) for name in ("rows", "failed")}
    data = replace(data, **frames)
    seen = figures.layout(data.rows)
    drawn = figures.make(data, seen)
    drawn.notes.extend(data.of_earlier_files())
    every = _points(data, seen)
    points, fewer = figures.thinned(every, seen.x, _MOST_LINES)
    if fewer:
        told = f"The table of points has {len(points):,} of {len(every):,}"
        drawn.notes.append(f"{told}, overall.csv has all")
    with named_file.writing(path, _is_page) as file:
        file.write(_render(data, made, seen, drawn, points).encode())
    return drawn.notes


def _for_people(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(mem_peak_gib=rows["mem_peak_bytes"] / 2**30)


def _is_page(text: bytes) -> bool:
    """Say whether a file is a page, of any sweep and version, by how it begins."""
    begin = _resource("page.html").partition("{{")[0].encode()
    return text.startswith(begin) and _TITLE in text[:_BEGINNING]


def _points(data: Dataset, seen: Layout) -> pd.DataFrame:
    """Return what the table of points has of each, measured or not, and whether it is doubtful."""
    own = [*dataset.own_results(data.rows), *dataset.own_results(data.failed)]
    shown = dict.fromkeys(("gpu", "model", *seen.axes, *own, *_POINT))
    needed = [*shown, "workload"]
    every = pd.concat([data.rows.filter(needed), data.failed.filter(needed)])
    return every.filter([*shown]).assign(doubtful=reliability.doubtful(every))


def _render(
    data: Dataset, made: report.Report, seen: Layout, drawn: Drawn, points: pd.DataFrame
) -> str:
    rows = data.rows
    points = points.dropna(axis=1, how="all")
    every = pd.concat([rows.filter([seen.colour]), data.failed.filter([seen.colour])])
    styles = drawing.styles(dataset.ordered(every, seen.colour))
    legend = space.legend(data.maps)
    about = {
        "name": data.sweep_dir.name, "counts": data.counts(), "notes": drawn.notes,
        "headline": wording.headline(data, made), "when": wording.when(rows),
        "how": wording.how(data), "copies": _copies(data), "version": __version__,
    }  # fmt: skip
    tables = {
        "report": [_report(view, legend) for view in made.views], "flags": _flags(rows),
        "failures": pd.DataFrame(map(asdict, data.failures())), "machines": _environment(rows),
        "heads": {name: formats.label(str(name)) for name in points if name != "doubtful"},
    }  # fmt: skip
    script = _resource("figures.js")
    drawing_of = {
        "controls": _controls(rows, seen, drawn), "sections": drawn.sections,
        "switches": [_RELIABLE, _LOG_X, _LOG_Y], "shapes": dict(_SHAPE.findall(script)),
        "colour": seen.colour, "legend": styles.items() if seen.colour in points else (),
        "css": _resource("page.css"), "script": script + _resource("page.js"),
    }  # fmt: skip
    if seen.x == seen.colour:  # names have no logarithm
        drawing_of["switches"] = [_RELIABLE, _LOG_Y]
    embedded = {
        "specs": _specs(drawn, styles), "labels": _labels(drawn), "data": _embedded(drawn.data),
        "rows": _harmless(points.to_json(orient="values")),
    }  # fmt: skip
    env = jinja2.Environment(
        autoescape=True, finalize=wording.shown, trim_blocks=True, lstrip_blocks=True
    )
    template = env.from_string(_resource("page.html"))
    return template.render(**about, **tables, **drawing_of, **embedded)


def _controls(rows: pd.DataFrame, seen: Layout, drawn: Drawn) -> list[dict[str, Any]]:
    """Return the page's controls; of an axis that has no place in the figures the first value."""
    ys = [(text, name) for name, text in drawn.ys.items()]
    controls: list[dict[str, Any]] = []
    if len(ys) > 1:
        controls.append({"name": "y", "label": "show", "choices": ys, "chosen": "", "all": False})
    for axis in dict.fromkeys(("gpu", seen.colour, *seen.filters)):
        values = dataset.ordered(rows, axis)
        if len(values) > 1:
            control = {
                "name": axis,
                "label": formats.label(axis),
                "choices": [*zip(values, values, strict=True)],
            }
            chosen = values[0] if axis in seen.filters else ""
            controls.append({**control, "chosen": chosen, "all": True})
    places = drawn.places
    if places and seen.x != seen.colour:
        label = f"layers at {formats.label(seen.x)}"
        control = {"name": "at", "label": label, "choices": [*zip(places, places, strict=True)]}
        controls.append({**control, "chosen": places[-1], "all": False})
    return controls


def _report(view: View, legend: Sequence[str]) -> dict[str, Any]:
    texts = pd.DataFrame(view.texts).apply(lambda column: column.str.strip())
    marks = [*view.marks, *legend]
    more = len(texts) - _MOST_ROWS
    if more > 0:
        marks.insert(0, f"... and {count(more, 'row')} more: hpcsweep report --all")
    return {"title": view.title, "texts": texts.head(_MOST_ROWS), "marks": marks}


def _copies(data: Dataset) -> list[tuple[str, str]]:
    """Return title and text of what a reader may copy."""
    sweep_dir = data.sweep_dir
    clusters = filter(None, wording.values_in(data.rows, "profile").split(", "))
    commands = [f"hpcsweep submit sweep.yaml --cluster {name}" for name in clusters]
    commands += [f"hpcsweep {name} {sweep_dir.name}" for name in _COMMANDS]
    texts = [("Commands", "\n".join(commands)), ("Citation", wording.citation(data))]
    file = sweep_dir.sweep_file
    if file.is_file():
        texts.append(("Sweep file: sweep.yaml", file.read_text(encoding="utf-8", errors="replace")))
    return texts


def _flags(rows: pd.DataFrame) -> pd.DataFrame:
    counts = reliability.flags(rows).replace("", None).value_counts()
    table = counts.rename_axis("flag").reset_index(name="points")
    table.insert(1, "meaning", table["flag"].map(FLAGS).fillna(""))
    return table


def _environment(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what is known of each GPU: a column per GPU, a row per fact."""
    facts = [*rows.filter(_MACHINE).dropna(axis=1, how="all")]
    table = {"fact": [formats.label(name) for name in facts]}
    for gpu in rows["gpu"].dropna().unique():
        table[gpu] = [wording.values_in(rows[rows["gpu"] == gpu], name) for name in facts]
    return pd.DataFrame(table)


def _specs(drawn: Drawn, styles: Mapping[str, tuple[str, str]]) -> str:
    drawn_by_ident = {}
    for section in drawn.sections:
        for figure in section.figures:
            drawn_by_ident[figure.ident] = figure.spec
    specs = {"figures": drawn_by_ident, "styles": styles, "palette": drawing.PALETTE}
    return _harmless(json.dumps(specs, separators=(",", ":")))


def _labels(drawn: Drawn) -> str:
    columns: set[str] = set()
    for frame in drawn.data.values():
        columns.update(map(str, frame))
    return _harmless(json.dumps({name: formats.label(name) for name in sorted(columns)}))


def _embedded(data: Mapping[str, pd.DataFrame]) -> str:
    parts = []
    for name, frame in data.items():
        text = frame.to_json(orient="records", double_precision=_DIGITS)
        parts.append(f'"{name}":{text}')
    return _harmless("{" + ",".join(parts) + "}")


def _harmless(text: str) -> str:
    """Return JSON that cannot end the script element that it stands in; it shows controls."""
    # pandas writes a DEL as it is, where Python escapes it
    return _ESCAPED.sub(_visible, text).replace("<", "\\u003c").replace("\x7f", r"\\x7f")


def _visible(escape: re.Match[str]) -> str:
    letter = chr(int(escape[1], 16)) if escape[1] else ""
    return escape[0] if printable(letter) == letter else f"\\{escape[0]}"


def _resource(name: str) -> str:
    return resources.files("hpcsweep.analysis.page").joinpath(name).read_text(encoding="utf-8")
