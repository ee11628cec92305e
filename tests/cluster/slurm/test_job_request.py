"""What sbatch would read: the profile's keys, and verbatim options over them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from hpcsweep.cluster.slurm import job_request
from hpcsweep.cluster.slurm.site import Gres
from hpcsweep.spec import profile

if TYPE_CHECKING:
    from hpcsweep.cluster.slurm.job_request import Wants


def asked(text: str, tmp_path) -> Wants:
    """Return what a profile of this text asks for."""
    path = tmp_path / "x.yaml"
    path.write_text(f"gpu: v100\n{text}")
    return job_request.options_of(profile.load(path))


@pytest.mark.parametrize(
    ("gres", "wishes"),
    [
        ("gpu", [("gpu", "", 1)]),
        ("gpu:2", [("gpu", "", 2)]),
        ("gpu:v100", [("gpu", "v100", 1)]),
        ("gres:gpu:v100:2", [("gpu", "v100", 2)]),
        ("gres/gpu:1", [("gpu", "", 1)]),
        ("gpu:1g.10gb:3", [("gpu", "1g.10gb", 3)]),
        ("gpu:1,shard:4K", [("gpu", "", 1), ("shard", "", 4096)]),
        ("none", []),
    ],
)
def test_every_form_of_gres_is_read(gres, wishes, tmp_path):
    """Name, type and count, each where it is given."""
    assert asked(f"gres: '{gres}'\n", tmp_path).gres == tuple(Gres(*w) for w in wishes)


@pytest.mark.parametrize("option", ["--partition=b", "--partition b", "-p b", "-pb"])
def test_a_verbatim_option_stands_over_the_key_and_is_named_by_its_line(option, tmp_path):
    """Sbatch takes the last; the complaint points at `sbatch_options`."""
    found = asked(f"partition: a\nsbatch_options: ['{option}']\n", tmp_path)
    assert found.partitions == ("b",)
    assert found.places["partition"] == f"{tmp_path / 'x.yaml'}:3"


def test_numbers_are_those_of_slurm(tmp_path):
    """Minutes are rounded up; memory without a unit is in MiB; of a range, the least counts."""
    text = "time: '00:04:30'\nmem: 2G\nsbatch_options: [--mem=500, --nodes=2-4, -c8]\n"
    found = asked(text, tmp_path)
    assert (found.time_s, found.mem_mb, found.nodes, found.cpus) == (300, 500, 2, 8)
    assert asked("gpu_name: x\n", tmp_path).time_s is None
    assert asked("time: UNLIMITED\n", tmp_path).time_s == math.inf


def test_gpus_per_node_are_gpus(tmp_path):
    """The newer way to ask for them."""
    found = asked("sbatch_options: ['--gpus-per-node=v100:2']\n", tmp_path)
    assert found.gres == (Gres("gpu", "v100", 2),)
