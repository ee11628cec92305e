"""Tables as pictures: plot, roofline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcsweep import extras, messages
from hpcsweep.cli import common
from hpcsweep.cli.answer import Answer
from hpcsweep.cli.settings import PATH, flag, option, several
from hpcsweep.errors import Implausible, UsageError

if TYPE_CHECKING:
    from hpcsweep.analysis.drawing import Look
    from hpcsweep.store.folders import SweepDir

_WIDTH = "Width of the picture; below 6 it has no title."
_POSITIVE = click.FloatRange(min=0, min_open=True)
_out = several(
    "--out FILE",
    "Write a picture (.png, .svg or .pdf), or the values (.csv); repeatable.",
    type=PATH,
)
_LOOK = (
    option("--width INCHES", _WIDTH, type=_POSITIVE, default=8.5),
    option("--height INCHES", "Height of the picture.", type=_POSITIVE),
    option("--font POINTS", "Size of its text.", type=_POSITIVE, default=10),
    option("--dpi N", "Dots of an inch.", type=click.IntRange(min=30, max=1200), default=110),
)


def _look_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the size of a picture and of its text, and what stands around it, as one `look`."""

    @wraps(command)
    def drawing(*args: Any, **options: Any) -> Any:
        from hpcsweep.analysis import drawing

        look = {field.name: options.pop(field.name) for field in fields(drawing.Look)}
        return command(*args, look=drawing.Look(**look), **options)

    for add in reversed(_LOOK):
        add(drawing)
    return drawing


@click.command()
@click.argument("sweep", required=False)
@option("--x COLUMN", "Column of the x axis. Default: the numeric axis that varies.")
@option("--y COLUMN", "Column of the y axis.", default="median_ms", show_default=True)
@several(
    "--by COLUMN",
    "Draw a line per value of this column; repeatable. Default: every axis that varies.",
)
@common.where_option
@option("--baseline A=B,...", "Show the speed-up over rows with these values.", default="")
@flag("--log-x", "Make the x axis logarithmic.")
@flag("--log-y", "Make the y axis logarithmic.")
@_look_options
@_out
@common.format_options
@click.pass_obj
def plot(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    /,
    sweep: str | None,
    x: str | None,
    y: str,
    by: tuple[str, ...],
    where: str,
    baseline: str,
    out: tuple[Path, ...],
    look: Look,
    format: str,
    *,
    log_x: bool,
    log_y: bool,
) -> Answer:
    """Plot one column over another.

    \b
    hpcsweep plot resnet152_gemm --x input_size --y median_ms --out times.png
    hpcsweep plot threads --x num_threads --y throughput_ips --baseline num_threads=1
    hpcsweep plot quickstart --width 3.4 --height 2.6 --font 8 --out column.pdf
    """
    drawn, written = _split(out, "plot")
    from hpcsweep.analysis import dataset, formats
    from hpcsweep.analysis.plot import read_plot

    sweep_dir = common.tables_of(results, sweep)
    columns = common.listed(",".join(by))
    lines = read_plot(sweep_dir, x, y, by=columns, where=where, baseline=baseline)
    views = lines.views
    for path in drawn:
        from hpcsweep.analysis import charts

        charts.draw_plot(lines, path, log_x=log_x, log_y=log_y, look=look)
    machine = dataset.hardware(lines.rows)
    if drawn and not look.titled and machine:
        messages.note(f"for the picture's caption: {machine}")
    for path in written:
        formats.write_csv(path, views[0].rows())
    return common.tables(views, format, out)


def _split(out: Sequence[Path], command: str) -> tuple[list[Path], list[Path]]:
    """Return pictures and tables; refuse pictures that cannot be drawn before anything is read."""
    written = [path for path in out if path.suffix.lower() == ".csv"]
    drawn = [path for path in out if path not in written]
    if drawn:
        extras.need("plot", f"{command} --out")
        from hpcsweep.analysis import drawing

        for path in drawn:
            drawing.check_picture(path)
    return drawn, written


@click.command()
@click.argument("sources", nargs=-1, metavar="[SWEEP|EXPORT...]")
@option("--gpu NAME", "Take the peaks of this GPU: v100, l40, h200, ... (dense).")
@option("--peak-compute TFLOP/s", "Take this peak instead of the GPU's.", type=_POSITIVE)
@option("--peak-bw GB/s", "Take this bandwidth instead of the GPU's.", type=_POSITIVE)
@option("--label", "Set the title of text and picture.")
@_look_options
@_out
@flag("--by-name", "Sum launches by kernel, layer calls by layer.")
@common.layers_option
@common.where_option
@flag("--example", "Use the export that comes with hpcsweep (computed, not measured).")
@option(
    "--counters",
    "Print the counters that this profiler has to collect.",
    type=click.Choice(["ncu", "rocprof"]),
)
@click.pass_obj
def roofline(  # noqa: PLR0913 - one argument per option
    results: Path,
    /,
    sources: tuple[str, ...],
    out: tuple[Path, ...],
    look: Look,
    counters: str | None,
    *,
    by_name: bool,
    example: bool,
    **others: Any,  # of `model.read`
) -> Answer:
    """Draw a roofline from a sweep or a profiler export.

    \b
    hpcsweep roofline --example --out roofline.png
    hpcsweep roofline kernels.csv --gpu l40 --out roofline.png --out kernels_summary.csv
    hpcsweep roofline pass_1/1_counter_collection.csv pass_2/2_counter_collection.csv --gpu mi250
    hpcsweep roofline resnet152_gemm --layers
    """
    drawn, written = _split(out, "roofline")
    from hpcsweep.analysis import formats
    from hpcsweep.analysis.roofline import rooflines

    if counters:
        return _counters(counters)
    source = [rooflines.sample()] if example else _source(results, sources)
    roofline = rooflines.read_roofline(source, **others)
    for path in written:
        formats.write_csv(path, roofline.records(grouped=by_name))
    for path in drawn:
        from hpcsweep.analysis import charts

        charts.draw_roofline(roofline, path, grouped=by_name, look=look)
    code = 0 if roofline.above.empty else Implausible.exit_code
    return Answer(record=roofline.to_json, text=roofline.text, files=out, code=code)


def _counters(profiler: str) -> Answer:
    from hpcsweep.analysis.roofline import ncu, rocprof

    wanted = ",".join(ncu.metrics()) if profiler == "ncu" else rocprof.passes()
    if profiler == "ncu":
        messages.note(f"add the tensor-core metrics of your GPU: {ncu.TENSOR_LIST}")
    return Answer(record=lambda: {"counters": wanted}, text=lambda: wanted)


def _source(results: Path, names: Sequence[str]) -> SweepDir | list[Path]:
    """Return the files that are named, or the results of the sweep that is named."""
    paths = [*map(Path, names)]
    if paths and (paths[0].is_file() or paths[0].suffix in {".csv", ".ncu-rep"}):
        return paths
    if len(names) > 1:
        raise UsageError(f"one sweep at a time; '{names[1]}' is one too many")
    return common.tables_of(results, names[0] if names else None)
