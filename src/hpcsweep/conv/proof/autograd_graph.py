"""Autograd's graph: which nodes belong to a layer's call."""

from __future__ import annotations

from collections import abc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import ModuleType, NoneType
from typing import Any, Final

import torch

# what may be in an output without being a part of it
_OPAQUE: Final = (str, bytes, int, float, NoneType, type, ModuleType, torch.nn.Module)
_LEAF: Final = "AccumulateGrad"


def tensors_in(value: object) -> Iterable[torch.Tensor]:
    """Return the tensors in what a network returns: alone, or in containers and plain objects."""
    return _tensors_in(value, set())


def _tensors_in(value: object, seen: set[int]) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
        return
    if id(value) in seen or isinstance(value, _OPAQUE) or callable(value):
        return
    if isinstance(value, Mapping):
        items: Iterable[object] = value.values()
    elif isinstance(value, Sequence | abc.Set):
        items = value
    elif is_dataclass(value):  # its fields may be in slots
        items = (getattr(value, field.name, None) for field in fields(value))
    else:
        items = getattr(value, "__dict__", {}).values()
    for item in [*items]:
        yield from _tensors_in(item, seen | {id(value)})


def in_backward() -> bool:
    """Say whether a backward pass runs: activation checkpointing calls layers again there."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - as torch's own checkpoints ask


def nodes_between(output: object, inputs: object) -> list[Any]:
    """Return the autograd nodes that made an output out of inputs and parameters."""
    ends = {tensor.grad_fn for tensor in tensors_in(inputs)}
    found: dict[Any, None] = {}
    todo = [tensor.grad_fn for tensor in tensors_in(output)]
    while todo:
        node = todo.pop()
        if node is None or node in ends or node in found or type(node).__name__ == _LEAF:
            continue
        found[node] = None
        todo += [following for following, _ in node.next_functions]
    return list(found)


def filters_learn(layer: torch.nn.Conv2d) -> bool:
    """Say whether a convolution's filters have a gradient; they may be computed from others."""
    named = layer.named_parameters()
    return any(p.requires_grad for name, p in named if "bias" not in name.split("."))
