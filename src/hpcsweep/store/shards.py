"""Writes the rows of an attempt into its shard; computes and checks their checksums.

The commit protocol: a shard has one writer. For each point it writes the layer rows, the raw
samples, and last the overall row, each block with one `write()`. The overall row holds the places
of its blocks and ends in a checksum over headers, blocks and itself; a point without such a row is
not measured. So a kill loses at most the point that was being measured, and readers (`row_reader`)
need no lock. `fsync` runs at most once a second and at the end; it guards against a machine that
dies, since a killed process loses nothing that it wrote.

The checksum covers the header of `overall.csv`, the row's layer rows with their header, its
samples, and the row's own text. So a row is never read by the names of other columns. A line is a
row: cells never hold line breaks (`columns.cell`).
"""

from __future__ import annotations

import csv
import io
import os
import time
import zlib
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Final

from hpcsweep.catalog.columns import (
    LAYER_COLUMNS,
    SAMPLE_COLUMNS,
    SHARD_COLUMNS,
    cell,
    cells,
    check_declared,
)
from hpcsweep.errors import ResultsError
from hpcsweep.files import cannot_write

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from hpcsweep.catalog.columns import Row
    from hpcsweep.store.folders import ShardPath

Names = tuple[str, ...]
# rows that a crash of the machine may cost; each sync may take 10 ms and more on a network disk
_SYNC_SECONDS: Final = 1.0
_PLACES: Final = {name: place for place, name in enumerate(SHARD_COLUMNS[:-1])}


class ShardWriter:
    """The only writer of one attempt's files, which must not exist yet.

    The file of layer rows is made when there are any, the others on opening. `FileExistsError`
    where another process took this attempt, `ResultsError` where the disk is full, read-only or
    gone: rows that were written before stay readable.
    """

    def __init__(self, shard: ShardPath) -> None:
        self._files = {  # blocks before the rows that refer to them: so they are synced
            "layers": _Appender(shard.layers, header(LAYER_COLUMNS)),
            "samples": _Appender(shard.samples, header(SAMPLE_COLUMNS)),
            "overall": _Appender(shard.overall, header(SHARD_COLUMNS)),
        }
        try:
            self._files["overall"].open()
            self._files["samples"].open()
        except BaseException:
            with suppress(ResultsError):
                self.close()
            raise
        self._common = [""] * (len(SHARD_COLUMNS) - 1)
        self._synced = time.monotonic()

    def set_common(self, row: Mapping[str, object]) -> None:
        """Set the cells of all later rows that do not have them."""
        check_declared(row, "overall")
        self._common = cells(row, SHARD_COLUMNS[:-1])

    def commit(
        self,
        row: Mapping[str, object],
        layers: Sequence[Mapping[str, object] | list[str]] = (),
        samples: Sequence[float] = (),
    ) -> None:
        """Write a point: its layer rows, its samples in ms, then its row.

        A layer row may be a list: the texts of all its cells, in the order of the columns.

        Raises:
            UndeclaredCell: a row has a cell that no record declares; nothing is written.
            ResultsError: the disk is full, read-only or gone; earlier rows stay readable.
        """
        check_declared(row, "overall")
        layer_block = block_of(layers)
        lines = [f"{row['point_id']},{i},{cell(ms)}\n" for i, ms in enumerate(samples)]
        sample_block = "".join(lines).encode()
        full: Row = {
            **row,
            "layer_rows": len(layers),
            # Python fills a dictionary in order: the blocks are written before the row
            "layers_offset": self._files["layers"].append(layer_block),
            "layers_bytes": len(layer_block),
            "samples_offset": self._files["samples"].append(sample_block),
            "samples_bytes": len(sample_block),
        }
        self._files["overall"].append(sealed(self._cells(full), layer_block, sample_block))
        if time.monotonic() - self._synced >= _SYNC_SECONDS:
            self.sync()

    def _cells(self, row: Row) -> list[str]:
        """Return the texts of the row's cells without the last one, the checksum."""
        texts = self._common.copy()
        for name, value in row.items():
            texts[_PLACES[name]] = cell(value)
        return texts

    def sync(self) -> None:
        """Sync the files to the disk: blocks before the rows that refer to them."""
        for file in self._files.values():
            file.sync()
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and close; `ResultsError` where committed rows may not be on the disk."""
        files = self._files
        self._files = {}
        errors = []
        for file in files.values():
            for step in (file.sync, file.close):
                try:
                    step()
                except ResultsError as error:  # noqa: PERF203 - three files
                    errors.append(error)
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        try:
            self.close()
        except ResultsError:
            if kind is None:  # else the first error is the cause
                raise


class _Appender:
    """A file that grows by whole blocks; a block that the disk has no room for is removed."""

    def __init__(self, path: Path, header: bytes) -> None:
        self._path = path
        self._header = header
        self._fd = -1
        self._size = 0
        self._synced = 0
        self._torn = False  # there is a part of a block after the last whole one

    def open(self) -> None:
        """Make the file; it must not exist."""
        path = self._path
        try:
            # `O_EXCL`: of two processes that take one attempt, on any host, one fails here
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o666)
        except FileExistsError:
            raise
        except OSError as error:
            raise cannot_write(path, error) from error
        self.append(self._header)

    def append(self, block: bytes) -> int:
        """Write a block unless it is empty; return the offset where it begins."""
        if not block:
            return self._size
        if self._fd < 0:
            self.open()
        offset = self._size
        try:
            if self._torn:
                self._mend()
            written = os.write(self._fd, block)
            while written < len(block):
                written += os.write(self._fd, block[written:])
        except OSError as error:
            self._torn = True
            with suppress(OSError):  # the next block may have more luck
                self._mend()
            raise cannot_write(self._path, error) from error
        self._size += len(block)
        return offset

    def _mend(self) -> None:
        # else a reader would take the torn block and the next one for a single line
        os.ftruncate(self._fd, self._size)
        self._torn = False

    def sync(self) -> None:
        if self._synced == self._size:
            return
        try:
            os.fsync(self._fd)
            self._synced = self._size
        except OSError as error:  # some file systems report a full disk only here
            raise cannot_write(self._path, error) from error

    def close(self) -> None:
        if self._fd >= 0:
            fd = self._fd
            self._fd = -1
            try:
                os.close(fd)
            except OSError as error:
                raise cannot_write(self._path, error) from error


@dataclass(frozen=True, eq=False)  # to compare, or hash, all columns takes long
class Heads:
    """The columns of a shard's rows, and of its layer rows."""

    columns: Names
    layers: Names = ()

    # each row has the checksum of its headers, and those of a shard are the same
    @cached_property
    def crc(self) -> int:
        """The checksum of the header of rows without layer rows."""
        return zlib.crc32(header(self.columns))

    @cached_property
    def crc_with_layers(self) -> int:
        """The checksum of both headers."""
        return zlib.crc32(header(self.layers), self.crc)


OURS: Final = Heads(SHARD_COLUMNS, LAYER_COLUMNS)


def header(names: Names) -> bytes:
    """Return the first line of a file with these columns."""
    return ",".join(names).encode() + b"\n"


@lru_cache  # shards have the same few headers
def names_in(line: bytes) -> Names:
    """Return the column names in a header line, which may be damaged."""
    return tuple(line.decode("utf-8", "replace").removesuffix("\n").split(","))


def seal(text: bytes, heads: Heads, layers: bytes, samples: bytes) -> bytes:
    """Return the checksum of a row: `text` is its line up to the last comma, included."""
    crc = zlib.crc32(layers, heads.crc_with_layers) if layers else heads.crc
    return b"%08x" % zlib.crc32(text, zlib.crc32(samples, crc))


def fits(line: bytes, heads: Heads, layers: bytes, samples: bytes) -> bool:
    """Say whether a row's checksum fits its text, its blocks and these headers."""
    text, comma, checksum = line.rpartition(b",")
    return checksum == seal(text + comma, heads, layers, samples)


def split(line: bytes) -> list[str]:
    """Return the texts of a row's cells; `UnicodeDecodeError` where it is not UTF-8."""
    if b'"' not in line and b"\r" not in line:  # nearly always, and faster
        return line.decode().split(",")
    return next(csv.reader([line.decode()], strict=True))


def joined(values: Sequence[str]) -> str:
    """Join the texts of a row's cells, which hold no line breaks, into a line without its end."""
    text = ",".join(values)
    if '"' not in text and text.count(",") == len(values) - 1:  # nearly always, and faster
        return text
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()[:-1]


def sealed(texts: list[str], layers: bytes, samples: bytes) -> bytes:
    """Return the line of a row: its cells, and their checksum as the last one."""
    line = f"{joined(texts)},".encode()
    return line + seal(line, OURS, layers, samples) + b"\n"


def block_of(layers: Iterable[Mapping[str, object] | list[str]]) -> bytes:
    """Return the lines of layer rows; `UndeclaredCell` for a cell that no record declares."""
    lines = []
    for layer in layers:
        if isinstance(layer, list):
            texts = layer
        else:
            check_declared(layer, "layers")
            texts = cells(layer, LAYER_COLUMNS)
        lines.append(f"{joined(texts)}\n")
    return "".join(lines).encode()
