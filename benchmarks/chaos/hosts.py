"""Containers and hosts that share a name and pids, and write to one folder (as root)."""

from __future__ import annotations

import os
import signal
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import subprocess
    from random import Random

    from benchmarks.chaos.place import Place

# Its processes have the pids 1, 2, ...; a host has a boot of its own, too.
_OWN_PIDS: Final = (
    "unshare", "--uts", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
)  # fmt: skip
_CONTAINER: Final = 'hostname node1; exec "$@"'
_HOST: Final = 'hostname node1; mount --bind "$1" /proc/sys/kernel/random/boot_id; shift; exec "$@"'


def meet(place: Place, rng: Random) -> tuple[str, str]:
    """Let two of a kind meet at a sweep; return the kind of the fault, and the case."""
    kind = rng.choice(("containers", "hosts"))
    story = rng.choice((_at_once, _one_dies, _one_is_suspended))
    told = f"two {kind} of one name: {story(place, rng, kind)}"
    place.pass_minutes()  # else what was killed in a container counts as alive for so long
    return f"{kind} share name and pids", told


def _inside(place: Place, words: list[str], kind: str) -> subprocess.Popen[bytes]:
    if kind == "containers":
        return place.start([*_OWN_PIDS, _CONTAINER, "sh", *words])
    boot = place.folder / f"boot-{uuid.uuid4()}"
    boot.write_text(f"{uuid.uuid4()}\n")
    return place.start([*_OWN_PIDS, _HOST, "sh", str(boot), *words])


def _measuring(place: Place, rng: Random, kind: str) -> subprocess.Popen[bytes]:
    child = _inside(place, place.submit(), kind)
    until = time.monotonic() + 20
    while "worker" not in place.processes().values() and time.monotonic() < until:
        if child.poll() is not None:
            break
        time.sleep(0.02)
    time.sleep(rng.uniform(0, 1))
    return child


def _at_once(place: Place, rng: Random, kind: str) -> str:
    """Two submits, or a submit and two collects."""
    commands = rng.choice(
        ([place.submit(), place.submit()], [place.submit(), place.collect(), place.collect()])
    )
    children = []
    for words in commands:
        children.append(_inside(place, words, kind))
        time.sleep(rng.uniform(0, 1))
    told = f"{len(commands)} commands at once"
    place.end(told, *children)
    return told


def _one_dies(place: Place, rng: Random, kind: str) -> str:
    """Kill one; the other submits at once, and again when minutes have passed."""
    first = _measuring(place, rng, kind)
    first.kill()
    told = "one is killed, the other submits at once and minutes later"
    place.end(told, first)
    place.end(told, _inside(place, place.submit(), kind))
    place.pass_minutes()
    place.end(told, _inside(place, place.submit(), kind))
    return told


def _one_is_suspended(place: Place, rng: Random, kind: str) -> str:
    """Suspend one; the other measures the rest when minutes have passed; let the first go on."""
    first = _measuring(place, rng, kind)
    before = set(place.processes())
    _signal(before, signal.SIGSTOP)
    place.pass_minutes()
    second = _inside(place, place.submit(), kind)
    time.sleep(rng.uniform(1, 4))
    _signal(before, signal.SIGCONT)
    told = "one is suspended for minutes, the other submits"
    place.end(told, first, second)
    return told


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
