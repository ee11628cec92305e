"""Copies networks with other tensors, and checks that a network still has its own.

A pass on other tensors (on the meta device) runs on a copy of the network. So nothing
has to be restored, whatever is shared, tied or kept in a list, and state that such a pass changes
is the copy's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn

from hpcsweep.conv.proof.autograd_graph import tensors_in

Change = Callable[[Tensor], Tensor]

_STANDARD: Final = frozenset(vars(nn.Module()))  # attributes of every module


class TensorsChanged(RuntimeError):
    """A network lost the tensors that it has to be measured with."""


class Held:
    """The tensors of a network before its passes."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = dict(_places(model))
        self._kinds = {place: (t.device, t.dtype) for place, t in self._before.items()}
        self._own: set[str] = set()

    @contextmanager
    def settling(self) -> Iterator[None]:
        """Allow the network to replace or convert its tensors in the pass of this block."""
        before = dict(_places(self._model))
        yield
        for place, tensor in _places(self._model):
            if place in before and before[place] is not tensor:
                self._own.add(place)
            if place in before:
                device, _ = self._kinds.get(place, (tensor.device, None))
                self._kinds[place] = device, tensor.dtype

    def check(self) -> None:
        """Check the network after its passes.

        Raises:
            TensorsChanged: a parameter or buffer was replaced, or has another device or type; or a
                tensor is on the meta device.
        """
        now = dict(_places(self._model))
        values = [*_plain(self._model), *now.items()]
        wrong = {
            place: "is on meta" for place, v in values if any(t.is_meta for t in tensors_in(v))
        }
        for place, tensor in self._before.items():
            current = now.get(place)
            if current is not tensor and place not in self._own:
                wrong.setdefault(place, "is not the tensor that it was")
            elif current is not None and (current.device, current.dtype) != self._kinds[place]:
                wrong.setdefault(place, f"is {current.dtype} on {current.device}")
        if wrong:
            place, how = next(iter(wrong.items()))
            raise TensorsChanged(
                f"the network lost its own tensors, so nothing is known of its times: {place} {how}"
                f"{f', and {len(wrong) - 1} more' if len(wrong) > 1 else ''}"
            )


def _places(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters and buffers by name, shared ones repeatedly."""
    for name, module in model.named_modules():
        for held in (module._parameters, module._buffers):  # noqa: SLF001 - the very objects
            for own, tensor in held.items():
                if tensor is not None:
                    yield f"{name}.{own}".lstrip("."), tensor


def _plain(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of modules beside parameters and buffers, by name."""
    for name, module in model.named_modules():
        for own, value in vars(module).items():
            if own not in _STANDARD:
                yield f"{name}.{own}".lstrip("."), value


def is_lazy(model: nn.Module) -> bool:
    """Say whether some parameters or buffers get their size only in the first pass."""
    return any(torch.nn.parameter.is_lazy(t) for _, t in _places(model))


def structure(model: nn.Module) -> list[tuple[object, ...]]:
    """Return a fingerprint of a network's modules and the names of their tensors."""
    return [(type(m), id(m), *m._parameters.keys(), *m._buffers.keys()) for m in model.modules()]  # noqa: SLF001


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
    before = [(held, dict(held)) for module in modules for held in _dicts(module)]
    own = (value for module in modules for value in _own_values(module))
    lists = [(value, list(value)) for value in own if isinstance(value, list)]
    try:
        yield
    finally:
        for held, entries in before:
            held.clear()
            held.update(entries)
        for several, items in lists:
            several[:] = items


def _deep_copy(model: nn.Module, modules: Sequence[nn.Module], memo: dict[int, Any]) -> nn.Module:
    copies = dict(memo)
    try:
        for module in modules:
            if "dynamo_ctx" in vars(module):  # what torch.compile puts around a module
                copies[id(module)] = copy.deepcopy(module._orig_mod, copies)  # noqa: SLF001
        return copy.deepcopy(model, copies)
    except Exception:  # noqa: BLE001 - own classes may raise anything
        values = [value for module in modules for value in _own_values(module)]
        shared = {id(value): value for value in values if not _can_be_copied(value, memo)}
        return copy.deepcopy(model, memo | shared)


def _can_be_copied(value: object, memo: Mapping[int, Any]) -> bool:
    try:
        copy.deepcopy(value, dict(memo))
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _remember(module: nn.Module, change: Change, memo: dict[int, Any]) -> None:
    """Fill the memo of `deepcopy` with the changed tensors of a module, and new empty dicts."""
    state = vars(module)
    for name in _STANDARD & state.keys():
        value = state[name]
        if isinstance(value, dict | set) and not value:
            memo[id(value)] = type(value)()  # faster than deepcopy
    held = [*module._parameters.values(), *module._buffers.values(), *_own_values(module)]  # noqa: SLF001
    for tensor in tensors_in(held):
        if id(tensor) not in memo:
            changed = change(tensor)
            if isinstance(tensor, nn.Parameter):  # a pass may make a layer of it
                changed = nn.Parameter(changed, requires_grad=tensor.requires_grad)
            memo[id(tensor)] = changed


def _own_values(module: nn.Module) -> list[Any]:
    return [value for name, value in vars(module).items() if name not in _STANDARD]


def _dicts(module: nn.Module) -> list[dict[Any, Any]]:
    state = vars(module)
    return [state, *(value for value in state.values() if isinstance(value, dict))]


def _with_unregistered(model: nn.Module) -> list[nn.Module]:
    """Return the modules of a network, and those in its plain lists."""
    by_id = {id(module): module for module in model.modules()}
    for module in list(by_id.values()):
        for value in _own_values(module):
            for item in value if isinstance(value, list | tuple) else ():
                if isinstance(item, nn.Module):
                    by_id |= {id(part): part for part in item.modules()}
    return list(by_id.values())
