"""Asks for a cluster's configuration, nodes, partitions, and for the names of QOS and accounts."""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hpcsweep.cluster.slurm import call
from hpcsweep.cluster.slurm.call import (
    SEPARATOR,
    CouldNotAsk,
    amount,
    ask,
    cause,
    config,
    duration,
    number,
    rows,
    user_name,
)

_NODE: Final = SEPARATOR.join(["%N", "%R", "%f", "%G", "%c", "%m", "%T", "%E"])
_SIGNS: Final = r"[~#!%$@+^-]"  # at the end of a state in sinfo: `~` powered off, `#` starting ...
# The last three states are of nodes that Slurm wakes. A reserved node is others' for now.
_USABLE: Final = frozenset({
    "idle", "mixed", "allocated", "completing", "planned",
    "powered_down", "powering_down", "powering_up",
})  # fmt: skip
_BRACKETS: Final = re.compile(r"\([^)]*\)")
# A setting of a partition: a value may have blanks, as the groups in `AllowGroups=domain users,hpc`
_SETTING: Final = re.compile(r"(\w+)=(.*?)(?=\s+[A-Z]\w*=|\s*$)")
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
        name, *rest = re.split("[:=]", word)
        count = amount(rest[-1]) if rest else None
        kinds = rest if count is None else rest[:-1]
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
        return {*names(self.settings.get(f"Allow{what}", ""))}


def nodes() -> list[Node] | CouldNotAsk:
    """Return every node, in Slurm's order."""
    answer = ask("sinfo", "-h", "-N", "--all", "-o", _NODE)
    if isinstance(answer, CouldNotAsk):
        return answer
    found: dict[str, Node] = {}
    for row in rows(answer, _NODE.count(SEPARATOR) + 1):  # one for each partition of a node
        name, partition, features, gres, cpus, memory, state, reason = row
        others = found[name].partitions if name in found else ()
        resources = names(_BRACKETS.sub("", gres))  # gpu:v100:2(S:0-1),shard:8 or (null)
        found[name] = Node(
            name=name,
            partitions=(*others, partition),
            features=names(features),
            gres=tuple(map(Gres.read, resources)),
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
    every = [dict(_SETTING.findall(line)) for line in answer.splitlines()]
    named = [settings for settings in every if "PartitionName" in settings]
    return [Partition(name=settings["PartitionName"], settings=settings) for settings in named]


def qos() -> dict[str, int | None] | CouldNotAsk:
    """Return the time limit of every QOS; some sites deny the question."""
    answer = _sacctmgr("qos", ("Name", "MaxWall"))
    return answer if isinstance(answer, CouldNotAsk) else {n: duration(wall) for n, wall in answer}


def own(cluster: str = "") -> dict[str, frozenset[str]] | CouldNotAsk:
    """Return the names of this user's accounts and QOS, on one cluster or on all."""
    chosen = [f"user={user_name()}", *([f"cluster={cluster}"] if cluster else [])]
    answer = _sacctmgr("assoc", ("Account", "QOS"), *chosen)
    if isinstance(answer, CouldNotAsk):
        return answer
    accounts = frozenset(account for account, _ in answer)
    return {"account": accounts, "qos": frozenset(q for _, text in answer for q in names(text))}


def names(text: str) -> tuple[str, ...]:
    """Split a list of names; ALL and an empty text are an empty tuple."""
    return () if text.upper() in _LIMITLESS else words(text)


def words(text: str) -> tuple[str, ...]:
    """Split a list at its commas."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _sacctmgr(entity: str, fields: tuple[str, ...], *chosen: str) -> list[list[str]] | CouldNotAsk:
    arguments = ["-n", "-P", "--readonly", "show", entity, *chosen, f"format={','.join(fields)}"]
    answer = ask("sacctmgr", *arguments)
    if isinstance(answer, CouldNotAsk):
        return answer
    split = (line.split("|") for line in answer.splitlines())
    return [row for row in split if len(row) == len(fields)]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster's configuration; names and limits of users are empty where a site hides them."""

    config: Mapping[str, str]
    nodes: Sequence[Node]
    partitions: Sequence[Partition]
    qos: Mapping[str, int | None]  # their time limits
    own: Mapping[str, frozenset[str]]  # the user's account, qos
    groups: frozenset[str] = frozenset()  # the user's own, by name


def describe() -> Cluster | CouldNotAsk:
    """Ask all questions; where one to the controller is not answered, no other is asked."""
    settings = _down() or config()
    if isinstance(settings, CouldNotAsk):
        return settings
    there = nodes()
    if isinstance(there, CouldNotAsk):
        return there
    groups_of_nodes = partitions()
    if isinstance(groups_of_nodes, CouldNotAsk):
        return groups_of_nodes
    limits = qos()
    mine = own(settings.get("ClusterName", ""))
    return Cluster(
        config=settings,
        nodes=there,
        partitions=groups_of_nodes,
        qos={} if isinstance(limits, CouldNotAsk) else limits,
        own={} if isinstance(mine, CouldNotAsk) else mine,
        groups=frozenset(_groups()),
    )


def _down() -> CouldNotAsk | None:
    """Return why no controller is up; `scontrol ping` fails at once, other questions in 19 s."""
    reply = call.run(["scontrol", "ping"], call.TIMEOUT)
    if isinstance(reply, CouldNotAsk):
        return reply
    if reply.code == 0 or re.search(r"\bUP\b", reply.out):
        return None
    if reply.code is None or re.search(call.UNCONFIGURED, reply.err):
        return cause("scontrol", reply)
    return CouldNotAsk("scontrol", "slurmctld cannot be reached")


def _groups() -> Iterator[str]:
    for group in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):  # no list of a partition has a group without a name
            yield grp.getgrgid(group).gr_name
