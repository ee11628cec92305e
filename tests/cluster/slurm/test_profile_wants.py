"""What a profile asks of sbatch: every form of an option, and where it stands."""

from __future__ import annotations

import pytest

from hpcsweep.cluster.slurm import profile_wants
from hpcsweep.cluster.slurm.profile_wants import Wants
from hpcsweep.cluster.slurm.site import Gres
from hpcsweep.spec import profile


def asked(text: str, tmp_path) -> Wants:
    """Return what a profile of this text asks for."""
    path = tmp_path / "x.yaml"
    path.write_text(f"gpu: v100\n{text}")
    return profile_wants.options_of(profile.load(path))


@pytest.mark.parametrize(
    ("gres", "wishes"),
    [
        ("gpu", [("gpu", "", 1)]),
        ("gres:gpu:v100:2", [("gpu", "v100", 2)]),
        ("gres/gpu:1", [("gpu", "", 1)]),
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


def test_memory_without_a_unit_is_in_mib(tmp_path):
    """As sbatch reads it."""
    assert asked("mem: 2G\nsbatch_options: [--mem=500]\n", tmp_path).mem_mb == 500


@pytest.mark.parametrize(
    "option",
    [
        *("--gpus=v100:2", "--gpus v100:2", "-Gv100:2"),
        *("--gpus-per-node=v100:2", "--gpus-per-task=v100:2"),
        *("--gpus-per-socket=v100:2", "--tres-per-task=cpu=4,gres/gpu:v100=2"),
        *("--tres-per-node=gres:gpu:v100:2", "--gres=gpu:v100:2"),
    ],
)
def test_every_way_to_ask_for_gpus_is_the_request_for_them(option, tmp_path):
    """It adds to `gres`, and a complaint points at its line."""
    found = asked(f"sbatch_options: ['{option}']\n", tmp_path)
    assert found.gres == (Gres("gpu", "v100", 2),)
    assert found.places["gres"] == f"{tmp_path / 'x.yaml'}:2"
    both = asked(f"gres: 'lscratch:10'\nsbatch_options: ['{option}']\n", tmp_path)
    lscratch = [] if "--gres" in option else [Gres("lscratch", "", 10)]
    assert both.gres == (*lscratch, Gres("gpu", "v100", 2))


def test_options_about_gpus_that_ask_for_none_are_no_request(tmp_path):
    """How they are bound, and what a CPU is of them."""
    text = "sbatch_options: [--gpu-bind=closest, --cpus-per-gpu=4, --tres-per-task=cpu=4]\n"
    assert asked(text, tmp_path).gres == ()


def test_the_words_for_sbatch_are_those_of_the_job_script(tmp_path):
    """The keys, then the verbatim options, of which the last counts."""
    path = tmp_path / "x.yaml"
    path.write_text(
        "gpu: v100\npartition: a b\ntime: 60\nsbatch_options: [--comment='c d', -p x]\n"
    )
    words = profile_wants.arguments(profile.load(path))
    assert words == ["--partition=a b", "--time=60", "--nodes=1", "--comment=c d", "-p", "x"]
