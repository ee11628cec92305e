"""From shards to tables: collect, bundle, import, report."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcsweep import extras, messages
from hpcsweep.cli import answer, common
from hpcsweep.cli.answer import Answer
from hpcsweep.cli.settings import PATH, flag, option
from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from hpcsweep.store.collect.summary import CollectReport


@click.command()
@click.argument("sweeps", nargs=-1)
@flag("--parquet", "Write the tables as Parquet, too.")
@click.pass_obj
def collect(results: Path, sweeps: tuple[str, ...], *, parquet: bool) -> Answer:
    """Merge the results into tables.

    Writes overall.csv, details.csv, layers.csv and samples.csv into the folder of the sweep.
    Without SWEEPS, does so for every sweep.
    """
    from hpcsweep.store import runs
    from hpcsweep.store.collect import collector

    if parquet:
        extras.need("parquet", "--parquet")
        from hpcsweep.analysis import merged
    reports: list[CollectReport] = []
    files: list[Path] = []
    for sweep_dir in runs.of_sweeps(results, sweeps):
        reports.append(collector.collect(sweep_dir))
        files += merged.write_parquet(sweep_dir) if parquet else ()
    errors = filter(None, (report.error() for report in reports))
    return Answer(
        record=lambda: {"sweeps": [report.to_json() for report in reports]},
        text=lambda: [report.text() for report in reports],
        files=files,
        error=next(errors, None),
    )


@click.command()
@click.argument("sweep", required=False)
@option("--out FILE", "Write this file. Default: SWEEP.zip.", type=PATH)
@click.pass_obj
def bundle(results: Path, sweep: str | None, out: Path | None) -> Answer:
    """Write a sweep into one file that others open and import.

    Holds the tables, the page, the sweep file, profiles, your own network files as they were
    measured, the shards, checksums, and a README.md that says how all was measured.

    \b
    hpcsweep bundle quickstart
    hpcsweep import quickstart.zip --as theirs
    """
    from hpcsweep.analysis import bundle

    sweep_dir = common.tables_of(results, sweep)
    out = out or Path(f"{sweep_dir.name}.zip")
    own = bundle.write(sweep_dir, out)
    for each in own:
        if not each.files:
            messages.warning(f"without own files of {each}")
    record = {
        "sweep": sweep_dir.name,
        "bytes": out.stat().st_size,
        "own_files": [{**asdict(each), "files": [*each.files]} for each in own],
    }
    text = f"{sweep_dir.name}: {record['bytes']:,} bytes; `hpcsweep import` reads it back"
    packed = [f"   holds your own files of {each}" for each in own if each.files]
    return Answer(record=lambda: record, text=lambda: [text, *packed], files=[out])


@click.command("import")
@click.argument("path", type=PATH)
@option("--as NAME", "Name of the sweep here.", default="")
@option("--device GPU", "Device of tables that name none, such as v100.", default="")
@option(
    "--columns MAP",
    "What the columns of another program's table are: a YAML file, or `neusight`, `deepbench`.",
    default="",
)
@click.pass_obj
def import_(results: Path, /, path: Path, device: str, columns: str, **others: Any) -> Answer:
    """Bring results of another machine here, and collect them.

    PATH is a results folder or a bundle (*.zip) of hpcsweep, of any version; a table or folder of
    tables of the predecessor (*_overall.csv, *_layers.csv); a find-db of MIOpen, AMD's or your own
    (*.fdb.txt, *.fdb.txt.bz2, *.ufdb.txt); a trace of PyTorch's profiler (*.json, *.json.gz, *.gz);
    or, with --columns, any table of convolutions (CSV or TSV). Every other command then
    works on them.

    \b
    hpcsweep import /mnt/other_site/results/resnet152_gemm
    hpcsweep import old_tables/ --as published --device v100
    hpcsweep import gfx90a68.HIP.fdb.txt.bz2 --as mi210
    hpcsweep import worker0.pt.trace.json.gz --as resnet50_trace
    hpcsweep import Tesla_T4.csv.gz --columns neusight --as neusight_t4
    """
    from hpcsweep.importing import importer
    from hpcsweep.store.collect import collector

    brought = importer.bring(results, path, others["as"], device, columns)
    report = collector.collect(brought.sweep_dir)
    lines = [f"{brought.sweep_dir.name}: imported from {brought.source}"]
    lines += [f"   {note}" for note in brought.notes]
    return Answer(
        record=lambda: {"source": brought.source, "imported": brought.notes, **report.to_json()},
        text=lambda: [*lines, report.text()],
        error=report.error(),
    )


@click.command()
@click.argument("sweep", required=False)
@option(
    "--html FILE",
    "Write a page with figures and tables; it needs no network. A folder gets SWEEP.html; - is the "
    "standard output.",
    type=PATH,
)
@option(
    "--metric COLUMN",
    "Compare this column. Default: median_ms; of a training sweep the times of a step.",
    default="",
)
@common.where_option
@common.format_options
@click.pass_obj
def report(
    results: Path,
    /,
    sweep: str | None,
    html: Path | None,
    format: str,
    **options: Any,  # of `read_report`, by the same names
) -> Answer:
    """Compare the algorithms in one table.

    For a training sweep, show throughput and where the time of a step goes.

    \b
    hpcsweep report quickstart --html quickstart.html
    hpcsweep report quickstart --metric throughput_ips --where input_size=224 --format md
    """
    from hpcsweep.analysis.report import read_report

    sweep_dir = common.tables_of(results, sweep)
    if html:
        from hpcsweep.analysis.page import write

        to_stdout = str(html) == "-"
        if to_stdout and (format != "table" or answer.mode.json):
            raise UsageError("--html - takes the standard output for itself: leave out --format")
        if to_stdout:
            html = Path("/dev/stdout")
        elif html.is_dir():
            html /= f"{sweep_dir.name}.html"
        for line in write.write_page(sweep_dir, html, options["where"]):
            messages.note(f"{line}")
        if format == "table" and not answer.mode.json:
            return Answer(record=dict, text=lambda: [] if to_stdout else f"open {html}")
    return common.tables(read_report(sweep_dir, **options).views, format, (html,))
