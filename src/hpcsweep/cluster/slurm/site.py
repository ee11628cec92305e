"""What a cluster has: nodes, their kinds of GPUs, partitions, and the user's QOS and accounts.

It asks Slurm, and judges no profile: `profile_checks` says whether the cluster has what one asks
for.
"""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from hpcsweep.catalog import gpus
from hpcsweep.cluster.slurm.call import (
    SEPARATOR,
    CouldNotAsk,
    amount,
    ask,
    config,
    duration,
    number,
    rows,
    user_name,
)

_NODE: Final = SEPARATOR.join(["%N", "%R", "%f", "%G", "%c", "%m", "%T", "%E"])
# At the end of a state in sinfo (sinfo(1), NODE STATE CODES): `~` powered off, `#` starting ...
_SIGNS: Final = r"[~#!%$@+^-]"
# The last three states are of nodes that Slurm wakes. A reserved node is others' for now.
_USABLE: Final = frozenset({
    "idle", "mixed", "allocated", "completing", "planned",
    "powered_down", "powering_down", "powering_up",
})  # fmt: skip
# Names in one line: a cluster has thousands of nodes.
_SHOWN: Final = 8
# The sockets of a GPU, as in `gpu:v100:2(S:0-1)`.
_BRACKETS: Final = re.compile(r"\([^)]*\)")
# A setting of a partition: a value may have blanks, as the groups in `AllowGroups=domain users,hpc`
_SETTING: Final = re.compile(r"(\w+)=(.*?)(?=\s+[A-Z]\w*=|\s*$)")
# In a list of resources, such as `cpu=8,gres/gpu:v100=4`
_GPUS: Final = re.compile(r"gres/gpu(?::[^=,]*)?=(\d+)")
_SACCTMGR: Final = ("sacctmgr", "-n", "-P", "--readonly", "show")
# What Slurm prints where a list of names limits nothing.
_LIMITLESS: Final = frozenset({"ALL", "NONE", "N/A", "(NULL)", ""})


@dataclass(frozen=True)
class Gres:
    """Generic resources of a node, such as two GPUs of type v100; `str` is sbatch's form."""

    name: str
    type: str  # empty where the site gives none
    count: int

    @classmethod
    def read(cls, word: str) -> Gres:
        """Read ``gpu``, ``gpu:2``, ``gpu:v100``, ``gpu:v100:2``, also with `=` before the count."""
        name, *parts = re.split("[:=]", word)
        count = amount(parts[-1]) if parts else None
        kinds = parts if count is None else parts[:-1]
        # a resource of a node that jobs do not use up is marked so, behind its type
        kind = ":".join(part for part in kinds if part not in {"", "no_consume"})
        return cls(name, kind, 1 if count is None else count)

    @property
    def kind(self) -> str:
        """The name, and the type where there is one."""
        return f"{self.name}:{self.type}" if self.type else self.name

    def __str__(self) -> str:
        return f"{self.kind}:{self.count}"


@dataclass(frozen=True, kw_only=True)
class Node:
    """One compute node."""

    name: str
    partitions: tuple[str, ...]
    features: tuple[str, ...]
    gres: tuple[Gres, ...]
    cpus: int
    memory_mb: int
    state: str  # as sinfo writes it; of its signs only `*` is kept: the node does not respond
    reason: str = ""  # why it is down or drained

    @property
    def usable(self) -> bool:
        """Whether a job can start on it, now or when it is free."""
        return self.state in _USABLE


@dataclass(frozen=True, kw_only=True)
class Partition:
    """One partition, with its settings by Slurm's names; None stands for no limit."""

    name: str
    settings: Mapping[str, str]

    @property
    def state(self) -> str:
        """UP, DOWN, DRAIN or INACTIVE."""
        return self.settings.get("State", "UP")

    @property
    def max_time_s(self) -> int | None:
        return duration(self.settings.get("MaxTime", ""))

    def limit(self, key: str) -> int | None:
        """Return a setting that is a number."""
        return number(self.settings.get(key))

    def allowed(self, what: str) -> set[str]:
        """Return the Groups, Accounts or Qos that alone may use it; empty for all."""
        return {*names_in(self.settings.get(f"Allow{what}", ""))}


def nodes() -> list[Node] | CouldNotAsk:
    """Return every node, in Slurm's order."""
    answer = ask("sinfo", "-h", "-N", "--all", "-o", _NODE)
    if isinstance(answer, CouldNotAsk):
        return answer
    found: dict[str, Node] = {}
    for row in rows(answer, _NODE.count(SEPARATOR) + 1):  # one for each partition of a node
        name, partition, features, gres, cpus, memory, state, reason = row
        others = found[name].partitions if name in found else ()
        resources = names_in(_BRACKETS.sub("", gres))  # gpu:v100:2(S:0-1),shard:8 or (null)
        found[name] = Node(
            name=name,
            partitions=(*others, partition),
            features=names_in(features),
            gres=tuple(Gres.read(resource) for resource in resources),
            cpus=number(cpus) or 0,
            memory_mb=number(memory) or 0,
            state=re.sub(_SIGNS, "", state),
            reason="" if reason.lower() == "none" else reason,
        )
    return [*found.values()]


def partitions() -> list[Partition] | CouldNotAsk:
    """Return every partition with its limits."""
    answer = ask("scontrol", "--all", "--oneliner", "show", "partition")
    if isinstance(answer, CouldNotAsk):
        return answer
    found = []
    for line in answer.splitlines():
        settings = dict(_SETTING.findall(line))
        if "PartitionName" in settings:
            found.append(Partition(name=settings["PartitionName"], settings=settings))
    return found


def names_in(text: str) -> tuple[str, ...]:
    """Split a list of names; ALL and an empty text are an empty tuple."""
    return () if text.upper() in _LIMITLESS else split_at_commas(text)


def listed(names: Iterable[str]) -> str:
    """Return names in one line, cut short where there are many."""
    every = sorted(set(names))
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return (", ".join(every[:_SHOWN]) + more) or "none"


def split_at_commas(text: str) -> tuple[str, ...]:
    """Split a list at its commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster's configuration; names and limits of users are empty where a site hides them."""

    config: Mapping[str, str]
    nodes: Sequence[Node]
    partitions: Sequence[Partition]
    own: Mapping[str, frozenset[str]]  # the user's account, qos, groups
    qos_time_s: Mapping[str, int]  # the time limits of QOS that have one
    qos_gpus: Mapping[str, int] = field(default_factory=dict)  # what QOS demand at least of a job

    def longest_of_qos(self, partition: Partition | None, qos: str = "") -> int | None:
        """Return the longest time in seconds that QOS let a job have; None: none, or not known.

        Without the name of a QOS it is the user's only one. Where the partition has a QOS, too,
        flags of theirs say which counts: a job above both never starts.
        """
        names = self._qos_of(partition, qos)
        return max(
            (self.qos_time_s[name] for name in names if name in self.qos_time_s), default=None
        )

    def fewest_of_qos(self, partition: Partition | None, qos: str = "") -> int:
        """Return the fewest GPUs that QOS let a job have; 0 without such a limit."""
        return max(self.qos_gpus.get(name, 0) for name in self._qos_of(partition, qos))

    def _qos_of(self, partition: Partition | None, qos: str) -> tuple[str, str]:
        own = self.own.get("qos", frozenset())
        if not qos and len(own) == 1:
            (qos,) = own
        return qos, partition.settings.get("QoS", "") if partition else ""


def describe() -> Cluster | CouldNotAsk:
    """Ask all questions; where one to the controller is not answered, no other is asked."""
    settings = config()
    if isinstance(settings, CouldNotAsk):
        return settings
    every_node = nodes()
    if isinstance(every_node, CouldNotAsk):
        return every_node
    every_partition = partitions()
    if isinstance(every_partition, CouldNotAsk):
        return every_partition
    seconds, fewest = _limits_of_qos(settings.get("AccountingStorageEnforce", ""))
    return Cluster(
        config=settings,
        nodes=every_node,
        partitions=every_partition,
        own=_own(settings.get("ClusterName", "")),
        qos_time_s=seconds,
        qos_gpus=fewest,
    )


def _limits_of_qos(enforced: str) -> tuple[dict[str, int], dict[str, int]]:
    """Return the time limits of QOS in seconds, and the fewest GPUs; of those that have them.

    Both are empty if they are not enforced.
    """
    times: dict[str, int] = {}
    fewest: dict[str, int] = {}
    if "limits" not in enforced:
        return times, fewest
    answer = ask(*_SACCTMGR, "qos", "format=Name,MaxWall,MinTRES")
    for line in () if isinstance(answer, CouldNotAsk) else answer.splitlines():
        name, _bar, limits = line.partition("|")
        limit, _bar, least = limits.partition("|")
        seconds = duration(limit)
        if seconds is not None:
            times[name] = seconds
        gpus = _GPUS.findall(least)
        if gpus:
            fewest[name] = max(map(int, gpus))
    return times, fewest


def _own(cluster: str) -> dict[str, frozenset[str]]:
    """Return this user's groups, and accounts and QOS where there are any and the site tells."""
    command = [*_SACCTMGR, "assoc", "format=Account,QOS"]
    command.append(f"user={user_name()}")
    if cluster:  # the database may be that of several
        command.append(f"cluster={cluster}")
    answer = ask(*command)
    accounts: set[str] = set()
    every_qos: set[str] = set()
    for line in () if isinstance(answer, CouldNotAsk) else answer.splitlines():
        account, bar, listed = line.partition("|")
        if bar:
            accounts.add(account)
            every_qos.update(names_in(listed))
    groups = set[str]()
    for group in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):  # no list of a partition has a group without a name
            groups.add(grp.getgrgid(group).gr_name)
    return {
        "account": frozenset(accounts),
        "qos": frozenset(every_qos),
        "groups": frozenset(groups),
    }


@dataclass(frozen=True)
class GpuKind:
    """Nodes with the same type of GPU: the type in their GRES, and how many each node has."""

    gpu: str
    gres_type: str
    counts: Mapping[Node, int]


def kinds_on(nodes: Sequence[Node]) -> list[GpuKind]:
    """Return the kinds of GPUs that nodes have."""
    groups: dict[tuple[str, str], dict[Node, int]] = {}
    for node in nodes:
        for gres in node.gres:
            if gres.name == "gpu" and gres.count:
                key = (gres.type, _known(gres.type, node.features))
                groups.setdefault(key, {})[node] = gres.count
    # Two types of one product (40 and 80 GB) have names of their own, so that rows do not mix.
    shorts = [short for _, short in groups]
    kinds = []
    for kind, short in sorted(groups):
        own = short if shorts.count(short) == 1 else ""
        name = own or gpus.as_value(kind) or short or "gpu"
        kinds.append(GpuKind(name, kind, groups[kind, short]))
    return kinds


def _known(kind: str, features: Collection[str]) -> str:
    """Return the catalogue's name of a GPU, by its type or a feature; without any, the features.

    None of a slice: a feature of its node is about the whole GPU.
    """
    if gpus.is_slice(kind):
        return ""
    for label in (kind, *features):
        short = gpus.by_label(label)
        if short:
            return short
    return "" if kind else gpus.as_value("-".join(features))


def own_feature(kind: GpuKind, kinds: Sequence[GpuKind]) -> str:
    """Return a feature of all nodes of a kind that no other node with GPUs has."""
    common = set.intersection(*(set(node.features) for node in kind.counts))
    has_others = False
    for other in kinds:
        if other is not kind:
            has_others = True
            common.difference_update(*(node.features for node in other.counts))
    own = sorted(common)
    for name in own:  # the best is one that says which GPU it is
        if gpus.by_label(name) == kind.gpu:
            return name
    is_needed = has_others and not kind.gres_type  # else the type in the GRES tells them apart
    return own[0] if own and is_needed else ""
