"""Compares a profile with its cluster's configuration, before a job enters the queue; pure.

Slurm accepts some jobs that it never starts: a time above the partition's limit, too many CPUs, a
closed partition. These are failures here, like jobs that sbatch would refuse. Settings that work on
some unusual clusters are warnings. Of accounts and QOS the names are checked, as far as sacctmgr
answers; who may use them where is left to sbatch and to the reason that `status` shows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from hpcsweep import units
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import job_request, nodes
from hpcsweep.cluster.slurm.job_request import Finding, Level, Wants, listed
from hpcsweep.cluster.slurm.site import Cluster, Partition
from hpcsweep.spec.profile import Profile

_ENFORCED: Final = "AccountingStorageEnforce"
_ADMITS: Final = {"Groups": "groups", "Accounts": "account", "Qos": "qos"}


def examine(profile: Profile, cluster: Cluster) -> list[Finding]:
    """Return all findings, good ones included; `fail` means that no job would ever run."""
    wants = job_request.options_of(profile)
    if why := _unknown_cluster(cluster):
        return [Finding("warn", "cluster", f"not checked: {why}")]
    # without partitions in the profile, the default one
    mine = [p for p in cluster.partitions if p.name in wants.partitions]
    default = [p for p in cluster.partitions if p.settings.get("Default") == "YES"]
    chosen = mine if wants.partitions else default
    return [
        *_partitions(wants, cluster, chosen),
        *(_named(wants, cluster, key) for key in ("account", "qos")),
        *_time_of_qos(wants, cluster),
        *nodes.examine(wants, [partition.name for partition in chosen], cluster.nodes),
    ]


def _named(wants: Wants, cluster: Cluster, key: str) -> Finding:
    """Check whether the user has an account or a QOS; some sites deny the question."""
    mine = cluster.own.get(key) or (cluster.qos if key == "qos" else ())
    enforced = cluster.config.get(_ENFORCED, "none") not in {"", "none"}
    if not mine:
        silent = cluster.unanswered.get("own")
        why = silent or f"sacctmgr shows no {key} of yours here; ask the site to add you to one"
        level: Level = "warn" if wants[key] or (enforced and not silent) else "ok"
        return replace(wants.complaint(key, f"not checked: {why}"), level=level)
    if not wants[key] or wants[key].lower() in mine:
        return Finding("ok", key, f"{wants[key] or 'your default'}; yours: {listed(mine)}")
    finding = wants.unknown(key, wants[key], mine)
    lenient = replace(finding, level="warn", detail=f"{finding.detail}; not enforced here")
    return finding if enforced else lenient


def _time_of_qos(wants: Wants, cluster: Cluster) -> Iterator[Finding]:
    limit = wall_of_qos(wants["qos"].lower(), cluster)
    if wants.time_s and limit and wants.time_s > limit:
        most = units.written(limit)
        detail = f"{wants.time} is over the limit of your QOS, {most}"
        yield wants.complaint("time", detail, f'write `time: "{most}"`')


def wall_of_qos(name: str, cluster: Cluster) -> int | None:
    """Return the time limit of a QOS in seconds; without a name, that of the only one."""
    mine = [*cluster.own.get("qos", ())]
    name = name or (mine[0] if len(mine) == 1 else "")
    return cluster.qos.get(name) if "limits" in cluster.config.get(_ENFORCED, "") else None


def _unknown_cluster(cluster: Cluster) -> str:
    silent = cluster.unanswered.get("nodes") or cluster.unanswered.get("partitions")
    hidden = not (cluster.nodes and cluster.partitions)
    return str(silent) if silent else "sinfo shows no nodes (PrivateData?)" * hidden


def _partitions(wants: Wants, cluster: Cluster, chosen: Sequence[Partition]) -> Iterator[Finding]:
    """Yield unknown names, then the findings of each partition; one good partition is enough."""
    names = {partition.name for partition in cluster.partitions}
    for name in wants.partitions:
        if name not in names:
            yield wants.unknown("partition", name, names)
    if not wants.partitions and not chosen:
        do = f"write `partition:` with one of: {listed(names)}"
        yield wants.complaint("partition", "missing, and this cluster has no default", do)
    reasons = (_state, _time, _sizes)  # why jobs would never run in a partition
    wrong = {p.name: [f for why in reasons for f in why(p, wants, cluster)] for p in chosen}
    hopeless = all(wrong.values())
    default = "" if wants.partitions else ", the cluster's default"
    for partition in chosen:
        if not wrong[partition.name]:
            state = f"{partition.state}, time up to {units.written(partition.max_time_s)}"
            yield Finding("ok", "partition", f"{partition.name}{default}: {state}")
        for finding in wrong[partition.name]:
            yield finding if hopeless else replace(finding, level="warn")
        for why in closed_to(partition, wants, cluster):
            yield Finding("warn", "partition", why, "ask the site", wants.places["partition"])
    if chosen and wants.time_s is None:
        yield _no_time(chosen[0], wants)


def closed_to(partition: Partition, wants: Wants, cluster: Cluster) -> Iterator[str]:
    """Yield why a partition may not take this user's jobs; an account above one's own may do."""
    for what, key in _ADMITS.items():
        allowed = partition.allowed(what)
        mine = cluster.groups if key == "groups" else cluster.own.get(key, frozenset())
        mine = frozenset({wants[key]}) if wants[key] else mine
        if allowed and mine and allowed.isdisjoint(mine):
            yield f"{partition.name} is for {what.lower()} {listed(allowed)}; yours: {listed(mine)}"


def _sizes(partition: Partition, wants: Wants, cluster: Cluster) -> Iterator[Finding]:
    for key, wanted, setting, unit in (
        ("mem", wants.mem_mb or 0, "MaxMemPerNode", "M"),
        ("cpus_per_task", wants.cpus, "MaxCPUsPerNode", ""),
        ("nodes", wants.nodes, "MaxNodes", ""),
    ):
        most = partition.limit(setting) or slurm.number(cluster.config.get(setting))
        if most is not None and wanted > most:
            limit = f"{setting} of partition {partition.name}, {most}{unit}"
            detail = f"{wanted}{unit} is over {limit}"
            yield wants.complaint(key, detail, f"write `{key}: {most}{unit}` or less")


def _state(partition: Partition, wants: Wants, _cluster: Cluster) -> Iterator[Finding]:
    if partition.state not in {"UP", ""}:
        does = "starts no jobs" if partition.state == "DOWN" else "accepts no jobs"
        do = "wait until the site opens it, or use another one: `sinfo -s` lists them"
        detail = f"{partition.name} is {partition.state}: it {does}"
        yield wants.complaint("partition", detail, do)


def _time(partition: Partition, wants: Wants, _cluster: Cluster) -> Iterator[Finding]:
    limit = partition.max_time_s
    wanted = wants.time_s
    if limit is None or wanted is None or wanted <= limit:
        return
    most = units.written(limit)
    detail = f"{wants.time} is over the limit of partition {partition.name}, {most}"
    yield wants.complaint("time", detail, f'write `time: "{most}"` or less')


def _no_time(partition: Partition, wants: Wants) -> Finding:
    default = slurm.duration(partition.settings.get("DefaultTime", "")) or partition.max_time_s
    detail = f"missing, so partition {partition.name} sets it: {units.written(default)}"
    if default is None:
        return Finding("ok", "time", detail)
    do = f'write `time:`, at most "{units.written(partition.max_time_s)}"'
    return Finding("warn", "time", detail, do, wants.places.get("time", ""))
