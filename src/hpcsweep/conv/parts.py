"""The parts of a network that timers, ranges and other algorithms may enter, and closed ones.

TorchScript runs a module without its Python code, and `torch.compile` compiles that code again for
whatever is put inside. Such a part is *closed*: it is run as it is, and looked at from outside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from types import FunctionType, MethodType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Forward = Callable[..., Any]

# Looked at as one layer even where a torch version calls a child.
_ATOMIC: Final = (nn.MultiheadAttention,)
# In evaluation mode torch runs one as a single operator, if it can: then nobody calls its children.
_FUSED: Final = (nn.TransformerEncoderLayer,)
# After `module.compile()`: its `forward` is compiled code, too.
COMPILES_ITSELF: Final = "in a module that compiles itself"
_COMPILED: Final = "in a compiled module"
_FORWARD: Final = "forward"
_FUNCTIONS: Final = frozenset({FunctionType, MethodType})


def closed(module: nn.Module) -> str | None:
    """Say in what kind of part a module's own layers are; None: they may be entered."""
    if isinstance(module, torch.jit.ScriptModule):
        return "in a TorchScript module"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return COMPILES_ITSELF
    if "torch._dynamo" not in sys.modules:
        return None
    # functions of `torch.compile` compile what they call
    compiled = any(_is_compiled(value) for value in vars(module).values())
    return _COMPILED if compiled or _of_class(type(module)) else None  # type: ignore[arg-type]


def is_compiled_in_part(model: nn.Module) -> bool:
    """Say whether torch compiles a network, or a part of it."""
    return any(closed(module) in {COMPILES_ITSELF, _COMPILED} for module in model.modules())


@lru_cache(maxsize=1000)  # more classes than a network has, parametrised layers apart
def _of_class(kind: type) -> bool:
    attributes = list[object]()
    for base in kind.__mro__:
        attributes += vars(base).values()
    return any(_is_compiled(value) for value in attributes)


def _is_compiled(value: object) -> bool:
    wraps = type(value) in _FUNCTIONS and hasattr(value, "_torchdynamo_orig_callable")
    return wraps and not getattr(value, "_torchdynamo_disable", False)


def eagerly() -> AbstractContextManager[object]:
    """Run compiled code as it was written while the block runs."""
    can_compile = "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance")
    return torch.compiler.set_stance("force_eager") if can_compile else nullcontext()


def walk(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules by qualified name, each once, but not those inside a closed one."""
    visited = set[int]()
    for module in model.modules():
        if closed(module):  # what is inside, also where another part has it, too
            visited |= {id(inner) for inner in module.modules() if inner is not module}
    found = []
    stack = [("", model)]
    while stack:
        prefix, module = stack.pop()
        if id(module) in visited:
            continue
        visited.add(id(module))
        found.append((prefix, module))
        if isinstance(module, _ATOMIC) or (isinstance(module, _FUSED) and not module.training):
            continue
        for name, child in reversed(list(module.named_children())):
            stack.append((f"{prefix}.{name}".lstrip("."), child))
    return found


def device_type(model: nn.Module) -> str:
    """Return the type of a network's device."""
    return next((p.device.type for p in model.parameters()), "cpu")


@contextmanager
def computed(layer: nn.Module) -> Iterator[list[Tensor]]:
    """Compute what a parametrised layer holds before the block, which finds it; yield it."""
    if not parametrize.is_parametrized(layer):
        yield []
        return
    with parametrize.cached():
        yield [getattr(layer, name) for name in layer.parametrizations]


def convolutions(model: nn.Module) -> list[tuple[str, nn.Conv2d]]:
    """Return those that are two-dimensional convolutions."""
    return [(name, module) for name, module in walk(model) if isinstance(module, nn.Conv2d)]


@contextmanager
def wrapped_forwards(
    modules: Sequence[nn.Module], wrap: Callable[[Forward], Forward]
) -> Iterator[None]:
    """Wrap the `forward` of modules while the block runs; hooks miss who calls it directly."""
    before = [module.__dict__.get(_FORWARD) for module in modules]
    for module in modules:
        module.__dict__[_FORWARD] = wrap(module.forward)
    try:
        yield
    finally:
        for module, own in zip(modules, before, strict=True):
            del module.__dict__[_FORWARD]
            if own is not None:
                module.__dict__[_FORWARD] = own


def wrapped_layers(
    layers: Sequence[tuple[Any, ...]], wrap: Callable[..., Forward]
) -> AbstractContextManager[None]:
    """Wrap them as well: `wrap` takes a layer's tuple (name, module, ...) and its `forward`.

    What torch compiles by itself, such as the functions of `torch.cond`, has no wrapper inside.
    """
    turns = iter(layers)

    def unless_compiled(forward: Forward) -> Forward:
        wrapped = wrap(*next(turns), forward)

        def run(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - what a layer returns
            inside = forward if torch.compiler.is_compiling() else wrapped
            return inside(*args, **kwargs)

        return run

    return wrapped_forwards([one[1] for one in layers], unless_compiled)
