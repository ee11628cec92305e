"""Compares a profile with its cluster's configuration, before a job enters the queue; pure.

Slurm accepts some jobs that it never starts: a time above the partition's limit, too many CPUs, a
closed partition, an account that the partition does not accept. These are failures here, like jobs
that sbatch would refuse. Settings that work on some unusual clusters are warnings. Accounts and QOS
are checked as far as sacctmgr answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hpcsweep import units
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import job_request, nodes
from hpcsweep.cluster.slurm.job_request import Finding, Wants, listed
from hpcsweep.cluster.slurm.site import Association, Cluster, Partition
from hpcsweep.spec.profile import Profile


@dataclass(frozen=True)
class Rights:
    """The account and QOS of a profile's jobs, and those that the user may choose."""

    wants: Wants
    cluster: Cluster

    @cached_property
    def account(self) -> str:
        """The jobs' account, in lower case like Slurm's; empty if unknown."""
        return self.wants["account"].lower() or self.cluster.default_account

    @cached_property
    def lineage(self) -> Sequence[str]:
        """The account and its ancestors; an empty name if the ancestors are unknown."""
        names = ["" if "parent_accounts" in self.cluster.unanswered else self.account]
        while (parent := self.cluster.parent_accounts.get(names[-1], "")) and parent not in names:
            names.append(parent)
        return names

    @cached_property
    def rows(self) -> Sequence[Association]:
        """The associations that may apply to the jobs."""
        return [row for row in self.cluster.associations if self.account in {"", row.account}]

    @cached_property
    def qos(self) -> str:
        """The jobs' QOS; empty if it is not certain."""
        defaults = {row.default_qos for row in self.rows} - {""}
        return self.wants["qos"].lower() or (defaults.pop() if len(defaults) == 1 else "")

    @property
    def accounts(self) -> set[str]:
        return {row.account for row in self.cluster.associations}

    @property
    def qualities(self) -> set[str]:
        """The QOS that the jobs may have: those of the account, else all."""
        mine = {name for row in self.rows for name in row.qos}
        return mine or {qos.name for qos in self.cluster.qos}

    def enforced(self, what: str) -> bool:
        """Say whether the site enforces associations, limits or qos; each implies the first."""
        settings = {*self.cluster.config.get("AccountingStorageEnforce", "").split(",")}
        return what in settings or (what == "associations" and bool(settings - {"", "none"}))


def _named(rights: Rights, key: str, name: str, mine: set[str], source: str) -> Finding:
    """Check whether the user has an account or a QOS; some sites deny the question."""
    wants = rights.wants
    enforced = rights.enforced(source)
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
    lenient = replace(finding, level="warn", detail=f"{finding.detail}; not enforced here")
    return finding if enforced else lenient


def _time_of_account(rights: Rights) -> Iterator[Finding]:
    limits = [(f"QOS {q.name}", q.max_wall_s) for q in rights.cluster.qos if q.name == rights.qos]
    if len(rights.rows) == 1:
        limits.append((f"account {rights.rows[0].account}", rights.rows[0].max_wall_s))
    wanted = rights.wants.time_s if rights.enforced("limits") else None
    for whose, limit in limits:
        if wanted and limit and wanted > limit:
            most = units.written(limit)
            detail = f"{units.written(wanted)} is over the limit of {whose}, {most}"
            yield rights.wants.complaint("time", detail, f'write `time: "{most}"`')


def refused_by(partition: Partition, rights: Rights) -> Iterator[Finding]:
    """Yield the reasons why a partition does not accept jobs with this account and QOS."""
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


def examine(profile: Profile, cluster: Cluster) -> list[Finding]:
    """Return all findings, good ones included; `fail` means that no job would ever run."""
    wants = job_request.options_of(profile)
    if why := _unknown_cluster(wants, cluster):
        return [Finding("warn", "cluster", f"not checked: {why}")]
    rights = Rights(wants, cluster)
    # without partitions in the profile, the default one
    mine = [p for p in cluster.partitions if p.name in wants.partitions]
    chosen = mine if wants.partitions else [p for p in cluster.partitions if p.default]
    return [
        *_partitions(rights, chosen),
        _named(rights, "account", rights.account, rights.accounts, "associations"),
        _named(rights, "qos", rights.qos, rights.qualities, "qos"),
        *_time_of_account(rights),
        *nodes.examine(wants, [partition.name for partition in chosen], cluster.nodes),
    ]


def _unknown_cluster(wants: Wants, cluster: Cluster) -> str:
    if wants["clusters"]:
        return f"jobs go to cluster {wants['clusters']}, and this is another one"
    silent = cluster.unanswered.get("nodes") or cluster.unanswered.get("partitions")
    hidden = not (cluster.nodes and cluster.partitions)
    return str(silent) if silent else "sinfo shows no nodes (PrivateData?)" * hidden


def _partitions(rights: Rights, chosen: Sequence[Partition]) -> Iterator[Finding]:
    """Yield unknown names, then the findings of each partition; one good partition is enough."""
    wants = rights.wants
    cluster = rights.cluster
    names = {partition.name for partition in cluster.partitions}
    for name in wants.partitions:
        if name not in names:
            new = wants["partition"].replace(name, "{}")
            yield wants.unknown("partition", name, names, new)
    if not wants.partitions and not chosen:
        do = f"write `partition:` with one of: {listed(names)}"
        yield wants.complaint("partition", "missing, and this cluster has no default", do)
    reasons = (_state, refused_by, _time, _sizes)  # why jobs would never run in a partition
    wrong = {p.name: [finding for why in reasons for finding in why(p, rights)] for p in chosen}
    hopeless = all(wrong.values())
    default = "" if wants.partitions else ", the cluster's default"
    for partition in chosen:
        if not wrong[partition.name]:
            state = f"{partition.state}, time up to {units.written(partition.max_time_s)}"
            yield Finding("ok", "partition", f"{partition.name}{default}: {state}")
        for finding in wrong[partition.name]:
            yield finding if hopeless else replace(finding, level="warn")
        if not open_to(partition, cluster.groups):
            groups = partition.settings["AllowGroups"]
            detail = f"{partition.name} is for groups {groups}; you are in none of them"
            yield Finding("warn", "partition", detail, "ask the site", wants.places["partition"])
    if chosen and wants.time_s is None:
        yield _no_time(chosen[0], wants)


def open_to(partition: Partition, groups: frozenset[str]) -> bool:
    """Say whether a partition accepts jobs of these groups."""
    allowed = partition.settings.get("AllowGroups", "ALL")
    return allowed == "ALL" or bool(groups & {*allowed.split(",")})


def _sizes(partition: Partition, rights: Rights) -> Iterator[Finding]:
    wants = rights.wants
    mem = partition.max_mem_per_node_mb or slurm.number(rights.cluster.config.get("MaxMemPerNode"))
    for key, wanted, setting, most, unit in (
        ("mem", wants.mem_mb or 0, "MaxMemPerNode", mem, "M"),
        ("cpus_per_task", wants.cpus, "MaxCPUsPerNode", partition.max_cpus_per_node, ""),
        ("nodes", wants.nodes, "MaxNodes", partition.max_nodes, ""),
    ):
        if most is not None and wanted > most:
            limit = f"{setting} of partition {partition.name}, {most}{unit}"
            detail = f"{wanted}{unit} is over {limit}"
            yield wants.complaint(key, detail, f"write `{key}: {most}{unit}` or less")
    least = slurm.number(partition.settings.get("MinNodes")) or 1
    if wants.nodes < least:
        detail = f"{wants.nodes} is under MinNodes of partition {partition.name}, {least}"
        do = f"use another partition: {listed(_beside(partition, rights.cluster))}"
        yield wants.complaint("nodes", detail, do)


def _state(partition: Partition, rights: Rights) -> Iterator[Finding]:
    if partition.state not in {"UP", ""}:
        does = "starts no jobs" if partition.state == "DOWN" else "accepts no jobs"
        others = listed(_beside(partition, rights.cluster))
        do = f"wait until the site opens it, or use another with its nodes: {others}"
        detail = f"{partition.name} is {partition.state}: it {does}"
        yield rights.wants.complaint("partition", detail, do)


def _time(partition: Partition, rights: Rights) -> Iterator[Finding]:
    limit = partition.max_time_s
    wanted = rights.wants.time_s
    flags = {qos.name: qos.flags for qos in rights.cluster.qos}.get(rights.qos, ())
    if limit is None or wanted is None or wanted <= limit or "PartitionTimeLimit" in flags:
        return  # this flag of a QOS overrides the partition's limit
    most = units.written(limit)
    longer = _beside(partition, rights.cluster, wanted)
    detail = f"{units.written(wanted)} is over the limit of partition {partition.name}, {most}"
    more = f", or use another partition: {listed(longer)}" if longer else ""
    yield rights.wants.complaint("time", detail, f'write `time: "{most}"` or less{more}')


def _beside(partition: Partition, cluster: Cluster, time_s: int = 0) -> list[str]:
    """Return the other open partitions that share nodes with a partition, and allow the time."""
    inside = [node for node in cluster.nodes if partition.name in node.partitions]
    names = {name for node in inside for name in node.partitions} - {partition.name}
    able = (other for other in cluster.partitions if (other.max_time_s or time_s) >= time_s)
    return [other.name for other in able if other.state == "UP" and other.name in names]


def _no_time(partition: Partition, wants: Wants) -> Finding:
    default = partition.default_time_s or partition.max_time_s
    detail = f"missing, so partition {partition.name} sets it: {units.written(default)}"
    if default is None:
        return Finding("ok", "time", detail)
    do = f'write `time:`, at most "{units.written(partition.max_time_s)}"'
    return Finding("warn", "time", detail, do, wants.places.get("time", ""))
