"""The commands before a run: expand and estimate."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hpcsweep.catalog.columns import cell
from hpcsweep.cli.answer import CommandResult, note
from hpcsweep.cli.common import (
    again_option,
    cluster_option,
    nodes_option,
    request_of,
    sample_option,
)
from hpcsweep.cli.settings import flag
from hpcsweep.text import aligned, count, in_columns

if TYPE_CHECKING:
    from hpcsweep.spec.expansion import Expansion
    from hpcsweep.spec.space import Sweep
    from hpcsweep.submit.request import Request
    from hpcsweep.submit.support import Support

_ALWAYS = ("model", "input_size")  # shown even if they do not vary
_BLOCK: Final = 1000  # points that are printed at once
_REMEMBERED: Final = 4096  # values of a column


@click.command()
@click.argument("spec")
@flag("--all", help="Show every point, not only the first ten.")
@flag("--support", help="Show instead which algorithms cuDNN has for the convolutions on GPUs.")
@click.option("--gpu", metavar="NAMES", help="With --support: these GPUs, such as l40,h100.")
@cluster_option
@sample_option
@click.pass_obj
def expand(
    results: Path, /, spec: str, cluster: tuple[str, ...], sample: int | None, **others: Any
) -> CommandResult:
    """List the points of a sweep file, without running anything."""
    from hpcsweep.errors import UsageError
    from hpcsweep.spec import expansion, sweep_file

    sweep = sweep_file.load(spec)
    if others["support"]:
        return _support(sweep, cluster, others["gpu"], sample)
    if others["gpu"]:
        raise UsageError("--gpu is for --support; points of a GPU: --cluster")
    limit = None if others["all"] else 10
    found = [(sweep.name, expansion.expand(sweep, sample=sample))]
    if cluster:
        from hpcsweep.submit.request import Options  # profiles cost a tenth of the command

        requests = [request_of(sweep, name, Options(sample=sample)) for name in cluster]
        found = [(asked.words(), asked.expansion()) for asked in requests]
        announce(results, requests)
    return CommandResult(
        record=lambda: {"expansions": (points.to_json(limit) for _words, points in found)},
        text=lambda: chain.from_iterable(_expansion_lines(*one, limit) for one in found),
    )


def _support(
    sweep: Sweep, cluster: tuple[str, ...], gpu: str | None, sample: int | None
) -> CommandResult:
    """Say which algorithms cuDNN has on GPUs: those named, of profiles, or of the sweep."""
    from hpcsweep import search_path
    from hpcsweep.errors import UsageError
    from hpcsweep.spec import expansion
    from hpcsweep.submit import request, support

    if sweep.workload == "noop":
        raise UsageError(f"{sweep.name}: a sweep of workload noop has no convolutions")
    named, points = request.gpus(sweep), iter(expansion.expand(sweep, sample=sample))
    asked = support.gpus_named(gpu or "" if gpu or cluster else ",".join(named))
    requests = [request_of(sweep, name, request.Options(sample=sample)) for name in cluster]
    asked += [support.Gpu.of(one.device, one.profile) for one in requests]
    if requests and not gpu:
        points = chain.from_iterable(one.points() for one in requests)
    if not asked:
        raise UsageError(f"{sweep.name} names no GPU; name some with --gpu l40,h100 or --cluster")
    folders = search_path.of(sweep.path)
    found = support.of(points, asked, sweep.named, folders, say=note)
    return CommandResult(
        record=lambda: {"support": {"sweep": sweep.name, **found.to_json()}},
        text=lambda: _support_lines(found),
    )


def _support_lines(found: Support) -> Iterator[str]:
    """Yield a table of algorithms and GPUs for each network."""
    from hpcsweep.submit import support

    sources: dict[str, list[str]] = {}
    for one in filter(lambda one: one.properties, found.gpus):
        sources.setdefault(one.source, []).append(one.name)
    yield f"{found.library}: distinct convolutions with an engine, and their share of the FLOPs"
    for network in found.cases:
        rows = [["algorithm", *(one.name for one in found.gpus)]]
        rows += [
            [told, *(str(found.cell(network, one, algorithm, told)) for one in found.gpus)]
            for told, algorithm in found.algorithms
        ]
        yield ""
        yield network
        yield from (f"  {line}" for line in aligned(rows))
    yield ""
    for source, names in sources.items():
        yield f"{', '.join(names)} by {source}"
    if support.SHEETS in sources:
        yield "  `hpcsweep doctor --cluster NAME` on a node writes the true properties"
    yield from (f"note: {name}: looked at {some}" for name, some in found.looked.items())
    yield from (f"note: {name}: not looked at: {why}" for name, why in found.unchecked.items())


def announce(results: Path, requests: Iterable[Request]) -> None:
    """Say on stderr where a dry run would take minutes on this machine."""
    from hpcsweep.submit import dry_run

    for told in dict.fromkeys(dry_run.announcement(results, asked) for asked in requests):
        if told:
            note(told)


def _expansion_lines(what: str, found: Expansion, limit: int | None) -> Iterator[str]:
    """Yield what `expand` prints; a million points are never in memory together."""
    from hpcsweep.spec import space

    record = found.to_json(0)
    yield f"{what}: {count(record['points_total'], 'point')}"
    for rule in record["rules"]:
        yield f"  {rule['rule']} at line {rule['line']}: {count(rule['points'], 'point')}"
    if len(found):
        yield ""
        yield from _table(found, limit)
    if limit is not None and len(found) > limit:
        yield f"... and {len(found) - limit} more (--all shows them)"
    yield from (f"  {line}" for line in space.legend(found.sweep.names_of_maps()))
    yield from (f"note: {note}" for note in record["notes"])


def _table(found: Expansion, limit: int | None) -> Iterator[str]:
    """Yield a header and the points, with the columns whose values differ."""
    from hpcsweep.spec import expansion

    def told(name: str, value: object) -> str:
        return cell(found.sweep.named(value) if name == "algorithm" else value) or "unset"

    if limit is None:
        values = found.values()
    else:
        first = [expansion.flat(point) for point in found.first(limit)]
        values = {name: [point[name] for point in first] for name in first[0]}
    widths, texts_of = {}, {}
    for name, column in values.items():
        texts = [told(name, value) for value in column]
        if name in _ALWAYS or texts.count(texts[0]) < len(texts):
            widths[name] = max(map(len, [name, *texts]))
            texts_of[name] = _remembering(partial(told, name), widths[name], column)
    yield in_columns(list(widths), list(widths.values()))
    points = map(expansion.flat, islice(found, limit))
    while some := list(islice(points, _BLOCK)):
        rows = ([text(point[name]) for name, text in texts_of.items()] for point in some)
        yield "\n".join("  ".join(row).rstrip() for row in rows)


def _remembering(
    told: Callable[[Any], str], width: int, values: Sequence[Any]
) -> Callable[[Any], str]:
    """Return what writes the values of a column, which mostly come again and again."""

    def padded(value: object) -> str:
        return told(value).ljust(width)

    has_maps = any(isinstance(value, dict) for value in values)  # these have no hash
    return padded if has_maps else lru_cache(_REMEMBERED)(padded)


@click.command()
@click.argument("spec")
@cluster_option
@nodes_option
@sample_option
@again_option
@click.pass_obj
def estimate(results: Path, /, spec: str, cluster: tuple[str, ...], **others: Any) -> CommandResult:
    """Estimate the points, chunks and GPU-hours that are left to run."""
    from hpcsweep.spec import sweep_file
    from hpcsweep.submit import cost, support
    from hpcsweep.submit.request import Options

    sweep = sweep_file.load(spec)
    asked = [request_of(sweep, name, Options(**others)) for name in cluster or ("local",)]
    found = [cost.of(results, one) for one in asked]
    announce(results, asked)
    support.warn(asked, note)
    return CommandResult(
        record=lambda: {"estimates": [one.to_json() for one in found]},
        text=lambda: [one.text() for one in found],
    )
