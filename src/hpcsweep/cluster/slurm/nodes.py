"""Finds the nodes that can run a profile's jobs, and tells the GPUs of nodes apart; pure.

Names are checked one by one, so that the complaint about a misspelt name has the nearest one. Then
the nodes that have all that is asked for are counted; where there are none, those of each key are
told.

In `sbatch --constraint`, ``a&b`` and ``a,b`` require both features. Of any other expression a node
with one of the features may do.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from hpcsweep.catalog import gpus
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import CouldNotAsk
from hpcsweep.cluster.slurm.job_request import Finding, Wants, listed
from hpcsweep.cluster.slurm.site import Gres, Node

_NAME: Final = re.compile(r"[^&|,()\[\]*]+")
_OTHERS: Final = re.compile(r"[|()\[\]*]")
_COUNT: Final = re.compile(r"\*\d+")
_LISTS: Final = "`sinfo -N -o '%N %P %f %G %m %c'` lists what each node has"


def _feature_names(expression: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_NAME.findall(_COUNT.sub("", expression))))


def _fits(expression: str, features: Collection[str]) -> bool:
    """Say whether a node with these features may run the job."""
    some = any if _OTHERS.search(expression) else all
    return some(name in features for name in _feature_names(expression))


@dataclass(frozen=True)
class Narrowing:
    """A key of the profile that narrows the nodes down, its value, and a test for nodes."""

    key: str
    label: str
    test: Callable[[Node], bool]


def examine(wants: Wants, partitions: Sequence[str], nodes: Sequence[Node]) -> Iterator[Finding]:
    """Yield the findings about nodes; `partitions` are the profile's that exist."""
    wrong = [
        *_constraint(wants, nodes),
        *(finding for wish in wants.gres for finding in _gres(wants, wish, nodes)),
    ]
    yield from wrong
    skipped = {finding.what for finding in wrong}
    steps = [step for step in _steps(wants, partitions) if step.key not in skipped]
    left = [*nodes]
    for step in steps:
        left = [node for node in left if step.test(node)]
        if not left:
            have = (f"{s.label}: {listed(n.name for n in nodes if s.test(n))}" for s in steps)
            detail = f"no node has all that is asked for; nodes with {'; with '.join(have)}"
            yield wants.complaint(step.key, detail, _LISTS)
            return
    if wants.nodes > len(left):
        detail = f"{wants.nodes} nodes are wanted and {len(left)} match"
        yield wants.complaint("nodes", detail, f"write `nodes: {len(left)}` or less")
    yield from _other_gpus(wants, left)
    yield _state(left, len(nodes), steps)


def _other_gpus(wants: Wants, left: Sequence[Node]) -> Iterator[Finding]:
    """Say if jobs may get another GPU than the profile names, and what would choose it."""
    typed = any(wish.type for wish in wants.gres if wish.name == "gpu")
    kinds = [] if typed else kinds_on(left)
    short_of = {kind.gpu: gpus.by_label(kind.gpu) or kind.gpu for kind in kinds}
    pattern = wants["gpu_name"] or "(?!)"  # which nothing matches
    own = [
        kind
        for kind in kinds
        for short in [short_of[kind.gpu]]
        if short == wants["gpu"] or re.search(pattern, short.upper())
    ]
    if not own or len(kinds) == 1:
        return
    parts = list[str]()
    ways = list[str]()
    for kind in own:
        parts.append(f"{len(kind.nodes)} of them with {short_of[kind.gpu].upper()}")
        if feature := own_feature(kind, kinds):
            before = wants["constraint"]
            ways.append(
                f"write `constraint: {before}&{feature}`"
                if before
                else f"add `constraint: {feature}`"
            )
        elif kind.gres_type:
            ways.append(f"write `gres: gpu:{kind.gres_type}:1`")
    detail = f"{len(left)} nodes match this profile, {', '.join(parts)}"
    do = ", or ".join(ways) or "ask the site what chooses them"
    place = wants.places.get("gpu_name") or wants.places.get("gpu", "")
    yield Finding("warn", "gpu", detail, do, place)


def _constraint(wants: Wants, nodes: Sequence[Node]) -> Iterator[Finding]:
    text = wants["constraint"]
    if not text:
        return
    features = {feature for node in nodes for feature in node.features}
    for name in _feature_names(text):
        if name not in features:
            yield wants.unknown("constraint", name, features, "feature")


def _gres(wants: Wants, wish: Gres, nodes: Sequence[Node]) -> Iterator[Finding]:
    """Check the name, then the type of a generic resource."""
    have = [gres for node in nodes for gres in node.gres]
    named = [gres for gres in have if gres.name == wish.name]
    kinds = {gres.type for gres in named if gres.type}
    if not named:
        yield wants.unknown("gres", wish.name, {gres.name for gres in have})
    elif wish.type and wish.type not in kinds:
        yield wants.unknown("gres", wish.type, kinds, f"{wish.name} type")


def _count(node: Node, wish: Gres) -> int:
    """Return a node's count of a generic resource, of any type if none is wanted."""
    named = (gres for gres in node.gres if gres.name == wish.name)
    return sum(gres.count for gres in named if wish.type in {"", gres.type})


def _steps(wants: Wants, partitions: Sequence[str]) -> Iterator[Narrowing]:
    """Yield the keys that narrow the nodes down, in the order of their use."""
    if partitions:
        label = f"partition {' or '.join(partitions)}"
        yield Narrowing("partition", label, lambda n: not {*n.partitions}.isdisjoint(partitions))
    for key in ("exclude", "nodelist"):
        names = slurm.hostnames(wants[key])
        if names and not isinstance(names, CouldNotAsk):
            test = partial(_is_named, names, inside=key == "nodelist")
            yield Narrowing(key, f"{key} {wants[key]}", test)
    if text := wants["constraint"]:
        yield Narrowing("constraint", f"constraint {text}", lambda node: _fits(text, node.features))
    for wish in wants.gres:
        yield Narrowing("gres", f"gres {wish}", partial(_has, wish))
    if mem := wants.mem_mb:
        yield Narrowing("mem", f"mem {wants['mem']}", lambda node: node.memory_mb >= mem)
    if wants.cpus > 1:
        label = f"cpus_per_task {wants.cpus}"
        yield Narrowing("cpus_per_task", label, lambda node: node.cpus >= wants.cpus)


def _is_named(names: Sequence[str], node: Node, *, inside: bool) -> bool:
    return (node.name in names) == inside


def _has(wish: Gres, node: Node) -> bool:
    return _count(node, wish) >= wish.count


def _state(left: Sequence[Node], total: int, steps: Sequence[Narrowing]) -> Finding:
    states = Counter(node.state if node.responds else f"{node.state}*" for node in left)
    counts = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
    wanted = ", ".join(step.label for step in steps) or "anything"
    names = listed(node.name for node in left)
    detail = f"{len(left)} of {total} match {wanted}: {counts} ({names})"
    if any(node.usable for node in left):
        return Finding("ok", "nodes", detail)
    reasons = listed(f"{node.name}: {node.reason or 'no reason given'}" for node in left)
    do = f"jobs wait until one of them is in service; {reasons}"
    return Finding("warn", "nodes", f"{detail}; none accepts jobs now", do)


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
