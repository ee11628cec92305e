"""What the profiler saw inside a range, and whether it is what an algorithm must show."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from zlib import crc32

import torch
from torch.profiler import ProfilerActivity, profile

from hpcsweep.conv.proof import onednn
from hpcsweep.conv.reference.gemm import CONVOLUTIONS, PRODUCTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from torch import nn

    from hpcsweep.conv.backend import Expected
    from hpcsweep.conv.choice import LayerChoice
    from hpcsweep.conv.proof.onednn import Primitive

NONE: Final = "none"
PROFILER: Final = "profiler"
API: Final = "api"
# what back-ends of vendors call the ranges around a library's call: function:algorithm
LIBRARY_CALLS: Final = ("cudnnConvolution*:*", "miopenConvolution*:*")
_TRANSFORMS: Final = ("aten::_fft_*",)
_TELLING: Final = (
    *PRODUCTS,
    *_TRANSFORMS,
    *CONVOLUTIONS,
    *LIBRARY_CALLS,
    "aten::unfold*",
    "aten::im2col",
    "aten::index_select",
    "aten::index_add_",
)
_MOST_SHOWN: Final = 10  # an FFT is two names of calls and five kernels, with tensors turned around
_LONGEST_KERNEL: Final = 160  # cuDNN's own names have up to 157 characters, tile sizes last
_MARK: Final = 8


class OfLayer(Protocol):
    """What was seen of one call of a layer."""

    @property
    def layer(self) -> str:
        """Return the layer's name."""
        ...


Call = TypeVar("Call", bound=OfLayer)


def record(
    model: nn.Module, ranges: AbstractContextManager[None], run: Callable[[], object]
) -> tuple[Iterable[Any], list[Primitive]]:
    """Profile one run, with ranges around what is looked at; return events and oneDNN's lines."""
    activities = [ProfilerActivity.CPU]
    if any(p.device.type == "cuda" for p in model.parameters()):
        activities.append(ProfilerActivity.CUDA)
    with (
        onednn.listening() as lines,
        ranges,
        profile(activities=activities, record_shapes=True) as profiler,
    ):
        run()
    return profiler.events(), onednn.parse(lines)


@dataclass(frozen=True)
class Evidence:
    """What one convolution call ran: `text` for the tables, `problem` where it contradicts."""

    layer: str
    text: str = NONE
    problem: str | None = None

    @property
    def mismatch(self) -> bool:
        """Say whether the profiler saw something else than the algorithm."""
        return self.problem is not None


@dataclass(frozen=True)
class Seen:
    """What the profiler saw in one range; products are (batch, m, k, n)."""

    layer: str
    operators: list[str]
    kernels: list[str]
    told: list[str]
    products: list[tuple[int, int, int, int]]

    @property
    def names(self) -> list[str]:
        """Return operators and kernels."""
        return [*self.operators, *self.kernels]

    @property
    def text(self) -> str:
        """Return it for the tables: who says so, and what."""
        shown = [*self.told, *dict.fromkeys(map(kernel_word, self.kernels))]
        called = any(any_matches(name, LIBRARY_CALLS) for name in self.operators)
        source = API if called and not self.kernels else PROFILER
        return f"{source}: {' '.join(shown[:_MOST_SHOWN]) or NONE}"


def source(calls: Iterable[Evidence]) -> str:
    """Return where a proof comes from: the profiler, the library's own calls, or nowhere."""
    sources = {call.text.partition(":")[0] for call in calls}
    return next((name for name in (PROFILER, API) if name in sources), NONE)


def is_range(event: Any, mark: str) -> bool:  # noqa: ANN401 - the profiler's own record
    """Leave out the copy of a range that the profiler draws on a GPU's time line."""
    return event.name.startswith(mark) and event.device_type == torch.autograd.DeviceType.CPU


def pair(picked: Sequence[LayerChoice], calls: Iterable[Call]) -> list[Call | None]:
    """Give each choice the next call of its layer; other calls of the pass may lie between."""
    waiting: dict[str, deque[Call]] = defaultdict(deque)
    for call in calls:
        waiting[call.layer].append(call)
    return [waiting[p.layer].popleft() if waiting[p.layer] else None for p in picked]


def look_into(
    layer: str, events: Iterable[Any], *, all_sizes: bool = False, themselves: bool = False
) -> Seen:
    """Sum up what ran inside of events; of an operator tell the first run, or one of each size.

    Kernels belong to the innermost operator, never to a range. So events that are operators have to
    be looked at `themselves`, too.
    """
    events = list(events)
    inside = [one for event in events for one in descendants(event)]
    inside = [*events, *inside] if themselves else inside
    kernels = [kernel.name for one in inside for kernel in one.kernels]
    telling = list(filter(_tells, inside))
    told = dict.fromkeys(map(_told, telling if all_sizes else _first_of_each_kind(telling)))
    products = [size for one in inside if (size := _product_size(one))]
    return Seen(layer, [one.name for one in inside], kernels, list(told), products)


def contradiction(seen: Seen, expected: Expected) -> str | None:
    """Return the first thing that does not fit, or None."""
    for name in seen.names:
        if any_matches(name, expected.must_not):
            return f"ran {name}"
    # a profiler that recorded no kernel at all has not seen that one is missing
    for group in (*expected.must, *(expected.kernels if seen.kernels else ())):
        if not any(any_matches(name, group) for name in seen.names):
            return f"no {group[0]}"
    return _wrong_product(seen.products, expected)


def descendants(event: Any) -> Iterator[Any]:  # noqa: ANN401
    """Yield all operators inside an event."""
    for child in event.cpu_children:
        yield child
        yield from descendants(child)


def any_matches(name: str, patterns: Iterable[str]) -> bool:
    """Say whether a name fits a shell pattern."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def kernel_word(name: str) -> str:
    """Return a kernel's name as one word: no return type, no arguments, no blanks.

    What makes two kernels different, such as a tile's size, often stands at the end of the name,
    so one that is too long keeps a mark of all of it.
    """
    text = name.removeprefix("void ").strip()
    if text.endswith(")"):
        text = text[: _opening(text)] or text
    text = "".join(text.split())
    if len(text) <= _LONGEST_KERNEL:
        return text
    return f"{text[: _LONGEST_KERNEL - _MARK - 1]}~{crc32(text.encode()):0{_MARK}x}"


def _opening(text: str) -> int:
    """Return where the parenthesis opens that the last character closes."""
    depth = 0
    for place in range(len(text) - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if not depth:
            return place
    return 0


def _wrong_product(products: Sequence[tuple[int, int, int, int]], expected: Expected) -> str | None:
    """Look for the product that makes the algorithm; without recorded sizes say nothing."""
    if (expected.inner is None and expected.outer is None) or not products:
        return None
    fitting = [
        product
        for product in products
        if expected.inner in {None, product[2]}
        and expected.outer in {None, product[1], product[3]}
        and not product[0] % expected.batch
    ]
    over = expected.inner if expected.inner is not None else f"(..., {expected.outer})"
    if not fitting:
        return f"no product over {over} in batches of {expected.batch}"
    if expected.products is not None and len(fitting) != expected.products:
        return f"{len(fitting)} products over {over} instead of {expected.products}"
    return None


def _first_of_each_kind(events: Iterable[Any]) -> list[Any]:
    first: dict[str, Any] = {}
    for event in events:
        first.setdefault(event.name, event)
    return list(first.values())


def _tells(event: Any) -> bool:  # noqa: ANN401
    """Say whether an operator belongs into the text: telling, and nothing inside it is more so."""
    if not any_matches(event.name, _TELLING):
        return False
    return not any(any_matches(inner.name, _TELLING) for inner in descendants(event))


def _told(event: Any) -> str:  # noqa: ANN401
    size = _product_size(event)
    if size is None and any_matches(event.name, _TRANSFORMS) and event.input_shapes:
        size = tuple(event.input_shapes[0][-2:])
    return event.name if size is None else f"{event.name}[{','.join(map(str, size))}]"


def _product_size(event: Any) -> tuple[int, int, int, int] | None:  # noqa: ANN401
    """Return (batch, m, k, n) of a matrix product whose operand sizes were recorded."""
    if not any_matches(event.name, PRODUCTS):
        return None
    adds = event.name.startswith(("aten::addmm", "aten::baddbmm"))  # to their first operand
    operands = list(event.input_shapes or ())[adds : 2 + adds]
    if len(operands) != 2 or min(map(len, operands)) < 2:
        return None
    left, right = operands
    return prod(left[:-2]), left[-2], left[-1], right[-1]
