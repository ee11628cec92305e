"""What a profile asks of Slurm: its keys, and `sbatch_options` over them, as sbatch reads it."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hpcsweep import units

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcsweep.spec.profile import Profile

# Long and short options that take a profile's key, or something of their own, from the script.
_OPTIONS: Final = {
    "--partition": "partition",
    "-p": "partition",
    "--constraint": "constraint",
    "-C": "constraint",
    "--gres": "gres",
    "--time": "time",
    "-t": "time",
    "--mem": "mem",
    "--cpus-per-task": "cpus_per_task",
    "-c": "cpus_per_task",
    "--nodes": "nodes",
    "-N": "nodes",
    "--nodelist": "nodelist",
    "-w": "nodelist",
    "--exclude": "exclude",
    "-x": "exclude",
    "--account": "account",
    "-A": "account",
    "--qos": "qos",
    "-q": "qos",
    "--gpus-per-node": "gpus_per_node",
    "--clusters": "clusters",
    "-M": "clusters",
    "--output": "output",
    "-o": "output",
    "--error": "error",
    "-e": "error",
}
_COUNT: Final = re.compile(r"(\d+)([KMGT]?)", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}


@dataclass(frozen=True)
class GresWish:
    """Generic resources of one node: GPUs of a type, or of any."""

    name: str
    type: str
    count: int

    def __str__(self) -> str:
        """Write it as sbatch reads it."""
        return ":".join(filter(None, (self.name, self.type, str(self.count))))


@dataclass(frozen=True)
class Wants:
    """A profile as sbatch reads it; text is empty and numbers are None where it does not say."""

    values: dict[str, str]
    places: dict[str, str]  # key to FILE:LINE

    def __getitem__(self, key: str) -> str:
        """Return what is asked for, as text."""
        return self.values.get(key, "")

    @property
    def partitions(self) -> tuple[str, ...]:
        """Return the partitions of which any will do."""
        return _words(self["partition"])

    @property
    def gres(self) -> tuple[GresWish, ...]:
        """Return the generic resources of one node."""
        gpus = [f"gpu:{text}" for text in _words(self["gpus_per_node"])]
        words = [re.sub("^gres[:/]", "", word) for word in (*_words(self["gres"]), *gpus)]
        return tuple(_wish(word) for word in words if word.lower() != "none")

    @property
    def time_s(self) -> int | None:
        """Return the time limit in seconds, rounded up to minutes as Slurm does."""
        try:
            seconds = units.seconds(self["time"])
        except ValueError:
            return None
        return None if seconds is None else -(-seconds // 60) * 60

    @property
    def mem_mb(self) -> int | None:
        """Return the memory of one node in MiB; 0 is all of it."""
        text = self["mem"]
        try:
            return units.megabytes(f"{text}M" if text.isdecimal() and text != "0" else text)
        except ValueError:
            return None

    @property
    def cpus(self) -> int:
        """Return the CPUs of the one task."""
        return int(self["cpus_per_task"]) if self["cpus_per_task"].isdecimal() else 1

    @property
    def nodes(self) -> int:
        """Return the least number of nodes."""
        least = re.match(r"\d+", self["nodes"])
        return int(least[0]) if least else 1


def of(profile: Profile) -> Wants:
    """Return what a profile asks for."""
    keys = set(_OPTIONS.values()) & set(type(profile).model_fields)
    own = {key: getattr(profile, key) for key in keys}
    values = {key: str(value) for key, value in own.items() if value is not None}
    places = {key: profile.where(key) for key in keys}
    for key, value in _overrides(profile.sbatch_options):
        values[key], places[key] = value, profile.where("sbatch_options")
    return Wants(values, places)


def _overrides(options: list[str]) -> Iterator[tuple[str, str]]:
    """Return the keys that verbatim options set: ``--time=60``, ``-p gpu``, ``-pgpu``."""
    for option in options:
        try:
            words = shlex.split(option)
        except ValueError:  # sbatch will say so
            continue
        name, equals, value = words[0].partition("=")
        if not name.startswith("--") and len(name) > 2:
            name, value = words[0][:2], words[0][2:]
        elif not equals and len(words) > 1:
            value = words[1]
        if name in _OPTIONS:
            yield _OPTIONS[name], value


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _wish(word: str) -> GresWish:
    """Read ``gpu``, ``gpu:2``, ``gpu:v100``, ``gpu:v100:2``."""
    name, *rest = re.split("[:=]", word)
    number = _COUNT.fullmatch(rest[-1]) if rest else None
    kind = ":".join(rest[:-1] if number else rest)
    return GresWish(name, kind, int(number[1]) * _UNITS[number[2].upper()] if number else 1)
