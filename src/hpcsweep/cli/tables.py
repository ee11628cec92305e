"""From shards to tables and pictures: collect, report, plot, roofline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcsweep import extras
from hpcsweep.cli import answer
from hpcsweep.cli.answer import Answer, note
from hpcsweep.cli.common import break_lock_option, runs
from hpcsweep.errors import Implausible, UsageError

if TYPE_CHECKING:
    from hpcsweep.collect.summary import Report


@click.command()
@click.argument("sweeps", nargs=-1)
@break_lock_option
@click.option(
    "--raw",
    is_flag=True,
    help="Write text cells as they are, also if a spreadsheet would take them for formulas.",
)
@click.option("--parquet", "as_parquet", is_flag=True, help="Write the tables as Parquet, too.")
@click.pass_obj
def collect(
    results: Path, sweeps: tuple[str, ...], *, break_lock: bool, raw: bool, as_parquet: bool
) -> Answer:
    """Merge the results into three tables.

    Writes overall.csv, layers.csv and samples.csv into the folder of the sweep. Without SWEEPS,
    does so for every sweep.
    """
    from hpcsweep.collect import parquet, workflow
    from hpcsweep.store import locks

    if as_parquet:
        parquet.check()
    found: list[Report] = []
    files: list[Path] = []
    for one in runs(results, sweeps):
        if break_lock:
            note(locks.break_open(one))
        found.append(workflow.collect(one, raw=raw))
        files += parquet.write(one) if as_parquet else ()
    return Answer(
        record=lambda: {"sweeps": [each.to_json() for each in found]},
        text=lambda: [each.text() for each in found],
        files=files,
        error=next(filter(None, (each.error() for each in found)), None),
    )


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--as", "name", default="", metavar="NAME", help="Name of the sweep here.")
@click.option(
    "--device", default="", metavar="GPU", help="Device of tables that name none, such as v100."
)
@click.pass_obj
def import_(results: Path, path: Path, name: str, device: str) -> Answer:
    """Bring results of another machine here, and collect them.

    PATH is a results folder of hpcsweep, of any version, or a table or folder of tables of the
    predecessor (*_overall.csv, *_layers.csv). Every other command then works on them.

    \b
    hpcsweep import /mnt/other_site/results/resnet152_gemm
    hpcsweep import old_tables/ --as published --device v100
    """
    from hpcsweep.collect import workflow as collecting
    from hpcsweep.importing import workflow

    found = workflow.bring(results, path, name, device)
    report = collecting.collect(found.run)
    head = f"{found.run.name}: imported from {found.source}"
    return Answer(
        record=lambda: {"source": found.source, "imported": found.notes, **report.to_json()},
        text=lambda: [head, *(f"   {line}" for line in found.notes), report.text()],
        error=report.error(),
    )


@click.command()
@click.argument("sweep", required=False)
@click.option(
    "--html",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page with figures and tables; it needs no network.",
)
@click.pass_obj
def report(results: Path, sweep: str | None, html: Path | None) -> Answer:
    """Compare the algorithms in one table.

    For a training sweep, show throughput and where the time of a step goes.

    \b
    hpcsweep report quickstart --html quickstart.html
    """
    from hpcsweep.analysis.report import read

    (one,) = runs(results, (sweep,) if sweep else (), single=True)
    if html:
        from hpcsweep.analysis.page import write

        for line in write.write(one, html):
            note(f"note: {line}")
        if not answer.mode.json:
            return Answer(record=dict, text=lambda: f"open {html}")
    found = read(one)
    return Answer(record=found.to_json, text=found.text, files=(html,))


_POSITIVE = click.FloatRange(min=0, min_open=True)
_PATH = click.Path(path_type=Path)
_out = click.option("--out", type=_PATH, help="Write a picture: .png, .svg or .pdf.")
_summary = click.option("--summary", type=_PATH, help="Write the values as CSV.")
_where = click.option(
    "--where", default="", metavar="A=B,...", help="Take only rows of a sweep with these values."
)


@click.command()
@click.argument("sweep", required=False)
@click.option(
    "--x", metavar="COLUMN", help="Column of the x axis. Default: the numeric axis that varies."
)
@click.option(
    "--y",
    metavar="COLUMN",
    default="median_ms",
    show_default=True,
    help="Column of the y axis; several, joined by commas, are stacked.",
)
@click.option(
    "--by",
    multiple=True,
    metavar="COLUMN",
    help="Draw a line per value of this column; repeatable. Default: every axis that varies.",
)
@_where
@click.option(
    "--baseline",
    default="",
    metavar="A=B,...",
    help="Show the speed-up over rows with these values.",
)
@click.option("--log-x", is_flag=True, help="Make the x axis logarithmic.")
@click.option("--log-y", is_flag=True, help="Make the y axis logarithmic.")
@click.option(
    "--width", type=_POSITIVE, default=8.5, metavar="INCHES", help="Width of the picture."
)
@click.option("--height", type=_POSITIVE, metavar="INCHES", help="Height of the picture.")
@click.option("--font", type=_POSITIVE, default=10, metavar="POINTS", help="Size of its text.")
@_out
@_summary
@click.pass_obj
def plot(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    sweep: str | None,
    x: str | None,
    y: str,
    by: tuple[str, ...],
    where: str,
    baseline: str,
    width: float,
    height: float | None,
    font: float,
    out: Path | None,
    summary: Path | None,
    *,
    log_x: bool,
    log_y: bool,
) -> Answer:
    """Plot one column over another, as table and picture.

    \b
    hpcsweep plot resnet152_gemm --x input_size --y median_ms --out times.png
    hpcsweep plot threads --x num_threads --y throughput_ips --baseline num_threads=1
    hpcsweep plot quickstart --width 3.4 --height 2.6 --font 8 --out column.pdf
    """
    from hpcsweep.analysis import output
    from hpcsweep.analysis.plot import read

    if out:
        extras.need("plot", "--out")
        output.check_picture(out)
    (one,) = runs(results, (sweep,) if sweep else (), single=True)
    columns = [name.strip() for text in by for name in text.split(",")]
    found = read(one, x, y, by=columns, where=where, baseline=baseline)
    if out:
        from hpcsweep.analysis import plot_chart

        look = plot_chart.Look(width, height, font)
        plot_chart.draw(found, out, log_x=log_x, log_y=log_y, look=look)
    if summary:
        output.write_csv(summary, found.records())
    return Answer(record=found.to_json, text=found.text, files=(out, summary))


@click.command()
@click.argument("sources", nargs=-1, metavar="[SWEEP|EXPORT...]")
@click.option(
    "--gpu", metavar="NAME", help="Take the peaks of this GPU: v100, l40, h200, ... (dense)."
)
@click.option(
    "--peak-compute", type=_POSITIVE, metavar="TFLOP/s", help="Take this peak instead of the GPU's."
)
@click.option(
    "--peak-bw", type=_POSITIVE, metavar="GB/s", help="Take this bandwidth instead of the GPU's."
)
@click.option(
    "--measure-cpu",
    is_flag=True,
    help="Measure the peaks of this machine's processor, in float32; takes seconds.",
)
@click.option("--label", help="Set the title of text and picture.")
@_out
@_summary
@click.option("--by-name", is_flag=True, help="Sum launches by kernel, layer calls by layer.")
@click.option("--layers", is_flag=True, help="Show the layer calls of a sweep, not its points.")
@_where
@click.option("--sample", is_flag=True, help="Use the example export (computed, not measured).")
@click.option(
    "--metrics",
    type=click.Choice(["ncu", "rocprof"]),
    help="Print the metrics that this profiler has to collect.",
)
@click.pass_obj
def roofline(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    sources: tuple[str, ...],
    gpu: str | None,
    peak_compute: float | None,
    peak_bw: float | None,
    label: str | None,
    out: Path | None,
    summary: Path | None,
    where: str,
    metrics: str | None,
    *,
    measure_cpu: bool,
    by_name: bool,
    layers: bool,
    sample: bool,
) -> Answer:
    """Draw a roofline from a sweep or a profiler export.

    \b
    hpcsweep roofline --sample --out roofline.png
    hpcsweep roofline kernels.csv --gpu l40 --out roofline.png --summary kernels_summary.csv
    hpcsweep roofline pass_1/1_counter_collection.csv pass_2/2_counter_collection.csv --gpu mi250
    hpcsweep roofline resnet152_gemm --layers
    """
    from hpcsweep.analysis import output
    from hpcsweep.analysis.roofline import model

    if metrics:
        if metrics == "ncu":
            note(f"add the tensor-core metrics of your GPU: {model.TENSOR_LIST}")
        wanted = model.wanted(metrics)
        return Answer(record=lambda: {"metrics": wanted}, text=lambda: wanted)
    if out:
        extras.need("plot", "--out")
        output.check_picture(out)
    source = "the command line"
    if measure_cpu:
        if gpu or peak_compute or peak_bw:
            raise UsageError("--measure-cpu gives both peaks; leave out --gpu and --peak-...")
        extras.need("measure", "--measure-cpu")
        from hpcsweep.measure.machine import peaks

        (peak_compute, peak_bw), source = peaks.measured(), "this machine's processor, measured"
    found = model.read(
        [model.sample()] if sample else _sources(results, sources),
        gpu=gpu,
        peak_compute=peak_compute,
        peak_bw=peak_bw,
        label=label,
        layers=layers,
        where=where,
        source=source,
    )
    if summary:
        output.write_csv(summary, found.records(grouped=by_name))
    if out:
        from hpcsweep.analysis.roofline import chart

        chart.draw(found, out, grouped=by_name)
    return Answer(
        record=found.to_json,
        text=found.text,
        files=(out, summary),
        code=Implausible.exit_code if found.above else 0,
    )


def _sources(results: Path, names: Sequence[str]) -> list[Path]:
    """Return the files that are named, or the folder of the sweep that is named."""
    if names and (Path(names[0]).is_file() or Path(names[0]).suffix in {".csv", ".ncu-rep"}):
        return [Path(name) for name in names]
    (one,) = runs(results, names[:1], single=True)
    if len(names) > 1:
        raise UsageError(f"one sweep at a time; '{names[1]}' is one too many")
    return [one.path]
