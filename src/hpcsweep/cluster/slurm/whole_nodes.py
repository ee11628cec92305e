"""Sites that give whole nodes, or several GPUs at least, and what of a profile does not fit.

`gres` says how many GPUs a job asks for, and `gpus_per_job` how many of them measure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from hpcsweep.text import count

if TYPE_CHECKING:
    from hpcsweep.cluster.slurm.site import Cluster, Node, Partition


def is_exclusive(partition: Partition, cluster: Cluster) -> bool:
    """Say whether a job there has its nodes for itself, whatever it asks for."""
    by_all = cluster.config.get("SelectType") == "select/linear"  # which gives nothing smaller
    return by_all or partition.settings.get("OverSubscribe") == "EXCLUSIVE"


def gpus_given(
    partition: Partition, cluster: Cluster, on_nodes: Iterable[int], qos: str = ""
) -> int:
    """Return how many GPUs a job has at least: those of a whole node, or what a QOS demands.

    `on_nodes` are the numbers of GPUs of the nodes that it may get.
    """
    if is_exclusive(partition, cluster):
        return min(on_nodes, default=1)
    return max(1, cluster.fewest_of_qos(partition, qos))


@dataclass(frozen=True, kw_only=True)
class GpusOfJob:
    """What a profile wants of a job."""

    asked: Sequence[int]  # GPUs, by each option of sbatch that asks for some
    measuring: int  # of them: `gpus_per_job`
    qos: str


Misfit = tuple[Literal["warn", "fail"], str, str, str]  # level, key, what is wrong, what to do


def misfits(
    job: GpusOfJob, cluster: Cluster, partitions: Iterable[Partition], nodes: Iterable[Node]
) -> Iterator[Misfit]:
    """Yield where a job has other GPUs than those that measure; `nodes` match the profile."""
    asked = sum(job.asked)
    # two options may name the same GPUs; who wants one alone may ask for its neighbours, too
    if job.measuring > 1 and job.asked and job.measuring not in {asked, max(job.asked)}:
        detail = f"jobs ask for {count(asked, 'GPU')}, and `gpus_per_job` is {job.measuring}"
        do = f"write the same number: `gpus_per_job: {asked}` measures on all of them side by side"
        yield "fail", "gres", detail, do
        return
    on_nodes = []
    for node in nodes:
        gpus = sum(gres.count for gres in node.gres if gres.name == "gpu")
        if gpus:
            on_nodes.append(gpus)
    for partition in partitions:
        given = gpus_given(partition, cluster, on_nodes, job.qos)
        if given <= job.measuring:
            continue
        do = f"write `gpus_per_job: {given}`, and as many in `gres`, to measure on all of them"
        if is_exclusive(partition, cluster):
            detail = f"partition {partition.name} gives whole nodes of {given} GPUs"
            detail += f", of which {count(job.measuring, 'GPU')} would measure"
            yield "warn", "gpus_per_job", detail, do
        elif asked < given:
            detail = f"your QOS lets no job start with less than {given} GPUs"
            yield "fail", "gpus_per_job", detail, do
