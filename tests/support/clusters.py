"""Clusters made by hand, for what no localhost has."""

from __future__ import annotations

from hpcsweep.cluster.slurm.site import Cluster, Gres, Node, Partition


def node(name, *, features=(), gpus=("v100", 4), partitions=("gpu",), state="idle", **more):
    """Return a node with 4 GPUs, 32 CPUs and 100 GB."""
    return Node(
        name=name,
        partitions=partitions,
        features=features,
        gres=(Gres("gpu", *gpus),) if isinstance(gpus, tuple) else tuple(map(Gres.read, gpus)),
        state=state,
        **{"cpus": 32, "memory_mb": 100_000, **more},
    )


def partition(name, **settings):
    """Return an open partition with these settings of Slurm's."""
    return Partition(name=name, settings=settings)


CLUSTER = Cluster(
    config={},
    partitions=[partition("gpu", Default="YES"), partition("long", MaxTime="7-00:00:00")],
    nodes=[node("n1", features=("v100",)), node("n2", features=("v100",), partitions=("long",))],
    own={
        "account": frozenset({"phys"}),
        "qos": frozenset({"normal"}),
        "groups": frozenset({"users"}),
    },
    qos_time_s={},
)
