"""Autograd's graph: which nodes belong to a layer's call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

_LEAF: Final = "AccumulateGrad"


def tensors_in(value: object) -> Iterable[torch.Tensor]:
    """Return the tensors in what a network returns: alone, or in tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        yield from tensors_in(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_in(item)


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
