"""Appends rows to the shard of an attempt; reads the intact rows of damaged shards.

The commit protocol: a shard has one writer. For each point it writes the layer rows, the raw
samples, and last the overall row, each block with one `write()`. The overall row holds the places
of its blocks and ends in a checksum over headers, blocks and itself (`store.seals`); a point
without such a row is not measured. So a kill loses at most the point that was being measured, and
readers need no lock: they take complete rows and report the others. `fsync` runs at most once a
second and at the end; it guards against a machine that dies, since a killed process loses nothing
that it wrote.

A line is a row: cells never hold line breaks (`columns.cell`).
"""

from __future__ import annotations

import csv
import io
import os
import re
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from itertools import compress
from typing import TYPE_CHECKING, Final, NamedTuple

from hpcsweep import files
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
from hpcsweep.store import seals
from hpcsweep.store.seals import cannot_read
from hpcsweep.store.state import PointStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from typing_extensions import Self

    from hpcsweep.catalog.columns import Row
    from hpcsweep.store.folders import ShardPath

_ID: Final = 16  # digits of the id of a point
_HEX: Final = frozenset(b"0123456789abcdef")
_STATUS: Final = {status.encode(): status for status in PointStatus}
_KEY: Final = re.compile(rb"([0-9a-f]{16}),([^,]*),").match
_SYNC_SECONDS: Final = 1.0  # rows that a crash of the machine may cost
_HEADER_LINE: Final = seals.header(SHARD_COLUMNS)
_ENDS: Final = (*SHARD_COLUMNS[:2], SHARD_COLUMNS[-1])  # in every version
_PLACES: Final = {name: place for place, name in enumerate(SHARD_COLUMNS[:-1])}


class ShardWriter:
    """The only writer of one attempt's files, which must not exist yet.

    The file of layer rows is made when there are any, the others on opening. `FileExistsError`
    where another process took this attempt, `ResultsError` where the disk is full, read-only or
    gone: rows that were written before stay readable.
    """

    def __init__(self, shard: ShardPath) -> None:
        self._files = {
            "overall": _Appender(shard.overall, _HEADER_LINE),
            "layers": _Appender(shard.layers, seals.header(LAYER_COLUMNS)),
            "samples": _Appender(shard.samples, seals.header(SAMPLE_COLUMNS)),
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
        for layer in layers:
            if not isinstance(layer, list):
                check_declared(layer, "layers")
        layer_block = _block(layers, LAYER_COLUMNS)
        lines = [f"{row['point_id']},{i},{cell(ms)}\n" for i, ms in enumerate(samples)]
        sample_block = "".join(lines).encode()
        full: Row = {
            **row,
            "layer_rows": len(layers),
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
        for name in ("layers", "samples", "overall"):
            self._files[name].sync()
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and close; `ResultsError` where committed rows may not be on the disk."""
        files = self._files
        self._files = {}
        errors = []
        for step in (*(f.sync for f in files.values()), *(f.close for f in files.values())):
            try:
                step()
            except ResultsError as error:  # noqa: PERF203 - three files
                errors.append(error)
        if errors:
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        with suppress(*([ResultsError] if kind else [])):  # the first error is the cause
            self.close()


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


class RowKey(NamedTuple):
    """The two cells of a row that `status` counts."""

    point_id: str
    status: PointStatus


@dataclass
class Shard:
    """The readable rows of one attempt in file order, and messages about the others."""

    path: ShardPath
    columns: tuple[str, ...] = ()
    layer_columns: tuple[str, ...] = ()
    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)  # what cannot be read for now
    taken: int = 0  # rows whose checksums fit
    left_out: int = 0  # complete lines that are damaged
    torn: bool = False  # the last line is not complete: being written, or its writer was killed


def complete_lines(path: Path) -> list[bytes]:
    """Return the complete lines of a shard, its header first."""
    try:
        return files.regular_bytes(path).split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise cannot_read(path, error) from error


def keys_in(lines: Iterable[bytes]) -> list[RowKey]:
    """Return point ids and statuses of complete lines, for `status`.

    Only the two leading cells are parsed, for speed. Lines that begin with an id and a status
    count; `collect` checks the rest.
    """
    keys = []
    for line in lines:
        key = _KEY(line)
        if key and key[2] in _STATUS and b"\0" not in line:
            keys.append(RowKey(key[1].decode(), _STATUS[key[2]]))
    return keys


def ends_in(lines: Sequence[bytes]) -> list[float]:
    """Return when the points of rows ended, in seconds since the epoch; a header comes first."""
    ends = []
    for row in csv.DictReader(line.decode("utf-8", "replace") for line in lines):
        with suppress(KeyError, TypeError, ValueError):  # another version, or a damaged row
            began = datetime.fromisoformat(row["started_at"]).timestamp()
            ends.append(began + float(row["wall_s"]))
    return ends


def read_keys(path: Path) -> list[RowKey]:
    """Return point ids and statuses of the complete rows of a shard."""
    return keys_in(complete_lines(path))


def keys_of(attempts: Iterable[ShardPath]) -> Iterator[RowKey]:
    """Yield the point ids and statuses of several shards."""
    for shard in attempts:
        yield from read_keys(shard.overall)


def read_shard(shard: ShardPath) -> Shard:
    """Return the complete rows of a shard, and messages about damaged lines; as `scan_shard`."""
    result, rows = scan_shard(shard)
    result.rows = list(rows)
    return result


def scan_shard(shard: ShardPath) -> tuple[Shard, Iterator[Row]]:
    """Return a shard without its rows, and its complete rows one by one: all would fill the memory.

    Messages about damaged lines come while the rows are read. A row has its filled cells, and three
    keys beside them: `_line`, its text, `_at`, the number of that line, and `_byte`, where that
    begins. Any other cell is an empty text.
    Without a header, rows and layer rows have the columns of this version, which their checksums
    prove. `Unread` where a file cannot be opened.
    """
    try:
        *lines, rest = files.regular_bytes(shard.overall).split(b"\n")
    except OSError as error:
        raise cannot_read(shard.overall, error) from error
    names = seals.names_in(lines[0]) if lines else ()
    has_head = (*names[:2], *names[-1:]) == _ENDS
    columns = names if has_head else SHARD_COLUMNS
    result = Shard(shard, columns, _layer_columns(shard), torn=bool(rest))
    return result, _rows(result, lines, first=int(has_head))


def _rows(shard: Shard, lines: Sequence[bytes], first: int) -> Iterator[Row]:
    """Yield the rows of a shard from its first line after the header on; note what is damaged."""
    byte = sum(len(line) + 1 for line in lines[:first])
    for number, line in enumerate(lines[first:], 1 + first):
        row, problem = _parse(line, shard.columns) if line else (None, "")
        if row is not None:
            row["_line"] = line
            row["_at"] = number
            row["_byte"] = byte
            yield row
        elif problem:
            what = f"row{_of_point(line)} left out: {problem}"
            shard.problems.append(f"{shard.path.overall}:{number}: {what}")
            shard.left_out += 1
        byte += len(line) + 1


def _layer_columns(shard: ShardPath) -> tuple[str, ...]:
    """Return the columns of a shard's layer rows, without a header this version's."""
    try:
        with files.open_regular(shard.layers) as file:
            names = seals.names_in(file.readline())
    except FileNotFoundError:
        return LAYER_COLUMNS
    except OSError as error:
        raise cannot_read(shard.layers, error) from error
    return names if "point_id" in names else LAYER_COLUMNS


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
    return line + seals.seal(line, seals.OURS, layers, samples) + b"\n"


def _block(rows: Sequence[Mapping[str, object] | list[str]], columns: Sequence[str]) -> bytes:
    lines = (joined(row if isinstance(row, list) else cells(row, columns)) for row in rows)
    return "".join(f"{line}\n" for line in lines).encode()


def _parse(line: bytes, columns: tuple[str, ...]) -> tuple[Row | None, str]:
    if b"\0" in line:
        return None, "NUL bytes"
    try:
        values = split(line)
    except (csv.Error, UnicodeDecodeError) as error:
        return None, f"not CSV ({error})"
    if len(values) != len(columns):
        return None, f"{len(values)} cells instead of {len(columns)}"
    # most cells are empty, and take no room
    row: Row = defaultdict(str, compress(zip(columns, values, strict=True), values))
    point_id = row["point_id"]
    if len(point_id) != _ID or not _HEX.issuperset(point_id.encode()):
        return None, "no point id"
    if row["status"].encode() not in _STATUS:
        return None, f"unknown status '{row['status']}'"
    return row, ""


def _of_point(line: bytes) -> str:
    """Return the point of a damaged line for a message; empty if the line begins with no id."""
    begins = len(line) > _ID and line[_ID : _ID + 1] == b"," and _HEX.issuperset(line[:_ID])
    return f" (point {line[:_ID].decode()})" if begins else ""
