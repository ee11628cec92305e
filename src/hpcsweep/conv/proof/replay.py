"""Which kernels the replay of a graph runs.

A graph's replay has no operators, so nothing says which call a kernel belongs to. But the call that
was profiled eagerly says which kernels it needs: each has to be among those of the replay, as often
as all calls together ran it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch

from hpcsweep.conv.proof import profiler_events
from hpcsweep.conv.proof.evidence import Evidence, Proof, kernel_word

_SESSIONS: Final = 3  # of the profiler, for one replay


def replayed_kernels(run: Callable[[], object], device: torch.device) -> Counter[str]:
    """Return the kernels of one replay, the most that a session has: each may lose some."""
    kernels = Counter[str]()
    for _ in range(_SESSIONS):
        if not profiler_events.sees_kernels():
            break
        with profiler_events.session(device) as profiler:
            run()
            torch.cuda.synchronize()
        cuda = torch.autograd.DeviceType.CUDA
        events = list(profiler.events())
        profiler_events.look_for_kernels(events)
        kernels |= Counter(event.name for event in events if event.device_type == cuda)
    return kernels


def held_against(proof: Proof, ran: Counter[str]) -> Proof:
    """Return a proof whose calls are contradicted where the replay lacks kernels of theirs.

    A profiler that recorded none at all has not seen that one is missing.
    """

    def computing(call: Evidence) -> list[str]:
        return call.seen.computing if call.seen else []

    def judged(call: Evidence) -> Evidence:
        missing = next((name for name in computing(call) if ran[name] < needed[name]), None)
        if missing is None or call.problem:
            return call
        return replace(call, problem=f"the replay lacks {kernel_word(missing)}")

    if not ran:
        return proof
    needed = Counter(name for call in proof.calls for name in computing(call))
    return replace(proof, calls=tuple(map(judged, proof.calls)))
