"""Imports torchvision without torch's compiler, which takes twice as long as torchvision and torch.

torchvision 0.29 imports one function of the compiler for one operator of detectors (`roi_align`),
which asks it at a call. What does compile imports the compiler itself.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, Final

_COMPILER: Final = "torch._dynamo"
_UTILITIES: Final = "torch._dynamo.utils"


class Later(ModuleType):
    """Stands in for the compiler's utilities until somebody takes more of them."""

    @staticmethod
    def is_compile_supported(device_type: str) -> Any:  # noqa: ANN401 - what the real one returns
        return importlib.import_module(_UTILITIES).is_compile_supported(device_type)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real one has
        if name.startswith("__"):  # those of the import system, such as __path__
            raise AttributeError(name)
        sys.modules.pop(_UTILITIES, None)
        return getattr(importlib.import_module(_UTILITIES), name)


def torchvision() -> Any:  # noqa: ANN401 - a module
    """Return torchvision."""
    if _COMPILER in sys.modules:
        return importlib.import_module("torchvision")
    later = Later(_UTILITIES)
    sys.modules[_UTILITIES] = later
    try:
        return importlib.import_module("torchvision")
    finally:
        if sys.modules.get(_UTILITIES) is later:
            del sys.modules[_UTILITIES]
