"""Compares a profile with what its cluster says: mistakes are told before the queue; pure.

Slurm takes some jobs that it never starts: a time above the partition's limit, too many CPUs, a
closed partition, an account that the partition does not take. Those are failures here, as is what
sbatch would refuse. What may still work, on a cluster that is set up in an unusual way, is a
warning.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hpcsweep import slurm, units
from hpcsweep.preflight import accounts, request
from hpcsweep.preflight import nodes as fitness_nodes
from hpcsweep.preflight.findings import Finding
from hpcsweep.preflight.nodes import complain, listed, unknown
from hpcsweep.slurm import CouldNotAsk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcsweep.preflight.nodes import Hostnames
    from hpcsweep.preflight.request import Wants
    from hpcsweep.slurm import Cluster, Node, Partition
    from hpcsweep.spec.profile import Profile


@dataclass(frozen=True, kw_only=True)
class _Site:
    """The answers that everything else needs."""

    cluster: Cluster
    partitions: Sequence[Partition]
    nodes: Sequence[Node]

    def names(self) -> set[str]:
        return {partition.name for partition in self.partitions}


def examine(
    profile: Profile, cluster: Cluster, hostnames: Hostnames = slurm.hostnames
) -> list[Finding]:
    """Return every finding, the good ones too; `fail` means that no job would ever run."""
    asked = request.of(profile)
    if asked["clusters"]:
        text = f"jobs go to cluster {asked['clusters']}, which is not the one that answers here"
        return [Finding("warn", "cluster", f"not checked: {text}")]
    if isinstance(cluster.nodes, CouldNotAsk):
        return [Finding("warn", "cluster", f"not checked: {cluster.nodes}")]
    if isinstance(cluster.partitions, CouldNotAsk):
        return [Finding("warn", "cluster", f"not checked: {cluster.partitions}")]
    if not cluster.nodes or not cluster.partitions:
        return [Finding("warn", "cluster", "not checked: sinfo shows no nodes (PrivateData?)")]
    site = _Site(cluster=cluster, partitions=cluster.partitions, nodes=cluster.nodes)
    chosen = _chosen(asked, site)
    return [
        *_partitions(asked, site, chosen),
        *accounts.examine(asked, cluster),
        *fitness_nodes.examine(asked, [one.name for one in chosen], site.nodes, hostnames),
    ]


def _chosen(asked: Wants, site: _Site) -> list[Partition]:
    """Return the partitions that are asked for and exist; by default the cluster's own."""
    if asked.partitions:
        return [one for one in site.partitions if one.name in asked.partitions]
    return [one for one in site.partitions if one.default]


def _partitions(asked: Wants, site: _Site, chosen: Sequence[Partition]) -> Iterator[Finding]:
    """Yield unknown names, then what is wrong with each; one good partition is enough."""
    known = site.names()
    for name in asked.partitions:
        if name not in known:
            new = asked["partition"].replace(name, "{}")
            yield unknown(asked, "partition", name, known, new)
    if not asked.partitions and not chosen:
        do = f"write `partition:` with one of: {listed(known)}"
        yield complain(asked, "partition", "none is given, and this cluster has no default", do)
    wrong = {one.name: list(_against(one, asked, site)) for one in chosen}
    hopeless = all(wrong.values())
    for one in chosen:
        if not wrong[one.name]:
            yield _fine(one, asked)
        for finding in wrong[one.name]:
            yield finding if hopeless else replace(finding, level="warn")
        if not open_to(one, site.cluster.groups):
            detail = f"{one.name} is for groups {one.settings['AllowGroups']}, none of them yours"
            yield Finding("warn", "partition", detail, "ask the site", asked.places["partition"])
    if chosen and asked.time_s is None:
        yield _no_time(chosen[0], asked)


def open_to(one: Partition, groups: frozenset[str]) -> bool:
    """Say whether a partition takes jobs of these groups."""
    allowed = one.settings.get("AllowGroups", "ALL")
    return allowed == "ALL" or bool(groups & {*allowed.split(",")})


def _against(one: Partition, asked: Wants, site: _Site) -> Iterator[Finding]:
    """Yield what keeps jobs from ever running in this partition."""
    yield from _state(one, asked, site)
    yield from accounts.may_use(one, asked, site.cluster)
    yield from _time(one, asked, site)
    mem, cpus = _max_mem(one, site), one.max_cpus_per_node
    if mem is not None and (asked.mem_mb or 0) > mem:
        detail = f"{asked['mem']} is over MaxMemPerNode in partition {one.name}, {mem}M"
        yield complain(asked, "mem", detail, f"write `mem: {mem}M` or less")
    if cpus is not None and asked.cpus > cpus:
        detail = f"{asked.cpus} CPUs are over MaxCPUsPerNode of partition {one.name}, {cpus}"
        yield complain(asked, "cpus_per_task", detail, f"write `cpus_per_task: {cpus}` or less")
    if one.max_nodes is not None and asked.nodes > one.max_nodes:
        detail = f"{asked.nodes} nodes are over MaxNodes of partition {one.name}, {one.max_nodes}"
        yield complain(asked, "nodes", detail, f"write `nodes: {one.max_nodes}` or less")

    least = slurm.number(one.settings.get("MinNodes")) or 1
    if asked.nodes < least:
        detail = f"{asked.nodes} are under MinNodes of partition {one.name}, {least}"
        yield complain(
            asked, "nodes", detail, f"use another partition: {listed(_beside(one, site))}"
        )


def _max_mem(one: Partition, site: _Site) -> int | None:
    """Return the most memory on a node in MiB, by the partition, else by the whole cluster."""
    config = {} if isinstance(site.cluster.config, CouldNotAsk) else site.cluster.config
    return one.max_mem_per_node_mb or slurm.number(config.get("MaxMemPerNode"))


def _state(one: Partition, asked: Wants, site: _Site) -> Iterator[Finding]:
    if one.state in {"UP", ""}:
        return
    does = "starts no jobs" if one.state == "DOWN" else "takes no jobs"
    do = (
        f"wait until the site opens it, or use another with its nodes: {listed(_beside(one, site))}"
    )
    yield complain(asked, "partition", f"{one.name} is {one.state}: it {does}", do)


def _time(one: Partition, asked: Wants, site: _Site) -> Iterator[Finding]:
    limit, wanted = one.max_time_s, asked.time_s
    if limit is None or wanted is None or wanted <= limit or _overrides(asked, site):
        return
    beside = _beside(one, site)
    longer = [
        other.name
        for other in site.partitions
        if other.name in beside and (other.max_time_s is None or other.max_time_s >= wanted)
    ]
    most = units.written(limit)
    detail = f"{units.written(wanted)} is over the limit of partition {one.name}, {most}"
    more = f", or use another partition: {listed(longer)}" if longer else ""
    yield complain(asked, "time", detail, f'write `time: "{most}"` or less{more}')


def _beside(one: Partition, site: _Site) -> list[str]:
    """Return the open partitions that share nodes with one."""
    inside = [node for node in site.nodes if one.name in node.partitions]
    names = {name for node in inside for name in node.partitions}
    return [
        other.name
        for other in site.partitions
        if other.name in names - {one.name} and other.state == "UP"
    ]


def _overrides(asked: Wants, site: _Site) -> bool:
    """Say whether the QOS frees its jobs from the partition's time limit."""
    if isinstance(site.cluster.qos, CouldNotAsk):
        return False
    name = accounts.qos(asked, site.cluster)
    return any(one.name == name and "PartitionTimeLimit" in one.flags for one in site.cluster.qos)


def _fine(one: Partition, asked: Wants) -> Finding:
    default = "" if asked.partitions else ", the cluster's default"
    limit = units.written(one.max_time_s)
    return Finding("ok", "partition", f"{one.name}{default}: {one.state}, time up to {limit}")


def _no_time(one: Partition, asked: Wants) -> Finding:
    default = one.default_time_s or one.max_time_s
    detail = f"none is given; that of partition {one.name} holds: {units.written(default)}"
    if default is None:
        return Finding("ok", "time", detail)
    do = f'write `time:`, at most "{units.written(one.max_time_s)}"'
    return Finding("warn", "time", detail, do, asked.places.get("time", ""))
