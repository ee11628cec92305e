"""Runs a network's own code as it is, and beside each of its operators the same one in float64.

A tensor that depends on the input or on a parameter has a *shadow*, its numbers in float64. So
whatever type the code asks for, converts to, or checks, it takes its own path, and its state is
that of an ordinary pass. Constants (positions, masks, random numbers from a seed) are made by the
code in its own type: their rounding is a part of the function that it computes, as that of its
weights is. Where the code converts to a smaller type, the shadow stays, but it is noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._ops import HigherOrderOperator
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from hpcsweep.measure.operations import entered

_WIDER: Final[Mapping[object, torch.dtype]] = {
    **dict.fromkeys((torch.float32, torch.bfloat16, torch.float16), torch.float64),
    **dict.fromkeys((torch.complex64, torch.complex32), torch.complex128),
}
_ATEN: Final = torch.ops.aten
# Their numbers are the same in every type; a network may write into them what depends on its input.
_BLANK: Final = frozenset(
    {_ATEN.zeros, _ATEN.ones, _ATEN.full, _ATEN.empty, _ATEN.new_zeros, _ATEN.new_empty}
)

_PART: Final = 1 << 19  # numbers of a weight, 4 MiB in float64


class Shadow(TorchDispatchMode):
    """Keeps float64 numbers beside the tensors of the code that runs while it is on.

    `coarsest` is the largest unit roundoff of the types in which the code computed.
    """

    supports_higher_order_operators = True

    def __init__(self, device: torch.device) -> None:
        """Compute in float64 on a device that has it."""
        super().__init__()
        self.coarsest = 0.0
        self._device = device
        self._held = WeakTensorKeyDictionary()

    def hold(self, tensor: Tensor, numbers: Tensor) -> None:
        """Give a tensor a shadow."""
        self._held[tensor] = numbers

    def has(self, tensor: Tensor) -> bool:
        """Tell whether a tensor has a shadow."""
        return tensor in self._held

    def of(self, tensor: Tensor) -> Tensor:
        """Return the shadow of a tensor; a constant's are its own numbers."""
        found: Tensor | None = self._held.get(tensor)
        if found is None:
            found = exact(tensor.to(self._device))
        return found.clone() if found is tensor else found

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401 - an operator
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Run an operator, and in float64 if it depends on the input or on a parameter."""
        kwargs = dict(kwargs or {})
        if isinstance(func, HigherOrderOperator):
            return func(*entered(self, args), **kwargs)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        depends = any(map(self._depends, leaves))
        multiplies = func is _ATEN.linear.default and args[1].dim() == 2
        # before the operator, which may write into its arguments
        wide = spec.unflatten(map(self._widened, leaves)) if depends and not multiplies else None
        result = func(*args, **kwargs)
        made = [*filter(_is_inexact, pytree.tree_leaves(result))]
        if func.overloadpacket in _BLANK:
            self._held.update({tensor: self.of(tensor) for tensor in made})
        elif depends and made and not _draws(func, args, kwargs):
            found = func(*wide[0], **wide[1]) if wide else self._multiplied(*args)
            numbers = filter(_is_inexact, pytree.tree_leaves(found))
            self._held.update(zip(made, numbers, strict=True))
            roundoffs = (torch.finfo(tensor.dtype).eps / 2 for tensor in made)
            self.coarsest = max(self.coarsest, *roundoffs)
        return result

    def _multiplied(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """Multiply by some rows of a weight at a time, which stay in the cache.

        A large one as a whole takes ten times as long to convert as to multiply by.
        """
        wide = self.of(x)
        rows = min(len(weight), 1 + _PART // max(1, weight.shape[1]))
        some = torch.empty(rows, weight.shape[1], dtype=wide.dtype, device=wide.device)
        parts = self._held.get(weight, weight).split(rows)
        products = [nn.functional.linear(wide, some[: len(part)].copy_(part)) for part in parts]
        product = torch.cat(products, -1)
        return product if bias is None else product + self.of(bias)

    def _depends(self, leaf: object) -> bool:
        if not isinstance(leaf, Tensor) or not _is_inexact(leaf):
            return False
        return isinstance(leaf, nn.Parameter) or self.has(leaf)

    def _widened(self, leaf: Any) -> Any:  # noqa: ANN401 - an argument of any kind
        if _is_inexact(leaf):
            return self.of(leaf)
        if isinstance(leaf, Tensor):
            return leaf.to(self._device)
        if isinstance(leaf, torch.device) and leaf.type == "mps":
            return self._device
        return _WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype) else leaf


def _draws(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:  # noqa: ANN401
    """Say whether an operator draws random numbers; what drops nothing, or not now, does not."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    arguments = func._schema.arguments  # noqa: SLF001
    given = {argument.name: argument.default_value for argument in arguments}
    given |= {argument.name: value for argument, value in zip(arguments, args, strict=False)}
    given |= kwargs
    share = given.get("dropout_p", given.get("dropout"))
    trains = given.get("train", given.get("training"))
    return share != 0 and trains is not False


def _is_inexact(leaf: object) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def exact(tensor: Tensor) -> Tensor:
    """Return a tensor's numbers in float64 or complex128; whole numbers as they are."""
    tensor = tensor.dequantize() if tensor.is_quantized else tensor
    tensor = tensor if tensor.layout == torch.strided else tensor.to_dense()
    if tensor.is_complex():
        return tensor.to(torch.complex128).contiguous()
    return tensor.double().contiguous() if tensor.is_floating_point() else tensor
