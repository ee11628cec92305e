"""Tells the GPUs of a cluster's nodes apart, and finds what chooses one kind of them; pure.

GPUs differ by the type in their GRES, otherwise by the features of their nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcsweep.catalog import gpus
from hpcsweep.cluster.slurm.site import Node


@dataclass(frozen=True)
class GpuKind:
    """Nodes with the same type of GPU: the type in their GRES, and each node with its count."""

    gpu: str
    gres_type: str
    counts: tuple[tuple[Node, int], ...]

    @property
    def nodes(self) -> list[Node]:
        return [node for node, _ in self.counts]

    @property
    def names(self) -> set[str]:
        return {node.name for node in self.nodes}


def kinds_on(nodes: Sequence[Node]) -> list[GpuKind]:
    """Return the kinds of GPUs that nodes have."""
    groups: dict[tuple[str, str], dict[str, tuple[Node, int]]] = {}
    for node in nodes:
        for gres in node.gres:
            if gres.name == "gpu" and gres.count:
                group = groups.setdefault((gres.type, _known(gres.type, node.features)), {})
                group[node.name] = (node, gres.count)
    shorts = [short for _, short in groups]
    kinds = []
    for (kind, short), members in sorted(groups.items()):
        own = short if shorts.count(short) == 1 else ""
        kinds.append(
            GpuKind(own or gpus.as_value(kind) or short or "gpu", kind, tuple(members.values()))
        )
    return kinds


def _known(kind: str, features: Sequence[str]) -> str:
    """Return the catalogue's name of a GPU, by its type or a feature; without any, the features."""
    short = next(filter(None, map(gpus.by_label, (kind, *features))), "")
    return short or (gpus.as_value("-".join(features)) if not kind else "")


def own_feature(kind: GpuKind, kinds: Sequence[GpuKind]) -> str:
    """Return a feature of all nodes of a kind that no other node with GPUs has."""
    common = set.intersection(*(set(node.features) for node in kind.nodes))
    others = [node for other in kinds if other is not kind for node in other.nodes]
    own = sorted(common - {name for node in others for name in node.features})
    telling = [name for name in own if gpus.by_label(name) == kind.gpu]
    needed = own if others and not kind.gres_type else []
    return next(iter([*telling, *needed]), "")
