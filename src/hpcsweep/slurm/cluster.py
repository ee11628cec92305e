"""Everything that a cluster says about itself and about this user, asked once."""

from __future__ import annotations

import grp
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Final

from hpcsweep.slurm import site
from hpcsweep.slurm.call import TIMEOUT, CouldNotAsk, Why, cause, run

_SILENT: Final = (Why.ABSENT, Why.DOWN, Why.NO_ANSWER, Why.UNCONFIGURED)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What a cluster answered. A field without an answer is empty; `unanswered` says why."""

    config: Mapping[str, str] = field(default_factory=dict)
    partitions: Sequence[site.Partition] = ()
    nodes: Sequence[site.Node] = ()
    qos: Sequence[site.Qos] = ()
    associations: Sequence[site.Association] = ()
    default_account: str = ""
    parent_accounts: Mapping[str, str] = field(default_factory=dict)
    groups: frozenset[str] = frozenset()  # the user's own, by name
    unanswered: Mapping[str, CouldNotAsk] = field(default_factory=dict)  # by the fields above


def describe(*, timeout: float = TIMEOUT) -> Cluster:
    """Ask everything; all of it takes no longer than `timeout` seconds."""
    until = time.monotonic() + timeout
    config = _down(timeout) or site.config(timeout=timeout)
    if isinstance(config, CouldNotAsk) and config.why in _SILENT:  # others would time out, too
        return Cluster(unanswered={one.name: config for one in fields(Cluster)})
    name = "" if isinstance(config, CouldNotAsk) else config.get("ClusterName", "")
    left = max(0.1, until - time.monotonic())
    with ThreadPoolExecutor() as pool:  # each of them waits for another program
        asked: dict[str, Future[Any]] = {
            "partitions": pool.submit(site.partitions, timeout=left),
            "nodes": pool.submit(site.nodes, timeout=left),
            "qos": pool.submit(site.qos, timeout=left),
            "associations": pool.submit(site.associations, name, timeout=left),
            "default_account": pool.submit(site.default_account, timeout=left),
            "parent_accounts": pool.submit(site.parent_accounts, name, timeout=left),
        }
    answers = {"config": config, **{key: one.result() for key, one in asked.items()}}
    unanswered = {key: why for key, why in answers.items() if isinstance(why, CouldNotAsk)}
    told = {key: answer for key, answer in answers.items() if key not in unanswered}
    return Cluster(**told, groups=frozenset(_groups()), unanswered=unanswered)


def _down(timeout: float) -> CouldNotAsk | None:
    """Say whether no controller is up: `scontrol ping` fails at once, other questions in 19 s."""
    reply = run(["scontrol", "ping"], timeout)
    if isinstance(reply, CouldNotAsk) or reply.code is None:
        return reply if isinstance(reply, CouldNotAsk) else cause("scontrol", reply, timeout)
    if reply.code == 0 or re.search(r"\bUP\b", reply.out):
        return None
    why = cause("scontrol", reply, timeout)
    if why.why is Why.UNCONFIGURED:
        return why
    return CouldNotAsk("scontrol", Why.DOWN, "slurmctld cannot be reached")


def _groups() -> Iterator[str]:
    for number in {os.getgid(), *os.getgroups()}:
        with suppress(KeyError):  # no list of a partition has a group without a name
            yield grp.getgrgid(number).gr_name
