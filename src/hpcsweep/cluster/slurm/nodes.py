"""Counts the nodes that have what a profile asks for, and tells the GPUs of nodes apart; pure.

Whether a job may run is for sbatch to say. It has the same words for what no node has and for nodes
that are out of service, so the counts here also tell these two apart.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from hpcsweep.catalog import gpus
from hpcsweep.cluster.slurm.job_request import ProfileFinding, Wants, listed
from hpcsweep.cluster.slurm.site import Gres, Node

# In an expression a name may hold hyphens and dots; `*2` behind it is a number of nodes.
_FEATURE: Final = re.compile(r"[^&|,()\[\]*]+")
_COUNT: Final = re.compile(r"\*\d+")


def feature_names(expression: str) -> tuple[str, ...]:
    """Return the names in what `sbatch --constraint` takes, such as ``a&b`` or ``[a*2|b*1]``."""
    return tuple(dict.fromkeys(_FEATURE.findall(_COUNT.sub("", expression))))


def _fits(expression: str, node: Node) -> bool:
    """Say whether a node has the features: all of ``a&b`` and ``a,b``, one of what has more."""
    some = any if re.search(r"[|()\[\]*]", expression) else all
    return some(name in node.features for name in feature_names(expression))


def _has(wish: Gres, node: Node, *, whole: bool) -> bool:
    """Say whether a node has a generic resource; `whole` leaves slices of a GPU out."""
    count = 0
    for gres in node.gres:
        if gres.name != wish.name:
            continue
        is_slice = gpus.is_slice(gres.type)
        if gres.type == wish.type or not (wish.type or (whole and is_slice)):
            count += gres.count
    return count >= wish.count


@dataclass(frozen=True)
class Matches:
    """The nodes that have what a profile names; what is free or large enough is not asked."""

    wanted: str  # what they are to have
    of_partition: Sequence[Node]
    with_features: Sequence[Node]  # of these
    found: Sequence[Node]  # of these, with the GPUs, too

    @property
    def out_of_service(self) -> str:
        """Return those found that accept no jobs now, with the reasons."""
        away = [node for node in self.found if not node.usable]
        return listed(f"{node.name}: {node.reason or node.state}" for node in away) if away else ""

    @property
    def summary(self) -> str:
        """Return how many nodes of the partition were found, and in what state they are."""
        total = f"{len(self.found)} of {len(self.of_partition)} match {self.wanted}"
        if not self.found:
            return total
        states = Counter(node.state for node in self.found)
        counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        return f"{total}: {counts} ({listed(node.name for node in self.found)})"

    @property
    def hardware(self) -> str:
        """Return what the nodes of the partition have, each kind once."""
        kinds = []
        for node in self.of_partition:
            has = [*map(str, node.gres), *node.features, f"{node.cpus} CPUs", f"{node.memory_mb}M"]
            kinds.append(" ".join(has))
        return listed(kinds)


def match(wants: Wants, partitions: Sequence[str], nodes: Sequence[Node]) -> Matches:
    """Find the nodes of a profile; a slice of a GPU counts only if the profile means slices."""
    inside = list(nodes)
    if partitions:
        inside = [node for node in nodes if {*node.partitions} & {*partitions}]
    fitting = [node for node in inside if _fits(wants["constraint"], node)]
    found = fitting
    for gres in wants.gres:
        found = [node for node in found if _has(gres, node, whole=not _means_slices(wants))]
    wanted = [f"partition {' or '.join(partitions)}"] if partitions else []
    wanted += [f"{key} {wants[key]}" for key in ("constraint", "gres") if wants[key]]
    return Matches(", ".join(wanted) or "anything", inside, fitting, found)


def _means_slices(wants: Wants) -> bool:
    return any(map(gpus.is_slice, (wants["gpu"], wants["gpu_name"])))


def other_gpus(wants: Wants, nodes: Sequence[Node]) -> Iterator[ProfileFinding]:
    """Say if jobs may get another GPU on these nodes than the profile names, or a slice of one.

    `gpu:1` may be a slice (MIG), and the features of its node may name the whole GPU.
    """
    if not wants.gpu_types or any(wants.gpu_types):  # a type is the GPU: sbatch looks for it
        return
    kinds = kinds_on(nodes)
    pattern = wants["gpu_name"] or "(?!)"  # which nothing matches
    counts: list[str] = []
    ways: list[str] = []
    sliced: list[GpuKind] = []
    for kind in kinds:
        name = gpus.by_label(kind.gpu) or kind.gpu
        if gpus.is_slice(kind.gres_type) and not _means_slices(wants):
            sliced.append(kind)
        elif name == wants["gpu"] or re.search(pattern, name.upper()):
            counts.append(f"{len(kind.counts)} of them with {name.upper()}")
            ways += _ways_to(wants, kind, kinds)
    if not sliced and (not counts or len(kinds) == 1):  # nothing to tell, or nothing else
        return
    if sliced:
        number = len({node.name for kind in sliced for node in kind.counts})
        names = listed(kind.gres_type for kind in sliced)
        counts.append(f"{number} with slices (MIG), which do not count: {names}")
        ways.append("if slices are meant, say so: `gpu_name: MIG`; else a job that gets one stops")
    total = len({node.name for kind in kinds for node in kind.counts})
    detail = f"{total} nodes match this profile, {', '.join(counts)}"
    yield wants.finding("warn", "gpu", detail, ", or ".join(ways) or "ask the site")


def _ways_to(wants: Wants, kind: GpuKind, kinds: Sequence[GpuKind]) -> Iterator[str]:
    """Yield what to write in the profile so that jobs get one kind of GPU."""
    before = wants["constraint"]
    feature = own_feature(kind, kinds)
    if feature and before:
        before = f"({before})" if "|" in before else before
        yield f"write `constraint: {before}&{feature}`"
    elif feature:
        yield f"add `constraint: {feature}`"
    elif kind.gres_type:
        yield f"write `gres: gpu:{kind.gres_type}:1`"


@dataclass(frozen=True)
class GpuKind:
    """Nodes with the same type of GPU: the type in their GRES, and how many each node has."""

    gpu: str
    gres_type: str
    counts: Mapping[Node, int]


def kinds_on(nodes: Sequence[Node]) -> list[GpuKind]:
    """Return the kinds of GPUs that nodes have."""
    groups: dict[tuple[str, str], dict[Node, int]] = {}
    for node in nodes:
        for gres in node.gres:
            if gres.name == "gpu" and gres.count:
                key = (gres.type, _known(gres.type, node.features))
                groups.setdefault(key, {})[node] = gres.count
    # Two types of one product (40 and 80 GB) have names of their own, so that rows do not mix.
    shorts = [short for _, short in groups]
    kinds = []
    for kind, short in sorted(groups):
        own = short if shorts.count(short) == 1 else ""
        name = own or gpus.as_value(kind) or short or "gpu"
        kinds.append(GpuKind(name, kind, groups[kind, short]))
    return kinds


def _known(kind: str, features: Collection[str]) -> str:
    """Return the catalogue's name of a GPU, by its type or a feature; without any, the features.

    None of a slice: a feature of its node is about the whole GPU.
    """
    if gpus.is_slice(kind):
        return ""
    for label in (kind, *features):
        short = gpus.by_label(label)
        if short:
            return short
    return "" if kind else gpus.as_value("-".join(features))


def own_feature(kind: GpuKind, kinds: Sequence[GpuKind]) -> str:
    """Return a feature of all nodes of a kind that no other node with GPUs has."""
    common = set.intersection(*(set(node.features) for node in kind.counts))
    has_others = False
    for other in kinds:
        if other is not kind:
            has_others = True
            common.difference_update(*(node.features for node in other.counts))
    own = sorted(common)
    for name in own:  # the best is one that says which GPU it is
        if gpus.by_label(name) == kind.gpu:
            return name
    is_needed = has_others and not kind.gres_type  # else the type in the GRES tells them apart
    return own[0] if own and is_needed else ""
