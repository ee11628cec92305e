"""Dataclasses that are made when the first instance is, and of which little is compiled.

The standard ones compile six methods of each class when it is defined, which takes half a
millisecond. `hpcsweep status` imports fifty classes and needs thirty: a quarter of its time. Here
comparison, hash and text need no code of their own, and behave as the standard ones do.
"""
# ruff: noqa: ANN401 - any class, and any method of it

from __future__ import annotations

import dataclasses
from dataclasses import asdict, astuple, field, fields, is_dataclass, replace
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

__all__ = ["asdict", "astuple", "dataclass", "field", "fields", "is_dataclass", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        """Mark a class as a dataclass; the options are those of `dataclasses.dataclass`."""
        if cls is None:
            return lambda marked: dataclass(marked, **options)
        if options.keys() - {"frozen", "kw_only"} or "__init__" in vars(cls):
            return dataclasses.dataclass(cls, **options)
        cls.__dataclass_fields__ = _Unmade(cls, options)
        for name in _MADE - vars(cls).keys():
            setattr(cls, name, _Stub(cls, name))
        return cls


_MADE: Final = {"__init__", "__eq__", "__hash__", "__repr__"}  # what works before it is made
_LOCK: Final = RLock()  # a class may be made while its subclass is


class _Unmade:
    """Stands for the fields of a class that nobody has used yet; asking for them makes it."""

    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        self._cls, self._options = cls, options

    def __get__(self, instance: object, owner: type) -> Any:
        with _LOCK:
            if vars(self._cls).get("__dataclass_fields__") is self:  # no other thread was first
                own = vars(self._cls)
                stubs = {name for name in _MADE if isinstance(own.get(name), _Stub)}
                for name in (*stubs, "__dataclass_fields__"):
                    delattr(self._cls, name)
                _make(self._cls, stubs, self._options)
        return vars(self._cls)["__dataclass_fields__"]


class _Stub:
    """Stands for a method of a class that nobody has used yet; calling it makes the class."""

    def __init__(self, cls: Any, name: str) -> None:
        self._cls, self._name = cls, name

    def __get__(self, instance: object, owner: type) -> Any:
        def method(*args: Any, **kwargs: Any) -> Any:
            self._cls.__dataclass_fields__  # noqa: B018 - makes the class
            return getattr(self._cls, self._name)(instance, *args, **kwargs)

        return method


def _make(cls: Any, missing: set[str], options: dict[str, Any]) -> None:
    cls.__doc__ = cls.__doc__ or cls.__name__  # else it is made of a signature, which takes long
    dataclasses.dataclass(cls, **options, repr=False, eq=False)
    compared = [one.name for one in fields(cls) if one.compare]
    values: Any = attrgetter(*compared) if len(compared) > 1 else lambda one: tuple(
        getattr(one, name) for name in compared
    )  # fmt: skip
    shown = [one.name for one in fields(cls) if one.repr]

    def __eq__(self: Any, other: object) -> Any:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    def __repr__(self: Any) -> str:  # noqa: N807
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__}({told})"

    made = {"__eq__": __eq__, "__repr__": __repr__}
    made["__hash__"] = __hash__ if options.get("frozen") else None  # type: ignore[assignment]
    for name in missing & made.keys():
        setattr(cls, name, made[name])
