"""Comparing a profile with a cluster: what no localhost has, and what could not be asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters import CLUSTER, mine, partition, qos
from hpcsweep.cluster.slurm import CouldNotAsk, Silence, profile_checks
from hpcsweep.cluster.slurm.site import Admission
from hpcsweep.spec import profile

PRIVATE = CouldNotAsk("sacctmgr", Silence.DENIED, "this user may not ask")


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


SILENT = CouldNotAsk("scontrol", Silence.DOWN, "slurmctld cannot be reached")


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


def test_a_cluster_elsewhere_is_not_compared_with_this_one(look):
    """`--clusters` sends the job where nobody was asked."""
    ((level, _, text),) = look("partition: nosuch\nsbatch_options: [--clusters=other]\n")
    assert (level, "other" in text) == ("warn", True)


def test_one_good_partition_of_several_is_enough(look):
    """Slurm runs the job where it can; what is wrong with the others is a warning."""
    shut = [partition("gpu", state="DOWN"), partition("long")]
    ((level, what, text),) = look("partition: gpu,long\n", replace(CLUSTER, partitions=shut))
    assert (level, what, "DOWN" in text) == ("warn", "partition", True)
    found = look("partition: gpu\n", replace(CLUSTER, partitions=shut))
    assert [(level, what) for level, what, _ in found] == [("fail", "partition")]


def test_a_misspelt_one_of_several_partitions_is_replaced_in_place(look):
    """The advice is the whole value."""
    ((_, _, text),) = look("partition: gpu,lnog\n")
    assert "write `partition: gpu,long`" in text


def test_no_default_partition_is_told(look):
    """Sbatch would refuse."""
    cluster = replace(CLUSTER, partitions=[partition("gpu")])
    ((level, what, text),) = look("", cluster)
    assert (level, what, "one of: gpu" in text) == ("fail", "partition", True)


def test_a_qos_may_free_its_jobs_from_the_partitions_limit(look):
    """The flag PartitionTimeLimit says so."""
    short = [partition("gpu", default=True, max_time_s=600)]
    cluster = replace(CLUSTER, partitions=short)
    assert [what for _, what, _ in look("", cluster)] == ["time"]
    free = [qos("normal", flags=("PartitionTimeLimit",))]
    assert look("", replace(cluster, qos=free)) == []


def test_a_partition_of_another_group_is_doubted(look):
    """The groups of this machine need not be those of the controller."""
    ours = partition("gpu", default=True, settings={"AllowGroups": "admins"})
    assert [f[:2] for f in look("", replace(CLUSTER, partitions=[ours]))] == [("warn", "partition")]


def test_a_default_time_limit_is_shown(look, tmp_path):
    """Without `time`, the partition's default may be far below what was meant."""
    path = tmp_path / "q.yaml"
    path.write_text("gpu: v100\n")
    cluster = replace(CLUSTER, partitions=[partition("gpu", default=True, default_time_s=600)])
    found = {f.what: f for f in profile_checks.examine(profile.load(path), cluster)}
    assert (found["time"].level, "00:10:00" in found["time"].detail) == ("warn", True)


def test_a_cluster_that_shows_nothing_is_not_judged(look):
    """Some sites hide nodes and accounts from users."""
    ((level, _, text),) = look("partition: nosuch\n", replace(CLUSTER, nodes=[]))
    assert (level, "PrivateData" in text) == ("warn", True)
    ((level, what, _),) = look("account: any\n", replace(CLUSTER, associations=[]))
    assert (level, what) == ("warn", "account")


def test_the_clusters_own_limit_on_memory_holds(look):
    """Where the partition has none."""
    tight = {**CLUSTER.config, "MaxMemPerNode": "8192"}
    ((level, what, text),) = look("mem: 9G\n", replace(CLUSTER, config=tight))
    assert (level, what, "write `mem: 8192M`" in text) == ("fail", "mem", True)
    assert look("mem: 9G\n", replace(CLUSTER, config={"MaxMemPerNode": "UNLIMITED"})) == []
