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
_DIGITS: Final = 9  # behind the point: two more than cells have


def write_page(sweep_dir: SweepDir, path: Path, where: str = "") -> list[str]:
    """Write the page of a collected sweep, or of the points that have the values `where`.

    Return notes on what it leaves out. `UsageError` where the sweep was not collected, or the file
    cannot be written or is no page of hpcsweep.
    """
    named_file.check(path, _is_page)
    data = dataset.read_dataset(sweep_dir, where)
    data = replace(data, rows=_for_people(data.rows), failed=_for_people(data.failed))
    seen = figures.layout(data.rows)
    drawn = figures.make(data, seen)
    drawn.notes.extend(data.of_earlier_files())
    with named_file.writing(path, _is_page) as file:
        file.write(_render(data, seen, drawn).encode())
    return drawn.notes


def _for_people(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.assign(mem_peak_gib=rows["mem_peak_bytes"] / 2**30)


def _is_page(text: bytes) -> bool:
    """Say whether a file is a page, of any sweep and version, by how it begins."""
    begin = _resource("page.html").partition("{{")[0].encode()
    return text.startswith(begin) and _TITLE in text[:_BEGINNING]


def _render(data: Dataset, seen: Layout, drawn: Drawn) -> str:
    everything = pd.concat([data.rows, data.failed])
    points = _all_points(everything, seen)
    made = report.make(data)
    styles = drawing.styles(dataset.ordered(everything, seen.colour))
    script = _resource("figures.js")
    log_x = [_LOG_X] if seen.x != seen.colour else []  # names have no logarithm
    env = jinja2.Environment(
        autoescape=True, finalize=wording.shown, trim_blocks=True, lstrip_blocks=True
    )
    return env.from_string(_resource("page.html")).render(
        name=data.sweep_dir.name, counts=data.counts(), headline=wording.headline(data, made),
        notes=drawn.notes, when=wording.when(data.rows), version=__version__, how=wording.how(data),
        controls=_controls(data.rows, seen, drawn), switches=[_RELIABLE, *log_x, _LOG_Y],
        colour=seen.colour, legend=styles.items() if seen.colour in points else (),
        shapes=dict(_SHAPE.findall(script)), sections=drawn.sections,
        report=[_report(view, space.legend(data.maps)) for view in made.views],
        heads={name: formats.label(str(name)) for name in points},
        failures=pd.DataFrame(map(asdict, data.failures())), flags=_flags(data.rows),
        copies=_copies(data), machines=_environment(data.rows),
        css=_resource("page.css"), script=script + _resource("page.js"),
        specs=_specs(drawn, styles), labels=_labels(drawn), data=_embedded(drawn.data),
        rows=_harmless(
            points.assign(doubtful=reliability.doubtful(everything)).to_json(orient="values")
        ),
    )  # fmt: skip


def _controls(rows: pd.DataFrame, seen: Layout, drawn: Drawn) -> list[dict[str, Any]]:
    """Return the page's controls; of an axis that has no place in the figures the first value."""
    shown = [(text, name) for name, text in drawn.ys.items()]
    controls: list[dict[str, Any]] = [
        {"name": "y", "label": "show", "choices": shown, "chosen": "", "all": False}
    ]
    for axis in dict.fromkeys(("gpu", seen.colour, *seen.filters)):
        values = dataset.ordered(rows, axis)
        choices = [(value, value) for value in values]
        chosen = values[0] if axis in seen.filters else ""
        control = {"name": axis, "label": formats.label(axis), "choices": choices}
        controls.append({**control, "chosen": chosen, "all": True})
    controls = [control for control in controls if len(control["choices"]) > 1]
    if drawn.places and seen.x != seen.colour:
        choices = [(place, place) for place in drawn.places]
        control = {"name": "at", "label": f"layers at {formats.label(seen.x)}", "choices": choices}
        controls.append({**control, "chosen": drawn.places[-1], "all": False})
    return controls


def _report(view: View, legend: Sequence[str]) -> dict[str, Any]:
    texts = view.texts.apply(lambda column: column.str.strip())
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


def _all_points(rows: pd.DataFrame, seen: Layout) -> pd.DataFrame:
    wanted = dict.fromkeys(("gpu", "model", *seen.axes, *dataset.own_results(rows), *_POINT))
    return rows[[name for name in wanted if name in rows and rows[name].notna().any()]]


def _flags(rows: pd.DataFrame) -> pd.DataFrame:
    counts = reliability.flags(rows).replace("", None).value_counts()
    meanings = [FLAGS.get(str(flag), "") for flag in counts.index]
    table = {"flag": counts.index, "meaning": meanings, "points": counts.to_numpy()}
    return pd.DataFrame(table)


def _environment(rows: pd.DataFrame) -> pd.DataFrame:
    """Return what is known of each GPU: a column per GPU, a row per fact."""
    facts = [name for name in _MACHINE if name in rows and rows[name].notna().any()]
    table = {"fact": [formats.label(name) for name in facts]}
    for gpu in rows["gpu"].dropna().unique():
        table[gpu] = [wording.values_in(rows[rows["gpu"] == gpu], name) for name in facts]
    return pd.DataFrame(table)


def _specs(drawn: Drawn, styles: Mapping[str, tuple[str, str]]) -> str:
    specs_by_ident = {}
    for section in drawn.sections:
        for figure in section.figures:
            specs_by_ident[figure.ident] = figure.spec
    specs = {"figures": specs_by_ident, "styles": styles, "palette": drawing.PALETTE}
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
