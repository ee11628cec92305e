"""What is read of the cluster itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusters import node
from hpcsweep.cluster.slurm import site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:4", [("gpu", "", 4)]),
        ("gpu:nvidia_a100-sxm4-80gb:8(S:0-7)", [("gpu", "nvidia_a100-sxm4-80gb", 8)]),
        (
            "gpu:l40s:4(S:0-1),shard:8,tmp:2G",
            [("gpu", "l40s", 4), ("shard", "", 8), ("tmp", "", 2**31)],
        ),
        ("(null)", []),
        ("gpu:(null):2(S:0-1,3)", [("gpu", "", 2)]),
        ("bandwidth:lustre:no_consume:4K", [("bandwidth", "lustre", 4096)]),
    ],
)
def test_generic_resources_are_read(
    program: Callable[[str, str], Path], text: str, expected: list[tuple[str, str, int]]
):
    """With and without type, sockets and units."""
    line = rf"n1\037gpu\037a,b\037{text}\03716\03764000\037idle\037none"
    program("sinfo", f"printf '{line}\\n'")
    (node,) = site.nodes()
    assert [(g.name, g.type, g.count) for g in node.gres] == expected
    assert (node.features, node.cpus, node.memory_mb, node.reason) == (("a", "b"), 16, 64000, "")


def test_a_group_with_a_blank_in_its_name_is_one_group(program: Callable[[str, str], Path]):
    """As `scontrol` prints it, between settings without; a greeting of the site is no partition."""
    line = (
        "PartitionName=gpu AllowGroups=domain users,hpc AllowAccounts=ALL DenyQos=a b,c "
        "Default=YES MaxTime=1-00:00:00 State=UP TRES=cpu=48,gres/gpu=6 TRESBillingWeights=CPU=1.0"
    )
    program("scontrol", f"echo Welcome A=b; echo '{line}'")
    (found,) = site.partitions()
    assert (found.name, found.max_time_s, found.state) == ("gpu", 86400, "UP")
    assert found.allowed("Groups") == {"domain users", "hpc"}
    assert found.allowed("Accounts") == set()
    assert found.settings["TRES"] == "cpu=48,gres/gpu=6"
    assert found.settings["TRESBillingWeights"] == "CPU=1.0"


def test_a_node_that_does_not_respond_is_not_usable(program: Callable[[str, str], Path]):
    """One that sleeps is: Slurm wakes it. One that is reserved is others' for now."""
    row = r"{0}\037{1}\037\037\037 1\037 1\037{0}\037none\n"
    lines = "".join(
        row.format(state, partition)
        for state in ("idle*", "idle~", "mixed#", "reserved", "down*")
        for partition in ("gpu", "all")
    )
    program("sinfo", f"printf '{lines}'")
    found = {node.name: node for node in site.nodes()}
    assert {name for name, node in found.items() if node.usable} == {"idle~", "mixed#"}
    assert found["idle~"].partitions == ("gpu", "all")


@pytest.mark.parametrize(
    ("gres", "features", "kinds"),
    [
        (
            "gpu:nvidia_h100_80gb_hbm3_1g.10gb:16(S:0-1),gpu:nvidia_h100_80gb_hbm3_3g.40gb:4",
            "h100",
            ["nvidia_h100_80gb_hbm3_1g.10gb", "nvidia_h100_80gb_hbm3_3g.40gb"],
        ),
        ("gpu:a100l.2g.20gb:3,gpu:a100l.3g.40gb:2", "", ["a100l.2g.20gb", "a100l.3g.40gb"]),
        ("gpu:a100_3g.20gb:6", "a100", ["a100_3g.20gb"]),
        ("gpu:mig-1g.5gb:7", "a100", ["mig-1g.5gb"]),
        ("gpu:v100x:4(S:0-1),lscratch:3200", "", ["v100x"]),
        ("gpu:amd_instinct_mi250x_/_mi250:8", "", ["mi250"]),
        ("gpu:4(S:0-1)", "cpu_gen_icl,gpu_model_a100,mem768", ["a100"]),
        ("gpu:l40s:2(S:0),shard:l40s:8(S:0)", "", ["l40s"]),
        ("gpu:a100:2,gpu:a100_1g.5gb:7", "a100", ["a100", "a100_1g.5gb"]),
    ],
)
def test_the_gpus_of_real_sites_are_told_apart(gres, features, kinds):
    """A slice has a name of its own, whatever its node's features say; a share is no GPU."""
    words = gres.replace("(S:0-1)", "").replace("(S:0)", "").split(",")
    there = [node("n", features=tuple(features.split(",")), gpus=words)]
    assert [kind.gpu for kind in site.kinds_on(there)] == kinds
