"""Arguments to calls, results to text, errors to exit codes; no logic.

Every command loads what it needs when it runs, so that `--help` stays instant.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from hpcsweep import __version__
from hpcsweep.errors import EXIT_INTERRUPTED, HpcsweepError, Implausible, UsageError, suggest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpcsweep.launch.prepare import Request
    from hpcsweep.rundir import RunDir


class Commands(click.Group):
    """A group that names the nearest command when it does not know one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; an unknown one is told with the nearest spelling."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            known = self.list_commands(ctx)
            raise UsageError(
                f"no command '{args[0]}'{suggest(args[0], known)} (there are: {', '.join(known)})"
            )
        return super().resolve_command(ctx, args)


def run() -> NoReturn:
    """Run the program; the console script."""
    debug = "--debug" in sys.argv
    try:
        sys.exit(main(standalone_mode=False) or 0)
    except HpcsweepError as error:
        _fail(str(error), error.exit_code, debug=debug)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("interrupted", EXIT_INTERRUPTED, debug=debug)
    except click.ClickException as error:
        if isinstance(error, getattr(click.exceptions, "NoArgsIsHelpError", ())):  # click 8.2
            print(error.format_message())
            sys.exit(0)
        _fail(f"{error.format_message()} (see --help)", error.exit_code, debug=debug)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - people get a line, --debug the traceback
        text = f"unexpected {type(error).__name__}: {error} (--debug shows where; please report it)"
        _fail(text, 1, debug=debug)


def _fail(text: str, code: int, *, debug: bool) -> NoReturn:
    """Say what was wrong in a line or two and leave."""
    if debug:
        raise  # noqa: PLE0704 - called from except clauses only
    print(f"hpcsweep: {text}", file=sys.stderr)
    sys.exit(code)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="hpcsweep")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.option(
    "--results",
    type=click.Path(file_okay=False, path_type=Path),
    default="results",
    envvar="HPCSWEEP_RESULTS",
    show_default=True,
    help="Where sweeps write.",
)
@click.pass_context
def main(ctx: click.Context, results: Path, debug: bool) -> None:  # noqa: ARG001, FBT001 - see run
    """Sweeps of convolutional-network timings, from one YAML file to one checked table.

    \b
    Try:  hpcsweep submit quickstart --cluster local
          hpcsweep collect quickstart
          hpcsweep report quickstart
    """
    ctx.obj = results


def _json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--json", "as_json", is_flag=True, help="Pure JSON on stdout.")(command)


_POSITIVE = click.FloatRange(min=0, min_open=True)
_cluster = click.option(
    "--cluster", "clusters", multiple=True, metavar="NAME|PATH", help="Cluster profile; repeatable."
)
_sample = click.option(
    "--sample",
    type=click.IntRange(min=1),
    metavar="N",
    help="N evenly spread values of input_size and batch_size for every other combination.",
)
_workers = click.option(
    "--workers", type=click.IntRange(min=1), help="Local: points measured side by side."
)
_check = click.option(
    "--no-check",
    "check",
    is_flag=True,
    default=True,
    flag_value=False,
    help="Do not compare the profile with its cluster first.",
)


@main.command()
@click.argument("spec")
@click.option("--all", "show_all", is_flag=True, help="Every point, not the first ten.")
@_cluster
@_sample
@_json_option
def expand(
    spec: str, clusters: tuple[str, ...], sample: int | None, *, show_all: bool, as_json: bool
) -> None:
    """Show the points that a sweep file means, without running anything."""
    from hpcsweep import plan
    from hpcsweep import spec as specs

    sweep = specs.load(spec)
    limit = None if show_all else 10
    if clusters:
        requests = [_request(sweep, name, sample=sample) for name in clusters]
        found = [request.expansion() for request in requests]
    else:
        found = [plan.expand(sweep, sample=sample)]
    for expansion in found:
        record = expansion.to_json(limit)
        print(json.dumps(record) if as_json else _expansion_text(sweep.name, record))


def _expansion_text(name: str, record: dict[str, Any]) -> str:
    points = record["points"]
    lines = [f"{name}: {record['points_total']} points"]
    lines += [f"  {r['rule']} at line {r['line']}: {r['points']} points" for r in record["rules"]]
    if points:
        varying = [k for k in points[0] if len({str(p[k]) for p in points}) > 1 or k == "model"]
        lines += ["", *_columns([varying, *([str(p[k]) for k in varying] for p in points)])]
    if len(points) < record["points_total"]:
        lines.append(f"... and {record['points_total'] - len(points)} more (--all shows them)")
    return "\n".join(lines)


@main.command()
@click.argument("spec")
@_cluster
@_workers
@_sample
@click.option("--dry-run", is_flag=True, help="Show the plan, rehearse one point, submit nothing.")
@click.option("--max-gpu-hours", type=float, help="Refuse what is expected to cost more.")
@click.option("--allow-node", "nodes", multiple=True, help="Use a node again that broke.")
@click.option(
    "--skip-dominated",
    is_flag=True,
    help="Do not try what is larger than a point that ran out of memory.",
)
@_check
@click.pass_obj
def submit(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    spec: str,
    clusters: tuple[str, ...],
    workers: int | None,
    sample: int | None,
    max_gpu_hours: float | None,
    nodes: tuple[str, ...],
    *,
    dry_run: bool,
    skip_dominated: bool,
    check: bool,
) -> int:
    """Measure what is still missing of a sweep; the same command again continues.

    \b
    hpcsweep submit sweeps/quickstart.yaml --cluster local
    hpcsweep submit resnet152_gemm --cluster local --sample 1
    """
    from hpcsweep import spec as specs
    from hpcsweep.launch import dry_run as dry
    from hpcsweep.launch import submitting

    sweep = specs.load(spec)
    if nodes:
        submitting.allow_nodes(results, sweep, nodes)
    code = 0
    options = {"sample": sample, "workers": workers, "max_gpu_hours": max_gpu_hours}
    options |= {"skip_dominated": skip_dominated, "check": check}
    action = dry.run if dry_run else submitting.submit
    requests = [_request(sweep, name, **options) for name in clusters or ("local",)]
    if len(requests) > 1 and not dry_run:
        requests = submitting.check_all(results, requests, _say)
    for request in requests:
        code = max(code, action(results, request, _say))
    return code


def _request(sweep: Any, cluster: str, **options: Any) -> Request:  # noqa: ANN401 - passed on
    from hpcsweep import profile
    from hpcsweep.launch import submitting

    chosen = profile.load(cluster)
    return submitting.request(sweep, chosen, argv=tuple(sys.argv[1:]), **options)


@main.command()
@click.argument("spec")
@_cluster
@_sample
@_json_option
@click.pass_obj
def estimate(
    results: Path, spec: str, clusters: tuple[str, ...], sample: int | None, *, as_json: bool
) -> None:
    """Say how many points, chunks and GPU-hours a sweep is, before anything is submitted."""
    from hpcsweep import spec as specs
    from hpcsweep.launch import submitting

    sweep = specs.load(spec)
    for name in clusters or ("local",):
        cost = submitting.cost(results, _request(sweep, name, sample=sample))
        print(json.dumps(cost.to_json()) if as_json else cost.text())


@main.command()
@click.argument("sweeps", nargs=-1)
@click.option("--watch", is_flag=True, help="Refresh until nothing runs any more.")
@_json_option
@click.pass_obj
def status(results: Path, sweeps: tuple[str, ...], *, watch: bool, as_json: bool) -> None:
    """Show what is measured, running, pending and failed; every sweep by default."""
    from hpcsweep import status as states

    names = [_sweep_name(name) for name in sweeps]

    if watch:
        states.watch(results, names)
        return
    found = states.read(results, names)
    print(json.dumps(states.to_json(found)) if as_json else states.text(found))


@main.command()
@click.argument("sweeps", nargs=-1)
@_json_option
@click.pass_obj
def collect(results: Path, sweeps: tuple[str, ...], *, as_json: bool) -> None:
    """Merge all shards of a sweep into overall.csv, layers.csv and samples.csv."""
    from hpcsweep import collect as collecting

    trouble: HpcsweepError | None = None
    for one in _runs(results, sweeps):
        found = collecting.collect(one)
        print(json.dumps(found.to_json()) if as_json else "\n".join(_lines(found.text())))
        trouble = trouble or found.error()
    if trouble:
        raise trouble


@main.command()
@click.argument("sweep", required=False)
@_json_option
@click.pass_obj
def report(results: Path, sweep: str | None, *, as_json: bool) -> None:
    """Compare the algorithms of a collected sweep in one table."""
    from hpcsweep.analysis import report as reporting

    (one,) = _runs(results, (sweep,) if sweep else (), single=True)
    table = reporting.read(one)
    print(json.dumps(table.to_json()) if as_json else table.text())


_out = click.option("--out", type=click.Path(path_type=Path), help="Picture: .png, .svg or .pdf.")
_where = click.option("--where", default="", metavar="A=B,...", help="Of a sweep: only such rows.")
_summary = click.option("--summary", type=click.Path(path_type=Path), help="Write a CSV file.")


@main.command()
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
@_json_option
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
    """Hold a profiler's export, or a collected sweep, against the roofs of its GPU.

    \b
    hpcsweep roofline --sample --out roofline.png
    hpcsweep roofline kernels.csv --gpu l40 --out roofline.png --summary kernels_summary.csv
    hpcsweep roofline pass_1/1_counter_collection.csv pass_2/2_counter_collection.csv --gpu mi250
    hpcsweep roofline resnet152_gemm --layers
    """
    from hpcsweep.analysis import pictures
    from hpcsweep.analysis import roofline as roofs

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
        from hpcsweep.analysis import roofline_chart

        roofline_chart.draw(found, out, grouped=by_name)
    print(json.dumps(found.to_json()) if as_json else found.text())
    _say_written((out, summary), as_json=as_json)
    return Implausible.exit_code if found.above else 0


@main.command()
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
@_json_option
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
    """Show one column of a collected sweep over another, as table and picture.

    \b
    hpcsweep plot resnet152_gemm --x input_size --y median_ms --out times.png
    hpcsweep plot threads --x num_threads --y throughput_ips --baseline num_threads=1
    """
    from hpcsweep.analysis import plot as plots

    (one,) = _runs(results, (sweep,) if sweep else (), single=True)
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
    (one,) = _runs(results, names[:1], single=True)
    if len(names) > 1:
        raise UsageError(f"one sweep at a time; '{names[1]}' is one too many")
    return [one.path]


@main.command()
@click.argument("sweep", required=False)
@click.option(
    "--status",
    "statuses",
    default="error,crashed,timeout",
    show_default=True,
    help="Statuses that are measured again, comma-separated.",
)
@click.option("--point", "point_ids", multiple=True, help="Only this point (id or its beginning).")
@_cluster
@_workers
@_check
@click.pass_obj
def retry(  # noqa: PLR0913, PLR0917 - one argument per option
    results: Path,
    sweep: str | None,
    statuses: str,
    point_ids: tuple[str, ...],
    clusters: tuple[str, ...],
    workers: int | None,
    *,
    check: bool,
) -> int:
    """Measure failed points of a sweep again."""
    from hpcsweep.launch import submitting

    (one,) = _runs(results, (sweep,) if sweep else (), single=True)
    wanted = [name.strip() for name in statuses.split(",") if name.strip()]
    code = 0
    for request in submitting.retries(one, wanted, point_ids, clusters, workers):
        code = max(code, submitting.submit(results, replace(request, check=check), _say))
    return code


@main.command()
@click.argument("sweep")
@click.argument("what", required=False)
@click.option("-f", "--follow", is_flag=True, help="Wait for more.")
@click.pass_obj
def logs(results: Path, sweep: str, what: str | None, *, follow: bool) -> None:
    """Show the log of a submission, a chunk (SUBMISSION:CHUNK) or a point."""
    from hpcsweep import control, rundir

    for line in control.logs(rundir.open_run(results, sweep), what, follow=follow):
        print(line)


@main.command()
@click.argument("sweep", required=False)
@click.argument("what", nargs=-1)
@click.pass_obj
def cancel(results: Path, sweep: str | None, what: tuple[str, ...]) -> None:
    """End what is live: a sweep, a submission, a chunk (SUBMISSION:CHUNK) or a point's chunk."""
    from hpcsweep import control

    (one,) = _runs(results, (sweep,) if sweep else (), single=True)
    for line in control.cancel(one, list(what)):
        print(line)


@main.command()
@click.argument("spec")
@_cluster
@_sample
@click.option("--layers", is_flag=True, help="One line per convolution.")
def verify(spec: str, clusters: tuple[str, ...], sample: int | None, *, layers: bool) -> int:
    """Prove which algorithms run on this machine: layers, evidence, numerics."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler chats on stderr
    from hpcsweep import spec as specs
    from hpcsweep import verify as verifying
    from hpcsweep.errors import PointsFailed
    from hpcsweep.measure.bench import torch_bench

    request = _request(specs.load(spec), (clusters or ("local",))[0], sample=sample)
    bench = torch_bench(request.sweep.workload, {"gpu": request.device})
    findings = list(verifying.verify(request.points(), bench))
    print(verifying.text(findings, layers=layers))
    return 0 if all(finding.proven for finding in findings) else PointsFailed.exit_code


@main.command()
@_cluster
@click.option("--deep", is_flag=True, help="Also load torch in a process of its own.")
@_json_option
@click.pass_obj
def doctor(results: Path, clusters: tuple[str, ...], *, deep: bool, as_json: bool) -> int:
    """Check this machine, and a profile against its cluster; say what to write instead."""
    from hpcsweep import doctor as doctors
    from hpcsweep import findings, profile
    from hpcsweep.errors import Refused

    worst = 0
    for name in clusters or (None,):
        chosen = profile.load(name) if name else None
        found = doctors.examine(chosen, results, deep=deep)
        print(json.dumps(findings.to_json(found)) if as_json else findings.text(found))
        if any(finding.level == "fail" for finding in found):
            worst = Refused.exit_code
    return worst


@main.group(cls=Commands)
def data() -> None:
    """Get data sets for training sweeps."""


@data.command()
@click.argument("name")
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    help="What HPCSWEEP_DATA names in cluster profiles.",
)
def get(name: str, folder: Path) -> None:
    """Download cifar10 or cifar100, on a login node; jobs never download."""
    from hpcsweep.measure import datasets

    print(f"{name} lies in {datasets.download(name, folder)}")


@main.group(cls=Commands)
def cluster() -> None:
    """Look at the cluster that Slurm shows here."""


@cluster.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="cluster_profiles",
    show_default=True,
    help="Where the profiles go.",
)
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option("--stdout", is_flag=True, help="Show the files, write nothing.")
@_json_option
def discover(out: Path, *, force: bool, stdout: bool, as_json: bool) -> None:
    """Write a profile for every GPU type of this cluster.

    \b
    hpcsweep cluster discover --stdout
    """
    from hpcsweep import discover as discovering

    found = discovering.ask()
    if as_json:
        print(json.dumps([one.to_json() for one in found]))
    elif stdout:
        print("\n".join(f"# {out / one.name}.yaml\n{one.text()}" for one in found))
    else:
        for line in discovering.write(found, out, force=force):
            print(line)
        print(f"next: hpcsweep doctor --cluster {found[0].name}")


def _runs(results: Path, names: Sequence[str], *, single: bool = False) -> list[RunDir]:
    """Return the sweeps that were named; without names, all of them, or the only one."""
    from hpcsweep import rundir

    if names:
        return [rundir.open_run(results, _sweep_name(name)) for name in names]
    found = rundir.all_runs(results)
    if not found:
        raise UsageError(f"{results}: no results yet; `hpcsweep submit SPEC` makes some")
    if single and len(found) > 1:
        raise UsageError(f"which sweep? {results} has: {', '.join(one.name for one in found)}")
    return found


def _sweep_name(text: str) -> str:
    """Accept a sweep file where its results are meant."""
    return Path(text).stem if text.endswith((".yaml", ".yml")) else text


def _lines(text: str | Sequence[str]) -> Sequence[str]:
    return [text] if isinstance(text, str) else text


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Align rows of cells for a terminal."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    template = "  ".join(f"{{:<{width}}}" for width in widths)
    return [template.format(*row).rstrip() for row in rows]


def _say(text: str) -> None:
    """Tell the user something; stdout, flushed, since a local run lasts."""
    print(text, flush=True)
