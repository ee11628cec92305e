"""Comparing a profile with a cluster: what no localhost has, and what could not be asked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusters import CLUSTER, node, partition
from hpcsweep.cluster.slurm import CouldNotAsk, LimitReached, Place, Rejected, profile_checks
from hpcsweep.cluster.slurm.profile_wants import Wants
from hpcsweep.spec import profile

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
    found = profile_checks.match(Wants({"constraint": expression}, {}), [], [one])
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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ["n1", "n2", "small", "away"]),  # of the default partition
        ("partition: long\n", ["far"]),
        ("partition: gpu,long\nconstraint: a100|v100\n", ["n1", "n2", "small", "away", "far"]),
        ("constraint: fast\n", ["n2"]),
        ("gres: 'gpu:v100:4'\nexclude: n1,away\n", ["n2"]),
        ("nodelist: 'n1,far'\n", ["n1"]),
        ("sbatch_options: [-w n2]\n", ["n2"]),
        ("mem: 90G\n", ["n1", "n2", "away"]),
        ("cpus_per_task: 64\n", []),
    ],
)
def test_the_nodes_of_a_profile_are_those_that_can_run_its_jobs(text, names, tmp_path):
    """In service or not: who takes one node after the other tells which of them is not."""
    cluster = replace(CLUSTER, nodes=[
        node("n1", features=("v100",)), node("n2", features=("v100", "fast")),
        node("small", features=("v100",), memory_mb=20_000, gpus=("v100", 1)),
        node("away", features=("v100",), state="drained", reason="fan"),
        node("far", features=("v100",), partitions=("long",)),
    ])  # fmt: skip
    path = tmp_path / "p.yaml"
    path.write_text(f"gpu: v100\ntime: 30\n{text}")
    found = profile_checks.nodes_for(profile.load(str(path)), cluster)
    assert [each.name for each in found] == names


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
