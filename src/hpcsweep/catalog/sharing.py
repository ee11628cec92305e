"""Which points may share a worker process, by their axes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

from hpcsweep.catalog import AUTOTUNE, COMMAND, VISIT, Role, axes_with, workload_of

if TYPE_CHECKING:
    from hpcsweep.point import Point

Network = tuple[Hashable, ...]


def network_of(axes: Mapping[str, Any]) -> Network:
    """Return a key that points, or rows, share if they have the same network."""
    return tuple(axes.get(name) for name in axes_with(Role.NETWORK))


def process_key(point: Point) -> str:
    """Return a key that differs between points that must not share a process on a GPU.

    torch keeps one plan for each shape, and reuses it before it checks whether to tune. A map that
    tunes some layers mixes tuned and untuned plans in a way that depends on the point, so each of
    its points has a process of its own. With the first product of a process torch settles whether
    cuBLAS may be asked for deterministic ones.
    """
    algorithm = point.axes.get("algorithm")
    kind = "deterministic" if point.axes.get("deterministic") else ""
    if isinstance(algorithm, Mapping):
        return point.point_id if AUTOTUNE in algorithm.values() else kind
    tunes = algorithm == AUTOTUNE or point.axes.get("cudnn_benchmark")
    return f"{AUTOTUNE} {kind}".strip() if tunes else kind


def worker_key(point: Point) -> tuple[object, Network, str]:
    """Return a key that differs between points that must not share a worker; the visit is first.

    Where no network runs, no code does that could change the process. With a worker of its own, all
    that a command leaves running ends before the next one.
    """
    visit = point.axes.get(VISIT)
    if point.workload == COMMAND.name:
        return visit, (), point.point_id
    if not workload_of(point.workload).runs_network:
        return visit, (), ""
    return visit, network_of(point.axes), process_key(point)
