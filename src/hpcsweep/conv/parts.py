"""The parts of a network that may be entered, its tensors, and a copy of it with other tensors.

Timers, ranges and other algorithms enter parts. TorchScript runs a module without its Python code,
and `torch.compile` compiles that code again for whatever is put inside. Such a part is *closed*: it
is run as it is, and looked at from outside.

A pass on other tensors (on the meta device) runs on a copy of the network. So nothing has to be
restored, whatever is shared, tied or kept in a list, and state that such a pass changes is the
copy's.
"""

from __future__ import annotations

import copy
import sys
from collections import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import fields, is_dataclass
from functools import lru_cache
from types import FunctionType, MethodType, ModuleType, NoneType
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

Forward = Callable[..., Any]
Change = Callable[[Tensor], Tensor]

# Looked at as one layer even where a torch version calls a child.
_ATOMIC: Final = (nn.MultiheadAttention,)
# In evaluation mode torch runs one as a single operator, if it can: then nobody calls its children.
_FUSED: Final = (nn.TransformerEncoderLayer,)
# After `module.compile()`: its `forward` is compiled code, too.
COMPILES_ITSELF: Final = "in a module that compiles itself"
_COMPILED: Final = "in a compiled module"
_FORWARD: Final = "forward"
_FUNCTIONS: Final = frozenset({FunctionType, MethodType})
# attributes of every module
_STANDARD: Final = frozenset(vars(nn.Module()))
# what may be in an output without being a part of it
_OPAQUE: Final = (str, bytes, int, float, NoneType, type, ModuleType, nn.Module)
# autograd's node of a parameter, which many calls may share
_LEAF: Final = "AccumulateGrad"


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


def tensors_in(value: object, around: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    """Yield the tensors in what a network returns: alone, or in containers and plain objects.

    `around` are the objects that the value is in: what holds itself is not entered again.
    """
    if isinstance(value, Tensor):
        yield value
        return
    if id(value) in around or isinstance(value, _OPAQUE) or callable(value):
        return
    items: Iterable[object]
    if isinstance(value, Mapping):
        items = value.values()
    elif isinstance(value, Sequence | abc.Set):
        items = value
    elif is_dataclass(value):  # its fields may be in slots
        items = (getattr(value, field.name, None) for field in fields(value))
    else:
        items = getattr(value, "__dict__", {}).values()
    for item in list(items):
        yield from tensors_in(item, around | {id(value)})


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
        for source, _ in node.next_functions:
            todo.append(source)
    return list(found)


def filters_learn(layer: nn.Conv2d) -> bool:
    """Say whether a convolution's filters have a gradient; they may be computed from others."""
    for name, parameter in layer.named_parameters():
        if parameter.requires_grad and "bias" not in name.split("."):
            return True
    return False


class TensorsChanged(RuntimeError):
    """A network lost the tensors that it has to be measured with."""


class Held:
    """The tensors of a network before its passes."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = dict(_places(model))
        self._kinds = {place: (t.device, t.dtype) for place, t in self._before.items()}
        self._may_change = set[str]()

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Allow the network to replace or convert its tensors in the pass of this block."""
        before = dict(_places(self._model))
        yield
        for place, tensor in _places(self._model):
            if place not in before:
                continue
            if before[place] is not tensor:
                self._may_change.add(place)
            device, _ = self._kinds.get(place, (tensor.device, None))
            self._kinds[place] = device, tensor.dtype

    def check(self) -> None:
        """Check the network after its passes.

        Raises:
            TensorsChanged: a parameter or buffer was replaced, or has another device or type; or a
                tensor is on the meta device.
        """
        now = dict(_places(self._model))
        wrong: dict[str, str] = {}
        looked_at: dict[str, object] = {}
        for name, module in self._model.named_modules():
            for own, value in vars(module).items():
                if own not in _STANDARD:
                    looked_at[f"{name}.{own}".lstrip(".")] = value
        looked_at |= now
        for place, value in looked_at.items():
            if any(tensor.is_meta for tensor in tensors_in(value)):
                wrong[place] = "is on meta"
        for place, tensor in self._before.items():
            current = now.get(place)
            if current is not tensor and place not in self._may_change:
                wrong.setdefault(place, "is not the tensor that it was")
            elif current is not None and (current.device, current.dtype) != self._kinds[place]:
                wrong.setdefault(place, f"is {current.dtype} on {current.device}")
        if wrong:
            place, how = next(iter(wrong.items()))
            more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise TensorsChanged(
                "the network lost its own tensors, so nothing is known of its times: "
                f"{place} {how}{more}"
            )


def _places(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers by name, shared ones repeatedly."""
    for name, module in model.named_modules():
        for tensors in (module._parameters, module._buffers):  # noqa: SLF001 - the very objects
            for own, tensor in tensors.items():
                if tensor is not None:
                    yield f"{name}.{own}".lstrip("."), tensor


def is_lazy(model: nn.Module) -> bool:
    """Say whether some parameters or buffers get their size only in the first pass."""
    return any(torch.nn.parameter.is_lazy(t) for _, t in _places(model))


def structure(model: nn.Module) -> list[tuple[object, ...]]:
    """Return a fingerprint of a network's modules and the names of their tensors."""
    fingerprint: list[tuple[object, ...]] = []
    for module in model.modules():
        # of TorchScript's dicts nothing but their keys can be listed
        names = (*module._parameters.keys(), *module._buffers.keys())  # noqa: SLF001
        fingerprint.append((type(module), id(module), *names))
    return fingerprint


@contextmanager
def copied(model: nn.Module, change: Change) -> Iterator[nn.Module]:
    """Give a copy of a network with changed tensors, without compiled code.

    Objects that cannot be copied, such as a lock, are shared. Functions may refer to the network
    itself and write there while the block runs: that is undone.
    """
    modules = _with_unregistered(model)
    memo = dict[int, Any]()
    with _untouched(modules):
        for module in modules:
            _remember(module, change, memo)
        other = _deep_copy(model, modules, memo)
        copies = dict(other.named_modules())
        for name, module in model.named_modules():
            if name in copies and "training" in vars(module):  # a graph module's copy would train
                copies[name].training = module.training
        for part in other.modules():
            if isinstance(part, torch.jit.ScriptModule):  # deepcopy does not see its tensors
                part._apply(change)  # noqa: SLF001 - its public `to` takes no function
        yield other


@contextmanager
def _untouched(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Restore the attributes of modules at the end of the block, the same objects."""
    before: list[tuple[Any, Any]] = []
    for module in modules:
        state = vars(module)
        before.append((state, dict(state)))
        for name, value in state.items():
            if isinstance(value, dict):
                before.append((value, dict(value)))
            elif isinstance(value, list) and name not in _STANDARD:
                before.append((value, list(value)))
    try:
        yield
    finally:
        for container, content in before:
            container.clear()
            if isinstance(container, dict):
                container.update(content)
            else:
                container.extend(content)


def _deep_copy(model: nn.Module, modules: Sequence[nn.Module], memo: dict[int, Any]) -> nn.Module:
    copies = dict(memo)
    with suppress(Exception):  # own classes may raise anything
        for module in modules:
            if "dynamo_ctx" in vars(module):  # what torch.compile puts around a module
                copies[id(module)] = copy.deepcopy(module._orig_mod, copies)  # noqa: SLF001
        return copy.deepcopy(model, copies)
    shared = dict(memo)
    for module in modules:
        for value in _own_values(module):
            with suppress(Exception):
                copy.deepcopy(value, dict(memo))
                continue
            shared[id(value)] = value
    return copy.deepcopy(model, shared)


def _remember(module: nn.Module, change: Change, memo: dict[int, Any]) -> None:
    """Fill the memo of `deepcopy` with the changed tensors of a module, and new empty dicts."""
    state = vars(module)
    for name in _STANDARD & state.keys():
        value = state[name]
        if isinstance(value, dict | set) and not value:
            memo[id(value)] = type(value)()  # faster than deepcopy
    own = [*module._parameters.values(), *module._buffers.values(), *_own_values(module)]  # noqa: SLF001
    for tensor in tensors_in(own):
        if id(tensor) not in memo:
            changed = change(tensor)
            if isinstance(tensor, nn.Parameter):  # a pass may make a layer of it
                changed = nn.Parameter(changed, requires_grad=tensor.requires_grad)
            memo[id(tensor)] = changed


def _own_values(module: nn.Module) -> list[Any]:
    return [value for name, value in vars(module).items() if name not in _STANDARD]


def _with_unregistered(model: nn.Module) -> list[nn.Module]:
    """Return the modules of a network, and those in its plain lists."""
    by_id = {id(module): module for module in model.modules()}
    for module in list(by_id.values()):
        for value in _own_values(module):
            if not isinstance(value, list | tuple):
                continue
            for item in value:
                if isinstance(item, nn.Module):
                    for part in item.modules():
                        by_id[id(part)] = part
    return list(by_id.values())
