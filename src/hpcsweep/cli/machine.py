"""The commands about machines and clusters: verify, doctor, discover."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import click

from hpcsweep.cli.answer import CommandResult
from hpcsweep.cli.common import cluster_option, layers_option, request_of, sample_option
from hpcsweep.cli.settings import flag
from hpcsweep.records import asdict


@click.command()
@click.argument("spec")
@cluster_option
@sample_option
@layers_option
def verify(
    spec: str, cluster: tuple[str, ...], sample: int | None, *, layers: bool
) -> CommandResult:
    """Prove which convolution algorithms run on this machine.

    Prints for each convolution: the algorithm, the profiler's evidence, the error against float64.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints to stderr
    from hpcsweep.errors import PointsFailed
    from hpcsweep.measure.bench import torch_bench
    from hpcsweep.node import verify as proof
    from hpcsweep.spec import sweep_file
    from hpcsweep.submit.request import Options

    profile = (cluster or ("local",))[0]
    asked = request_of(sweep_file.load(spec), profile, Options(sample=sample))
    run = {"gpu": asked.device, "search_path": asked.search_path}
    bench = torch_bench(asked.sweep.workload, run)
    findings = list(proof.verify(asked.points(), bench))
    return CommandResult(
        record=lambda: {"sweep": asked.sweep.name, "points": [one.to_json() for one in findings]},
        text=lambda: proof.text(findings, asked.sweep.names_of_maps(), layers=layers),
        code=0 if all(finding.proven for finding in findings) else PointsFailed.exit_code,
    )


@click.command()
@cluster_option
@flag("--deep", help="Also check torch and the GPU, in another process.")
@click.pass_obj
def doctor(results: Path, cluster: tuple[str, ...], *, deep: bool) -> CommandResult:
    """Check this machine, and a profile against its cluster.

    Reports problems and suggests fixes.
    """
    from hpcsweep.errors import Refused
    from hpcsweep.preflight import request
    from hpcsweep.preflight.doctor import examine
    from hpcsweep.spec import profile

    chosen = [profile.load(name) if name else None for name in cluster or (None,)]
    found = {one.name if one else "": examine(one, results, deep=deep) for one in chosen}
    failed = any(one.level == "fail" for each in found.values() for one in each)
    return CommandResult(
        record=lambda: {
            "machines": [
                {"profile": name, "findings": [*map(asdict, one)]} for name, one in found.items()
            ]
        },
        text=lambda: map(request.text, found.values()),
        code=Refused.exit_code if failed else 0,
    )


@click.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path, allow_dash=True),
    default="cluster_profiles",
    show_default=True,
    help="Folder for the profiles; - prints them and writes nothing.",
)
@flag("--force", help="Overwrite existing files.")
def discover(out: Path, *, force: bool) -> CommandResult:
    """Write a profile for every GPU type of this cluster.

    \b
    hpcsweep discover --out -
    """
    from hpcsweep.errors import UsageError
    from hpcsweep.preflight.discover import ask, write
    from hpcsweep.store import rundir

    if rundir.holds_results(out.resolve() / "a profile"):
        raise UsageError(f"{out}: belongs to results; choose another folder with --out")
    found = ask()

    def lines() -> Iterator[str]:
        if str(out) == "-":
            yield from (f"# {one.name}.yaml\n{one.text()}" for one in found)
        else:
            yield from write(found, out, force=force)
            yield f"next: hpcsweep doctor --cluster {found[0].name}"

    return CommandResult(record=lambda: {"profiles": [*map(asdict, found)]}, text=lines)
