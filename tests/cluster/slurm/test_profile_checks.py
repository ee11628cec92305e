"""Comparing a profile with a cluster: what no localhost has, and what could not be asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters import CLUSTER, partition
from hpcsweep.cluster.slurm import CouldNotAsk, LimitReached, Place, Rejected

LATE = CouldNotAsk("sbatch", "no answer within 10 s")


def refused(words, about=""):
    """Return a refusal by sbatch."""
    return Rejected("", about=about, words=words)


def test_what_sbatch_accepts_is_not_refused_for_a_name(look):
    """A plugin of the site may know a partition or a feature that sinfo lacks, or choose for us."""
    text = "account: a\nqos: b\npartition: auto\nconstraint: fast\ngres: 'gpu:any:1'\n"
    assert look(text, answer=Place("gpu", "n1")) == []
    no_default = replace(CLUSTER, partitions=[partition("gpu")])
    assert look("", no_default, answer=Place("gpu", "n1")) == []


def test_the_partition_that_a_plugin_chose_is_the_one_that_is_looked_at(look, tmp_path):
    """Its limits hold, not those of the one in the profile."""
    two = [partition("gpu", State="DOWN"), partition("long", MaxTime="30")]
    ((level, what, told),) = look(
        "partition: gpu\n", replace(CLUSTER, partitions=two), answer=Place("long", "n2")
    )
    assert (level, what) == ("fail", "time")
    assert told.startswith("01:00:00 is over the limit of partition long, 00:30:00")


def test_a_sbatch_that_does_not_answer_is_unknown_and_no_refusal(look):
    """Nor are names judged then."""
    for text in ("", "account: a\nconstraint: v10\n"):
        found = {(level, what) for level, what, _ in look(text, answer=LATE)}
        assert ("warn", "sbatch") in found
        assert {level for level, _ in found} == {"warn"}
    full = LimitReached("your limit is reached", "QOSMaxSubmitJobPerUserLimit")
    ((level, _, told),) = look("", answer=full)
    assert (level, "your limit is reached" in told) == ("warn", True)


@pytest.mark.parametrize(
    ("text", "about", "told"),
    [
        ("nodelist: nn1\n", "", "no node 'nn1' on this cluster; did you mean 'n1'?"),
        ("exclude: 'n2,m[1-9,12],nn1'\n", "", "no node 'nn1' on this cluster; did you mean 'n1'?"),
        ("sbatch_options: [-w nn1]\n", "", "no node 'nn1' on this cluster; did you mean 'n1'?"),
        ("qos: nromal\nnodelist: ./nodes.txt\n", "qos", "no qos 'nromal' on this cluster; did "),
    ],
)
def test_a_refusal_is_told_in_slurms_words_and_with_the_nearest_name(look, text, about, told):
    """Slurm says that a name is wrong, not which would be right."""
    found = look(text, answer=refused("Slurm's words", about))
    name, said = [(what, detail) for level, what, detail in found if level == "fail"]
    assert name[1].startswith(told)
    assert said[0] == (about or "sbatch")
    assert said[1].startswith("sbatch refuses these jobs: Slurm's words -> ")


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


def test_a_profile_that_asks_for_nothing_special_is_fit(look):
    """The default partition is taken."""
    assert look("") == []
    assert look("constraint: v100\ngres: 'gpu:v100:4'\nmem: 97G\ncpus_per_task: 32\n") == []


def test_one_good_partition_of_several_is_enough(look):
    """Slurm runs the job where it can; what is wrong with the others is a warning."""
    shut = [partition("gpu", State="DOWN"), partition("long")]
    ((level, what, text),) = look("partition: gpu,long\n", replace(CLUSTER, partitions=shut))
    assert (level, what, "DOWN" in text) == ("warn", "partition", True)
    found = look("partition: gpu\n", replace(CLUSTER, partitions=shut))
    assert [(level, what) for level, what, _ in found] == [("fail", "partition")]


@pytest.mark.parametrize("time", ["UNLIMITED", "0", "infinite"])
def test_no_limit_is_above_every_limit(look, time):
    """Slurm would let the job wait for ever; where there is no limit, it may run for ever."""
    text = f"sbatch_options: [--time={time}]\n"
    assert look(text) == []
    short = [partition("gpu", Default="YES", MaxTime="1:00:00", DefaultTime="10:00")]
    ((level, what, told),) = look(text, replace(CLUSTER, partitions=short))
    assert (level, what) == ("fail", "time")
    assert told.startswith("UNLIMITED is over the limit of partition gpu, 01:00:00")


@pytest.mark.parametrize(
    ("qos", "of_partition", "told"),
    [
        ("normal", "N/A", "01:00:00 is over the limit of your QOS, 00:10:00"),
        ("", "N/A", "01:00:00 is over the limit of your QOS, 00:10:00"),  # the user has no other
        ("other", "gpu", "01:00:00 is over the limit of your QOS, 00:30:00"),
        ("normal", "gpu", "01:00:00 is over the limit of your QOS, 00:30:00"),  # one may override
        ("other", "N/A", ""),
    ],
)
def test_a_time_above_the_limit_of_every_qos_never_starts(look, qos, of_partition, told):
    """Slurm accepts such a job unless the QOS has a flag, and lets it wait for ever."""
    limits = {"normal": 600, "gpu": 1800}
    ours = [partition("gpu", Default="YES", QoS=of_partition)]
    own = {"qos": frozenset({"normal"})}
    cluster = replace(CLUSTER, partitions=ours, own=own, qos_time_s=limits)
    wish = f"sbatch_options: [--qos={qos}, --time=60]\n" if qos else "sbatch_options: [-t60]\n"
    found = [detail for level, what, detail in look(wish, cluster) if what == "time"]
    assert [detail.partition(" ->")[0] for detail in found] == ([told] if told else [])


def test_a_default_time_limit_is_shown(examine):
    """Without `time`, the partition's default may be far below what was meant."""
    cluster = replace(CLUSTER, partitions=[partition("gpu", Default="YES", DefaultTime="10:00")])
    found = {one.what: one for one in examine("", cluster)}
    assert (found["time"].level, "00:10:00" in found["time"].detail) == ("warn", True)


def test_a_cluster_that_shows_nothing_is_not_judged(look):
    """Some sites hide nodes and accounts from users: sbatch's words are all that is told."""
    hidden = replace(CLUSTER, nodes=[], own={})
    assert look("account: any\n", hidden) == []
    no_node = refused("Requested node configuration is not available")
    ((level, what, _),) = look("constraint: any\n", hidden, answer=no_node)
    assert (level, what) == ("warn", "nodes")
    ((level, what, _),) = look(
        "account: any\n", hidden, answer=refused("Invalid account", "account")
    )
    assert (level, what) == ("fail", "account")


def test_the_clusters_own_limit_on_memory_holds(look):
    """Where the partition has none."""
    tight = {**CLUSTER.config, "MaxMemPerNode": "8192"}
    ((level, what, text),) = look("mem: 9G\n", replace(CLUSTER, config=tight))
    assert (level, what, "write `mem: 8192M`" in text) == ("fail", "mem", True)
    assert look("mem: 9G\n", replace(CLUSTER, config={"MaxMemPerNode": "UNLIMITED"})) == []
