"""The commands before a run: expand, estimate; of a machine: verify, discover."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcsweep import environment
from hpcsweep.cli import common
from hpcsweep.cli.answer import Answer
from hpcsweep.cli.settings import flag, option
from hpcsweep.errors import PointsFailed, UsageError
from hpcsweep.text import aligned, count, in_columns

if TYPE_CHECKING:
    from hpcsweep.point import Point
    from hpcsweep.spec.expansion import Expansion
    from hpcsweep.spec.space import Sweep
    from hpcsweep.submit.support import Support

_ALWAYS = ("model", "input_size")  # shown even if they do not vary
_FEW = 10  # points that `expand` shows: with what stands around them, a screen


@click.command()
@click.argument("spec")
@flag("--all", "Show every point, not only the first ten.")
@flag("--support", "Show instead which algorithms cuDNN has for the convolutions on GPUs.")
@option("--gpu NAMES", "With --support: these GPUs, such as l40,h100.")
@common.cluster_option
@common.sample_option
def expand(spec: str, cluster: tuple[str, ...], sample: int | None, **others: Any) -> Answer:
    """List the points of a sweep file, without running anything."""
    from hpcsweep.spec import expansion, sweep_file

    sweep = sweep_file.load(spec)
    if others["support"]:
        return _support(sweep, cluster, others["gpu"], sample)
    if others["gpu"]:
        raise UsageError("--gpu is for --support; points of a GPU: --cluster")
    limit = None if others["all"] else _FEW
    expansions = []
    for name in cluster:
        asked = common.request_of(sweep, name, sample=sample)
        expansions.append((asked.words(), asked.expansion))
    if not cluster:
        expansions.append((sweep.name, expansion.expand(sweep, sample=sample)))

    def text() -> Iterator[str]:
        for what, points in expansions:
            yield from _expansion_lines(what, points, limit)

    return Answer(
        record=lambda: {"expansions": (points.to_json(limit) for _, points in expansions)},
        text=text,
    )


def _support(sweep: Sweep, cluster: tuple[str, ...], gpu: str | None, sample: int | None) -> Answer:
    """Say which algorithms cuDNN has on GPUs: those named, of profiles, or of the sweep."""
    from hpcsweep import sources
    from hpcsweep.catalog import WORKLOADS
    from hpcsweep.spec import expansion
    from hpcsweep.submit import request, support

    if not WORKLOADS[sweep.workload].runs_network:
        raise UsageError(f"{sweep.name}: a sweep of workload {sweep.workload} has no convolutions")
    names = gpu or ""
    if not gpu and not cluster:
        names = ",".join(request.named_gpus(sweep))
    gpus = support.gpus_named(names)
    points: Iterable[Point] = expansion.expand(sweep, sample=sample)
    requests = [common.request_of(sweep, name, sample=sample) for name in cluster]
    for asked in requests:
        gpus.append(support.DescribedGpu.of(asked.device, asked.profile))
    if requests and not gpu:
        points = chain.from_iterable(asked.points() for asked in requests)
    if not gpus:
        raise UsageError(f"{sweep.name} names no GPU; name some with --gpu l40,h100 or --cluster")
    cases = support.cases_of(sweep, points)
    table = support.support_of(cases, gpus, sources.folders_for(sweep.path))
    record = {"support": {"sweep": sweep.name, **table.to_json()}}
    return Answer(record=lambda: record, text=lambda: _support_lines(table))


def _support_lines(table: Support) -> Iterator[str]:
    from hpcsweep.submit import support

    yield f"{table.library}: distinct convolutions with an engine, and their share of the FLOPs"
    for network in table.calls:
        yield ""
        yield network
        yield from _support_of(network, table)
    yield ""
    source_of = {gpu.name: gpu.source for gpu in table.gpus if gpu.properties}
    for name, source in source_of.items():
        yield f"{name} by {source}"
    if support.SHEETS in source_of.values():
        yield "  `hpcsweep doctor --cluster NAME` on a node writes the true properties"
    for name, looked_at in table.looked.items():
        yield f"note: {name}: looked at {looked_at}"
    for name, why in table.unchecked.items():
        yield f"note: {name}: not looked at: {why}"


def _support_of(network: str, table: Support) -> Iterator[str]:
    """Yield a line per algorithm that is known of some GPU, then why the others are of none."""
    says: dict[str, list[str]] = {}  # by algorithm, for each GPU
    known = set[str]()
    for cell in table.cells:
        if cell.network == network:
            says.setdefault(cell.algorithm, []).append(cell.says)
            if cell.found is not None:
                known.add(cell.algorithm)
    rows = [["algorithm", *(gpu.name for gpu in table.gpus)]]
    unknown: dict[str, list[str]] = {}
    for name, words in says.items():
        if name in known:
            rows.append([name, *words])
        else:
            unknown.setdefault(max(words, key=len), []).append(name)
    # the head alone says nothing
    if len(rows) > 1:
        for line in aligned(rows):
            yield f"  {line}"
    for why, names in unknown.items():
        yield f"  {why}: {', '.join(names)}"


def _expansion_lines(what: str, points: Expansion, limit: int | None) -> Iterator[str]:
    """Yield what `expand` prints; a million points are never in memory together."""
    from hpcsweep.spec import space

    record = points.to_json(0)
    yield f"{what}: {count(record['points_total'], 'point')}"
    if len(points):
        yield ""
        yield from _table(points, limit)
    if limit is not None and len(points) > limit:
        yield f"... and {len(points) - limit} more (--all shows them)"
    for line in space.legend(points.sweep.names_of_maps()):
        yield f"  {line}"
    for note in record["notes"]:
        yield f"note: {note}"


def _table(points: Expansion, limit: int | None) -> Iterator[str]:
    """Yield a header and the points, with the columns whose values differ in the sweep."""
    from hpcsweep.catalog.columns import cell
    from hpcsweep.spec import expansion

    sweep = points.sweep

    def text(name: str, value: object) -> str:
        return cell(sweep.named(value) if name == "algorithm" else value) or "unset"

    first = expansion.flat(next(iter(points)))
    widths: dict[str, int] = {}
    if first["point_id"]:  # none where the profile names the GPU
        widths["point_id"] = len(first["point_id"])
    for name, value in first.items():
        texts = {text(name, each) for each in (value, *sweep.values(name))}
        if name in _ALWAYS or len(texts) > 1:
            widths[name] = max(len(each) for each in (name, *texts))
    yield in_columns(list(widths), list(widths.values()))
    for point in islice(points, limit):
        values = expansion.flat(point)
        yield in_columns([text(name, values[name]) for name in widths], list(widths.values()))


@click.command()
@click.argument("spec")
@common.cluster_option
@common.sample_option
@common.again_option
@common.each_node_option
@click.pass_obj
def estimate(results: Path, /, spec: str, cluster: tuple[str, ...], **others: Any) -> Answer:
    """Estimate the points, chunks and GPU-hours that are left to run."""
    from hpcsweep.spec import sweep_file
    from hpcsweep.submit import cost, support
    from hpcsweep.submit.comparison import in_results

    sweep = sweep_file.load(spec)
    requests = [common.request_of(sweep, name, **others) for name in cluster or ("local",)]
    costs = [cost.cost_of(results, request) for request in requests]
    support.check_support([in_results(results, request) for request in requests])
    return Answer(
        record=lambda: {"estimates": [each.to_json() for each in costs]},
        text=lambda: [each.text() for each in costs],
    )


@click.command()
@click.argument("spec")
@common.cluster_option
@common.sample_option
@common.layers_option
def verify(spec: str, cluster: tuple[str, ...], sample: int | None, *, layers: bool) -> Answer:
    """Prove which convolution algorithms run on this machine.

    Prints for each convolution: the algorithm, the profiler's evidence, the error against float64.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints to stderr
    environment.keep_miopen_apart()
    from hpcsweep.cli.verify import verification_text, verify_points
    from hpcsweep.measure.measure_point import torch_bench
    from hpcsweep.spec import sweep_file

    # it runs here, whatever the profile: only its device and settings count
    profile = (cluster or ("local",))[0]
    asked = common.request_of(sweep_file.load(spec), profile, sample=sample)
    asked.tell_unseen_gpu()
    gpu_name = "" if asked.rehearsal else asked.profile.gpu_name
    run = {"gpu": asked.device, "gpu_name": gpu_name, "search_path": asked.search_path}
    sweep = asked.sweep
    points = list(verify_points(asked.points(), torch_bench(sweep.workload, run)))
    is_proven = all(point.proven for point in points)
    return Answer(
        record=lambda: {"sweep": sweep.name, "points": [each.to_json() for each in points]},
        text=lambda: verification_text(points, sweep.names_of_maps(), layers=layers),
        code=0 if is_proven else PointsFailed.exit_code,
    )


@click.command()
@option(
    "--out",
    "Folder for the profiles; - prints them and writes nothing.",
    type=click.Path(file_okay=False, path_type=Path, allow_dash=True),
    default="cluster_profiles",
    show_default=True,
)
@flag("--force", "Overwrite existing files.")
def discover(out: Path, *, force: bool) -> Answer:
    """Write a profile for every GPU type of this cluster.

    \b
    hpcsweep discover --out -
    """
    from hpcsweep.cluster.slurm.discover import ask, write
    from hpcsweep.store import named_file

    if named_file.holds_results(out.resolve() / "a profile"):
        raise UsageError(f"{out}: belongs to results; choose another folder with --out")
    profiles = ask()

    def lines() -> Iterator[str]:
        if str(out) == "-":
            for profile in profiles:
                yield f"# {profile.name}.yaml\n{profile.text()}"
            return
        yield from write(profiles, out, force=force)
        yield f"next: hpcsweep doctor --cluster {profiles[0].name}"

    return Answer(record=lambda: {"profiles": [*map(asdict, profiles)]}, text=lines)
