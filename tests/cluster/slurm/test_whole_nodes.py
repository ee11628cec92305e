"""Sites that give whole nodes, or several GPUs at least: profiles for them, and what misfits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters import CLUSTER, node, partition
from hpcsweep.cluster.slurm import discover

NODES = [node("n1", gpus=("v100", 8), cpus=64), node("n2", gpus=("v100", 4))]
EXCLUSIVE = {"partitions": [partition("gpu", Default="YES", OverSubscribe="EXCLUSIVE")]}
LINEAR = {"config": {"SelectType": "select/linear"}}
DEMANDING = {"qos_gpus": {"normal": 4}}


@pytest.mark.parametrize("site", [EXCLUSIVE, LINEAR, DEMANDING])
def test_a_profile_is_written_for_as_many_gpus_as_a_job_has_there(site):
    """With the memory and CPUs of as many, of the smallest node."""
    (one,) = discover.find(replace(CLUSTER, nodes=NODES, **site))
    assert one.profile["gres"] == "gpu:v100:4"
    assert one.profile["gpus_per_job"] == 4
    least_cpus = 32
    assert one.profile["cpus_per_task"] == least_cpus
    (other,) = discover.find(replace(CLUSTER, nodes=NODES))
    assert other.profile["gres"] == "gpu:v100:1"
    assert "gpus_per_job" not in other.profile


@pytest.mark.parametrize(
    ("text", "level", "told"),
    [
        ("gres: gpu:v100:1\ngpus_per_job: 8\n", "fail", "jobs ask for 1 GPU, and `gpus_per_job` "),
        ("sbatch_options: ['--gpus=2']\ngpus_per_job: 4\n", "fail", "`gpus_per_job: 2` measures"),
        ("gres: gpu:v100:4\n", "", ""),
        ("gres: gpu:v100:4\ngpus_per_job: 4\n", "", ""),
        ("gres: gpu:4\ngpus_per_job: 4\nsbatch_options: ['--gpus=4']\n", "", ""),
        ("gres: gpu:1\n", "", ""),
        ("gpus_per_job: 4\n", "", ""),
    ],
)
def test_gres_and_gpus_per_job_name_the_same_number(look, text, level, told):
    """Who measures on one GPU alone may ask for all, so that nobody is beside it."""
    found = look(text, replace(CLUSTER, nodes=NODES))
    assert [each[0] for each in found] == ([level] if level else [])
    assert all(told in each[2] for each in found)


@pytest.mark.parametrize(
    ("site", "level", "told"),
    [
        (EXCLUSIVE, "warn", "gives whole nodes of 4 GPUs, of which 1 GPU would measure"),
        (LINEAR, "warn", "gives whole nodes of 4 GPUs"),
        (DEMANDING, "fail", "your QOS lets no job start with less than 4 GPUs"),
    ],
)
def test_a_profile_that_leaves_gpus_of_its_jobs_idle_is_told(look, site, level, told):
    """With what to write instead."""
    cluster = replace(CLUSTER, nodes=NODES, **site)
    ((found, _, text),) = look("gres: gpu:v100:1\n", cluster)
    assert found == level
    assert told in text
    assert "write `gpus_per_job: 4`, and as many in `gres`" in text
    assert look("gres: gpu:v100:4\ngpus_per_job: 4\n", cluster) == []
