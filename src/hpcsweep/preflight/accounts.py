"""What accounts and QOS allow a profile: pure, and only where sacctmgr answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hpcsweep import units
from hpcsweep.preflight.findings import Finding
from hpcsweep.preflight.nodes import complain, listed, unknown
from hpcsweep.slurm import CouldNotAsk

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hpcsweep.preflight.request import Wants
    from hpcsweep.slurm import Association, Cluster, Partition, Qos

# Each implies `associations`, whether the site wrote that or not.
_WANT_AN_ACCOUNT: Final = ("associations", "limits", "qos", "safe", "wckeys", "all")


def account(wants: Wants, cluster: Cluster) -> str:
    """Return the account that the jobs will have, in lower case as Slurm keeps it, or nothing."""
    default = cluster.default_account
    return wants["account"].lower() or ("" if isinstance(default, CouldNotAsk) else default)


def qos(wants: Wants, cluster: Cluster) -> str:
    """Return the QOS that the jobs will have, or nothing where that is not certain."""
    if wants["qos"]:
        return wants["qos"].lower()
    defaults = {row.default_qos for row in _rows(wants, cluster) if row.default_qos}
    return defaults.pop() if len(defaults) == 1 else ""


def enforced(cluster: Cluster, what: str) -> bool:
    """Say whether the site enforces associations, limits or qos."""
    config = {} if isinstance(cluster.config, CouldNotAsk) else cluster.config
    return what in config.get("AccountingStorageEnforce", "").split(",")


def examine(wants: Wants, cluster: Cluster) -> Iterator[Finding]:
    """Yield what is known about account and QOS."""
    if isinstance(cluster.associations, CouldNotAsk):
        yield _unchecked(wants, "account", str(cluster.associations))
    elif not cluster.associations:
        yield _without_account(wants, cluster)
    else:
        yield _account(wants, cluster, {row.account for row in cluster.associations})
    if isinstance(cluster.qos, CouldNotAsk):
        yield _unchecked(wants, "qos", str(cluster.qos))
    else:
        known = {one.name: one for one in cluster.qos}
        yield from _qos(wants, cluster, known)
        yield from _wall(wants, cluster, known)


def _without_account(wants: Wants, cluster: Cluster) -> Finding:
    why = "sacctmgr shows no account of yours on this cluster"
    if not any(enforced(cluster, what) for what in _WANT_AN_ACCOUNT):
        return _unchecked(wants, "account", why)
    detail = f"{why}, which takes no job without one"
    advice = "ask the site to add you to an account (`sacctmgr show assoc user=$USER` lists yours)"
    return Finding("warn", "account", detail, do=advice, where=wants.places.get("account", ""))


def _unchecked(wants: Wants, key: str, why: str) -> Finding:
    place = wants.places.get(key, "")
    return Finding("warn" if wants[key] else "ok", key, f"not checked: {why}", where=place)


def _rows(wants: Wants, cluster: Cluster) -> Sequence[Association]:
    """Return the associations that the jobs may fall under."""
    if isinstance(cluster.associations, CouldNotAsk):
        return ()
    name = account(wants, cluster)
    return [row for row in cluster.associations if not name or row.account == name]


def _account(wants: Wants, cluster: Cluster, mine: set[str]) -> Finding:
    name = account(wants, cluster)
    if not wants["account"]:
        return Finding("ok", "account", f"{name or 'none'} by default; yours: {listed(mine)}")
    if name not in mine:
        return _softer(unknown(wants, "account", name, mine), cluster, "associations")
    only = {row.partition for row in _rows(wants, cluster)}
    if "" not in only and not only & {*wants.partitions}:
        detail = f"{name} is yours in partition {listed(only)} only"
        return complain(wants, "account", detail, f"write `partition: {min(only)}`")
    return Finding("ok", "account", name)


def _qos(wants: Wants, cluster: Cluster, known: dict[str, Qos]) -> Iterator[Finding]:
    mine = {name for row in _rows(wants, cluster) for name in row.qos}
    name = qos(wants, cluster)
    if wants["qos"] and name not in known:
        yield _softer(unknown(wants, "qos", name, mine or known), cluster, "qos")
    elif wants["qos"] and mine and name not in mine:
        text = f"{name} is not for account {account(wants, cluster) or 'any of yours'}"
        finding = complain(wants, "qos", text, f"write one of: {listed(mine)}")
        yield _softer(finding, cluster, "qos")
    elif name:
        wall = units.written(known[name].max_wall_s) if name in known else "?"
        yield Finding("ok", "qos", f"{name}, up to {wall}; yours: {listed(mine)}")


def _wall(wants: Wants, cluster: Cluster, known: dict[str, Qos]) -> Iterator[Finding]:
    """Compare the time with the limits of the QOS and of the association."""
    asked = wants.time_s
    if asked is None or not enforced(cluster, "limits"):
        return
    walls = []
    one = known.get(qos(wants, cluster))
    if one and one.max_wall_s:
        walls.append((one.max_wall_s, f"QOS {one.name}"))
    rows = _rows(wants, cluster)
    if len(rows) == 1 and rows[0].max_wall_s:
        walls.append((rows[0].max_wall_s, f"account {rows[0].account}"))
    for limit, whose in walls:
        if asked > limit:
            detail = f"{units.written(asked)} is over the limit of {whose}, {units.written(limit)}"
            yield complain(wants, "time", detail, f'write `time: "{units.written(limit)}"`')


def _softer(finding: Finding, cluster: Cluster, what: str) -> Finding:
    """Return a warning where the site does not enforce what was found wrong."""
    if enforced(cluster, what):
        return finding
    detail = f"{finding.detail}; not enforced here"
    return Finding("warn", finding.what, detail, finding.do, finding.where)


def may_use(partition: Partition, wants: Wants, cluster: Cluster) -> Iterator[Finding]:
    """Yield what keeps the jobs' account and QOS out of a partition."""
    yield from account_in(partition, wants, cluster)
    name = qos(wants, cluster)
    allowed, denied = partition.allow_qos, partition.deny_qos
    if name and ((allowed and name not in allowed) or name in denied):
        mine = {own for row in _rows(wants, cluster) for own in row.qos}
        good = ({*allowed} & mine if allowed else mine) - {*denied}
        do = f"write `qos: {min(good)}`" if good else "choose another partition"
        yield complain(wants, "qos", f"partition {partition.name} does not take QOS {name}", do)


def account_in(partition: Partition, wants: Wants, cluster: Cluster) -> Iterator[Finding]:
    """Yield what keeps the jobs' account out of a partition."""
    name, parents = account(wants, cluster), cluster.parent_accounts
    if not name or isinstance(parents, CouldNotAsk):
        return
    allowed, denied = {*partition.allow_accounts}, {*partition.deny_accounts}
    if name not in denied and (not allowed or allowed & {*_line(name, parents)}):
        return
    rows = [] if isinstance(cluster.associations, CouldNotAsk) else cluster.associations
    mine = {row.account for row in rows}
    good = (mine & allowed if allowed else mine) - denied
    do = f"write `account: {min(good)}`" if good else "choose another partition, or ask the site"
    detail = f"partition {partition.name} does not take account {name}"
    yield complain(wants, "account", detail, do)


def _line(name: str, parents: dict[str, str]) -> Iterator[str]:
    """Yield an account and its ancestors: newer releases let a list hold for children, too."""
    seen: set[str] = set()
    while name and name not in seen:
        seen.add(name)
        yield name
        name = parents.get(name, "")
