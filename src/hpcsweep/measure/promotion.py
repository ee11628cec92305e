"""Runs a network's own code in float64, although it asks for float32 here and there.

What depends on the input or on a parameter is float64. Constants (positions, masks, random numbers
from a seed) are made by the network's code in its own type: their rounding is a part of the
function that it computes, as that of its weights is. A constant that meets a float64 tensor is
converted there. Converting a float64 tensor to a smaller type does nothing, but it is noted: the
network rounds there. Whoever asks for its type is told the network's, so that its code takes the
same path.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

_REAL: Final = (torch.float32, torch.bfloat16, torch.float16)
_COMPLEX: Final = (torch.complex64, torch.complex32)
_NAMED: Final = (
    *(torch.FloatTensor, torch.cuda.FloatTensor),  # as code for older versions has them
    *("torch.FloatTensor", "torch.cuda.FloatTensor"),
)
_WIDER: Final[Mapping[object, Any]] = {
    **dict.fromkeys((*_REAL, *_NAMED), torch.float64),
    **dict.fromkeys(_COMPLEX, torch.complex128),
}
_EXACT: Final = frozenset(_WIDER.values())
_CONVERSIONS: Final[Mapping[object, torch.dtype]] = {
    Tensor.float: torch.float32,
    Tensor.half: torch.float16,
    Tensor.bfloat16: torch.bfloat16,
    Tensor.cfloat: torch.complex64,
    Tensor.chalf: torch.complex32,
}
# Their numbers are the same in every type; a network may write into them what depends on its input.
_BLANK: Final = frozenset({torch.zeros, torch.ones, torch.full})
_RANDOM: Final = frozenset({torch.rand_like, torch.randn_like})  # other numbers in float64
_IN_PLACE: Final = re.compile(r"[^_]_$|^__(setitem|i(add|sub|mul|div|truediv|pow|matmul))__$")


class ReadsBitsError(TypeError):
    """A network reads the bits of its numbers, which are others in float64."""


class Promoting(TorchFunctionMode):
    """Keeps in float64 what is in float64 while it is on; `told` is the type of the network.

    `coarsest` is the largest unit roundoff of the types that its code asked for instead.
    """

    def __init__(self, told: torch.dtype) -> None:
        super().__init__()
        self._told = {torch.float64: told, torch.complex128: torch.complex64}
        self.coarsest = 0.0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        _types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Call a function of torch with other arguments, or tell the network's type.

        Raises:
            ReadsBitsError: it interprets float64 numbers as whole ones.
        """
        kwargs = kwargs or {}
        leaves = pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if func in _BLANK:
            blank = func(*args, **kwargs)
            return blank.to(_WIDER.get(blank.dtype, blank.dtype))
        if func in _RANDOM:
            return func(*args, **{"dtype": self._told[torch.float64], **kwargs})
        name = getattr(func, "__name__", "")
        if name != "__set__" and any(tensor.dtype in _EXACT for tensor in tensors):
            wanted = [leaf for leaf in leaves if isinstance(leaf, torch.dtype)]
            if func is Tensor.view and wanted and wanted[0] not in _WIDER.keys() | _EXACT:
                raise ReadsBitsError(f"the bits of numbers, read as {wanted[0]}, have no float64")
            if func in _CONVERSIONS:
                wanted = [_CONVERSIONS[func]]
                func = Tensor.to
                args = (*args, *wanted)
            self._note(tensors[0].device.type, wanted)
            written = kwargs.get("out", tensors[0] if _IN_PLACE.search(name) else None)
            fit = _widened
            if isinstance(written, Tensor) and written.dtype in _WIDER:
                fit = partial(_narrowed, written.dtype)  # other tensors may share its memory
            args, kwargs = pytree.tree_map(fit, (args, dict(kwargs)))
        result = func(*args, **kwargs)
        return self._told.get(result, result) if isinstance(result, torch.dtype) else result

    def _note(self, device: str, wanted: list[torch.dtype]) -> None:
        """Note the types that a call computes or stores in outside of float64."""
        if torch.is_autocast_enabled(device):
            wanted = [*wanted, torch.get_autocast_dtype(device)]
        narrower = (torch.finfo(dtype).eps / 2 for dtype in wanted if dtype in _WIDER)
        self.coarsest = max(self.coarsest, *narrower, 0.0)


def _widened(leaf: Any) -> Any:  # noqa: ANN401 - an argument of any kind
    if isinstance(leaf, Tensor):
        return leaf.to(_WIDER[leaf.dtype]) if leaf.dtype in _WIDER else leaf
    return _WIDER.get(leaf, leaf) if isinstance(leaf, torch.dtype | str | type) else leaf


def _narrowed(dtype: torch.dtype, leaf: Any) -> Any:  # noqa: ANN401 - an argument of any kind
    return leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.dtype in _EXACT else leaf
