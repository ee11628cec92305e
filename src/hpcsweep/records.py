"""Dataclasses that are made when the first instance is, and of which little is compiled.

The standard ones compile six methods of each class when it is defined: a quarter of the time of
`hpcsweep status`. Here comparison, hash and text are not compiled, and behave as the standard ones.
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


Methods = dict[str, Any]
_MADE: Final = {"__init__", "__eq__", "__hash__", "__repr__"}  # what works before it is made
_LOCK: Final = RLock()  # a class may be made while its subclass is


class _Unmade:
    """Stands for the fields of a class that nobody has used yet; asking for them makes it."""

    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        self._cls = cls
        self._options = options

    def __get__(self, instance: object, owner: type) -> Any:
        with _LOCK:
            if vars(self._cls).get("__dataclass_fields__") is self:  # no other thread was first
                own = vars(self._cls)
                stubs = {name for name in _MADE if isinstance(own.get(name), _Stub)}
                _make(self._cls, stubs, self._options)
        return vars(self._cls)["__dataclass_fields__"]


class _Stub:
    """Stands for a method of a class that nobody has used yet; calling it makes the class."""

    def __init__(self, cls: Any, name: str) -> None:
        self._cls = cls
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        def method(*args: Any, **kwargs: Any) -> Any:
            with _LOCK:  # another thread may be half way
                self._cls.__dataclass_fields__  # noqa: B018 - makes the class
            return getattr(self._cls, self._name)(instance, *args, **kwargs)

        return method


def _make(cls: Any, missing: set[str], options: dict[str, Any]) -> None:
    """Make a class from a copy: other threads find a stub or a whole method, never none."""
    own = cls.__annotations__
    needed = {*own, "__post_init__", "__orig_bases__"}  # the last is asked for by `Generic`
    kept = {name: value for name, value in vars(cls).items() if name in needed}
    about = {name: getattr(cls, name) for name in ("__module__", "__qualname__")}
    # without a text it would be made of a signature, which takes long
    copy = type(cls)(cls.__name__, cls.__bases__, {
        **kept, **about, "__annotations__": own, "__doc__": cls.__name__,
    })  # fmt: skip
    dataclasses.dataclass(copy, **options, repr=False, eq=False)
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = _methods(cls, fields(copy), frozen=bool(options.get("frozen")))
    for name in kept.keys() & own.keys():  # fields with a default keep it, others have none
        if name in vars(copy):
            setattr(cls, name, vars(copy)[name])
        else:
            delattr(cls, name)
    for name in made.keys() & {*missing, "__setattr__", "__delattr__"}:
        setattr(cls, name, made[name])
    # in this order: who sees the fields finds the class made
    for name in ("__dataclass_params__", "__match_args__", "__init__", "__dataclass_fields__"):
        setattr(cls, name, vars(copy)[name])


def _methods(cls: Any, declared: tuple[dataclasses.Field[Any], ...], *, frozen: bool) -> Methods:
    compared = [field.name for field in declared if field.compare]
    values: Any = attrgetter(*compared) if len(compared) > 1 else lambda record: tuple(
        getattr(record, name) for name in compared
    )  # fmt: skip
    shown = [field.name for field in declared if field.repr]

    def __eq__(self: Any, other: object) -> Any:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return values(self) == values(other)

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(values(self))

    def __repr__(self: Any) -> str:  # noqa: N807
        cells = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{self.__class__.__qualname__}({cells})"

    def __setattr__(self: Any, name: str, value: object) -> None:  # noqa: N807
        if self.__class__ is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:  # noqa: N807
        if self.__class__ is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    names = {field.name for field in declared}
    compared_and_shown: Methods = {"__eq__": __eq__, "__repr__": __repr__, "__hash__": None}
    kept = {"__hash__": __hash__, "__setattr__": __setattr__, "__delattr__": __delattr__}
    return {**compared_and_shown, **(kept if frozen else {})}
