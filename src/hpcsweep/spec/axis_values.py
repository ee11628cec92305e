"""Turns what a sweep file says about an axis into values, and about constraints into tests.

Every function takes the document and the location of what it reads, so that it can complain with
file, line and key.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import ALGORITHMS, DATASETS
from hpcsweep.catalog.models import MODELS
from hpcsweep.errors import suggest
from hpcsweep.point import canonical_json
from hpcsweep.spec.document import show
from hpcsweep.spec.space import COMPARISONS, NUMBERS, Predicate, Spread

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from hpcsweep.catalog import Axis
    from hpcsweep.spec.document import Document
    from hpcsweep.spec.space import Condition

    Loc = tuple[str | int, ...]

NOT: Final = "not"
MAX_VALUES: Final = 1_000_000  # on one axis
_FACTORY: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def values(doc: Document, loc: Loc, axis: Axis, raw: object, *, any_model: bool) -> Sequence[Any]:
    """Return an axis's values: a list as it stands, a range as a lazy sequence."""
    if isinstance(raw, dict) and axis.kind == "int":
        return _range(doc, loc, axis, raw)
    if not isinstance(raw, list):
        wanted = "a list or {start, stop, num} or {start, stop, step}"
        if axis.kind != "int":
            wanted = "a list"
        example = "" if isinstance(raw, dict | None) else f", such as [{raw}]"
        raise doc.complaint(loc, f"found {show(raw)}, needs {wanted}{example}")
    if not raw:
        raise doc.complaint(loc, "found an empty list, needs one value or more")
    return [value(doc, (*loc, i), axis, item, any_model=any_model) for i, item in enumerate(raw)]


def value(doc: Document, loc: Loc, axis: Axis, raw: object, *, any_model: bool) -> Any:  # noqa: ANN401
    """Return one value of an axis; `any_model` where model names are free."""
    if raw is None and axis.kind in NUMBERS and axis.default is None:
        return None
    if axis.kind == "int":
        return _integer(doc, loc, raw, axis.minimum)
    if axis.kind == "float":
        return _number(doc, loc, raw, axis.minimum)
    if axis.kind == "bool":
        if not isinstance(raw, bool):
            raise doc.complaint(loc, f"found {show(raw)}, needs true or false")
        return raw
    if axis.kind == "algorithm" and isinstance(raw, dict):
        return _algorithm_map(doc, loc, raw)
    if not isinstance(raw, str) or not raw.strip() or "\n" in raw:
        raise doc.complaint(loc, f"found {show(raw)}, needs {_wanted(axis)}")
    return _word(doc, loc, axis, raw, any_model=any_model)


def _word(doc: Document, loc: Loc, axis: Axis, raw: str, *, any_model: bool) -> str:
    """Return a text value, if it is one that the axis allows."""
    if axis.kind == "gpu" and not _NAME.fullmatch(raw):
        raise doc.complaint(loc, f"found {show(raw)}, needs letters, digits, `_`, `-`, `.`")
    known = raw in MODELS or _FACTORY.fullmatch(raw) or any_model
    if axis.kind == "model" and not known:
        text = f"found {show(raw)}, needs a torchvision classifier or package.module:factory"
        raise doc.complaint(loc, text + suggest(raw, MODELS))
    if axis.name == "dataset" and raw not in DATASETS and not _FACTORY.fullmatch(raw):
        text = f"found {show(raw)}, needs one of {', '.join(DATASETS)}, or package.module:factory"
        raise doc.complaint(loc, text + suggest(raw, DATASETS))
    if axis.kind == "algorithm" or axis.choices:
        _one_of(doc, loc, raw, axis.choices or ALGORITHMS)
    return raw


def no_repeats(doc: Document, loc: Loc, found: Sequence[Any]) -> None:
    """Complain about a value that an axis's list holds twice."""
    if isinstance(found, list):
        first: dict[str, int] = {}
        for i, item in enumerate(found):
            before = first.setdefault(canonical_json(item), i)
            if before != i:
                line = doc.line((*loc, before))
                text = f"{show(item)} is repeated, first in line {line}; a value counts once"
                raise doc.complaint((*loc, i), text)


def condition(
    doc: Document,
    loc: Loc,
    raw: Mapping[str, Any],
    axis_of: Callable[[Loc, str], Axis],
    exists: Callable[[str, Any], Collection[Any] | None],
) -> Condition:
    """Return what a constraint asks of its axes.

    `axis_of` complains about an axis that the sweep lacks; `exists` returns None when an axis has
    a value, else some values that it has.
    """
    if not raw:
        raise doc.complaint(loc, "found an empty map, needs axis: value")
    tests = {}
    for name, wanted in raw.items():
        here = (*loc, name)
        axis = axis_of(here, name)
        if isinstance(wanted, dict):
            tests[name] = _comparison(doc, here, axis, wanted, exists)
        else:
            tests[name] = Predicate(values=_members(doc, here, axis, wanted, exists))
    return tests


def _comparison(
    doc: Document,
    loc: Loc,
    axis: Axis,
    raw: Mapping[str, Any],
    exists: Callable[[str, Any], Collection[Any] | None],
) -> Predicate:
    allowed = [*(COMPARISONS if axis.kind in NUMBERS else ()), NOT]
    bounds = []
    for op, bound in raw.items():
        if op not in allowed:
            text = f"unknown comparison, allowed are {', '.join(allowed)}{suggest(op, allowed)}"
            raise doc.complaint((*loc, op), text)
        if op == NOT:
            if len(raw) > 1:
                raise doc.complaint((*loc, op), f"`{NOT}` stands alone")
            return Predicate(values=_members(doc, (*loc, op), axis, bound, exists), negate=True)
        if isinstance(bound, bool) or not isinstance(bound, int | float):
            raise doc.complaint((*loc, op), f"found {show(bound)}, needs a number")
        bounds.append((op, bound))
    if not bounds:
        raise doc.complaint(loc, f"found an empty map, allowed are {', '.join(allowed)}")
    return Predicate(bounds=tuple(bounds))


def _members(
    doc: Document,
    loc: Loc,
    axis: Axis,
    raw: object,
    exists: Callable[[str, Any], Collection[Any] | None],
) -> frozenset[Any]:
    """Return the values that a constraint lists, each of which the axis must have."""
    listed = isinstance(raw, list)
    found = []
    for i, item in enumerate(raw if isinstance(raw, list) else [raw]):
        here = (*loc, i) if listed else loc
        if isinstance(item, dict | list):
            raise doc.complaint(here, f"found {show(item)}, needs a value of {axis.name}")
        wanted = value(doc, here, axis, item, any_model=True)
        have = exists(axis.name, wanted)
        if have is not None:
            names = [item if isinstance(item, str) else canonical_json(item) for item in have]
            text = f"{axis.name} has no {show(item)}, it has {', '.join(names)}"
            raise doc.complaint(here, text + suggest(str(item), names))
        found.append(wanted)
    if not found:
        raise doc.complaint(loc, "found an empty list, needs one value or more")
    return frozenset(found)


def _range(doc: Document, loc: Loc, axis: Axis, raw: Mapping[str, Any]) -> Sequence[int]:
    """Return a range, both ends included."""
    last = "step" if "step" in raw else "num"
    keys = ("start", "stop", last)
    for key in raw:
        if key not in keys:
            text = f"unknown key, allowed are start, stop and one of num, step{suggest(key, keys)}"
            raise doc.complaint((*loc, key), text)
    for key in keys:
        if key not in raw:
            raise doc.complaint(loc, f"`{key}` is missing; a range has start, stop and num or step")
    start = _integer(doc, (*loc, "start"), raw["start"], axis.minimum)
    stop = _integer(doc, (*loc, "stop"), raw["stop"], axis.minimum)
    found: Sequence[int]
    if last == "step":
        found = _stepped(doc, loc, start, stop, _integer(doc, (*loc, "step"), raw["step"], None))
    else:
        found = _spread(doc, loc, start, stop, _integer(doc, (*loc, "num"), raw["num"], 1))
    if len(found) > MAX_VALUES:
        text = f"{len(found):,} values, at most {MAX_VALUES:,} on one axis; name fewer"
        raise doc.complaint((*loc, last), text)
    return found


def _spread(doc: Document, loc: Loc, start: int, stop: int, num: int) -> Spread:
    if num > abs(stop - start) + 1:
        text = (
            f"found {num}, but there are only {abs(stop - start) + 1} integers in {start}..{stop}"
        )
        raise doc.complaint((*loc, "num"), text)
    return Spread(start, stop, num)


def _stepped(doc: Document, loc: Loc, start: int, stop: int, step: int) -> range:
    if step == 0:
        raise doc.complaint((*loc, "step"), "found 0, needs a step that leads somewhere")
    found = range(start, stop + (1 if step > 0 else -1), step)
    if not found:
        text = f"found {step}, which does not lead from {start} to {stop}"
        raise doc.complaint((*loc, "step"), text)
    return found


def _number(doc: Document, loc: Loc, raw: object, minimum: float | None) -> float:
    if isinstance(raw, bool) or not isinstance(raw, int | float) or not math.isfinite(raw):
        raise doc.complaint(loc, f"found {show(raw)}, needs a number")
    if minimum is not None and raw < minimum:
        raise doc.complaint(loc, f"found {raw:g}, needs at least {minimum:g}")
    return float(raw)


def _integer(doc: Document, loc: Loc, raw: object, minimum: float | None) -> int:
    whole = isinstance(raw, int) or (isinstance(raw, float) and raw.is_integer())
    if isinstance(raw, bool) or not whole:
        raise doc.complaint(loc, f"found {show(raw)}, needs a whole number")
    number = int(raw)  # type: ignore[call-overload]
    if minimum is not None and number < minimum:
        raise doc.complaint(loc, f"found {number}, needs at least {minimum:g}")
    return int(number)


def _algorithm_map(doc: Document, loc: Loc, raw: Mapping[str, Any]) -> dict[str, str]:
    """Return a map of layer patterns to algorithms."""
    if not raw:
        raise doc.complaint(loc, "found an empty map, needs `layer pattern: algorithm` lines")
    for pattern, name in raw.items():
        if not pattern.strip():
            raise doc.complaint(loc, "found an empty layer pattern, needs one such as 'layer1.*'")
        if not isinstance(name, str):
            raise doc.complaint((*loc, pattern), f"found {show(name)}, needs an algorithm's name")
        _one_of(doc, (*loc, pattern), name, ALGORITHMS)
    return dict(raw)


def _one_of(doc: Document, loc: Loc, name: str, allowed: Iterable[str]) -> None:
    allowed = list(allowed)
    if name not in allowed:
        text = f"found {show(name)}, allowed are {', '.join(allowed)}"
        raise doc.complaint(loc, text + suggest(name, allowed))


def _wanted(axis: Axis) -> str:
    if axis.choices:
        return "one of " + ", ".join(axis.choices)
    if axis.kind == "algorithm":
        return "one of " + ", ".join(ALGORITHMS) + ", or a map of layers to these"
    return "text" if axis.kind == "str" else f"a {axis.kind}'s name"
