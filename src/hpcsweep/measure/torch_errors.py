"""What torch's errors mean: memory that ran out, a missing operator, a pass that no graph can hold.

While a stream is captured as a CUDA graph nothing runs, so whatever waits for a result, or copies
from memory of the host, is refused. CUDA's own message names no operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hpcsweep import sources
from hpcsweep.errors import first_line

# Messages of allocators and libraries that have no exception type of their own.
_NO_MEMORY: Final = (
    "can't allocate memory",
    "out of memory",
    "not enough memory",
    "_STATUS_ALLOC_FAILED",
    "_ALLOCATION_FAILED",  # of cuDNN 9
)
# of torch, when it tried every plan; it swallows that memory ran out
_NO_ENGINE: Final = "unable to find an engine"
_NO_OPERATOR: Final = ("not implemented for '", "Could not run 'aten::", "Unsupported dtype")

_SYNCHRONIZING: Final = "synchronizing"  # in torch's error of `set_sync_debug_mode`
_COPIES: Final = "data goes between host and GPU"
_MEANS: Final[Mapping[str, str]] = {
    "aten::is_nonzero": "a branch asks for a value",
    "aten::to": _COPIES,
    "aten::copy_": _COPIES,
}


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an exception means that memory ran out, on the device or on the host."""
    text = str(error)
    if _NO_ENGINE in text and torch.cuda.is_initialized():
        return torch.cuda.memory_stats().get("num_ooms", 0) > 0
    return isinstance(error, MemoryError) or any(words in text for words in _NO_MEMORY)


def is_missing_operator(error: BaseException) -> bool:
    """Say whether an exception means that an operator lacks this dtype or device."""
    return any(text in str(error) for text in _NO_OPERATOR)


class CannotCapture(RuntimeError):
    """A pass that runs cannot be captured; CUDA, or torch's allocator, may be of no use then."""


class _LastOperator(TorchDispatchMode):
    """Notes the name of the last operator that began."""

    name = ""

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Run an operator."""
        self.name = func.name().partition(".")[0]
        return func(*args, **(kwargs or {}))


def not_captured(run: Callable[[], object], raised: RuntimeError) -> CannotCapture:
    """Return the error of a pass that was refused with `raised`; run it once more to find out."""
    first: BaseException = raised  # that of the pass: the end of the capture fails after it, too
    while isinstance(first.__context__, RuntimeError):
        first = first.__context__
    operator = _that_synchronizes(run)
    means = f" ({_MEANS[operator]})" if operator in _MEANS else ""
    why = f"{type(first).__name__}: {first_line(first)}"
    if operator:
        why = f"{operator} synchronizes{means}"
    where = ", ".join(filter(None, (why, sources.own_line(first))))
    return CannotCapture(
        f"the network cannot be captured as a CUDA graph: {where}; take `launch: eager`"
    )


def _that_synchronizes(run: Callable[[], object]) -> str:
    """Return the first operator of an eager pass that waits for the GPU; empty without one."""
    last = _LastOperator()
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with last:
            run()
    except Exception as error:  # noqa: BLE001 - after a failed capture nothing is sure
        return last.name if _SYNCHRONIZING in str(error) else ""
    finally:
        torch.cuda.set_sync_debug_mode(before)
    return ""
