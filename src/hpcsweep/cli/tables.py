"""From shards to tables and pictures: collect, report, plot, roofline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpcsweep.cli.common import json_option, runs
from hpcsweep.errors import HpcsweepError, Implausible, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@click.argument("sweeps", nargs=-1)
@json_option
@click.pass_obj
def collect(results: Path, sweeps: tuple[str, ...], *, as_json: bool) -> None:
    """Merge what was measured into tables.

    They are overall.csv, layers.csv and samples.csv in the sweep's results; of every sweep by
    default.
    """
    from hpcsweep.collect import workflow as collecting

    trouble: HpcsweepError | None = None
    for one in runs(results, sweeps):
        found = collecting.collect(one)
        print(json.dumps(found.to_json()) if as_json else "\n".join(_lines(found.text())))
        trouble = trouble or found.error()
    if trouble:
        raise trouble


def _lines(text: str | Sequence[str]) -> Sequence[str]:
    return [text] if isinstance(text, str) else text


@click.command()
@click.argument("sweep", required=False)
@json_option
@click.pass_obj
def report(results: Path, sweep: str | None, *, as_json: bool) -> None:
    """Compare the algorithms in one table."""
    from hpcsweep.analysis import report as reporting

    (one,) = runs(results, (sweep,) if sweep else (), single=True)
    table = reporting.read(one)
    print(json.dumps(table.to_json()) if as_json else table.text())


_POSITIVE = click.FloatRange(min=0, min_open=True)
_out = click.option("--out", type=click.Path(path_type=Path), help="Picture: .png, .svg or .pdf.")
_where = click.option("--where", default="", metavar="A=B,...", help="Of a sweep: only such rows.")
_summary = click.option("--summary", type=click.Path(path_type=Path), help="Write a CSV file.")


@click.command()
@click.argument("sources", nargs=-1, metavar="[SWEEP|EXPORT...]")
@click.option(
    "--gpu", metavar="NAME", help="Whose peaks: v100, l40, h200, ... (dense, per device)."
)
@click.option("--peak-compute", type=_POSITIVE, metavar="TFLOP/s", help="Instead of the table's.")
@click.option("--peak-bw", type=_POSITIVE, metavar="GB/s", help="Instead of the table's.")
@click.option("--label", help="Title.")
@_out
@_summary
@click.option("--by-name", is_flag=True, help="Picture and CSV: sums by kernel (layer) name.")
@click.option("--layers", is_flag=True, help="Of a sweep: its layer calls instead of its points.")
@_where
@click.option("--sample", is_flag=True, help="Use the export that comes along (computed).")
@click.option(
    "--metrics", type=click.Choice(["ncu", "rocprof"]), help="Print what that has to collect."
)
@json_option
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
    by_name: bool,
    layers: bool,
    sample: bool,
    as_json: bool,
) -> int:
    """Hold a sweep or a profiler's export against its GPU's roofs.

    \b
    hpcsweep roofline --sample --out roofline.png
    hpcsweep roofline kernels.csv --gpu l40 --out roofline.png --summary kernels_summary.csv
    hpcsweep roofline pass_1/1_counter_collection.csv pass_2/2_counter_collection.csv --gpu mi250
    hpcsweep roofline resnet152_gemm --layers
    """
    from hpcsweep.analysis import pictures
    from hpcsweep.analysis.roofline import model as roofs

    if metrics:
        print(roofs.wanted(metrics))
        if metrics == "ncu":
            print("add those of your chip's tensor cores: " + roofs.TENSOR_LIST, file=sys.stderr)
        return 0
    if out:
        pictures.check(out)
    found = roofs.read(
        [roofs.sample()] if sample else _sources(results, sources),
        gpu=gpu,
        peak_compute=peak_compute,
        peak_bw=peak_bw,
        label=label,
        layers=layers,
        where=where,
    )
    if summary:
        found.write_summary(summary, grouped=by_name)
    if out:
        from hpcsweep.analysis.roofline import chart

        chart.draw(found, out, grouped=by_name)
    print(json.dumps(found.to_json()) if as_json else found.text())
    _say_written((out, summary), as_json=as_json)
    return Implausible.exit_code if found.above else 0


@click.command()
@click.argument("sweep", required=False)
@click.option("--x", metavar="COLUMN", help="Default: the numeric axis that varies.")
@click.option("--y", metavar="COLUMN", default="median_ms", show_default=True)
@click.option(
    "--by", multiple=True, metavar="COLUMN", help="What tells lines apart; default: what varies."
)
@_where
@click.option("--baseline", default="", metavar="A=B,...", help="Compare with the rows that match.")
@click.option("--log-x", is_flag=True, help="Logarithmic x.")
@click.option("--log-y", is_flag=True, help="Logarithmic y.")
@_out
@_summary
@json_option
@click.pass_obj
def plot(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    sweep: str | None,
    x: str | None,
    y: str,
    by: tuple[str, ...],
    where: str,
    baseline: str,
    out: Path | None,
    summary: Path | None,
    *,
    log_x: bool,
    log_y: bool,
    as_json: bool,
) -> None:
    """Show one column over another, as table and picture.

    \b
    hpcsweep plot resnet152_gemm --x input_size --y median_ms --out times.png
    hpcsweep plot threads --x num_threads --y throughput_ips --baseline num_threads=1
    """
    from hpcsweep.analysis import plot as plots

    (one,) = runs(results, (sweep,) if sweep else (), single=True)
    columns = [name.strip() for text in by for name in text.split(",")]
    found = plots.read(one, x, y, by=columns, where=where, baseline=baseline)
    if out:
        from hpcsweep.analysis import plot_chart

        plot_chart.draw(found, out, log_x=log_x, log_y=log_y)
    if summary:
        found.write_summary(summary)
    print(json.dumps(found.to_json()) if as_json else found.text())
    _say_written((out, summary), as_json=as_json)


def _say_written(paths: Sequence[Path | None], *, as_json: bool) -> None:
    """Name the files; where stdout is JSON, on stderr."""
    for path in filter(None, paths):
        print(f"   {path}", file=sys.stderr if as_json else sys.stdout)


def _sources(results: Path, names: Sequence[str]) -> list[Path]:
    """Return files that exist as they are, and the folder of a sweep that is named."""
    if names and (Path(names[0]).is_file() or Path(names[0]).suffix in {".csv", ".ncu-rep"}):
        return [Path(name) for name in names]
    (one,) = runs(results, names[:1], single=True)
    if len(names) > 1:
        raise UsageError(f"one sweep at a time; '{names[1]}' is one too many")
    return [one.path]
