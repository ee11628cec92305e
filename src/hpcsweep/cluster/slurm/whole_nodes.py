"""Sites that give whole nodes, or several GPUs at least, and what of a profile does not fit.

`gres` says how many GPUs a job asks for, and `gpus_per_job` how many of them measure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep.text import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hpcsweep.cluster.slurm.profile_checks import ProfileFinding, Wants
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


def unfitting(
    wants: Wants,
    gpus_per_job: int,
    cluster: Cluster,
    partitions: Iterable[Partition],
    nodes: Iterable[Node],
) -> Iterator[ProfileFinding]:
    """Yield where a job has other GPUs than those that measure; `nodes` match the profile."""
    counts = [wish.count for wish in wants.gres if wish.name == "gpu"]
    asked = sum(counts)
    # two options may name the same GPUs; who wants one alone may ask for its neighbours, too
    if gpus_per_job > 1 and counts and gpus_per_job not in {asked, max(counts)}:
        detail = f"jobs ask for {count(asked, 'GPU')}, and `gpus_per_job` is {gpus_per_job}"
        do = f"write the same number: `gpus_per_job: {asked}` measures on all of them side by side"
        yield wants.finding("fail", "gres", detail, do)
        return
    on_nodes = []
    for node in nodes:
        gpus = sum(gres.count for gres in node.gres if gres.name == "gpu")
        if gpus:
            on_nodes.append(gpus)
    for partition in partitions:
        given = gpus_given(partition, cluster, on_nodes, wants["qos"].lower())
        if given <= gpus_per_job:
            continue
        do = f"write `gpus_per_job: {given}`, and as many in `gres`, to measure on all of them"
        if is_exclusive(partition, cluster):
            detail = f"partition {partition.name} gives whole nodes of {given} GPUs"
            detail += f", of which {count(gpus_per_job, 'GPU')} would measure"
            yield wants.finding("warn", "gpus_per_job", detail, do)
        elif asked < given:
            detail = f"your QOS lets no job start with less than {given} GPUs"
            yield wants.finding("fail", "gpus_per_job", detail, do)
