"""Profiles from what a cluster says: clusters that no localhost has."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from clusters import CLUSTER, node, partition
from hpcsweep.catalog import gpus
from hpcsweep.cluster.slurm import CouldNotAsk, discover
from hpcsweep.cluster.slurm.site import Gres
from hpcsweep.errors import MissingDependency, Refused, SchedulerError, UsageError
from hpcsweep.spec import profile

SILENT = CouldNotAsk("sinfo", "slurmctld cannot be reached")


def found(**answers):
    """Return what is discovered where a cluster answers otherwise, by name."""
    return {one.name: one for one in discover.find(replace(CLUSTER, **answers))}


@pytest.mark.parametrize(
    ("label", "short"),
    [
        ("gpu2v100", "v100"),
        ("Tesla_V100-SXM2-32GB", "v100"),
        ("gpul40s", "l40s"),
        ("nvidia_l40", "l40"),
        ("nvidia_a100_80gb_pcie", "a100"),
        ("nvidia_h100_80gb_hbm3", "h100"),
        ("mi250", "mi250"),
        ("gh200", None),
        ("a100x", None),
        ("mi250x", None),
        ("rtx6000", None),
        ("", None),
    ],
)
def test_a_sites_word_for_a_gpu_is_known(label, short):
    """And what only looks like it is not."""
    assert gpus.by_label(label) == short


@pytest.mark.parametrize(
    ("short", "device"),
    [
        ("v100", "Tesla V100-SXM2-16GB"),
        ("l40", "NVIDIA L40"),
        ("l40s", "NVIDIA L40S"),
        ("a100", "NVIDIA A100-SXM4-80GB"),
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("mi250", "AMD Instinct MI250X/MI250"),
    ],
)
def test_a_device_matches_the_pattern_of_its_own_type_alone(short, device):
    """The names are those that drivers give."""
    matching = [s for s in gpus.GPUS if re.search(gpus.name_pattern(s), device)]
    assert matching == [short]


def test_types_without_a_type_in_the_gres_are_told_apart_by_features(tmp_path):
    """A feature that all nodes of a kind have, and no other node with GPUs."""
    nodes = [
        node("a1", features=("ib", "a100"), gpus=("", 8)),
        node("a2", features=("ib", "a100", "new"), gpus=("", 8)),
        node("p1", features=("ib", "p100"), gpus=("", 2)),
        node("c1", features=("p100", "ib"), gpus=("", 0)),
    ]
    both = found(nodes=nodes)
    assert both["a100"].profile["constraint"] == "a100"
    assert both["a100"].profile["gres"] == "gpu:1"
    assert both["a100"].about == "2 nodes with 8 GPUs each (a1, a2)"
    assert both["ib-p100"].profile["constraint"] == "p100"
    assert "gpu_name" not in both["ib-p100"].profile
    for line in discover.write(list(both.values()), tmp_path, force=False):
        assert "node" in line
    assert profile.load(tmp_path / "a100.yaml").gpu_name == r"\bA100\b"


def test_one_kind_of_gpu_needs_no_constraint():
    """Nor a name that the site does not give."""
    (one,) = found(nodes=[node("n1", gpus=("", 4))]).values()
    assert one.name == "gpu"
    assert "constraint" not in one.profile


def test_two_types_of_one_model_keep_their_own_names():
    """Rows of an A100 with 40 GB and one with 80 GB must not mix; a slice is no A100."""
    kinds = ("a100_40gb", "a100_80gb", "a100_1g.5gb")
    both = found(nodes=[node(f"n{i}", gpus=(kind, 4)) for i, kind in enumerate(kinds)])
    assert set(both) == set(kinds)
    assert both["a100_80gb"].profile["gres"] == "gpu:a100_80gb:1"


def test_a_node_with_two_types_is_in_two_profiles():
    """Its GPUs are shared out by type."""
    mixed = replace(node("n1"), gres=(Gres("gpu", "v100", 2), Gres("gpu", "a100", 4)))
    both = found(nodes=[mixed])
    assert (both["v100"].profile["mem"], both["a100"].profile["mem"]) == ("48G", "24G")
    assert (both["v100"].profile["cpus_per_task"], both["a100"].profile["cpus_per_task"]) == (16, 8)


@pytest.mark.parametrize(
    ("other", "chosen"),
    [
        ({}, "mine"),  # fewer other nodes
        ({"State": "DOWN"}, "big"),
        ({"MaxTime": "60"}, "big"),
        ({"RootOnly": "YES"}, "big"),
        ({"AllowGroups": "admins"}, "big"),
        ({"PreemptMode": "REQUEUE"}, "big"),
        ({"AllowQos": "vip"}, "big"),
    ],
)
def test_the_partition_is_one_that_this_user_may_use(other, chosen):
    """Open, long enough, without preemption, and with as few other nodes as can be."""
    nodes = [node("n1", partitions=("big", "mine")), node("n2", gpus=("", 0), partitions=("big",))]
    one = found(nodes=nodes, partitions=[partition("big"), partition("mine", **other)])["v100"]
    assert one.profile["partition"] == chosen


def test_a_partition_that_is_printed_twice_is_one():
    """As while its configuration is changed."""
    twice = (partition("gpu"), partition("gpu", MaxNodes="1"))
    assert found(partitions=twice)["v100"].profile["partition"] == "gpu"


def test_a_cluster_without_an_open_partition_is_told_in_the_file():
    """The profile is written all the same; the doctor will refuse it."""
    (one,) = found(partitions=[partition("gpu", State="DOWN")]).values()
    assert "partition" not in one.profile
    assert "# partition: none that is open to you" in one.text()


def test_account_and_qos_are_written_where_there_is_one_choice():
    """Where there are more, a comment lists them; where nobody says, nothing stands there."""
    (one,) = found().values()
    assert (one.profile["account"], one.profile["qos"]) == ("phys", "normal")
    both = {"account": frozenset({"chem", "phys"}), "qos": frozenset({"normal", "long"})}
    (one,) = found(own=both).values()
    assert not {"account", "qos"} & set(one.profile)
    assert "# account: one of chem, phys" in one.text()
    only = [partition("gpu", AllowAccounts="chem", AllowQos="long")]
    (one,) = found(own=both, partitions=only).values()
    assert (one.profile["account"], one.profile["qos"]) == ("chem", "long")
    (one,) = found(own={}).values()
    assert not {"account", "qos"} & set(one.profile)


def test_limits_of_partition_and_qos_bound_time_memory_and_cpus():
    """The smallest of all that hold."""
    tight = partition("gpu", MaxTime="02:00:00", MaxMemPerNode="8192", MaxCPUsPerNode="2")
    (one,) = found(partitions=[tight]).values()
    assert (one.profile["time"], one.profile["mem"], one.profile["cpus_per_task"]) == (
        "02:00:00",
        "8G",
        2,
    )
    (one,) = found(partitions=[tight], qos_time_s={"normal": 3600}).values()
    assert one.profile["time"] == "01:00:00"


def test_what_cannot_be_discovered_is_told(monkeypatch):
    """No answer, no GPUs, no Slurm: three exit codes."""
    monkeypatch.setattr("hpcsweep.cluster.slurm.available", lambda: True)
    monkeypatch.setattr("hpcsweep.cluster.slurm.site.describe", lambda: SILENT)
    with pytest.raises(SchedulerError, match="run this again"):
        discover.ask()
    bare = replace(CLUSTER, nodes=[replace(node("n1"), gres=())])
    monkeypatch.setattr("hpcsweep.cluster.slurm.site.describe", lambda: bare)
    with pytest.raises(Refused, match="GRES"):
        discover.ask()
    monkeypatch.setattr("hpcsweep.cluster.slurm.available", lambda: False)
    with pytest.raises(MissingDependency, match="login node"):
        discover.ask()


def test_a_folder_that_cannot_be_written_is_told(tmp_path):
    """With the option that names another."""
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        list(discover.write(discover.find(CLUSTER), tmp_path / "file" / "x", force=False))


def test_a_name_of_digits_stays_a_text():
    """YAML would read a number."""
    found = discover.Discovery(
        "x", "a", (), {"account": "123", "cpus_per_task": 4, "mem": "7G"}, ()
    )
    text = found.text()
    assert all(line in text for line in ('account: "123"\n', "cpus_per_task: 4\n", 'mem: "7G"\n'))
