"""Says why a pass cannot be captured as a CUDA graph: which operator waits for the GPU, and where.

While a stream is captured nothing runs, so whatever waits for a result, or copies from memory of
the host, is refused. CUDA's own message names no operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hpcsweep import search_path
from hpcsweep.errors import first_line

_SYNCHRONIZING: Final = "synchronizing"  # in torch's error of `set_sync_debug_mode`
_COPIES: Final = "data goes between host and GPU"
_MEANS: Final[Mapping[str, str]] = {
    "aten::is_nonzero": "a branch asks for a value",
    "aten::to": _COPIES,
    "aten::copy_": _COPIES,
}


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


def error(run: Callable[[], object], raised: RuntimeError) -> CannotCapture:
    """Return the error of a pass that was refused with `raised`; run it once more to find out."""
    first: BaseException = raised  # that of the pass: the end of the capture fails after it, too
    while isinstance(first.__context__, RuntimeError):
        first = first.__context__
    operator = _that_synchronizes(run)
    means = f" ({_MEANS[operator]})" if operator in _MEANS else ""
    told = f"{type(first).__name__}: {first_line(first)}"
    why = f"{operator} synchronizes{means}" if operator else told
    where = ", ".join(filter(None, (why, search_path.own_line(first))))
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
