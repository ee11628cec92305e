"""Which kernels the replay of a graph runs.

A graph's replay has no operators, so nothing says which call a kernel belongs to. But the call that
was profiled eagerly says which kernels it needs: each has to be among those of the replay, as often
as all calls together ran it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

import torch
from torch.profiler import record_function

from hpcsweep.conv.proof import profiler_events
from hpcsweep.conv.proof.evidence import Evidence, Proof
from hpcsweep.conv.proof.kernels import kernel_word

_MARK: Final = "hpcsweep.replay"
_REPLAYS: Final = 3  # in a session, which may lose kernels of one, and hardly the same of three
_SESSIONS: Final = 3  # until one shows a kernel of a replay; as many as an eager pass may have
# Before each replay, in which the GPU is idle. A kernel belongs to the replay whose range began
# last, and the clocks of host and GPU may differ: by microseconds, so that half of this is plenty.
_GAP_SECONDS: Final = 0.01


def replayed_kernels(run: Callable[[], object], device: torch.device) -> Counter[str]:
    """Return the kernels of one replay, the most that any of three has; none if none was seen."""
    kernels = Counter[str]()
    sessions = 0
    while not kernels and sessions < _SESSIONS and profiler_events.sees_kernels():
        sessions += 1
        with profiler_events.session(device) as profiler:
            for number in range(_REPLAYS):
                time.sleep(_GAP_SECONDS)
                with record_function(f"{_MARK}|{number}"):
                    run()
                    torch.cuda.synchronize()
        events = list(profiler.events())
        profiler_events.look_for_kernels(events)
        kernels = most_of_a_replay(events)
    return kernels


def most_of_a_replay(events: Iterable[Any]) -> Counter[str]:
    """Return how often each kernel ran in a replay, of several the most."""
    events = list(events)
    replays = [event for event in events if profiler_events.is_range(event, _MARK)]
    begins = sorted(event.time_range.start for event in replays)  # in microseconds
    ran = [Counter[str]() for _ in begins]
    for event in events:
        on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
        is_kernel = on_gpu and not event.name.startswith(_MARK)  # the GPU's copy of a range is none
        begun = bisect_right(begins, event.time_range.start + 1e6 * _GAP_SECONDS / 2)
        if is_kernel and begun:
            ran[begun - 1][event.name] += 1
    most = Counter[str]()
    for kernels in ran:
        most |= kernels
    return most


def held_against(proof: Proof, ran: Counter[str]) -> Proof:
    """Return a proof whose calls are contradicted where the replay lacks kernels of theirs.

    If no kernel of the replay was seen, nobody knows what it ran: the eager pass proves no call.
    """
    needed = Counter[str]()
    for call in proof.calls:
        if call.seen:
            needed.update(call.seen.computing)
    calls = []
    for call in proof.calls:
        if not call.problem and not ran:
            calls.append(Evidence(call.layer))
        elif not call.problem and call.seen:
            lacking = [name for name in call.seen.computing if ran[name] < needed[name]]
            problem = f"the replay lacks {kernel_word(lacking[0])}" if lacking else None
            calls.append(replace(call, problem=problem))
        else:
            calls.append(call)
    return replace(proof, calls=tuple(calls))
