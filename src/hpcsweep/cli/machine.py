"""The commands about machines and clusters: verify, doctor, data, cluster."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import click

from hpcsweep.cli.common import Commands, cluster_option, json_option, request_of, sample_option
from hpcsweep.cli.streams import show


@click.command()
@click.argument("spec")
@cluster_option
@sample_option
@click.option("--layers", is_flag=True, help="Print one line per convolution.")
def verify(spec: str, clusters: tuple[str, ...], sample: int | None, *, layers: bool) -> int:
    """Prove which convolution algorithms run on this machine.

    Prints for each convolution: the algorithm, the profiler's evidence, the error against float64.
    """
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints to stderr
    from hpcsweep.errors import PointsFailed
    from hpcsweep.measure.bench import torch_bench
    from hpcsweep.node import verify as proof
    from hpcsweep.spec import sweep_file
    from hpcsweep.submit.request import Options

    cluster = (clusters or ("local",))[0]
    asked = request_of(sweep_file.load(spec), cluster, Options(sample=sample))
    run = {"gpu": asked.device, "search_path": asked.search_path}
    bench = torch_bench(asked.sweep.workload, run)
    findings = list(proof.verify(asked.points(), bench))
    show(proof.text(findings, asked.sweep.names_of_maps(), layers=layers))
    return 0 if all(finding.proven for finding in findings) else PointsFailed.exit_code


@click.command()
@cluster_option
@click.option("--deep", is_flag=True, help="Also check torch and the GPU, in another process.")
@json_option
@click.pass_obj
def doctor(results: Path, clusters: tuple[str, ...], *, deep: bool, as_json: bool) -> int:
    """Check this machine, and a profile against its cluster.

    Reports problems and suggests fixes.
    """
    from hpcsweep.errors import Refused
    from hpcsweep.preflight import findings
    from hpcsweep.preflight.doctor import examine
    from hpcsweep.spec import profile

    worst = 0
    for name in clusters or (None,):
        chosen = profile.load(name) if name else None
        found = examine(chosen, results, deep=deep)
        show(json.dumps([*map(asdict, found)]) if as_json else findings.text(found))
        if any(finding.level == "fail" for finding in found):
            worst = Refused.exit_code
    return worst


@click.group(cls=Commands)
def data() -> None:
    """Download the data sets and weights that jobs need."""


@data.command()
@click.argument("name", metavar="SWEEP|cifar10|cifar100")
@click.option(
    "--to",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="For data sets: the folder that HPCSWEEP_DATA names in cluster profiles.",
)
@cluster_option
def get(name: str, folder: Path | None, clusters: tuple[str, ...]) -> None:
    """Download a data set, or the weights that a sweep needs, on a login node.

    Jobs never download. Weights go where jobs look for them: into torch's cache, or below the
    TORCH_HOME of the profile.

    \b
    hpcsweep data get cifar10 --to /scratch/me/data
    hpcsweep data get sweeps/my_sweep.yaml --cluster v100
    """
    from hpcsweep.errors import UsageError
    from hpcsweep.measure.data import downloads

    if folder is not None:
        show(f"{name} is in {downloads.download(name, folder)}")
    elif name in downloads.NAMES:
        raise UsageError(f"where to? hpcsweep data get {name} --to FOLDER")
    else:
        _get_weights(name, clusters or ("local",))


def _get_weights(spec: str, clusters: tuple[str, ...]) -> None:
    from hpcsweep import search_path
    from hpcsweep.measure.data import weights
    from hpcsweep.spec import sweep_file
    from hpcsweep.submit import own_files
    from hpcsweep.submit.request import Options

    sweep = sweep_file.load(spec)
    jobs = [request_of(sweep, name, Options()) for name in clusters]
    homes = [search_path.torch_home(asked.profile.env) for asked in jobs]
    for asked, home in zip(jobs, homes, strict=True):
        wanted = own_files.named_weights(asked)
        os.environ.pop("TORCH_HOME", None)  # that of the job before
        os.environ.update(home)
        weights.get(wanted, show)
        if not wanted:
            show(f"{sweep.name} needs no weights from torchvision")


@click.group(cls=Commands)
def cluster() -> None:
    """Inspect this Slurm cluster."""


@cluster.command()
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default="cluster_profiles",
    show_default=True,
    help="Folder for the profiles.",
)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
@click.option("--stdout", is_flag=True, help="Print the files, write nothing.")
@json_option
def discover(out: Path, *, force: bool, stdout: bool, as_json: bool) -> None:
    """Write a profile for every GPU type of this cluster.

    \b
    hpcsweep cluster discover --stdout
    """
    from hpcsweep.preflight.discover import ask, write

    found = ask()
    if as_json:
        show(json.dumps([*map(asdict, found)]))
    elif stdout:
        show("\n".join(f"# {out / one.name}.yaml\n{one.text()}" for one in found))
    else:
        for line in write(found, out, force=force):
            show(line)
        show(f"next: hpcsweep doctor --cluster {found[0].name}")
