"""The checksum that ends a row, and the headers that it proves.

The checksum covers the header of `overall.csv`, the row's layer rows with their header, its
samples, and the row's own text. So a row proves under which names its cells were written, and a
shard whose header is damaged is still read by the headers that its rows prove.
"""

from __future__ import annotations

import re
import zlib
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Final, NamedTuple

from hpcsweep.catalog.columns import COMMIT, LAYER_COLUMNS, SHARD_COLUMNS
from hpcsweep.errors import ResultsError, Unread
from hpcsweep.store.blocks import Blocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from hpcsweep.store.rundir import ShardPath

Names = tuple[str, ...]
_PLACE: Final = re.compile(rb"\d{1,18}").fullmatch


class Heads(NamedTuple):
    """The columns of a shard's rows, and of its layer rows (none: unknown)."""

    columns: Names
    layers: Names = ()


OURS: Final = Heads(SHARD_COLUMNS, LAYER_COLUMNS)


def header(names: Names) -> bytes:
    """Return the first line of a file with these columns."""
    return ",".join(names).encode() + b"\n"


def names_in(line: bytes) -> Names:
    """Return the columns that a header names, which may be damaged."""
    return tuple(line.decode("utf-8", "replace").removesuffix("\n").split(","))


def seal(text: bytes, heads: Heads, layers: bytes, samples: bytes) -> bytes:
    """Return the checksum of a row: `text` is its line up to the last comma, included."""
    crc = zlib.crc32(layers, _start(heads, with_layers=bool(layers)))
    return b"%08x" % zlib.crc32(text, zlib.crc32(samples, crc))


def fits(line: bytes, heads: Heads, layers: bytes, samples: bytes) -> bool:
    """Say whether a row and its blocks are as they were written, under these headers."""
    text, comma, found = line.rpartition(b",")
    return found == seal(text + comma, heads, layers, samples)


def proven(shard: ShardPath, found: Heads, lines: Iterable[bytes]) -> Heads | None:
    """Return the headers that a shard's rows prove; None where no row proves any.

    Its own headers are tried first, then those of this version. The columns of layer rows are
    unknown where no intact row has any, unless the header is that of this version.

    Raises:
        Unread: a file cannot be read now.
    """
    options = [
        Heads(*names) for names in product(*map(dict.fromkeys, zip(found, OURS, strict=True)))
    ]
    rest, best = found.layers if found.layers == OURS.layers else (), None
    with Blocks() as blocks:
        for line, layers, samples in _readable(shard, lines, blocks):
            for heads in options:
                if fits(line, heads, layers, samples):
                    if layers:
                        return heads
                    best = Heads(heads.columns, rest)
    return best


def _readable(
    shard: ShardPath, lines: Iterable[bytes], blocks: Blocks
) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield the lines whose last cells name places that can be read, with these blocks."""
    for line in lines:
        cells = line.rsplit(b",", len(COMMIT))[1:-1]
        if len(cells) == len(COMMIT) - 1 and all(map(_PLACE, cells)):
            a, b, c, d = map(int, cells)
            try:
                yield line, blocks.read(shard.layers, a, b), blocks.read(shard.samples, c, d)
            except ResultsError as error:
                if isinstance(error, Unread):
                    raise


@lru_cache
def _start(heads: Heads, *, with_layers: bool) -> int:
    crc = zlib.crc32(header(heads.columns))
    return zlib.crc32(header(heads.layers), crc) if with_layers else crc
