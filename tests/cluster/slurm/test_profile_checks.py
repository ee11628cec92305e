"""Comparing a profile with a cluster: what no localhost has, and what could not be asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters import CLUSTER, partition
from hpcsweep.cluster.slurm import CouldNotAsk, profile_checks
from hpcsweep.spec import profile

PRIVATE = CouldNotAsk("sacctmgr", "this user may not ask")


def test_accounts_that_cannot_be_asked_matter_only_where_they_are_named(look):
    """One line each; the rest is still checked."""
    hidden = {"qos": {}, "own": {}}
    cluster = replace(CLUSTER, **hidden, unanswered=dict.fromkeys(hidden, PRIVATE))
    assert look("", cluster) == []
    found = look("account: a\nqos: b\npartition: lnog\n", cluster)
    assert [(level, what) for level, what, _ in found] == [
        ("fail", "partition"),
        ("warn", "account"),
        ("warn", "qos"),
    ]


def test_the_limit_of_a_qos_holds_where_the_site_enforces_it(look):
    """Of the one that is named, or of the user's only one; else Slurm does not look."""
    cluster = replace(CLUSTER, qos={"normal": 600})
    assert [(level, what) for level, what, _ in look("", cluster)] == [("fail", "time")]
    assert look("", replace(cluster, config={})) == []
    two = {**CLUSTER.own, "qos": frozenset({"normal", "long"})}
    assert look("", replace(cluster, own=two)) == []
    assert [what for _, what, _ in look("qos: normal\n", replace(cluster, own=two))] == ["time"]


def test_names_that_the_site_does_not_enforce_are_warnings(look):
    """A cluster that only keeps books takes any account."""
    found = look("account: phsy\n", replace(CLUSTER, config={}))
    assert [(level, what) for level, what, _ in found] == [("warn", "account")]
    assert "'phys'" in found[0][2]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("AllowAccounts", "gpu is for accounts staff; yours: phys"),
        ("AllowQos", "gpu is for qos staff; yours: normal"),
        ("AllowGroups", "gpu is for groups staff; yours: users"),
    ],
)
def test_a_partition_for_others_is_doubted(look, setting, told):
    """Newer releases take the children of a named account, and groups may differ elsewhere."""
    ours = [partition("gpu", Default="YES", **{setting: "staff"})]
    ((level, what, text),) = look("", replace(CLUSTER, partitions=ours))
    assert (level, what, text) == ("warn", "partition", f"{told} -> ask the site")
    open_to_all = [partition("gpu", Default="YES", **{setting: "ALL"})]
    assert look("", replace(CLUSTER, partitions=open_to_all)) == []


def test_a_qos_of_others_is_told(look):
    """It exists, and is not for this account."""
    ((level, what, text),) = look("qos: long\n")
    assert (level, what, "normal" in text) == ("fail", "qos", True)


def test_a_user_without_an_account_is_told_where_the_site_wants_one(look):
    """Nobody has added them yet: sbatch would refuse every job. Elsewhere it does not matter."""
    wanted = replace(CLUSTER, config={"AccountingStorageEnforce": "limits,qos"}, own={})
    ((level, what, text),) = look("", wanted)
    assert (level, what, "ask the site" in text) == ("warn", "account", True)
    assert look("", replace(wanted, config={"AccountingStorageEnforce": "none"})) == []


SILENT = CouldNotAsk("scontrol", "slurmctld cannot be reached")


def test_a_profile_that_asks_for_nothing_special_is_fit(look):
    """The default partition is taken."""
    assert look("") == []
    assert look("constraint: v100\ngres: 'gpu:v100:4'\nmem: 97G\ncpus_per_task: 32\n") == []


@pytest.mark.parametrize("missing", ["nodes", "partitions"])
def test_a_silent_cluster_is_told_in_one_line(look, missing):
    """And nothing is claimed about it."""
    ((level, _, text),) = look(
        "partition: nosuch\n", replace(CLUSTER, **{missing: []}, unanswered={missing: SILENT})
    )
    assert level == "warn"
    assert "slurmctld cannot be reached" in text


def test_one_good_partition_of_several_is_enough(look):
    """Slurm runs the job where it can; what is wrong with the others is a warning."""
    shut = [partition("gpu", State="DOWN"), partition("long")]
    ((level, what, text),) = look("partition: gpu,long\n", replace(CLUSTER, partitions=shut))
    assert (level, what, "DOWN" in text) == ("warn", "partition", True)
    found = look("partition: gpu\n", replace(CLUSTER, partitions=shut))
    assert [(level, what) for level, what, _ in found] == [("fail", "partition")]


def test_no_default_partition_is_told(look):
    """Sbatch would refuse."""
    cluster = replace(CLUSTER, partitions=[partition("gpu")])
    ((level, what, text),) = look("", cluster)
    assert (level, what, "one of: gpu" in text) == ("fail", "partition", True)


@pytest.mark.parametrize("time", ["UNLIMITED", "0", "infinite"])
def test_no_limit_is_above_every_limit(look, time):
    """Slurm would let the job wait for ever; where there is no limit, it may run for ever."""
    text = f"sbatch_options: [--time={time}]\n"
    assert look(text) == []
    short = [partition("gpu", Default="YES", MaxTime="1:00:00", DefaultTime="10:00")]
    ((level, what, told),) = look(text, replace(CLUSTER, partitions=short))
    assert (level, what) == ("fail", "time")
    assert told.startswith("UNLIMITED is over the limit of partition gpu, 01:00:00")
    ((level, what, told),) = look(text, replace(CLUSTER, qos={"normal": 600}))
    assert (level, what) == ("fail", "time")
    assert told.startswith("UNLIMITED is over the limit of your QOS, 00:10:00")


def test_a_default_time_limit_is_shown(look, tmp_path):
    """Without `time`, the partition's default may be far below what was meant."""
    path = tmp_path / "q.yaml"
    path.write_text("gpu: v100\n")
    cluster = replace(CLUSTER, partitions=[partition("gpu", Default="YES", DefaultTime="10:00")])
    found = {f.what: f for f in profile_checks.examine(profile.load(path), cluster)}
    assert (found["time"].level, "00:10:00" in found["time"].detail) == ("warn", True)


def test_a_cluster_that_shows_nothing_is_not_judged(look):
    """Some sites hide nodes and accounts from users."""
    ((level, _, text),) = look("partition: nosuch\n", replace(CLUSTER, nodes=[]))
    assert (level, "PrivateData" in text) == ("warn", True)
    ((level, what, _),) = look("account: any\n", replace(CLUSTER, own={}))
    assert (level, what) == ("warn", "account")


def test_the_clusters_own_limit_on_memory_holds(look):
    """Where the partition has none."""
    tight = {**CLUSTER.config, "MaxMemPerNode": "8192"}
    ((level, what, text),) = look("mem: 9G\n", replace(CLUSTER, config=tight))
    assert (level, what, "write `mem: 8192M`" in text) == ("fail", "mem", True)
    assert look("mem: 9G\n", replace(CLUSTER, config={"MaxMemPerNode": "UNLIMITED"})) == []
