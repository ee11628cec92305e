"""The sbatch options of a profile, and the findings of checks.

A profile's `sbatch_options` override its keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from hpcsweep import units
from hpcsweep.cluster.slurm import amount, duration
from hpcsweep.cluster.slurm.site import Gres
from hpcsweep.errors import suggest
from hpcsweep.spec.profile import Profile, sbatch_option
from hpcsweep.text import aligned

Level = Literal["ok", "none", "warn", "fail"]
_SHOWN: Final = 8  # names in one line


@dataclass(frozen=True)
class Finding:
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


def text(findings: Sequence[Finding]) -> str:
    """Return one line per finding, and a second one where there is something to do."""
    rows = []
    for finding in findings:
        place = f" ({finding.where})" if finding.where and finding.level != "ok" else ""
        rows.append((f"{finding.level:<4}", finding.what, f"{finding.detail}{place}"))
        if finding.do:
            rows.append(("", "", f"-> {finding.do}"))
    return "\n".join(aligned(rows))


# Short options of sbatch and the keys of a profile that they set.
_SHORT: Final = {
    "-p": "partition", "-C": "constraint", "-t": "time", "-c": "cpus_per_task", "-N": "nodes",
    "-w": "nodelist", "-x": "exclude", "-A": "account", "-q": "qos",
    "-o": "output", "-e": "error",
}  # fmt: skip
_OF_SBATCH: Final = (*_SHORT.values(), "gres", "mem", "gpus_per_node")
_OPTIONS: Final = {
    **_SHORT,
    **{f"--{key.replace('_', '-')}": key for key in _OF_SBATCH},
}
_KEYS: Final = (*_OF_SBATCH, "gpu", "gpu_name")


@dataclass(frozen=True)
class Wants:
    """The GPU and the options of sbatch that a profile sets; others are empty or None."""

    values: dict[str, str]
    places: dict[str, str]  # key to FILE:LINE

    def __getitem__(self, key: str) -> str:
        return self.values.get(key, "")

    def complaint(self, key: str, detail: str, do: str = "") -> Finding:
        """Return a failure, with the line of its key."""
        return Finding("fail", key, detail, do, self.places.get(key, ""))

    def unknown(self, key: str, name: str, existing: Collection[str], kind: str = "") -> Finding:
        """Return a failure for a missing name, with the nearest one, and those that exist."""
        detail = f"no {kind or key} '{name}' on this cluster{suggest(name, existing)}"
        return self.complaint(key, detail, f"correct `{key}`; there are: {listed(existing)}")

    @property
    def partitions(self) -> tuple[str, ...]:
        return _words(self["partition"])

    @property
    def gres(self) -> tuple[Gres, ...]:
        gpus = [f"gpu:{text}" for text in _words(self["gpus_per_node"])]
        words = [re.sub("^gres[:/]", "", word) for word in (*_words(self["gres"]), *gpus)]
        return tuple(_wish(word) for word in words if word.lower() != "none")

    @property
    def time_s(self) -> float | None:
        """Time limit in seconds, rounded up to minutes like Slurm's; infinite if it is to be none.

        None without `time`: the partition sets it.
        """
        if not self["time"]:
            return None
        seconds = duration(self["time"])
        return math.inf if seconds is None else -(-seconds // 60) * 60

    @property
    def time(self) -> str:
        """Time limit as Slurm writes it."""
        return units.written(duration(self["time"]))

    @property
    def mem_mb(self) -> int | None:
        """Memory of one node in MiB; 0 means all of it."""
        text = self["mem"]
        try:
            return units.megabytes(f"{text}M" if text.isdecimal() and text != "0" else text)
        except ValueError:
            return None

    @property
    def cpus(self) -> int:
        return int(self["cpus_per_task"]) if self["cpus_per_task"].isdecimal() else 1

    @property
    def nodes(self) -> int:
        """Smallest number of nodes that the job accepts."""
        least = re.match(r"\d+", self["nodes"])
        return int(least[0]) if least else 1


def options_of(profile: Profile) -> Wants:
    """Return the GPU and the sbatch options of a profile."""
    own = {key: getattr(profile, key) for key in _KEYS if key in type(profile).model_fields}
    values = {key: str(value) for key, value in own.items() if value is not None}
    places = {key: profile.where(key) for key in own}
    for key, value in _overrides(profile.sbatch_options):
        values[key] = value
        places[key] = profile.where("sbatch_options")
    return Wants(values, places)


def _overrides(options: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the keys that `sbatch_options` set."""
    for name, value in map(sbatch_option, options):
        if name in _OPTIONS:
            yield _OPTIONS[name], value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _wish(word: str) -> Gres:
    """Read ``gpu``, ``gpu:2``, ``gpu:v100``, ``gpu:v100:2``."""
    name, *rest = re.split("[:=]", word)
    count = amount(rest[-1]) if rest else None
    kind = ":".join(rest if count is None else rest[:-1])
    return Gres(name, kind, 1 if count is None else count)
