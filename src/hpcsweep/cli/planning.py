"""The commands before a run: expand and estimate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hpcsweep.catalog.columns import cell
from hpcsweep.cli.common import (
    cluster_option,
    default_cluster,
    json_option,
    request_of,
    sample_option,
)
from hpcsweep.cli.streams import show
from hpcsweep.spec.space import Sweep
from hpcsweep.text import aligned, count

_ALWAYS = ("model", "input_size")  # shown even if they do not vary


@click.command()
@click.argument("spec")
@click.option("--all", "show_all", is_flag=True, help="Show every point, not only the first ten.")
@cluster_option
@sample_option
@json_option
def expand(
    spec: str, clusters: tuple[str, ...], sample: int | None, *, show_all: bool, as_json: bool
) -> None:
    """List the points of a sweep file, without running anything."""
    from hpcsweep.spec import expansion, sweep_file
    from hpcsweep.submit.request import Options

    sweep = sweep_file.load(spec)
    limit = None if show_all else 10
    found = [(sweep.name, expansion.expand(sweep, sample=sample))]
    if clusters:
        requests = [request_of(sweep, name, Options(sample=sample)) for name in clusters]
        found = [(asked.words(), asked.expansion()) for asked in requests]
    for words, points in found:
        record = points.to_json(limit)
        show(json.dumps(record) if as_json else _expansion_text(sweep, words, record))


def _expansion_text(sweep: Sweep, what: str, record: dict[str, Any]) -> str:
    from hpcsweep.spec import map_names

    points = [{**one, "algorithm": sweep.named(one["algorithm"])} for one in record["points"]]
    lines = [f"{what}: {count(record['points_total'], 'point')}"]
    lines += [
        f"  {rule['rule']} at line {rule['line']}: {count(rule['points'], 'point')}"
        for rule in record["rules"]
    ]
    if points:
        first = points[0]
        varying = [k for k in first if k in _ALWAYS or any(p[k] != first[k] for p in points)]
        rows = [[cell(point[name]) or "unset" for name in varying] for point in points]
        lines += ["", *aligned([varying, *rows])]
    if len(points) < record["points_total"]:
        lines.append(f"... and {record['points_total'] - len(points)} more (--all shows them)")
    lines += [f"  {line}" for line in map_names.legend(sweep.names_of_maps())]
    return "\n".join([*lines, *(f"note: {note}" for note in record["notes"])])


@click.command()
@click.argument("spec")
@cluster_option
@sample_option
@json_option
@click.pass_obj
def estimate(
    results: Path, spec: str, clusters: tuple[str, ...], sample: int | None, *, as_json: bool
) -> None:
    """Estimate the points, chunks and GPU-hours that are left to run."""
    from hpcsweep.spec import sweep_file
    from hpcsweep.submit import cost
    from hpcsweep.submit.request import Options

    sweep = sweep_file.load(spec)
    for name in clusters or (default_cluster() or "local",):
        expected = cost.of(results, request_of(sweep, name, Options(sample=sample)))
        show(json.dumps(expected.to_json()) if as_json else expected.text())
