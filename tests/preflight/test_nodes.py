"""Which nodes can run a profile's jobs, on clusters that no localhost has."""

from __future__ import annotations

from dataclasses import replace

from clusters import CLUSTER, node


def test_a_type_where_the_site_gives_none_is_told(look):
    """The advice leaves it out."""
    cluster = replace(CLUSTER, nodes=[node("n1", gpus=("", 4))])
    ((_, what, text),) = look("gres: 'gpu:v100:1'\n", cluster)
    assert (what, "write `gres: gpu:1`" in text) == ("gres", True)


def test_a_combination_that_no_node_has_names_the_nodes_of_each(look):
    """Neither key is wrong alone."""
    nodes = [node("n1", features=("big",)), node("n2", features=("v100",), gpus=("a100", 1))]
    ((_, what, text),) = look(
        "constraint: big\ngres: 'gpu:a100:1'\n", replace(CLUSTER, nodes=nodes)
    )
    assert what == "gres"
    assert "n2" in text
    assert "constraint big" in text


def test_nodes_that_are_all_out_of_service_are_a_warning_with_the_reason(look):
    """They may come back while the job waits."""
    nodes = [node("n1", state="drained", reason="fan"), node("n2", responds=False, state="down")]
    ((level, what, text),) = look("", replace(CLUSTER, nodes=nodes))
    assert (level, what) == ("warn", "nodes")
    assert "n1: fan" in text
    one_is_back = [nodes[0], node("n2")]
    assert look("", replace(CLUSTER, nodes=one_is_back)) == []


def test_a_constraint_that_is_not_understood_is_left_to_sbatch(look):
    """Later releases may write more."""
    ((level, what, _),) = look("constraint: 'v100&'\n")
    assert (level, what) == ("warn", "constraint")


def test_many_names_are_cut_short(look):
    """A cluster of a thousand nodes does not fill the screen."""
    nodes = [node(f"n{number}", gpus=("v100", 4)) for number in range(1000)]
    ((_, _, text),) = look("exclude: n1OOO\n", replace(CLUSTER, nodes=nodes))
    assert "and 992 more" in text
