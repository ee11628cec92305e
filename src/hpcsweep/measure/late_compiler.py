"""Does without torch's compiler what imports it in passing; it takes longer than the rest of torch.

torchvision imports one function of the compiler for one operator of detectors, which asks it at a
call. Modes of dispatch, and operators of the meta device, let it mark functions that it must not
compile. Stand-ins have these two functions; whoever takes more gets the compiler itself. So
`submit` asks about networks without it; where something is measured, torch's profiler takes it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

_COMPILER: Final = "torch._dynamo"
_UTILITIES: Final = "torch._dynamo.utils"
_MARK: Final = "__dynamo_disable"  # where torch keeps the marked form of a function


class StandIn(ModuleType):
    """A module of the compiler, until somebody takes something of it that is not here."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real one has
        if name.startswith("__"):  # what every module has, if this one has it
            raise AttributeError(name)
        return getattr(self.real(), name)

    def real(self) -> ModuleType:
        """Leave, and return what this stood for."""
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


class _Finder(Loader):
    """Finds the modules of a package that a stand-in replaces: the package itself imports them."""

    def __init__(self, package: StandIn) -> None:
        self._package = package

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        package = self._package
        is_here = sys.modules.get(package.__name__) is package
        if not is_here or not name.startswith(f"{package.__name__}."):
            return None
        package.real()
        return ModuleSpec(name, self) if name in sys.modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return sys.modules[spec.name]

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: it ran when the package was imported."""


def torchvision() -> Any:  # noqa: ANN401 - a module
    """Return torchvision."""

    def is_compile_supported(device_type: str) -> Any:  # noqa: ANN401 - what the real one returns
        return importlib.import_module(_UTILITIES).is_compile_supported(device_type)

    with _standing_in(_UTILITIES, is_compile_supported=is_compile_supported):
        return importlib.import_module("torchvision")


@contextmanager
def unmarked() -> Iterator[None]:
    """Let functions of torch run without being marked for the compiler while the block runs."""
    ran = list[Callable[..., object]]()

    def disable(function: Callable[..., object], *_: object, **__: object) -> object:
        ran.append(function)
        return function

    try:
        with _standing_in(_COMPILER, disable=disable, __path__=[]):
            yield
    finally:
        for function in ran:
            vars(function).pop(_MARK, None)


@contextmanager
def _standing_in(name: str, **has: object) -> Iterator[None]:
    """Replace a module of the compiler while the block runs, unless the compiler is there."""
    if _COMPILER in sys.modules:
        yield
        return
    module = StandIn(name)
    vars(module).update(has)
    sys.modules[name] = module
    finder = _Finder(module)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if sys.modules.get(name) is module:
            del sys.modules[name]
