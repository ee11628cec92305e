"""Graphs on the host, in memory of a small model of torch's caching allocator.

A captured operator gets its results a block of the graph's pool; a block whose last tensor ended is
free for the next result of any graph of that pool. A replay runs the operators again, in the same
blocks. So what one graph leaves can be overwritten by another of its pool, as on a GPU.
"""

from __future__ import annotations

import time
import weakref
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_ALIGNED = 512  # bytes, as CUDA's allocator rounds


class Pool:
    """Memory of which freed blocks are used again, the smallest that is large enough."""

    def __init__(self, size=1 << 28):
        """Begin as one free block."""
        self.arena, self.free = np.zeros(size, np.uint8), {0: size}

    def like(self, tensor):
        """Return a copy of a tensor in a block, which is free when the copy's last view ends."""
        used = -(-max(1, _bytes_of(tensor)) // _ALIGNED) * _ALIGNED
        size, at = min((size, at) for at, size in self.free.items() if size >= used)
        del self.free[at]
        if size > used:
            self.free[at + used] = size - used
        block = self.arena[at : at + used]  # lives as long as the tensor's storage
        weakref.finalize(block, self._give_back, at, used)
        made = torch.from_numpy(block).view(tensor.dtype)
        return made.as_strided(tensor.shape, tensor.stride()).copy_(tensor)

    def _give_back(self, at, size):
        if at + size in self.free:
            size += self.free.pop(at + size)
        before = next((b for b, long in self.free.items() if b + long == at), None)
        if before is None:
            self.free[at] = size
        else:
            self.free[before] += size

    def place(self, tensor):
        """Return a function that gives a tensor here again, without keeping it; None: elsewhere."""
        at = tensor.data_ptr() - self.arena.ctypes.data
        if not 0 <= at < self.arena.nbytes:
            return None
        memory, dtype = self.arena[at : at + _bytes_of(tensor)], tensor.dtype
        size, stride = tensor.shape, tensor.stride()
        return lambda: torch.from_numpy(memory).view(dtype).as_strided(size, stride)


def _bytes_of(tensor):
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return (1 + sum((n - 1) * step for n, step in steps)) * tensor.element_size()


class Graph:
    """What stands for `torch.cuda.CUDAGraph`."""

    current = None

    def __init__(self):
        """Be empty."""
        self.steps = []

    def replay(self):
        """Run the steps again, in the same memory."""
        with torch.inference_mode():
            for step in self.steps:
                step()


class _Capture(TorchDispatchMode):
    """Adds each operator to a graph, with its results in the pool."""

    def __init__(self, graph, pool):
        super().__init__()
        self._graph, self._pool = graph, pool

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given, form = pytree.tree_flatten((args, kwargs or {}))
        held = {t.untyped_storage().data_ptr() for t in given if isinstance(t, torch.Tensor)}
        places = [self._kept(value) for value in given]
        result, shape = pytree.tree_flatten(func(*args, **(kwargs or {})))
        fresh = [
            isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in held
            for t in result
        ]
        result = [self._pool.like(t) if new else t for t, new in zip(result, fresh, strict=True)]
        into = [self._pool.place(t) if new else None for t, new in zip(result, fresh, strict=True)]

        def step():
            again, options = pytree.tree_unflatten([value() for value in places], form)
            for made, place in zip(pytree.tree_leaves(func(*again, **options)), into, strict=True):
                if place is not None:
                    place().copy_(made)

        self._graph.steps.append(step)
        return pytree.tree_unflatten(result, shape)

    def _kept(self, value):
        """Return what gives an argument again, without keeping a tensor of the pool."""
        place = self._pool.place(value) if isinstance(value, torch.Tensor) else None
        return place or (lambda: value)


@contextmanager
def _graph(graph, pool=None):
    Graph.current = graph
    try:
        with _Capture(graph, pool or Pool()):
            yield
    finally:
        Graph.current = None


class Event:
    """An event on the host's time line; one that is captured is recorded by every replay."""

    def record(self):
        """Take the time."""
        self.at = time.perf_counter_ns()
        if Graph.current is not None:
            Graph.current.steps.append(self.record)

    def elapsed_time(self, end):
        """Return the milliseconds to a later event."""
        return (end.at - self.at) / 1e6


class Runtime:
    """A device that is done as soon as it is asked."""

    event = staticmethod(Event)

    def synchronize(self):
        """Wait for nothing."""

    def delay(self, ms):
        """Delay nothing."""
        return 0

    def host_now(self):
        """Return the host's milliseconds."""
        return time.perf_counter_ns() / 1e6


def install(monkeypatch, lanes):
    """Let the lanes of a module capture and replay on the host."""
    stream = SimpleNamespace(wait_stream=lambda _other: None)
    stand_ins = {
        "CUDAGraph": Graph,
        "graph": _graph,
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda _stream: nullcontext(),
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    monkeypatch.setattr(lanes, "Cuda", Runtime)
    monkeypatch.setattr(lanes.clocks, "external_event", Event)
