"""What the jobs of a profile ask for: its sbatch options; and what a finding of a check is.

A profile's `sbatch_options` override its keys. Whether a cluster has it is for `profile_checks`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hpcsweep import numerals
from hpcsweep.cluster.slurm.site import Gres, split_at_commas
from hpcsweep.errors import suggest
from hpcsweep.spec.profile import Profile, sbatch_option
from hpcsweep.text import aligned

Level = Literal["ok", "none", "warn", "fail"]
_SHOWN: Final = 8  # names in one line: a cluster has thousands of nodes


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


def listed(names: Iterable[str]) -> str:
    """Return names in one line, cut short where there are many."""
    every = sorted(set(names))
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return (", ".join(every[:_SHOWN]) + more) or "none"


def text(findings: Sequence[ProfileFinding]) -> str:
    """Return one line per finding, and a second one where there is something to do."""
    rows = []
    for finding in findings:
        place = f" ({finding.where})" if finding.where and finding.level != "ok" else ""
        rows.append((f"{finding.level:<4}", finding.what, f"{finding.detail}{place}"))
        if finding.do:
            rows.append(("", "", f"-> {finding.do}"))
    return "\n".join(aligned(rows))


# The keys of a profile that are options of sbatch, in their order in the job script.
_KEYS: Final = (
    *("partition", "constraint", "gres", "time", "mem", "cpus_per_task", "nodes"),
    *("nodelist", "exclude", "account", "qos"),
)
# The short options of sbatch that are looked at.
_SHORT: Final = {
    "-p": "partition", "-C": "constraint", "-t": "time", "-A": "account", "-q": "qos",
    "-G": "gpus", "-o": "output", "-e": "error", "-w": "nodelist", "-x": "exclude",
}  # fmt: skip
# What a key names, where that has another name.
_KINDS: Final = {"constraint": "feature", "nodelist": "node", "exclude": "node"}


@dataclass(frozen=True)
class Wants:
    """The GPU and the options of sbatch that a profile sets; others are empty or None."""

    values: dict[str, str]
    places: dict[str, str]  # key to FILE:LINE

    def __getitem__(self, key: str) -> str:
        return self.values.get(key, "")

    def finding(self, level: Level, key: str, detail: str, do: str = "") -> ProfileFinding:
        """Return a finding with the line of its key."""
        return ProfileFinding(level, key, detail, do, self.places.get(key, ""))

    def unknown(self, key: str, name: str, existing: Collection[str]) -> ProfileFinding:
        """Return a finding for a missing name, with the nearest one, and those that exist."""
        kind = _KINDS.get(key, key)
        detail = f"no {kind} '{name}' on this cluster{suggest(name, existing)}"
        return self.finding("fail", key, detail, f"correct `{key}`; there are: {listed(existing)}")

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
    def gpu_types(self) -> list[str]:
        """The type of each GPU that is asked for, empty where none is named."""
        return [gres.type for gres in self.gres if gres.name == "gpu"]

    @property
    def mem_mb(self) -> int:
        """Memory of one node in MiB; 0 means all of it, or that nothing is asked for."""
        text = self["mem"]
        if text.isdecimal() and text != "0":
            text += "M"
        try:
            return numerals.slurm_megabytes(text)
        except ValueError:
            return 0


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
    own = {key: getattr(profile, key) for key in (*_KEYS, "gpu", "gpu_name")}
    values = {key: str(value) for key, value in own.items() if value is not None}
    places = {key: profile.where(key) for key in own}
    for option in profile.sbatch_options:
        name, value = sbatch_option(option)
        key = _SHORT.get(name) or name.removeprefix("--").replace("-", "_")
        more = _more_gres(key, value)
        if more:
            key = "gres"
            value = ",".join([*split_at_commas(values.get(key, "")), *more])
        values[key] = value
        places[key] = profile.where("sbatch_options")
    return Wants(values, places)


def _more_gres(key: str, value: str) -> list[str]:
    """Return what an option asks for beside `gres`."""
    if key.startswith("gpus"):  # also per node, socket, task
        return [f"gpu:{word}" for word in split_at_commas(value)]
    if key.startswith("tres_per"):  # such as cpu=4,gres/gpu:v100=1
        return [word for word in split_at_commas(value) if word.startswith("gres")]
    return []
