"""What a person asks for: a sweep, a profile, and the options of the command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from hpcsweep import messages, search_path
from hpcsweep.cluster.local import this_machine
from hpcsweep.cluster.local.this_machine import LocalDevice
from hpcsweep.errors import UsageError
from hpcsweep.point import Point
from hpcsweep.spec import expansion, profile
from hpcsweep.spec.expansion import MOST_POINTS, Expansion
from hpcsweep.spec.profile import Profile
from hpcsweep.spec.space import Sweep
from hpcsweep.submit.passes import Operations


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `submit` and of the commands that share some of them."""

    sample: int | None = None
    workers: int | None = None  # None: as the profile says
    max_gpu_hours: float | None = None
    skip_dominated: bool = False
    suppress_next_hint: bool = False  # who asked goes on with the rows by itself
    doctor: bool = True  # compare the profile with its cluster first
    again: bool = False  # measure everything once more, as a new run
    join: bool = False  # the results of another sweep file of the same name
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
    options: Options = DEFAULT
    search_path: tuple[str, ...] = ()  # where the sweep's own networks and files lie
    again: frozenset[str] = frozenset()  # statuses that do not count as measured
    only: frozenset[str] = frozenset()  # ids of points; empty: all
    anew: frozenset[str] = frozenset()  # ids of points whose rows do not count as measured
    checked: bool = False  # its networks and files are known to be there
    here: LocalDevice | None = None  # this machine's device, where that decides
    operations: Mapping[str, Operations] = field(default_factory=dict)  # of own networks

    @property
    def workers(self) -> int:
        return self.options.workers or self.profile.workers

    def words(self) -> str:
        """Return the sweep's name, and where its points run."""
        how = ", a rehearsal" if self.rehearsal else ""
        return f"{self.sweep.name} on {self.profile.name} ({self.device}{how})"

    def tell_unseen_gpu(self) -> None:
        """Say why the CPU is measured on a machine with a GPU, unless the CPU was asked for."""
        if self.here and self.here.unused:
            messages.warning(f"{self.here.unused}, so the CPU is measured", self.here.remedy)

    def expansion(self) -> Expansion:
        """Return what the profile takes of the sweep."""
        sample = self.options.sample
        if self.rehearsal:
            return expansion.expand(self.sweep, rehearse=self.device, sample=sample)
        return expansion.expand(self.sweep, gpu=self.device, sample=sample)

    def points(self) -> Iterator[Point]:
        """Return the points to submit, in order: all that the profile takes, or `only` some."""
        points = iter(self.expansion())
        if self.only:
            return (point for point in points if point.point_id in self.only)
        return points


def of_cluster(sweep: Sweep, cluster: str, options: Options = DEFAULT) -> Request:
    """Return the request for a profile, which must take some points, and not too many."""
    request = make(sweep, profile.load(cluster), options)
    points = len(request.expansion())
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


def make(sweep: Sweep, chosen: Profile, options: Options = DEFAULT) -> Request:
    """Return a request, with the device that its points will run on.

    A profile without a `gpu` takes the device of this machine. If the sweep names GPUs and this
    device is none of them, the request is a rehearsal: its points get the device's name, and ids of
    their own.
    """
    here = None if chosen.gpu else device_here(sweep, chosen.env)
    device = chosen.gpu or (here.gpu if here else "")
    named = named_gpus(sweep)
    return Request(
        sweep=sweep,
        profile=chosen,
        device=device,
        rehearsal=not chosen.in_slurm and bool(named) and device not in named,
        options=options,
        search_path=search_path.beside(sweep.path),
        here=here,
    )


def device_here(sweep: Sweep, env: Mapping[str, str] | None = None) -> LocalDevice:
    """Return the device of this machine that a sweep gets: the CPU where it asks for that one.

    `env` are variables of the points' processes, which may hide GPUs.
    """
    here = this_machine.local_device(env)
    named = named_gpus(sweep)
    return LocalDevice(gpu="cpu") if "cpu" in named and here.gpu not in named else here


def named_gpus(sweep: Sweep) -> list[str]:
    """Return the GPUs that a sweep names, in order."""
    return [str(gpu) for gpu in sweep.values("gpu") if gpu is not None]
