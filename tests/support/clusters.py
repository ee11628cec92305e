"""Clusters made by hand, for what no localhost has."""

from __future__ import annotations

from hpcsweep.cluster.slurm.site import Admission, Association, Cluster, Gres, Node, Partition, Qos


def node(name, *, features=(), gpus=("v100", 4), partitions=("gpu",), state="idle", **more):
    """Return a node with 4 GPUs, 32 CPUs and 100 GB."""
    return Node(
        name=name,
        partitions=partitions,
        features=features,
        gres=(Gres("gpu", *gpus),),
        state=state,
        **{"cpus": 32, "memory_mb": 100_000, "responds": True, **more},
    )


def partition(name, **more):
    """Return an open partition without limits."""
    none = dict.fromkeys(
        (
            "max_time_s",
            "default_time_s",
            "max_nodes",
            "max_cpus_per_node",
            "max_mem_per_node_mb",
        )
    )
    fixed = {"default": False, "state": "UP", "settings": {}}
    lists = {"accounts": Admission(), "qos": Admission()}
    return Partition(name=name, **{**none, **lists, **fixed, **more})


def qos(name, *, wall=None, flags=()):
    """Return a QOS with a limit on time."""
    return Qos(name=name, max_wall_s=wall, flags=flags)


def mine(account, *, only="", qualities=("normal",), wall=None):
    """Return an association of this user."""
    return Association(
        account=account,
        partition=only,
        qos=qualities,
        default_qos="normal",
        max_wall_s=wall,
    )


CLUSTER = Cluster(
    config={"AccountingStorageEnforce": "associations,limits,qos"},
    partitions=[partition("gpu", default=True), partition("long", max_time_s=7 * 86400)],
    nodes=[node("n1", features=("v100",)), node("n2", features=("v100",), partitions=("long",))],
    qos=[qos("normal"), qos("long")],
    associations=[mine("phys")],
    default_account="phys",
    parent_accounts={"phys": "science", "science": "root"},
    groups=frozenset({"users"}),
)
