"""Compares a profile with what its cluster says, before a job enters the queue; pure.

Slurm takes some jobs that it never starts: a time above the partition's limit, too many CPUs, a
closed partition, an account that the partition does not take. These are failures here, like
everything that sbatch would refuse. What may work on a cluster with an unusual set-up is a warning.
Accounts and QOS are checked as far as sacctmgr answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hpcsweep import slurm, units
from hpcsweep.preflight import nodes, request
from hpcsweep.preflight.nodes import Hostnames
from hpcsweep.preflight.request import Finding, Wants, listed
from hpcsweep.slurm import Association, Cluster, Partition
from hpcsweep.spec.profile import Profile


@dataclass(frozen=True)
class Rights:
    """The account and QOS that a profile's jobs will have, and those that the user may choose."""

    wants: Wants
    cluster: Cluster

    @cached_property
    def account(self) -> str:
        """Return the jobs' account, in lower case as Slurm keeps it; empty if unknown."""
        return self.wants["account"].lower() or self.cluster.default_account

    @cached_property
    def lineage(self) -> Sequence[str]:
        """Return the account and its ancestors; an empty name if the ancestors are unknown."""
        names = ["" if "parent_accounts" in self.cluster.unanswered else self.account]
        while (parent := self.cluster.parent_accounts.get(names[-1], "")) and parent not in names:
            names.append(parent)
        return names

    @cached_property
    def rows(self) -> Sequence[Association]:
        """Return the associations that may apply to the jobs."""
        return [row for row in self.cluster.associations if self.account in {"", row.account}]

    @cached_property
    def qos(self) -> str:
        """Return the jobs' QOS; empty if it is not certain."""
        defaults = {row.default_qos for row in self.rows} - {""}
        return self.wants["qos"].lower() or (defaults.pop() if len(defaults) == 1 else "")

    @property
    def accounts(self) -> set[str]:
        return {row.account for row in self.cluster.associations}

    @property
    def qualities(self) -> set[str]:
        """Return the QOS that the jobs may have: those of the account, else all."""
        mine = {name for row in self.rows for name in row.qos}
        return mine or {one.name for one in self.cluster.qos}

    def enforced(self, what: str) -> bool:
        """Say whether the site enforces associations, limits or qos; each implies the first."""
        found = self.cluster.config.get("AccountingStorageEnforce", "").split(",")
        return what in found or (what == "associations" and not {"", "none"}.issuperset(found))


def _account(rights: Rights) -> Iterator[Finding]:
    """Yield the findings about account, QOS and their time limits."""
    yield _named(rights, "account", rights.account, rights.accounts, "associations")
    yield _named(rights, "qos", rights.qos, rights.qualities, "qos")
    yield from _time_of_account(rights)


def _named(rights: Rights, key: str, name: str, mine: set[str], source: str) -> Finding:
    """Return whether the user has an account or a QOS; some sites do not let users ask."""
    wants, enforced = rights.wants, rights.enforced(source)
    if source in rights.cluster.unanswered:
        finding = wants.complaint(key, f"not checked: {rights.cluster.unanswered[source]}")
        return replace(finding, level="warn" if wants[key] else "ok")
    if not mine:
        detail = f"not checked: sacctmgr shows no {key} of yours on this cluster"
        finding = wants.complaint(key, detail, "ask the site to add you to one" * enforced)
        return replace(finding, level="warn" if wants[key] or enforced else "ok")
    if not wants[key] or name in mine:
        return Finding("ok", key, f"{name or 'not certain'}; yours: {listed(mine)}")
    finding = wants.unknown(key, name, mine)
    if enforced:
        return finding
    return replace(finding, level="warn", detail=f"{finding.detail}; not enforced here")


def _time_of_account(rights: Rights) -> Iterator[Finding]:
    """Compare the time with the limits of the QOS and of the association."""
    limits = [(f"QOS {q.name}", q.max_wall_s) for q in rights.cluster.qos if q.name == rights.qos]
    if len(rights.rows) == 1:
        limits.append((f"account {rights.rows[0].account}", rights.rows[0].max_wall_s))
    asked = rights.wants.time_s if rights.enforced("limits") else None
    for whose, limit in limits:
        if asked and limit and asked > limit:
            most = units.written(limit)
            detail = f"{units.written(asked)} is over the limit of {whose}, {most}"
            yield rights.wants.complaint("time", detail, f'write `time: "{most}"`')


def refused_by(partition: Partition, rights: Rights) -> Iterator[Finding]:
    """Yield why a partition does not accept jobs with this account and QOS."""
    own = {row.partition for row in rights.rows}
    if own and own.isdisjoint({"", partition.name}):
        detail = f"{rights.account} is yours in partition {listed(own)} only"
        yield rights.wants.complaint("account", detail, f"write `partition: {min(own)}`")
    for key, names, lists, mine in (
        ("account", rights.lineage, partition.accounts, rights.accounts),
        ("qos", [rights.qos], partition.qos, rights.qualities),
    ):
        if names[0] and not lists.takes(*names):
            detail = f"partition {partition.name} does not accept {key} {names[0]}"
            good = sorted(filter(lists.takes, mine))
            do = f"write `{key}: {good[0]}`" if good else "choose another partition"
            yield rights.wants.complaint(key, detail, do)


def examine(
    profile: Profile, cluster: Cluster, hostnames: Hostnames = slurm.hostnames
) -> list[Finding]:
    """Return every finding, the good ones too; `fail` means that no job would ever run."""
    asked = request.of(profile)
    if why := _unknown_cluster(asked, cluster):
        return [Finding("warn", "cluster", f"not checked: {why}")]
    rights = Rights(asked, cluster)
    chosen = _chosen(asked, cluster)
    return [
        *_partitions(rights, chosen),
        *_account(rights),
        *nodes.examine(asked, [one.name for one in chosen], cluster.nodes, hostnames),
    ]


def _unknown_cluster(asked: Wants, cluster: Cluster) -> str:
    """Return why the jobs' cluster cannot be checked, or an empty text."""
    if asked["clusters"]:
        return f"jobs go to cluster {asked['clusters']}, and this is another one"
    silent = cluster.unanswered.get("nodes") or cluster.unanswered.get("partitions")
    hidden = not (cluster.nodes and cluster.partitions)
    return str(silent) if silent else "sinfo shows no nodes (PrivateData?)" * hidden


def _chosen(asked: Wants, cluster: Cluster) -> list[Partition]:
    """Return the partitions that are asked for and exist, else the cluster's default."""
    if asked.partitions:
        return [one for one in cluster.partitions if one.name in asked.partitions]
    return [one for one in cluster.partitions if one.default]


def _partitions(rights: Rights, chosen: Sequence[Partition]) -> Iterator[Finding]:
    """Yield unknown names, then the findings of each partition; one good partition is enough."""
    asked, cluster = rights.wants, rights.cluster
    known = {one.name for one in cluster.partitions}
    for name in asked.partitions:
        if name not in known:
            new = asked["partition"].replace(name, "{}")
            yield asked.unknown("partition", name, known, new)
    if not asked.partitions and not chosen:
        do = f"write `partition:` with one of: {listed(known)}"
        yield asked.complaint("partition", "missing, and this cluster has no default", do)
    wrong = {one.name: list(_against(one, rights)) for one in chosen}
    hopeless = all(wrong.values())
    for one in chosen:
        if not wrong[one.name]:
            yield _fine(one, asked)
        for finding in wrong[one.name]:
            yield finding if hopeless else replace(finding, level="warn")
        if not open_to(one, cluster.groups):
            detail = (
                f"{one.name} is for groups {one.settings['AllowGroups']}; you are in none of them"
            )
            yield Finding("warn", "partition", detail, "ask the site", asked.places["partition"])
    if chosen and asked.time_s is None:
        yield _no_time(chosen[0], asked)


def open_to(one: Partition, groups: frozenset[str]) -> bool:
    """Say whether a partition accepts jobs of these groups."""
    allowed = one.settings.get("AllowGroups", "ALL")
    return allowed == "ALL" or bool(groups & {*allowed.split(",")})


def _against(one: Partition, rights: Rights) -> Iterator[Finding]:
    """Yield why jobs would never run in this partition."""
    yield from _state(one, rights)
    yield from refused_by(one, rights)
    yield from _time(one, rights)
    yield from _sizes(one, rights)


def _sizes(one: Partition, rights: Rights) -> Iterator[Finding]:
    """Yield the sizes that are outside the partition's limits."""
    asked = rights.wants
    mem = one.max_mem_per_node_mb or slurm.number(rights.cluster.config.get("MaxMemPerNode"))
    for key, wanted, setting, most, unit in (
        ("mem", asked.mem_mb or 0, "MaxMemPerNode", mem, "M"),
        ("cpus_per_task", asked.cpus, "MaxCPUsPerNode", one.max_cpus_per_node, ""),
        ("nodes", asked.nodes, "MaxNodes", one.max_nodes, ""),
    ):
        if most is not None and wanted > most:
            limit = f"{setting} of partition {one.name}, {most}{unit}"
            detail = f"{wanted}{unit} is over {limit}"
            yield asked.complaint(key, detail, f"write `{key}: {most}{unit}` or less")
    least = slurm.number(one.settings.get("MinNodes")) or 1
    if asked.nodes < least:
        detail = f"{asked.nodes} is under MinNodes of partition {one.name}, {least}"
        do = f"use another partition: {listed(_beside(one, rights.cluster))}"
        yield asked.complaint("nodes", detail, do)


def _state(one: Partition, rights: Rights) -> Iterator[Finding]:
    if one.state not in {"UP", ""}:
        does = "starts no jobs" if one.state == "DOWN" else "accepts no jobs"
        others = listed(_beside(one, rights.cluster))
        do = f"wait until the site opens it, or use another with its nodes: {others}"
        yield rights.wants.complaint("partition", f"{one.name} is {one.state}: it {does}", do)


def _time(one: Partition, rights: Rights) -> Iterator[Finding]:
    limit, wanted = one.max_time_s, rights.wants.time_s
    if limit is None or wanted is None or wanted <= limit or _overrides(rights):
        return
    most, beside = units.written(limit), _beside(one, rights.cluster)
    longer = [
        other.name
        for other in rights.cluster.partitions
        if other.name in beside and (other.max_time_s is None or other.max_time_s >= wanted)
    ]
    detail = f"{units.written(wanted)} is over the limit of partition {one.name}, {most}"
    more = f", or use another partition: {listed(longer)}" if longer else ""
    yield rights.wants.complaint("time", detail, f'write `time: "{most}"` or less{more}')


def _beside(one: Partition, cluster: Cluster) -> list[str]:
    """Return the open partitions that share nodes with one."""
    inside = [node for node in cluster.nodes if one.name in node.partitions]
    names = {name for node in inside for name in node.partitions} - {one.name}
    return [
        other.name for other in cluster.partitions if other.name in names and other.state == "UP"
    ]


def _overrides(rights: Rights) -> bool:
    """Say whether the QOS overrides the partition's time limit."""
    flags = {one.name: one.flags for one in rights.cluster.qos}
    return "PartitionTimeLimit" in flags.get(rights.qos, ())


def _fine(one: Partition, asked: Wants) -> Finding:
    default = "" if asked.partitions else ", the cluster's default"
    limit = units.written(one.max_time_s)
    return Finding("ok", "partition", f"{one.name}{default}: {one.state}, time up to {limit}")


def _no_time(one: Partition, asked: Wants) -> Finding:
    default = one.default_time_s or one.max_time_s
    detail = f"missing, so partition {one.name} sets it: {units.written(default)}"
    if default is None:
        return Finding("ok", "time", detail)
    do = f'write `time:`, at most "{units.written(one.max_time_s)}"'
    return Finding("warn", "time", detail, do, asked.places.get("time", ""))
