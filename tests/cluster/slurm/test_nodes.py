"""How many nodes have what a profile asks for, on clusters that no localhost has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters import CLUSTER, node, partition
from hpcsweep.cluster.slurm import Rejected, nodes
from hpcsweep.cluster.slurm.job_request import Wants

NO_NODE = Rejected("", words="Requested node configuration is not available")


@pytest.mark.parametrize(
    ("expression", "features", "fit"),
    [
        ("", "", True),
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
def test_a_node_fits_as_slurm_says(expression: str, features: str, fit: bool):  # noqa: FBT001
    """Each letter is a feature of the node."""
    one = node("n", features=tuple(features))
    found = nodes.match(Wants({"constraint": expression}, {}), [], [one])
    assert (found.found == [one]) is fit


def _nodes(findings):
    """Return what is told of the nodes."""
    (found,) = (finding.detail for finding in findings if finding.what == "nodes")
    return found


def test_the_nodes_of_the_partition_that_have_the_gpu_are_counted(examine):
    """However it is asked for; those of other partitions are no part of it."""
    site = replace(SITE, partitions=[partition("gpu", Default="YES"), partition("cpu")])
    more = [node(f"c{i}", gpus=("", 0), partitions=("cpu",)) for i in range(3)]
    site = replace(site, nodes=[*site.nodes, *more])
    told = _nodes(examine("constraint: gpul40s\ngres: gpu:1\n", site))
    assert told.startswith("9 of 41 match partition gpu, constraint gpul40s, gres gpu:1: 9 idle (")
    typed = _site((9, "a", "l40s"), (32, "b", "v100"))
    for text in ("gres: gpu:l40s:1", "sbatch_options: [--gpus=l40s:1]", "sbatch_options: [-Gl40s]"):
        assert _nodes(examine(f"{text}\n", typed)).startswith("9 of 41 match"), text


def test_what_no_node_has_is_told_with_what_there_is(look):
    """Neither key is wrong alone, and Slurm's words name none."""
    there = [node("n1", features=("big",)), node("n2", features=("v100",), gpus=("a100", 1))]
    text = "constraint: big\ngres: 'gpu:a100:1'\n"
    ((level, what, told),) = look(text, replace(CLUSTER, nodes=there), answer=NO_NODE)
    assert (level, what) == ("fail", "sbatch")
    assert told.startswith(
        f"sbatch refuses these jobs: {NO_NODE.words}; 0 of 2 match partition gpu"
    )
    assert "-> asked for: --constraint=big --gres=gpu:a100:1 --time=60 --nodes=1; there are" in told
    assert told.endswith("gpu:a100:1 v100 32 CPUs 100000M, gpu:v100:4 big 32 CPUs 100000M")


def test_nodes_that_are_out_of_service_are_a_warning_with_the_reason(look):
    """They may come back while the job waits; sbatch has the same words as for what no node has."""
    away = [node("n1", state="drained", reason="fan"), node("n2", state="down*")]
    ((level, what, told),) = look("", replace(CLUSTER, nodes=away), answer=NO_NODE)
    assert (level, what) == ("warn", "nodes")
    assert "2 of 2 match partition gpu: 1 down*, 1 drained (n1, n2); sbatch finds none now" in told
    assert told.endswith("n1: fan, n2: down*")
    one_is_back = [away[0], node("n2")]
    assert look("", replace(CLUSTER, nodes=one_is_back)) == []
    ((level, what, _),) = look("gres: gpu:5\n", replace(CLUSTER, nodes=away), answer=NO_NODE)
    assert (level, what) == ("fail", "sbatch")  # none has so many
    for words in ("Required node not available (down, drained or reserved)", "nodes are busy"):
        ((level, _, told),) = look("", answer=Rejected("", words=words))
        assert (level, words in told) == ("warn", True)


def _site(*kinds):
    """Return a cluster with so many nodes of each feature, and of each type in the GRES."""
    there = [
        node(f"{feature}-{gres}-{i}", features=("ib", feature), gpus=(gres, 2))
        for count, feature, gres in kinds
        for i in range(count)
    ]
    return replace(CLUSTER, nodes=there)


L40 = "gpu_name: 'L40S?$'\ngres: gpu:1\n"
SITE = _site((9, "gpul40s", ""), (20, "gpu2v100", ""), (12, "gpu2080", ""))


def test_a_profile_that_may_get_another_gpu_is_told_what_chooses_its_own(look):
    """Its jobs would wait, start on another GPU, and be refused there."""
    advice = "41 nodes match this profile, {} -> add `constraint: {}`"
    l40s = ("warn", "gpu", advice.format("9 of them with L40S", "gpul40s"))
    assert look(L40, SITE, "l40") == [l40s]
    v100 = ("warn", "gpu", advice.format("20 of them with V100", "gpu2v100"))
    assert look("gres: gpu:1\n", SITE) == [v100]
    assert look("sbatch_options: [--gpus 1]\n", SITE) == [v100]
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
    for one in ("gres: gpu:v100:1\n", "sbatch_options: ['--gpus=v100:1']\n"):
        assert look(one, typed) == []
    ((_, _, text),) = look("gres: gpu:1\nconstraint: ib\n", SITE)
    assert text.endswith("-> write `constraint: ib&gpu2v100`")


def test_gpus_that_nobody_can_tell_apart_are_left_to_the_job(look):
    """Without types and telling features, `gpu_name` stops the job on the node."""
    assert look("gres: gpu:1\n", _site((2, "x", ""), (2, "y", ""))) == []
    assert look("", SITE, "cpu") == []


A100 = "gpu_name: 'A100'\nconstraint: a100\n"
SLICED = ["gpu:a100_3g.20gb:6"]


def test_slices_do_not_count_as_the_whole_gpu_that_a_feature_names(look, examine):
    """`gpu:1` may be a slice, on which a job stops; the user is told which nodes have them."""
    sliced = [node(f"m{i}", features=("a100",), gpus=SLICED) for i in range(6)]
    whole = [node(f"w{i}", features=("a100",), gpus=["gpu:4"]) for i in range(2)]
    both = replace(CLUSTER, nodes=[*sliced, *whole])
    assert _nodes(examine(f"{A100}gres: gpu:1\n", both, "a100")).startswith(
        "2 of 8 match partition gpu, constraint a100, gres gpu:1: 2 idle (w0, w1)"
    )
    ((_, what, told),) = look(f"{A100}gres: gpu:1\n", both, "a100")
    assert what == "gpu"
    assert told.startswith(
        "8 nodes match this profile, 2 of them with A100, 6 with slices (MIG), which do not count: "
        "a100_3g.20gb"
    )
    alone = replace(CLUSTER, nodes=sliced)
    ((level, what, told),) = look(f"{A100}gres: gpu:1\n", alone, "a100")
    assert (level, what) == ("warn", "gpu")
    assert told.startswith("6 nodes match this profile, 6 with slices (MIG), which do not count: a")
    name, said = look("gres: gpu:a100:1\n", alone, "a100", answer=NO_NODE)  # the type decides
    assert name[2].startswith("no gres 'gpu:a100' on this cluster; did you mean 'gpu:a100_3g.20gb'")
    assert (said[0], said[1]) == ("fail", "sbatch")
    for meant in ("gres: gpu:a100_3g.20gb:1\n", "gres: gpu:1\ngpu_name: MIG\n"):
        assert look(f"constraint: a100\n{meant}", alone, "a100") == []


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
    assert [kind.gpu for kind in nodes.kinds_on(there)] == kinds
