"""Writes the page: one file that needs no network, with the library that draws inside."""

from __future__ import annotations

import json
import os
import re
from dataclasses import astuple, dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import jinja2
import pandas as pd

from hpcsweep import __version__, extras, files
from hpcsweep.analysis import dataset, formats, output, report
from hpcsweep.analysis.page import frames
from hpcsweep.catalog.columns import FLAGS, MUST_AGREE
from hpcsweep.errors import ResultsError
from hpcsweep.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hpcsweep.analysis.dataset import Dataset
    from hpcsweep.analysis.history import RunHistory
    from hpcsweep.analysis.page.frames import Layout
    from hpcsweep.analysis.page.sections import Drawn
    from hpcsweep.store.rundir import RunDir

_ESCAPED: Final = re.compile(r"\\\\|\\u([0-9a-fA-F]{4})")  # of JSON


def write(run: RunDir, path: Path, where: str = "", history: RunHistory | None = None) -> list[str]:
    """Write the page of a collected sweep, or of the points that have the values `where`.

    With its `history` the page draws that, too.

    Return notes on what it leaves out. `UsageError` where the sweep was not collected, or the file
    cannot be written or is no page of hpcsweep; `MissingDependency` without the drawing libraries.
    """
    extras.need("page", "the page")
    from hpcsweep.analysis.page import sections  # noqa: PLC0415 - Altair may be missing

    output.check(path, _is_page)
    library = _library()
    data = dataset.read(run, where)
    seen = frames.layout(data.rows)
    drawn = sections.make(data, seen, history)
    drawn.notes.extend(data.of_earlier_files())
    with output.writing(path, _is_page) as file:
        file.write(_render(data, seen, drawn, library).encode())
    return drawn.notes


def _is_page(text: bytes) -> bool:
    """Say whether a file is a page, of any sweep and version, by how it begins."""
    begin = _resource("page.html").partition("{{")[0].encode()
    return text.startswith(begin) and b" - hpcsweep</title>" in text[:1000]


def _render(data: Dataset, seen: Layout, drawn: Drawn, library: str) -> str:
    everything = pd.concat([data.rows, data.failed])
    shown, _ = frames.thinned(everything, seen.x)
    specs = {figure.ident: figure.spec for part in drawn.sections for figure in part.figures}
    env = jinja2.Environment(autoescape=True, finalize=_shown, trim_blocks=True, lstrip_blocks=True)
    return env.from_string(_resource("page.html")).render(
        name=data.run.name,
        counts=data.counts(),
        notes=drawn.notes,
        when=_when(data.rows),
        version=__version__,
        controls=_controls(data.rows, seen, drawn.places),
        sections=drawn.sections,
        report=formats.written(report.make(data).views(), "table"),
        points=_all_points(shown, seen),
        failures=_failures(data),
        flags=_flags(data.rows),
        machines=_environment(data.rows),
        css=_resource("page.css"),
        script=_resource("page.js"),
        library=library.replace("</script", "<\\/script"),
        specs=_harmless(json.dumps(specs, separators=(",", ":"))),
        data=_embedded(drawn.data),
    )


def _controls(rows: pd.DataFrame, seen: Layout, places: list[str]) -> list[dict[str, Any]]:
    """Return the page's controls; of an axis that has no place in the figures the first value."""
    found: list[dict[str, Any]] = []
    for axis in dict.fromkeys(("gpu", seen.colour, *seen.filters)):
        values = frames.ordered(rows, axis)
        chosen = values[0] if axis in seen.filters else ""
        found.append(
            {
                "name": axis,
                "label": formats.label(axis),
                "choices": values,
                "chosen": chosen,
                "all": True,
            }
        )
    if places and seen.x != seen.colour:
        label = f"layers at {formats.label(seen.x)}"
        found.append(
            {"name": "at", "label": label, "choices": places, "chosen": places[-1], "all": False}
        )
    return [one for one in found if len(one["choices"]) > 1 or one["name"] == "at"]


def _when(rows: pd.DataFrame) -> str:
    days = sorted(rows["started_at"].dropna().str[:10].unique()) if "started_at" in rows else []
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else ""


def _embedded(data: dict[str, pd.DataFrame]) -> str:
    """Return tables as one JSON object, for a script element."""
    parts = (
        f'"{name}":{frame.to_json(orient="records", double_precision=9)}'
        for name, frame in data.items()
    )
    return _harmless("{" + ",".join(parts) + "}")


def _shown(value: object) -> object:
    return printable(value) if type(value) is str else value


def _harmless(text: str) -> str:
    """Return JSON that cannot end the script element that it stands in; it shows controls."""
    shown = _ESCAPED.sub(
        lambda one: f"\\{one[0]}" if one[1] and _is_control(one[1]) else one[0], text
    )
    return shown.replace("<", "\\u003c")


def _is_control(digits: str) -> bool:
    return printable(chr(int(digits, 16))) != chr(int(digits, 16))


def _resource(name: str) -> str:
    return resources.files("hpcsweep.analysis.page").joinpath(name).read_text(encoding="utf-8")


def _library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script; bundling takes seconds: it is kept."""
    import vl_convert  # noqa: PLC0415 - it may be missing

    version = metadata.version("vl-convert-python")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpcsweep"
    kept = cache / f"vega-{version}.js"
    if kept.exists():
        return kept.read_text(encoding="utf-8")
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with files.replacing(kept) as file:
            file.write(script.encode())
    except (OSError, ResultsError):  # a home that cannot be written costs only time
        pass
    return script


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
class PageTable:
    """Heads with their columns, and rows of cells as text; a number cell is a (text, value)."""

    heads: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[tuple[str, Any]]]


def _all_points(rows: pd.DataFrame, seen: Layout) -> PageTable:
    wanted = dict.fromkeys(("gpu", "model", *seen.axes, *_POINT))
    names = [name for name in wanted if name in rows and rows[name].notna().any()]
    return PageTable([(name, formats.label(name)) for name in names], [*_cells(rows, names)])


def _failures(data: Dataset) -> PageTable:
    heads = [(name, name) for name in ("status", "reason", "points", "first")]
    rows = [[(str(cell), cell) for cell in astuple(one)] for one in data.failures()]
    return PageTable(heads, rows)


def _flags(rows: pd.DataFrame) -> PageTable:
    """Return the flags that rows carry, what they mean, and how many points have them."""
    found = rows["flags"].dropna().str.split(";").explode() if "flags" in rows else rows.iloc[:0, 0]
    counts = found[found != ""].value_counts()
    cells = [
        [(str(flag), flag), (FLAGS.get(str(flag), ""), ""), (str(number), int(number))]
        for flag, number in counts.items()
    ]
    return PageTable([("flag", "flag"), ("meaning", "meaning"), ("points", "points")], cells)


def _environment(rows: pd.DataFrame) -> PageTable:
    """Return what is known of each GPU: a column per GPU, and a row per fact."""
    gpus = list(rows["gpu"].dropna().unique())
    facts = [name for name in _MACHINE if name in rows and rows[name].notna().any()]
    groups = [rows[rows["gpu"] == gpu] for gpu in gpus]
    cells = [
        [(formats.label(name), name), *((_values(group, name), "") for group in groups)]
        for name in facts
    ]
    return PageTable([("fact", ""), *((gpu, gpu) for gpu in gpus)], cells)


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
