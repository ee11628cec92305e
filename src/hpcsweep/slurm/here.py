"""Says which cluster this machine's commands reach, and as whom."""

from __future__ import annotations

import os
import pwd

from hpcsweep.records import dataclass
from hpcsweep.slurm.call import TIMEOUT, CouldNotAsk, ask


def config(*, timeout: float = TIMEOUT) -> dict[str, str] | CouldNotAsk:
    """Return `scontrol show config` by key; `number` reads a value such as ``1001``."""
    answer = ask("scontrol", "show", "config", timeout=timeout)
    if isinstance(answer, CouldNotAsk):
        return answer
    pairs = (line.partition("=") for line in answer.splitlines())
    return {key.strip(): value.strip() for key, equals, value in pairs if equals}


@dataclass(frozen=True, kw_only=True)
class Here:
    """The cluster that this machine's commands reach, and this user; empty if unknown."""

    cluster: str = ""
    controller: str = ""
    user: str = ""

    def differs(self, other: Here) -> bool:
        """Say whether the two are surely different clusters."""
        pairs = ((self.cluster, other.cluster), (self.controller, other.controller))
        return any(own and its and own != its for own, its in pairs)


def here(*, timeout: float = TIMEOUT) -> Here:
    """Return the cluster that commands reach by default, and this user."""
    answer = config(timeout=timeout)
    settings = {} if isinstance(answer, CouldNotAsk) else answer
    host = settings.get("SlurmctldHost[0]") or settings.get("ControlMachine", "")
    controller = f"{host.partition('(')[0]}:{settings.get('SlurmctldPort', '')}" if host else ""
    cluster = settings.get("ClusterName", "")
    return Here(cluster=cluster, controller=controller, user=user_name())


def user_name() -> str:
    """Return the name of this user; the number where there is none."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container without this user
        return str(os.getuid())
