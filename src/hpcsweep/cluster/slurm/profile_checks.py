"""Says what a cluster makes of a profile, before a job enters the queue; it sends none.

`sbatch --test-only` decides; where it refuses, the nearest names and what nodes have explain it.
Some jobs it accepts and Slurm never starts: in a closed partition, or with a time or memory above
its limit. These are failures here, too.

sbatch has the same words for what no node has and for nodes that are out of service, so the nodes
that have what the profile asks for are counted among those of the cluster (`site`).
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hpcsweep import numerals
from hpcsweep.catalog import gpus
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import site, whole_nodes
from hpcsweep.cluster.slurm.call import CouldNotAsk
from hpcsweep.cluster.slurm.profile_wants import ProfileFinding, Wants, arguments, options_of
from hpcsweep.cluster.slurm.sbatch import LimitReached, Place, Rejected
from hpcsweep.cluster.slurm.site import (
    Cluster,
    GpuKind,
    Gres,
    Node,
    Partition,
    listed,
    split_at_commas,
)
from hpcsweep.errors import SchedulerError, suggest
from hpcsweep.spec.profile import Profile

SbatchAnswer = Place | CouldNotAsk | LimitReached | Rejected  # of `sbatch --test-only`

# What a key names, where that has another name.
_KINDS: Final = {"constraint": "feature", "nodelist": "node", "exclude": "node"}
# What a partition may be limited to, and the key of the profile, or what of the user's, has it.
_ADMITS: Final = {"Groups": "groups", "Accounts": "account", "Qos": "qos"}
# `--test-only` looks at the nodes as they are now. It has the first words for what no node has, but
# also for what would wait for nodes that are out of service.
_NO_NODE: Final = "node configuration is not available"
_NOT_NOW: Final = re.compile("Required node not available|nodes are busy")
# What lists the names or limits of a site that a refusal is about.
_LISTS: Final = {
    "partition": "`sinfo -s` lists the partitions",
    "time": "`sacctmgr show qos format=Name,MaxWall` lists the limits",
}
# In a list of nodes: a range of them, or a file of names.
_NO_NAME: Final = re.compile(r"[^,]*(?:\[[^\]]*\]|/)[^,]*")
# As all jobs are sent: a site may refuse arrays.
_AS_ARRAY: Final = "--array=0"
# In an expression a name may hold hyphens and dots; `*2` behind it is a number of nodes.
_FEATURE: Final = re.compile(r"[^&|,()\[\]*]+")
_COUNT: Final = re.compile(r"\*\d+")
_ALTERNATIVES: Final = re.compile(r"[|()\[\]*]")


def look(profile: Profile, cluster: Cluster | CouldNotAsk | None = None) -> list[ProfileFinding]:
    """Ask a cluster, unless its answer is given, and its sbatch; return all findings."""
    cluster = cluster or site.describe()
    if isinstance(cluster, CouldNotAsk):  # sbatch would wait for the same controller
        return [ProfileFinding("warn", "cluster", f"not checked: {cluster}")]
    answer: SbatchAnswer
    try:
        answer = slurm.would_accept(options=[_AS_ARRAY, *arguments(profile)])
    except (LimitReached, Rejected) as refusal:
        answer = refusal
    return examine(profile, cluster, answer)


def examine(profile: Profile, cluster: Cluster, answer: SbatchAnswer) -> list[ProfileFinding]:
    """Return all findings, good ones included; `fail` means that no job would ever run. Pure."""
    wants = options_of(profile)
    names = wants.partitions
    if isinstance(answer, Place) and answer.partition not in {*names, ""}:
        names = (answer.partition,)  # a plugin of the site chose it
    chosen = _chosen(names, cluster)
    matches = match(wants, [partition.name for partition in chosen], cluster.nodes)
    verdict = _of_sbatch(wants, shlex.join(arguments(profile)), matches, answer)
    findings = [*_partitions(wants, cluster, chosen)]
    job = whole_nodes.GpusOfJob(
        asked=[wish.count for wish in wants.gres if wish.name == "gpu"],
        measuring=profile.gpus_per_job,
        qos=wants["qos"].lower(),
    )
    misfits = whole_nodes.misfits(job, cluster, chosen, matches.found)
    findings += [wants.finding(*misfit) for misfit in misfits]
    findings += other_gpus(wants, matches.with_features)
    if verdict.level == "fail":  # else a plugin of the site may know names that sinfo lacks
        findings += _unknown_names(wants, cluster)
    if matches.of_partition and matches.summary not in verdict.words:
        well = matches.found or verdict.level == "ok"
        do = "" if well else f"there are {matches.hardware}"
        findings.append(ProfileFinding("ok" if well else "warn", "nodes", matches.summary, do))
    return [*findings, verdict]


def _of_sbatch(wants: Wants, asked: str, matches: Matches, answer: SbatchAnswer) -> ProfileFinding:
    """Return what sbatch says; a failure is what it will refuse at any time."""
    if isinstance(answer, Place):
        return ProfileFinding("ok", "sbatch", f"would accept these jobs: {answer}")
    if not isinstance(answer, Rejected):
        return ProfileFinding("warn", "sbatch", f"unknown whether it accepts these jobs: {answer}")
    why = answer.words
    away = [node for node in matches.found if not node.usable]
    if _NOT_NOW.search(why) or (_NO_NODE in why and (away or not matches.of_partition)):
        reasons = [f"{node.name}: {node.reason or node.state}" for node in away]
        blame = listed(reasons) if away else why
        do = f"jobs wait until nodes are in service, or are refused when sent; {blame}"
        detail = f"{matches.summary}; sbatch finds none now: {why}"
        return ProfileFinding("warn", "nodes", detail, do)
    detail = f"sbatch refuses these jobs: {why}"
    do = _LISTS.get(answer.about, "")
    if _NO_NODE in why:
        detail += f"; {matches.summary}"
        do = f"asked for: {asked}; there are {matches.hardware}"
    return wants.finding("fail", answer.about or "sbatch", detail, do)


def _unknown_names(wants: Wants, cluster: Cluster) -> Iterator[ProfileFinding]:
    """Yield the names that the cluster does not have, with the nearest ones."""
    node_names = set[str]()
    features = set[str]()
    resources = set[str]()
    for node in cluster.nodes:
        node_names.add(node.name)
        features.update(node.features)
        for gres in node.gres:
            resources.update((gres.name, gres.kind))
    existing = {
        "partition": {partition.name for partition in cluster.partitions},
        "constraint": features,
        "gres": resources,
        "nodelist": node_names,
        "exclude": node_names,
        **cluster.own,
    }
    for key, names in existing.items():
        if key == "constraint":
            asked = feature_names(wants[key])
        elif key == "gres":
            asked = tuple(wish.kind for wish in wants.gres)
        elif key in cluster.own:
            asked = split_at_commas(wants[key].lower())  # of these Slurm keeps small letters
        else:
            asked = split_at_commas(_NO_NAME.sub("", wants[key]))
        for name in asked:
            if names and name not in names:  # a site may hide all of them
                kind = _KINDS.get(key, key)
                detail = f"no {kind} '{name}' on this cluster{suggest(name, names)}"
                do = f"correct `{key}`; there are: {listed(names)}"
                yield wants.finding("fail", key, detail, do)


def _partitions(
    wants: Wants, cluster: Cluster, chosen: Sequence[Partition]
) -> Iterator[ProfileFinding]:
    """Yield the findings of each partition; one good partition is enough."""
    failures = {partition.name: [*_never_starts(partition, wants, cluster)] for partition in chosen}
    hopeless = all(failures.values())
    for partition in chosen:
        name = partition.name
        for failure in failures[name]:
            yield failure if hopeless else replace(failure, level="warn")
        for why in closed_to(partition, wants, cluster):
            yield wants.finding("warn", "partition", why, "ask the site")
        if not failures[name]:
            by = "" if name in wants.partitions else ", which the cluster chooses"
            state = f"{partition.state}, time up to {numerals.slurm_time(partition.max_time_s)}"
            yield ProfileFinding("ok", "partition", f"{name}{by}: {state}")
    if chosen and not wants["time"]:
        first = chosen[0]
        most = first.max_time_s
        default = slurm.duration(first.settings.get("DefaultTime", "")) or most
        if default:
            detail = f"missing, so partition {first.name} sets it: {numerals.slurm_time(default)}"
            do = f'write `time:`, at most "{numerals.slurm_time(most)}"'
            yield wants.finding("warn", "time", detail, do)


def closed_to(partition: Partition, wants: Wants, cluster: Cluster) -> Iterator[str]:
    """Yield why a partition may not take this user's jobs; an account above one's own may do."""
    for what, key in _ADMITS.items():
        allowed = partition.allowed(what)
        mine = frozenset({wants[key]}) if wants[key] else cluster.own.get(key, frozenset())
        if allowed and mine and allowed.isdisjoint(mine):
            yield f"{partition.name} is for {what.lower()} {listed(allowed)}; yours: {listed(mine)}"


def _never_starts(partition: Partition, wants: Wants, cluster: Cluster) -> Iterator[ProfileFinding]:
    """Yield why Slurm would never start in a partition the jobs that it may accept there."""
    name = partition.name
    if partition.state not in {"UP", ""}:
        does = "starts no jobs" if partition.state == "DOWN" else "accepts no jobs"
        do = "wait until the site opens it, or use another one: `sinfo -s` lists them"
        yield wants.finding("fail", "partition", f"{name} is {partition.state}: it {does}", do)
    seconds = slurm.duration(wants["time"])  # None: no limit; without `time`, the partition's
    limits = {
        f"partition {name}": partition.max_time_s,
        "your QOS": cluster.longest_of_qos(partition, wants["qos"].lower()),
    }
    for whose, limit in limits.items():
        if wants["time"] and limit is not None and (seconds is None or seconds > limit):
            most = numerals.slurm_time(limit)
            detail = f"{numerals.slurm_time(seconds)} is over the limit of {whose}, {most}"
            yield wants.finding("fail", "time", detail, f'write `time: "{most}"` or less')
    setting = "MaxMemPerNode"
    memory = partition.limit(setting) or slurm.number(cluster.config.get(setting))
    if memory is not None and wants.mem_mb > memory:
        detail = f"{wants.mem_mb}M is over {setting} of partition {name}, {memory}M"
        yield wants.finding("fail", "mem", detail, f"write `mem: {memory}M` or less")


def feature_names(expression: str) -> tuple[str, ...]:
    """Return the names in what `sbatch --constraint` takes, such as ``a&b`` or ``[a*2|b*1]``."""
    return tuple(dict.fromkeys(_FEATURE.findall(_COUNT.sub("", expression))))


@dataclass(frozen=True)
class Matches:
    """The nodes that have what a profile names; what is free or large enough is not asked."""

    wanted: str  # what they are to have
    of_partition: Sequence[Node]
    with_features: Sequence[Node]  # of these
    found: Sequence[Node]  # of these, with the GPUs, too

    @property
    def summary(self) -> str:
        """Return how many nodes of the partition were found, and in what state they are."""
        total = f"{len(self.found)} of {len(self.of_partition)} match {self.wanted}"
        if not self.found:
            return total
        states = Counter(node.state for node in self.found)
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        return f"{total}: {counts} ({listed(node.name for node in self.found)})"

    @property
    def hardware(self) -> str:
        """Return what the nodes of the partition have, each kind once."""
        kinds = []
        for node in self.of_partition:
            has = [*map(str, node.gres), *node.features, f"{node.cpus} CPUs", f"{node.memory_mb}M"]
            kinds.append(" ".join(has))
        return listed(kinds)


def match(wants: Wants, partitions: Sequence[str], nodes: Sequence[Node]) -> Matches:
    """Find the nodes of a profile; a slice of a GPU counts only if the profile means slices."""
    of_partition = []
    with_features = []
    found = []
    for node in nodes:
        if partitions and {*partitions}.isdisjoint(node.partitions):
            continue
        of_partition.append(node)
        if not _fits(wants["constraint"], node):
            continue
        with_features.append(node)
        if all(_count(wish, node, wants.slices) >= wish.count for wish in wants.gres):
            found.append(node)
    wanted = [f"partition {' or '.join(partitions)}"] if partitions else []
    wanted += [f"{key} {wants[key]}" for key in ("constraint", "gres") if wants[key]]
    return Matches(", ".join(wanted) or "anything", of_partition, with_features, found)


def nodes_for(profile: Profile, cluster: Cluster) -> list[Node]:
    """Return the nodes that can run jobs of a profile, in service or not.

    Raises:
        SchedulerError: Slurm does not say which nodes a list of the profile has.
    """
    wants = options_of(profile)
    partitions = [partition.name for partition in _chosen(wants.partitions, cluster)]
    only = _hosts(wants["nodelist"])
    never = _hosts(wants["exclude"])
    cpus = profile.cpus_per_task or 0
    found = []
    for node in match(wants, partitions, cluster.nodes).found:
        is_named = node.name in only or not only
        is_large = node.cpus >= cpus and node.memory_mb >= wants.mem_mb
        if is_named and is_large and node.name not in never:
            found.append(node)
    return found


def _hosts(names: str) -> Sequence[str]:
    hosts = slurm.hostnames(names)
    if isinstance(hosts, CouldNotAsk):
        raise SchedulerError(f"nodes {names}: {hosts}")
    return hosts


def _chosen(names: Sequence[str], cluster: Cluster) -> list[Partition]:
    """Return the partitions of these names; without any, the default one of the cluster."""
    chosen = []
    for partition in cluster.partitions:
        is_default = partition.settings.get("Default") == "YES"
        if partition.name in names or (is_default and not names):
            chosen.append(partition)
    return chosen


def _fits(expression: str, node: Node) -> bool:
    """Say whether a node has the features: all of ``a&b`` and ``a,b``, one of what has more."""
    wanted = {*feature_names(expression)}
    if _ALTERNATIVES.search(expression):
        return not wanted.isdisjoint(node.features)
    return wanted.issubset(node.features)


def _count(wish: Gres, node: Node, slices: bool) -> int:  # noqa: FBT001
    """Return how many of a generic resource a node has, with `slices` of a GPU or without."""
    number = 0
    for gres in node.gres:
        is_any = not wish.type and (slices or not gpus.is_slice(gres.type))
        if gres.name == wish.name and (gres.type == wish.type or is_any):
            number += gres.count
    return number


def other_gpus(wants: Wants, nodes: Sequence[Node]) -> Iterator[ProfileFinding]:
    """Say if jobs may get another GPU on these nodes than the profile names, or a slice of one.

    `gpu:1` may be a slice (MIG), and the features of its node may name the whole GPU.
    """
    types = [wish.type for wish in wants.gres if wish.name == "gpu"]
    if not types or any(types):  # a type is the GPU: sbatch looks for it
        return
    kinds = site.kinds_on(nodes)
    pattern = wants["gpu_name"] or "(?!)"  # which nothing matches
    counts: list[str] = []
    ways: list[str] = []
    sliced: list[GpuKind] = []
    for kind in kinds:
        name = gpus.by_label(kind.gpu) or kind.gpu
        if gpus.is_slice(kind.gres_type) and not wants.slices:
            sliced.append(kind)
        elif name == wants["gpu"] or re.search(pattern, name.upper()):
            counts.append(f"{len(kind.counts)} of them with {name.upper()}")
            ways += _ways_to(wants, kind, kinds)
    if not sliced and (not counts or len(kinds) == 1):  # nothing to tell, or nothing else
        return
    if sliced:
        with_slices = set[Node]().union(*[kind.counts for kind in sliced])
        names = listed(kind.gres_type for kind in sliced)
        counts.append(f"{len(with_slices)} with slices (MIG), which do not count: {names}")
        ways.append("if slices are meant, say so: `gpu_name: MIG`; else a job that gets one stops")
    with_gpus = set[Node]().union(*[kind.counts for kind in kinds])  # one may have several kinds
    detail = f"{len(with_gpus)} nodes match this profile, {', '.join(counts)}"
    yield wants.finding("warn", "gpu", detail, ", or ".join(ways) or "ask the site")


def _ways_to(wants: Wants, kind: GpuKind, kinds: Sequence[GpuKind]) -> Iterator[str]:
    """Yield what to write in the profile so that jobs get one kind of GPU."""
    before = wants["constraint"]
    feature = site.own_feature(kind, kinds)
    if feature and before:
        before = f"({before})" if "|" in before else before
        yield f"write `constraint: {before}&{feature}`"
    elif feature:
        yield f"add `constraint: {feature}`"
    elif kind.gres_type:
        yield f"write `gres: gpu:{kind.gres_type}:1`"
