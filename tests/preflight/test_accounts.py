"""Accounts and QOS of clusters that no localhost has."""

from __future__ import annotations

from dataclasses import replace

from clusters import CLUSTER, mine, partition, qos
from hpcsweep.slurm import Admission, CouldNotAsk, Why

PRIVATE = CouldNotAsk("sacctmgr", Why.DENIED, "this user may not ask")


def test_accounts_that_cannot_be_asked_matter_only_where_they_are_named(look):
    """One line each; the rest is still checked."""
    hidden = {"qos": [], "associations": [], "default_account": "", "parent_accounts": {}}
    cluster = replace(CLUSTER, **hidden, unanswered=dict.fromkeys(hidden, PRIVATE))
    assert look("", cluster) == []
    found = look("account: a\nqos: b\npartition: lnog\n", cluster)
    assert [(level, what) for level, what, _ in found] == [
        ("fail", "partition"),
        ("warn", "account"),
        ("warn", "qos"),
    ]


def test_limits_of_account_and_qos_hold_where_the_site_enforces_them(look):
    """A time over either is a failure; without `limits` Slurm does not look."""
    cluster = replace(CLUSTER, qos=[qos("normal", wall=600)], associations=[mine("phys", wall=60)])
    assert [(level, what) for level, what, _ in look("", cluster)] == [("fail", "time")] * 2
    assert look("", replace(cluster, config={})) == []


def test_names_that_the_site_does_not_enforce_are_warnings(look):
    """A cluster that only keeps books takes any account."""
    found = look("account: phsy\n", replace(CLUSTER, config={}))
    assert [(level, what) for level, what, _ in found] == [("warn", "account")]
    assert "'phys'" in found[0][2]


def test_a_list_of_accounts_may_hold_for_their_children(look):
    """Newer releases say so; a denied account is denied all the same."""
    for lists, wrong in (
        (Admission(allow=("science",)), []),
        (Admission(allow=("chem",)), ["account"]),
        (Admission(deny=("phys",)), ["account"]),
    ):
        cluster = replace(CLUSTER, partitions=[partition("gpu", default=True, accounts=lists)])
        assert [what for _, what, _ in look("", cluster)] == wrong


def test_an_account_for_another_partition_is_told(look):
    """Associations may name a partition."""
    cluster = replace(CLUSTER, associations=[mine("phys", only="long")])
    ((level, what, text),) = look("account: phys\npartition: gpu\n", cluster)
    assert (level, what, "write `partition: long`" in text) == ("fail", "account", True)


def test_a_qos_of_others_is_told(look):
    """It exists, and is not for this account."""
    ((level, what, text),) = look("qos: long\n")
    assert (level, what, "normal" in text) == ("fail", "qos", True)


def test_a_user_without_an_account_is_told_where_the_site_wants_one(look):
    """Nobody has added them yet: sbatch would refuse every job. Elsewhere it does not matter."""
    wanted = replace(CLUSTER, config={"AccountingStorageEnforce": "limits,qos"}, associations=[])
    ((level, what, text),) = look("", wanted)
    assert (level, what, "ask the site" in text) == ("warn", "account", True)
    assert look("", replace(wanted, config={"AccountingStorageEnforce": "none"})) == []
