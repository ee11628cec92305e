"""Collect's memory between two runs: how far it read each shard, and where rows lie in the tables.

Shards only grow, so collect reads their new rows and takes the others from the tables. It reads all
again if a shard shrank, a table was edited, or this file, a cache, is gone or of another version.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from hpcsweep import __version__, files
from hpcsweep.errors import ResultsError
from hpcsweep.store.collect import merge, merged_tables
from hpcsweep.store.collect.merge import Origin, TableRow
from hpcsweep.store.collect.merged_tables import Written
from hpcsweep.store.folders import ShardPath, SubmissionOrder, SweepDir
from hpcsweep.store.shards import split

_TAIL: Final = 4096
_MOST: Final = 1 << 32  # bytes of the memory
_FORMAT: Final = f"8 {__version__}"

ShardStamps = Mapping[str, tuple[ShardPath, "Stamp"]]  # shards by name
Ages = Mapping[str, SubmissionOrder]  # of submissions
Stamp = list[int]  # inode, size, time of the last change in ns; empty: no such file


@dataclass
class ShardProgress:
    """How far collect read one shard, and what it left out."""

    stamp: Stamp
    read: int = 0  # bytes
    tail: int = 0  # checksum of the last bytes read
    rows: int = 0
    left_out: int = 0
    torn: bool = False
    problems: list[str] = field(default_factory=list)
    # of layers and samples, if any are left out: on a slow network disk they may heal
    blocks: list[Stamp] = field(default_factory=list)


@dataclass
class CollectMemory:
    """The state of collect after a run."""

    planned: list[str]
    shards: dict[str, ShardProgress]
    layer_columns: tuple[str, ...]  # `merged_tables.other_layer_columns`
    rounds: dict[str, int]  # of submissions
    repeated: dict[str, int]
    report: dict[str, Any]
    latest: dict[str, list[str]] = field(default_factory=dict)  # `merge.Pool.latest`
    raw: bool = False  # tables have no quotes before formulas
    rows: list[list[int]] = field(default_factory=list)  # shard, byte, lengths of both blocks
    tables: list[Stamp] = field(default_factory=list)

    def news(self, shards: ShardStamps, ages: Ages) -> dict[str, int] | None:
        """Return the shards to read, and from which byte; None: read everything again.

        `ages` is the order of submissions: if it changed, other rows may count.
        """
        same = self.rounds.items() <= rounds_of(ages).items()
        if not same or not self.shards.keys() <= shards.keys():
            return None
        news: dict[str, int] = {}
        for name, (shard, now) in shards.items():
            seen = self.shards.get(name)
            if seen is None:
                news[name] = 0
            elif not _grew_from(seen.stamp, now) or (
                seen.blocks and seen.blocks != block_stamps(shard)
            ):
                return None
            elif seen.stamp != now:
                if tail_of(shard.overall, seen.read) != seen.tail or seen.tail < 0:
                    return None  # not the file that was read, or unreadable
                news[name] = seen.read
        return news

    def place(self, written: Written) -> None:
        """Remember where the rows of the tables come from, and how long their blocks are."""
        number = {name: index for index, name in enumerate(self.shards)}
        lengths = written.rows, written.layers, written.samples
        self.rows = [
            [number[name_of(entry.origin)], entry.origin.at, layers, samples]
            for entry, layers, samples in zip(*lengths, strict=True)
        ]

    def entries(self, sweep_dir: SweepDir) -> list[TableRow]:
        """Return the rows of the tables; `ResultsError` where they do not fit the memory."""
        try:
            return list(self._entries(sweep_dir))
        except (OSError, ValueError, IndexError, KeyError) as error:
            raise ResultsError(f"{sweep_dir.overall}: not as it was written ({error})") from error

    def _entries(self, sweep_dir: SweepDir) -> Iterator[TableRow]:
        tables = (path.read_bytes().split(b"\n")[:-1] for path in sweep_dir.merged()[:2])
        header, *lines = map(b",".join, zip(*tables, strict=True))
        columns = tuple(header.decode().split(","))
        shards = [_parsed(sweep_dir, name) for name in self.shards]
        layers_at, samples_at = map(len, merged_tables.heads(self.layer_columns))
        for line, (number, at, layers, samples) in zip(lines, self.rows, strict=True):
            shard = shards[number]
            cells = dict(zip(columns, split(line), strict=True))
            age = self.rounds[shard.submission], shard.submission
            origin = Origin(age, shard.attempt, shard.chunk, at)
            blocks = {"layers": (layers_at, layers), "samples": (samples_at, samples)}
            row = merge.entry(cells, origin=origin, line=line, columns=columns, **blocks)
            row.written_ending = row.ending()
            yield row
            layers_at = layers_at + layers
            samples_at = samples_at + samples


def load_memory(sweep_dir: SweepDir) -> CollectMemory | None:
    """Return the memory of the last collect; None where it cannot be used."""
    try:
        with files.opened(sweep_dir.collect_index, most=_MOST) as file:
            data = file.read()
        text = b"{" + data[len(_head(b"")) :]
        if not data.startswith(_head(text)):
            return None
        record = json.loads(text)
        if record.pop("format") != _FORMAT or record["tables"] != table_stamps(sweep_dir):
            return None
        record["shards"] = {name: ShardProgress(**seen) for name, seen in record["shards"].items()}
        record["layer_columns"] = tuple(record["layer_columns"])
        return CollectMemory(**record)
    except (ResultsError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def save(sweep_dir: SweepDir, memory: CollectMemory) -> None:
    """Write the memory; if the disk is full, the next collect reads everything again."""
    record = {
        "format": _FORMAT,
        **vars(memory),
        "shards": {name: asdict(seen) for name, seen in memory.shards.items()},
        "tables": table_stamps(sweep_dir),
    }
    with suppress(ResultsError), files.replacing(sweep_dir.collect_index) as file:
        text = json.dumps(record, separators=(",", ":")).encode()
        file.write(_head(text) + text[1:])


def _head(text: bytes) -> bytes:
    """Return the start of the file, a checksum in place of the JSON object's first byte."""
    return b'{"crc":"%08x",' % zlib.crc32(text)


def stamps(sweep_dir: SweepDir) -> ShardStamps:
    """Return every shard by its name below `shards/`, with its stamp."""
    return {name_of(shard): (shard, stamp_of(shard.overall)) for shard in sweep_dir.shards()}


def table_stamps(sweep_dir: SweepDir) -> list[Stamp]:
    """Return the stamps of the merged tables."""
    return [*map(stamp_of, sweep_dir.merged())]


def block_stamps(shard: ShardPath) -> list[Stamp]:
    """Return the stamps of a shard's layer rows and samples."""
    return [stamp_of(shard.layers), stamp_of(shard.samples)]


def stamp_of(path: Path) -> Stamp:
    """Return a file's inode, size and time, which change with the file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - thousands of them
    except OSError:
        return []
    return [status.st_ino, status.st_size, status.st_mtime_ns]


def tail_of(path: Path, end: int) -> int:
    """Return a checksum of the bytes before `end`; -1 where they cannot be read."""
    begin = max(end - _TAIL, 0)
    try:
        with files.open_regular(path) as file:
            file.seek(begin)
            return zlib.crc32(file.read(end - begin))
    except OSError:
        return -1


def _grew_from(before: Stamp, now: Stamp) -> bool:
    return before == now or (bool(before and now) and before[0] == now[0] and before[1] < now[1])


def rounds_of(ages: Ages) -> dict[str, int]:
    """Return the round of each submission."""
    return {name: number for name, (number, _name) in ages.items()}


def name_of(place: ShardPath | Origin) -> str:
    """Return a shard's name below `shards/`."""
    return f"{place.submission}/{place.chunk}.{place.attempt}"


def _parsed(sweep_dir: SweepDir, name: str) -> ShardPath:
    folder, _, numbers = name.rpartition("/")
    chunk, attempt = numbers.split(".")
    return ShardPath(sweep_dir.shards_dir / folder, int(chunk), int(attempt))
