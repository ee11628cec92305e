"""Masks: for each value, and for each combination of values, the conditions that may match it.

A condition has a bit. A value's mask has the bits of the conditions that the value does not
contradict, and those of all conditions that do not ask for its axis. What several rows were joined
into has the masks of all of them, as alternatives.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from functools import lru_cache
from itertools import accumulate, pairwise, repeat
from operator import xor
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from hpcsweep.spec.space import Predicate

    Masks = tuple[int, ...]  # one, or one for each of the rows that were joined

NEUTRAL: Final[Masks] = (-1,)  # every bit
_DIGITS: Final = [bytes(ord("0") + (byte >> bit & 1) for byte in range(256)) for bit in range(8)]
# Values have 2n + 1 places among n bounds: below the first, on it, above it, on the second ...
_BEGINS: Final = {"ge": 1, "gt": 2}  # steps from below a bound to the first place that passes
_ENDS: Final = {"lt": 1, "le": 2}  # and to the first that does not
_REMEMBERED: Final = 4000  # sizes of sets


class Classes:
    """Combinations with equal masks as one class; a set of classes is an integer, a bit for each.

    `layers` has, for each condition's bit, the set of classes that have it: one layer, or several
    where masks have alternatives.
    """

    def __init__(self, counts: Mapping[Masks, int], bits: int) -> None:
        """Take each class's number of combinations, and how many bits masks have."""
        self.all = (1 << len(counts)) - 1
        self._sizes: dict[int, int] = defaultdict(int)
        for place, number in enumerate(counts.values()):
            self._sizes[number] |= 1 << place
        deep = max(map(len, counts))
        self.layers = [
            _transposed([masks[min(layer, len(masks) - 1)] for masks in counts], bits)
            for layer in range(deep)
        ]
        self.number = lru_cache(_REMEMBERED)(self._number)

    def _number(self, classes: int) -> int:
        """Return how many combinations a set of classes has."""
        return sum((classes & same).bit_count() * size for size, same in self._sizes.items())


def joined(masks: Masks, more: Masks) -> Masks:
    """Return the masks of combinations, given those of two of their parts."""
    return tuple([a & b for a in masks for b in more])


def multiplied(counts: Mapping[Masks, int], more: Mapping[Masks, int]) -> Mapping[Masks, int]:
    """Return the masks that two parts lead to, with the number of their combinations."""
    found: Counter[Masks] = Counter()
    for masks, ways in counts.items():
        for others, number in more.items():
            found[joined(masks, others)] += ways * number
    return found


def _transposed(masks: Sequence[int], bits: int) -> list[int]:
    """Return, for each bit, the set of the masks that have it."""
    width = bits // 8 + 1
    whole = b"".join((mask & (1 << bits) - 1).to_bytes(width, "little") for mask in masks[::-1])
    return [int(whole[bit // 8 :: width].translate(_DIGITS[bit % 8]), 2) for bit in range(bits)]


def ones(mask: int) -> Iterator[int]:
    """Yield the bits that a mask has."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def value_masks(tests: Mapping[int, Predicate], column: Sequence[Any]) -> Iterator[int]:
    """Yield the mask of each value."""
    cuts = sorted({bound for test in tests.values() for _, bound in test.bounds})
    below = {bound: 2 * i for i, bound in enumerate(cuts)}
    changes = [0] * (2 * len(cuts) + 2)
    named: dict[Any, int] = defaultdict(int)
    negated = 0
    for bit, test in tests.items():
        for value in test.values:
            named[value] |= 1 << bit
        negated |= test.negate << bit
        if test.bounds:
            begins = (below[at] + _BEGINS[op] for op, at in test.bounds if op in _BEGINS)
            ends = (below[at] + _ENDS[op] for op, at in test.bounds if op in _ENDS)
            first, last = max(begins, default=0), min(ends, default=len(changes) - 1)
            if first < last:
                changes[first] ^= 1 << bit
                changes[last] ^= 1 << bit
    compared = list(accumulate(changes, xor))
    asked = sum(1 << bit for bit in tests)
    for value, number in _runs(column, [*cuts, *named]):
        # a map of algorithms is no value that a condition can name, and None compares with nothing
        mask = negated if isinstance(value, dict) else negated ^ named.get(value, 0)
        if value is not None:
            mask |= compared[bisect_left(cuts, value) + bisect_right(cuts, value)]
        yield from repeat(~asked | mask, number)


def _runs(column: Sequence[Any], asked: Iterable[Any]) -> Iterable[tuple[Any, int]]:
    """Return values, and how many that no condition tells apart follow each other from there."""
    if not isinstance(column, range) or column.step < 0:
        return zip(column, repeat(1))
    ends = {place(column, value) for value in asked for place in (bisect_left, bisect_right)}
    return ((column[a], b - a) for a, b in pairwise(sorted({0, len(column), *ends})))
