"""What a profile asks of sbatch, key by key, and where each wish stands; it asks nobody.

A profile's `sbatch_options` override its keys.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Literal

from hpcsweep import numerals
from hpcsweep.catalog import gpus
from hpcsweep.cluster.slurm.site import Gres, split_at_commas
from hpcsweep.spec import directives
from hpcsweep.spec.profile import Profile

Level = Literal["ok", "none", "warn", "fail"]

# The keys of a profile that are options of sbatch, in their order in the job script.
_KEYS: Final = (
    *("partition", "constraint", "gres", "time", "mem", "cpus_per_task", "nodes"),
    *("nodelist", "exclude", "account", "qos"),
)


@dataclass(frozen=True)
class ProfileFinding:
    """The result of one check, and how to fix it."""

    level: Level  # none: an option that is not installed; fail: cannot work as it is
    what: str  # what was checked, such as a key of the profile
    detail: str
    do: str = ""
    where: str = ""  # FILE:LINE of what to change

    @property
    def words(self) -> str:
        """Where, and what was found."""
        place = f"{self.where}: " if self.where else ""
        return f"{place}{self.what}: {self.detail}"

    def complaint(self) -> str:
        """Return an error message: where and what, and in a second line what to do."""
        advice = f"\n  -> {self.do}" if self.do else ""
        return f"{self.words}{advice}"


@dataclass(frozen=True)
class Wants:
    """The GPU and the options of sbatch that a profile sets; others are empty."""

    values: Mapping[str, str]
    places: Mapping[str, str]  # key to FILE:LINE

    def __getitem__(self, key: str) -> str:
        return self.values.get(key, "")

    def finding(self, level: Level, key: str, detail: str, do: str = "") -> ProfileFinding:
        """Return a finding with the line of its key."""
        return ProfileFinding(level, key, detail, do, self.places.get(key, ""))

    @property
    def partitions(self) -> tuple[str, ...]:
        return split_at_commas(self["partition"])

    @property
    def gres(self) -> tuple[Gres, ...]:
        """Every generic resource that is asked for, in whatever way."""
        wishes = []
        for word in split_at_commas(self["gres"]):
            wish = re.sub("^gres[:/]", "", word)
            if wish.lower() != "none":
                wishes.append(Gres.read(wish))
        return tuple(wishes)

    @property
    def mem_mb(self) -> int:
        """Memory of one node in MiB; 0 means all of it, or that nothing is asked for."""
        memory = self["mem"]
        if memory.isdecimal() and memory != "0":
            memory += "M"
        with suppress(ValueError):
            return numerals.slurm_megabytes(memory)
        return 0

    @property
    def slices(self) -> bool:
        """Whether slices of a GPU are meant, which else are no GPU."""
        return gpus.is_slice(self["gpu"]) or gpus.is_slice(self["gpu_name"])


def own_options(profile: Profile) -> list[tuple[str, str]]:
    """Return the options of sbatch that the keys of a profile stand for, with their values."""
    options = []
    for key in _KEYS:
        value = getattr(profile, key)
        if value is not None:
            options.append((f"--{key.replace('_', '-')}", str(value)))
    return options


def arguments(profile: Profile) -> list[str]:
    """Return all options of sbatch that a profile sets, as words of a command line."""
    every = [f"{name}={value}" for name, value in own_options(profile)]
    for option in profile.sbatch_options:
        every += shlex.split(option)
    return every


def options_of(profile: Profile) -> Wants:
    """Return the GPU and the sbatch options of a profile."""
    values = {}
    places = {}
    for key in (*_KEYS, "gpu", "gpu_name", "gpus_per_job"):
        places[key] = profile.where(key)
        if getattr(profile, key) is not None:
            values[key] = str(getattr(profile, key))
    for entry in profile.sbatch_options:
        for name, value in directives.read(entry):
            key = name.replace("-", "_")
            more: list[str] = []
            if key.startswith("gpus"):  # also per node, socket, task
                more = [f"gpu:{word}" for word in split_at_commas(value)]
            elif key.startswith("tres_per"):  # such as cpu=4,gres/gpu:v100=1
                more = [word for word in split_at_commas(value) if word.startswith("gres")]
            if more:  # beside `gres`
                key = "gres"
                value = ",".join([*split_at_commas(values.get(key, "")), *more])  # noqa: PLW2901
            values[key] = value
            places[key] = profile.where_option(entry)
    return Wants(values, places)
