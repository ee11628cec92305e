"""What a person asks for: a sweep, a profile, and the options of the command.

The sweep is expanded here, once: everybody runs through the same points, which are made one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from hpcsweep import messages, sources
from hpcsweep.cluster.local import this_machine
from hpcsweep.cluster.local.this_machine import LocalDevice
from hpcsweep.errors import UsageError
from hpcsweep.point import Point
from hpcsweep.spec import expansion, profile
from hpcsweep.spec.expansion import MOST_POINTS, Expansion
from hpcsweep.spec.profile import Profile
from hpcsweep.spec.space import Sweep


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `submit` and of the commands that share some of them."""

    sample: int | None = None
    workers: int | None = None  # None: as the profile says
    time: str | None = None  # limit of jobs, and memory, in place of the profile's
    mem: str | None = None
    max_gpu_hours: float | None = None
    skip_dominated: bool = False
    suppress_next_hint: bool = False  # who asked goes on with the rows by itself
    doctor: bool = True  # compare the profile with its cluster first
    again: bool = False  # measure everything once more, as a new run
    each_node: bool = False  # all points on every node of the profile
    join: bool = False  # the results of another sweep file of the same name
    then: str | None = None  # what runs after the last point; None: as the profile says
    quiet: bool = False  # no progress while points are measured
    argv: tuple[str, ...] = ()


DEFAULT: Final = Options()


@dataclass(frozen=True, kw_only=True)
class Request:
    """The points of a sweep that a profile takes, and what to do with them."""

    sweep: Sweep
    profile: Profile
    device: str
    rehearsal: bool
    expansion: Expansion  # what the profile takes of the sweep; made once, and handed on
    options: Options = DEFAULT
    search_path: tuple[str, ...] = ()  # where the sweep's own networks and files lie
    again: frozenset[str] = frozenset()  # statuses that do not count as measured
    here: LocalDevice | None = None  # this machine's device, where that decides

    @property
    def workers(self) -> int:
        return self.options.workers or self.profile.workers

    @property
    def then(self) -> str | None:
        """The command that is to run after the last point."""
        return self.options.then or self.profile.then

    @property
    def asks(self) -> str:
        """Say what its jobs ask for in place of the profile's values, if anything."""
        asked = []
        if self.options.time is not None:
            asked.append(f"--time {self.profile.time}")
        if self.options.mem is not None:
            asked.append(f"--mem {self.profile.mem}")
        return f"; jobs ask for {' '.join(asked)}" if asked else ""

    def words(self) -> str:
        """Return the sweep's name, and where its points run."""
        how = ", a rehearsal" if self.rehearsal else ""
        return f"{self.sweep.name} on {self.profile.name} ({self.device}{how})"

    def tell_unseen_gpu(self) -> None:
        """Say why the CPU is measured on a machine with a GPU, unless the CPU was asked for."""
        if self.here and self.here.unused:
            messages.warning(f"{self.here.unused}, so the CPU is measured", self.here.remedy)

    def points(self) -> Iterator[Point]:
        """Return the points to submit, in order, made one by one."""
        return iter(self.expansion)


def of_cluster(sweep: Sweep, cluster: str, options: Options = DEFAULT) -> Request:
    """Return the request for a profile, which must take some points, and not too many."""
    chosen = profile.load(cluster)
    if options.each_node:
        check_pinnable(chosen)
    request = make(sweep, chosen, options)
    points = len(request.expansion)
    if points > MOST_POINTS:
        raise UsageError(
            f"{request.words()}: {points:,} points, at most {MOST_POINTS:,} at a time; leave some "
            "out, split the sweep, or take a part of it with --sample"
        )
    if not points:
        wants = ", ".join(named_gpus(sweep)) or "any"
        raise UsageError(
            f"{sweep.name}: no point of this sweep matches profile {request.profile.name}: "
            f"the sweep asks for gpu: {wants}; the profile has gpu: {request.device}"
        )
    return request


def check_pinnable(chosen: Profile) -> None:
    """Refuse a profile whose jobs cannot be sent to one node each."""
    if not chosen.in_slurm:
        where = f"profile {chosen.name} measures on this machine, which is one node"
        raise UsageError(f"--each-node: {where}; name a profile of a cluster with --cluster")
    if (chosen.nodes or 1) > 1:
        has = f"{chosen.where('nodes')}: `nodes: {chosen.nodes}`"
        raise UsageError(f"--each-node: {has}: a job on one node cannot have several")


def make(sweep: Sweep, chosen: Profile, options: Options = DEFAULT) -> Request:
    """Return a request, with the device that its points will run on.

    A profile without a `gpu` takes the device of this machine. If the sweep names GPUs and this
    device is none of them, the request is a rehearsal: its points get the device's name, and ids of
    their own. `UsageError` where the options ask for what no job of the profile can have.
    """
    chosen = profile.asking_for(chosen, time=options.time, mem=options.mem)
    here = None if chosen.gpu else device_here(sweep, chosen.env)
    device = chosen.gpu or (here.gpu if here else "")
    asks_for = named_gpus(sweep)
    rehearsal = bool(asks_for) and device not in asks_for and not chosen.in_slurm
    return Request(
        sweep=sweep,
        profile=chosen,
        device=device,
        rehearsal=rehearsal,
        expansion=points_of(sweep, device, options.sample, rehearsal=rehearsal),
        options=options,
        search_path=sources.folders_for(sweep.path),
        here=here,
    )


def points_of(sweep: Sweep, device: str, sample: int | None, *, rehearsal: bool) -> Expansion:
    """Return the points of a sweep that a device is given, a rehearsal's under its name."""
    if rehearsal:
        return expansion.expand(sweep, rehearse=device, sample=sample)
    return expansion.expand(sweep, gpu=device, sample=sample)


def device_here(sweep: Sweep, env: Mapping[str, str] | None = None) -> LocalDevice:
    """Return the device of this machine that a sweep gets: the CPU where it asks for that one.

    `env` are variables of the points' processes, which may hide GPUs.
    """
    here = this_machine.local_device(env)
    asks_for = named_gpus(sweep)
    if "cpu" in asks_for and here.gpu not in asks_for:
        return LocalDevice(gpu="cpu")
    return here


def named_gpus(sweep: Sweep) -> list[str]:
    """Return the GPUs that a sweep names, in order."""
    return [str(gpu) for gpu in sweep.values("gpu") if gpu is not None]


def is_factory(name: str | None) -> bool:
    """Say whether a value of an axis is `package.module:factory`."""
    return name is not None and ":" in name


def names_on(sweep: Sweep, axis: str) -> Iterator[str]:
    """Yield the values of an axis, each once; none where the workload has no such axis.

    Where all points are those of `include`, the axes themselves name nothing.
    """
    if axis not in sweep.space.defaults:
        return
    for value in dict.fromkeys(sweep.values(axis)):
        if value is not None:
            yield value


def files_of(sweep: Sweep) -> dict[str, list[str]]:
    """Return the files that a sweep names, by the key under which it does."""
    resumed = sweep.measure.get("resume_from")
    weights = [name for name in names_on(sweep, "weights") if sources.is_weights_file(name)]
    return {"weights": weights, "resume_from": [resumed] if resumed else []}
