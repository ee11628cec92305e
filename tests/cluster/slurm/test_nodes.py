"""Which nodes can run a profile's jobs, on clusters that no localhost has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters import CLUSTER, node
from hpcsweep.cluster.slurm import nodes


@pytest.mark.parametrize(
    ("expression", "node", "fit"),
    [
        ("a", "a", True),
        ("a&b", "a", False),
        ("a,b", "ab", True),
        ("a|b", "b", True),
        ("[a|b]", "b", True),
        ("(a|b)&c", "bc", True),
        ("(a|b)&c", "b", True),  # perhaps: sbatch knows
        ("(a|b)&c", "d", False),
        ("b&c|a", "a", True),
        ("a*2", "a", True),
        ("[a*1&b*2]", "b", True),
        ("[a*1&b*2]", "c", False),
    ],
)
def test_a_node_fits_as_slurm_says(expression: str, node: str, fit: bool):  # noqa: FBT001
    """Each letter is a feature of the node."""
    assert nodes._fits(expression, set(node)) is fit


def test_names_are_found_whatever_is_around_them():
    """Counts are no names; hyphens and dots are part of one."""
    assert nodes._feature_names("[gpu-a*2&b.1*1]|(c,d)&c") == ("gpu-a", "b.1", "c", "d")


def test_a_type_where_the_site_gives_none_is_told(look):
    """There are none to write."""
    cluster = replace(CLUSTER, nodes=[node("n1", gpus=("", 4))])
    ((_, what, text),) = look("gres: 'gpu:v100:1'\n", cluster)
    assert (what, "no gpu type 'v100'" in text, "there are: none" in text) == ("gres", True, True)


def test_a_combination_that_no_node_has_names_the_nodes_of_each(look):
    """Neither key is wrong alone."""
    nodes = [node("n1", features=("big",)), node("n2", features=("v100",), gpus=("a100", 1))]
    ((_, what, text),) = look(
        "constraint: big\ngres: 'gpu:a100:1'\n", replace(CLUSTER, nodes=nodes)
    )
    assert what == "gres"
    told = "nodes with partition gpu: n1, n2; with constraint big: n1; with gres gpu:a100:1: n2"
    assert told in text


def test_nodes_that_are_all_out_of_service_are_a_warning_with_the_reason(look):
    """They may come back while the job waits."""
    nodes = [node("n1", state="drained", reason="fan"), node("n2", responds=False, state="down")]
    ((level, what, text),) = look("", replace(CLUSTER, nodes=nodes))
    assert (level, what) == ("warn", "nodes")
    assert "n1: fan" in text
    one_is_back = [nodes[0], node("n2")]
    assert look("", replace(CLUSTER, nodes=one_is_back)) == []


def test_many_names_are_cut_short(look):
    """A cluster of a thousand nodes does not fill the screen."""
    nodes = [node(f"n{number}", gpus=("v100", 4)) for number in range(1000)]
    ((_, _, text),) = look("mem: 9000G\n", replace(CLUSTER, nodes=nodes))
    assert "and 992 more" in text


def _site(*kinds):
    """Return a cluster with so many nodes of each feature, and of each type in the GRES."""
    nodes = [
        node(f"{feature}-{gres}-{i}", features=("ib", feature), gpus=(gres, 2))
        for count, feature, gres in kinds
        for i in range(count)
    ]
    return replace(CLUSTER, nodes=nodes)


L40 = "gpu_name: 'L40S?$'\ngres: gpu:1\n"
SITE = _site((9, "gpul40s", ""), (20, "gpu2v100", ""), (12, "gpu2080", ""))


def test_a_profile_that_may_get_another_gpu_is_told_what_chooses_its_own(look):
    """Its jobs would wait, start on another GPU, and be refused there."""
    advice = "41 nodes match this profile, {} -> add `constraint: {}`"
    l40s = ("warn", "gpu", advice.format("9 of them with L40S", "gpul40s"))
    assert look(L40, SITE, "l40") == [l40s]
    v100 = ("warn", "gpu", advice.format("20 of them with V100", "gpu2v100"))
    assert look("gres: gpu:1\n", SITE) == [v100]
    assert look("gres: gpu:1\nconstraint: gpu2v100\n", SITE) == []


def test_two_products_that_a_profile_takes_are_both_named(look):
    """An L40 and an L40S have one value of `gpu` there, and half as many tensor cores, or all."""
    both = _site((3, "gpul40", ""), (1, "gpul40s", ""))
    ((_, what, text),) = look(L40, both, "l40")
    assert what == "gpu"
    assert "match this profile, 3 of them with L40, 1 of them with L40S" in text
    assert text.endswith("-> add `constraint: gpul40`, or add `constraint: gpul40s`")


def test_where_the_type_is_in_the_gres_it_is_what_chooses(look):
    """And a constraint that leaves several GPUs is kept beside the new one."""
    typed = _site((2, "x", "v100"), (2, "x", "a100"))
    ((_, _, text),) = look("gres: gpu:1\n", typed)
    assert text.endswith("2 of them with V100 -> write `gres: gpu:v100:1`")
    assert look("gres: gpu:v100:1\n", typed) == []
    ((_, _, text),) = look("gres: gpu:1\nconstraint: ib\n", SITE)
    assert text.endswith("-> write `constraint: ib&gpu2v100`")


def test_gpus_that_nobody_can_tell_apart_are_left_to_the_job(look):
    """Without types and telling features, `gpu_name` stops the job on the node."""
    assert look("gres: gpu:1\n", _site((2, "x", ""), (2, "y", ""))) == []
    assert look("", SITE, "cpu") == []
