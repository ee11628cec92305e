"""Everything that a cluster says about itself and about this user, asked once."""

from __future__ import annotations

import grp
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from hpcsweep.slurm import site
from hpcsweep.slurm.call import TIMEOUT, CouldNotAsk, Why, cause, run

_SILENT: Final = (Why.ABSENT, Why.DOWN, Why.NO_ANSWER)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """What could be asked, and for the rest why not."""

    config: dict[str, str] | CouldNotAsk
    partitions: list[site.Partition] | CouldNotAsk
    nodes: list[site.Node] | CouldNotAsk
    qos: list[site.Qos] | CouldNotAsk
    associations: list[site.Association] | CouldNotAsk
    default_account: str | CouldNotAsk
    parent_accounts: dict[str, str] | CouldNotAsk
    groups: frozenset[str] = frozenset()  # the user's own, by name


def describe(*, timeout: float = TIMEOUT) -> Cluster:
    """Ask everything; all of it takes no longer than `timeout` seconds."""
    until = time.monotonic() + timeout
    config = _down(timeout) or site.config(timeout=timeout)
    if isinstance(config, CouldNotAsk) and config.why in _SILENT:
        return _silent(config)
    name = "" if isinstance(config, CouldNotAsk) else config.get("ClusterName", "")
    left = max(0.1, until - time.monotonic())
    with ThreadPoolExecutor() as pool:  # each of them waits for another program
        partitions = pool.submit(site.partitions, timeout=left)
        nodes = pool.submit(site.nodes, timeout=left)
        qos = pool.submit(site.qos, timeout=left)
        associations = pool.submit(site.associations, cluster=name, timeout=left)
        account = pool.submit(site.default_account, timeout=left)
        parents = pool.submit(site.parent_accounts, name, timeout=left)
        return Cluster(
            config=config,
            partitions=partitions.result(),
            nodes=nodes.result(),
            qos=qos.result(),
            associations=associations.result(),
            default_account=account.result(),
            parent_accounts=parents.result(),
            groups=_groups(),
        )


def _down(timeout: float) -> CouldNotAsk | None:
    """Return that no controller is up: ping says so at once, any other question after 19 s."""
    reply = run(["scontrol", "ping"], timeout)
    if isinstance(reply, CouldNotAsk) or reply.code is None:
        return reply if isinstance(reply, CouldNotAsk) else cause("scontrol", reply, timeout)
    if reply.code == 0 or re.search(r"\bUP\b", reply.out):
        return None
    return CouldNotAsk("scontrol", Why.DOWN, "slurmctld cannot be reached")


def _silent(answer: CouldNotAsk) -> Cluster:
    """Return a cluster that says nothing: one silence is waited for, not seven."""
    return Cluster(
        config=answer,
        partitions=answer,
        nodes=answer,
        qos=answer,
        associations=answer,
        default_account=answer,
        parent_accounts=answer,
    )


def _groups() -> frozenset[str]:
    names = map(_group_name, {os.getgid(), *os.getgroups()})
    return frozenset(filter(None, names))


def _group_name(number: int) -> str:
    try:
        return grp.getgrgid(number).gr_name
    except KeyError:  # a group without a name cannot be in a partition's list
        return ""
