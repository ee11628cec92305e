"""Checks a profile against the user's accounts and QOS, as far as sacctmgr answers; pure.

Slurm accepts some jobs that it then never starts: those whose account or QOS the partition does not
accept, and those whose time is over a limit. It refuses unknown names without naming the right one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hpcsweep import units
from hpcsweep.preflight.findings import Finding, listed
from hpcsweep.preflight.request import Wants
from hpcsweep.slurm import Association, Cluster, Partition


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


def examine(rights: Rights) -> Iterator[Finding]:
    """Yield the findings about account, QOS and their time limits."""
    yield _named(rights, "account", rights.account, rights.accounts, "associations")
    yield _named(rights, "qos", rights.qos, rights.qualities, "qos")
    yield from _time(rights)


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


def _time(rights: Rights) -> Iterator[Finding]:
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
