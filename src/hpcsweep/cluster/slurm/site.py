"""Asks for a cluster's configuration, nodes, partitions, and for the names of QOS and accounts."""

from __future__ import annotations

import grp
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Final

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
# Signs at the end of a state in sinfo: `*` does not respond, `~` powered off, `#` starting ...
_SIGNS: Final = "*~#!%$@+^-"
_USABLE: Final = frozenset({"idle", "mixed", "allocated", "completing", "reserved", "planned"})
_SLEEPING: Final = frozenset({"powered_down", "powering_down", "powering_up"})  # Slurm wakes them
_GRES: Final = re.compile(r"(\w+)(?::([^:(),]+))?:(\d+[KMGT]?)")
_LIMITLESS: Final = frozenset({"ALL", "NONE", "N/A", "(NULL)", ""})


@dataclass(frozen=True)
class Gres:
    """Generic resources of a node, such as two GPUs of type v100; `str` is sbatch's form."""

    name: str
    type: str  # empty where the site gives none
    count: int

    def __str__(self) -> str:
        return ":".join(filter(None, (self.name, self.type, str(self.count))))


@dataclass(frozen=True, kw_only=True)
class Node:
    """One compute node."""

    name: str
    partitions: tuple[str, ...]
    features: tuple[str, ...]
    gres: tuple[Gres, ...]
    cpus: int
    memory_mb: int
    state: str  # as sinfo writes it, without signs
    responds: bool
    reason: str = ""  # why it is down or drained

    @property
    def usable(self) -> bool:
        """Whether a job can start on it, now or when it is free."""
        return self.responds and self.state in _USABLE | _SLEEPING


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
    rows_by_node: dict[str, list[list[str]]] = {}
    for row in rows(answer, _NODE.count(SEPARATOR) + 1):
        rows_by_node.setdefault(row[0], []).append(row)
    return [_node(name, listed) for name, listed in rows_by_node.items()]


def partitions() -> list[Partition] | CouldNotAsk:
    """Return every partition with its limits."""
    answer = ask("scontrol", "--all", "--oneliner", "show", "partition")
    if isinstance(answer, CouldNotAsk):
        return answer
    lines = (line for line in answer.splitlines() if line.startswith("PartitionName="))
    every = (dict(word.partition("=")[::2] for word in line.split()) for line in lines)
    return [Partition(name=each["PartitionName"], settings=each) for each in every]


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


def _node(name: str, listed: list[list[str]]) -> Node:
    _, _, features, gres, cpus, memory, state, reason = listed[0]
    resources = _GRES.findall(re.sub(r"\([^)]*\)", "", gres))  # of ``gpu:v100:2(S:0-1),shard:8``
    return Node(
        name=name,
        partitions=tuple(row[1] for row in listed),
        features=names(features),
        gres=tuple(Gres(what, kind, amount(count) or 0) for what, kind, count in resources),
        cpus=number(cpus) or 0,
        memory_mb=number(memory) or 0,
        state=state.rstrip(_SIGNS),
        responds="*" not in state,
        reason="" if reason.lower() == "none" else reason,
    )


def names(text: str) -> tuple[str, ...]:
    """Split a list of names; ALL and an empty text are an empty tuple."""
    if text.upper() in _LIMITLESS:
        return ()
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _sacctmgr(entity: str, fields: tuple[str, ...], *chosen: str) -> list[list[str]] | CouldNotAsk:
    arguments = ["-n", "-P", "--readonly", "show", entity, *chosen, f"format={','.join(fields)}"]
    answer = ask("sacctmgr", *arguments)
    if isinstance(answer, CouldNotAsk):
        return answer
    split = (line.split("|") for line in answer.splitlines())
    return [row for row in split if len(row) == len(fields)]


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A cluster's configuration. A field without an answer is empty; `unanswered` says why."""

    config: Mapping[str, str] = field(default_factory=dict)
    partitions: Sequence[Partition] = ()
    nodes: Sequence[Node] = ()
    qos: Mapping[str, int | None] = field(default_factory=dict)  # their time limits
    own: Mapping[str, frozenset[str]] = field(default_factory=dict)  # the user's account, qos
    groups: frozenset[str] = frozenset()  # the user's own, by name
    unanswered: Mapping[str, CouldNotAsk] = field(default_factory=dict)  # by the fields above


def describe() -> Cluster:
    """Ask all questions; where the first is not answered no other is asked."""
    settings = _down() or config()
    if isinstance(settings, CouldNotAsk):  # others would time out, too
        return Cluster(unanswered={item.name: settings for item in fields(Cluster)})
    name = settings.get("ClusterName", "")
    answers: dict[str, Any] = {
        "config": settings, "partitions": partitions(), "nodes": nodes(), "qos": qos(),
        "own": own(name),
    }  # fmt: skip
    unanswered = {key: why for key, why in answers.items() if isinstance(why, CouldNotAsk)}
    answered = {key: answer for key, answer in answers.items() if key not in unanswered}
    return Cluster(**answered, groups=frozenset(_groups()), unanswered=unanswered)


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
