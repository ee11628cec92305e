"""Writes a profile for every GPU type of this cluster.

GPUs differ by the type in their GRES, otherwise by the features of their nodes. Comments in the
file name keys that a person has to set: modules, environment, one of several accounts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcsweep import numerals
from hpcsweep.catalog import gpus
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import CouldNotAsk, site, whole_nodes
from hpcsweep.cluster.slurm.profile_checks import closed_to
from hpcsweep.cluster.slurm.profile_wants import Wants
from hpcsweep.cluster.slurm.site import Cluster, GpuKind, Partition, listed
from hpcsweep.errors import MissingDependency, Refused, SchedulerError, UsageError
from hpcsweep.text import count

# Shorter jobs wait less, and longer sweeps are split into chunks.
_LONGEST_S: Final = 24 * 3600
# A shorter job could not measure anything: to import torch from a cold file system takes minutes.
_SHORTEST_S: Final = 300
_NO_WISH: Final = Wants({}, {})
_HINTS: Final = """\
# Lines that prepare the environment on the node, for example:
#   modules: [cuda]
#   conda: hpcsweep
"""


@dataclass(frozen=True)
class Discovery:
    """A profile for one GPU type: its keys, the nodes, and notes for the person."""

    name: str
    about: str
    nodes: tuple[str, ...]
    profile: dict[str, str | int]
    notes: tuple[str, ...]

    def text(self) -> str:
        """Return the YAML file."""
        head = f"# {self.name}: {self.about}.\n# Written by `hpcsweep discover`.\n"
        lines = [f"{key}: {json.dumps(value)}\n" for key, value in self.profile.items()]
        return "".join([head, *lines, *(f"# {note}\n" for note in self.notes), _HINTS])


def ask() -> list[Discovery]:
    """Describe this cluster, and return a profile for every GPU type.

    `MissingDependency` without Slurm's programs, `SchedulerError` where the cluster does not
    answer, `Refused` where it has no GPUs.
    """
    if not slurm.available():
        raise MissingDependency("no sbatch on this machine's PATH; run this on a login node")
    cluster = site.describe()
    if isinstance(cluster, CouldNotAsk):
        raise SchedulerError(f"{cluster}; run this again when the controller answers")
    discoveries = find(cluster)
    if not discoveries:
        raise Refused("no node of this cluster has `gpu` among its GRES (`sinfo -N -o '%N %G'`)")
    return discoveries


def find(cluster: Cluster) -> list[Discovery]:
    """Return a profile for every GPU type."""
    kinds = site.kinds_on(cluster.nodes)
    return [_discovery(kind, kinds, cluster) for kind in kinds]


def write(discoveries: Sequence[Discovery], folder: Path, *, force: bool) -> Iterator[str]:
    """Write the profiles, and yield a line for each; keep existing files, unless `force`.

    `UsageError` where the folder cannot be written.
    """
    for discovery in discoveries:
        path = folder / f"{discovery.name}.yaml"
        what = f"{discovery.about}, partition {discovery.profile.get('partition', 'unknown')}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("w" if force else "x", encoding="utf-8") as file:
                file.write(discovery.text())
        except FileExistsError:
            same = path.is_file() and path.read_bytes() == discovery.text().encode()
            kept = f"exists and was kept; --force overwrites it ({what})"
            yield f"{path}: {'unchanged' if same else kept}"
        except OSError as error:
            why = error.strerror or error
            text = f"{path}: cannot be written ({why}); choose another folder with --out"
            raise UsageError(text) from error
        else:
            yield f"{path}: {what}"


def _discovery(kind: GpuKind, kinds: Sequence[GpuKind], cluster: Cluster) -> Discovery:
    chosen = _partition(kind, cluster)
    keys: dict[str, str | int] = {"gpu": kind.gpu}
    if kind.gpu in gpus.GPUS:
        keys["gpu_name"] = gpus.name_pattern(kind.gpu)
    elif gpus.is_slice(kind.gres_type):
        keys["gpu_name"] = "MIG"  # without which a job refuses a slice
    notes = [] if chosen else ["partition: none that is open to you has these nodes"]
    if chosen:
        keys["partition"] = chosen.name
    feature = site.own_feature(kind, kinds)
    if feature:
        keys["constraint"] = feature
    given = whole_nodes.gpus_given(chosen, cluster, kind.counts.values()) if chosen else 1
    keys["gres"] = f"gpu:{kind.gres_type}:{given}" if kind.gres_type else f"gpu:{given}"
    if given > 1:
        keys["gpus_per_job"] = given
    longest_s = min(_longest(chosen), cluster.longest_of_qos(chosen) or _LONGEST_S)
    keys["time"] = numerals.slurm_time(longest_s)
    keys |= _share(kind, chosen, given)
    for key, what in (("account", "Accounts"), ("qos", "Qos")):
        allowed = chosen.allowed(what) if chosen else set()
        mine = cluster.own.get(key, frozenset())
        own = sorted(mine & allowed or mine)
        if len(own) == 1:
            keys[key] = own[0]
        elif own:
            notes.append(f"{key}: one of {', '.join(own)}; without it, your default")
    names = [node.name for node in kind.counts]
    least = min(kind.counts.values())
    most = max(kind.counts.values())
    per_node = f"{least} to {most}" if least < most else str(least)
    about = f"{count(len(names), 'node')} with {per_node} GPUs each ({listed(names)})"
    return Discovery(kind.gpu, about, tuple(sorted(names)), keys, tuple(notes))


def _partition(kind: GpuKind, cluster: Cluster) -> Partition | None:
    """Choose a partition: most of the nodes, longest time, no preemption, fewest other nodes.

    A time limit above a day counts as a day. None if the user may use no partition of these nodes.
    """
    ranked = {}  # of a partition that scontrol prints twice, the last
    for partition in cluster.partitions:
        inside = {node for node in cluster.nodes if partition.name in node.partitions}
        gives_way = partition.settings.get("PreemptMode", "OFF") != "OFF"
        fits = len(inside & kind.counts.keys())
        others = len(inside - kind.counts.keys())
        if fits and _usable(partition, cluster):
            ranked[-fits, -_longest(partition), gives_way, others, partition.name] = partition
    return ranked[min(ranked)] if ranked else None


def _usable(partition: Partition, cluster: Cluster) -> bool:
    closed = "YES" in {partition.settings.get("RootOnly"), partition.settings.get("ReqResv")}
    long_enough = partition.max_time_s is None or partition.max_time_s >= _SHORTEST_S
    is_open = partition.state == "UP" and not closed
    return is_open and long_enough and not any(closed_to(partition, _NO_WISH, cluster))


def _longest(partition: Partition | None) -> int:
    """Return the longest time limit of a job in seconds, a day at most."""
    most = partition.max_time_s if partition else None
    return min(most or _LONGEST_S, _LONGEST_S)


def _share(kind: GpuKind, partition: Partition | None, gpus: int) -> dict[str, str | int]:
    """Return the memory and CPUs for so many GPUs, on the node that has least."""
    memory = min(node.memory_mb * gpus // count for node, count in kind.counts.items())
    cpus = min(node.cpus * gpus // count for node, count in kind.counts.items())
    if partition is not None:
        memory = min(memory, partition.limit("MaxMemPerNode") or memory)
        cpus = min(cpus, partition.limit("MaxCPUsPerNode") or cpus)
    # whole gigabytes, but where rounding down would lose a quarter or more
    text = f"{memory // 1024}G" if memory >= 4096 else f"{memory}M"
    return {"mem": text, "cpus_per_task": max(1, cpus)}
