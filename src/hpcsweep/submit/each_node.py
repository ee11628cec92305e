"""`submit --each-node`: the same points on every node that the profile matches.

The node is part of a point (the axis `on_node`), so a point has a row for each node, and a later
submission sends what a node lacks, also one that was out of service before. What was measured on
any node is another point: nothing tells that all of it was on one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hpcsweep import messages
from hpcsweep.errors import Refused, SchedulerError, UsageError
from hpcsweep.spec.expansion import MOST_POINTS
from hpcsweep.text import count

if TYPE_CHECKING:
    from hpcsweep.cluster.slurm.bad_nodes import BadNode
    from hpcsweep.cluster.slurm.site import Node
    from hpcsweep.submit.comparison import Submit


def choose(job: Submit) -> Submit:
    """Give each node of the profile that is in service all points, if that is asked for.

    Raises:
        Refused: no node is, or none matches the profile.
        SchedulerError: Slurm does not tell its nodes.
        UsageError: these are too many points.
    """
    request = job.request
    if not request.options.each_node:
        return job
    from hpcsweep.cluster import slurm  # noqa: PLC0415 - a local run needs nothing of Slurm
    from hpcsweep.cluster.slurm import bad_nodes, profile_checks, site  # noqa: PLC0415 - as above

    cluster = site.describe()
    if isinstance(cluster, slurm.CouldNotAsk):
        raise SchedulerError(f"--each-node asks Slurm for the nodes: {cluster}")
    nodes = profile_checks.nodes_for(request.profile, cluster)
    if not nodes:
        raise Refused(
            f"--each-node: no node matches profile {request.profile.name}; "
            f"`hpcsweep doctor --cluster {request.profile.name}` says what the nodes have"
        )
    bad = job.bad_nodes
    if not bad and job.answer:  # an estimate did not look for them
        bad = bad_nodes.current(job.sweep_dir, job.answer)
    left_out = dict(_left_out(nodes, bad))
    names = [node.name for node in nodes if node.name not in left_out]
    told = ", ".join(f"{name} ({why})" for name, why in left_out.items())
    if not names:
        raise Refused(f"--each-node: none of {count(len(nodes), 'node')} is in service: {told}")
    if told:
        messages.note(
            f"each node: left out {told}",
            "when they are back, the same command sends their points",
        )
    expansion = request.expansion.on_nodes(names)
    if len(expansion) > MOST_POINTS:
        what = f"{count(len(expansion), 'point')} on {count(len(names), 'node')}"
        raise UsageError(f"--each-node: {what}, at most {MOST_POINTS:,} at a time; take a --sample")
    return replace(job, request=replace(request, expansion=expansion))


def _left_out(nodes: Sequence[Node], bad: Sequence[BadNode]) -> Iterator[tuple[str, str]]:
    """Yield the nodes that get no points now, and why."""
    failed = {node.name: node.why for node in bad}
    for node in nodes:
        if not node.usable:
            yield node.name, f"{node.state}: {node.reason}" if node.reason else node.state
        elif node.name in failed:
            yield node.name, f"avoided for a day: {failed[node.name]}"
