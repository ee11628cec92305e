"""Imports tables of the program that hpcsweep replaces: one submission, one shard.

Its rows get the flag `host_copies`: its convolutions copy input, weights and output between host
and GPU in every call, so its times are mostly those of copies. `input_size` is that of the image in
every row of its layer tables, so the shape of a layer comes from the network itself, and stays
empty where the row does not fit it. They have ids of their own, never those of points of a sweep.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

from hpcsweep import files
from hpcsweep.catalog.columns import LAYER_COLUMNS, axis_cells, cell, cells
from hpcsweep.errors import ResultsError
from hpcsweep.importing import layer_shapes, submission, tables
from hpcsweep.importing.submission import ImportedRows
from hpcsweep.importing.tables import Cells, Key, Table
from hpcsweep.point import Point
from hpcsweep.records import dataclass, field
from hpcsweep.store.rundir import RunDir
from hpcsweep.text import count

HOST_COPIES: Final = "host_copies"
_PLACE: Final = {name: place for place, name in enumerate(LAYER_COLUMNS)}
_SIDES: Final = {"kernel_size": "kernel", "stride": "stride", "padding": "pad"}
_STATED: Final = ("in_channels", "out_channels", *_SIDES)

Image = tuple["Key", int, int]  # with input and batch size


@dataclass
class _Found:
    """Networks by key and sizes; what was left out."""

    networks: dict[Image, Cells] = field(default_factory=dict)
    sizes: dict[Key, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    twice: int = 0
    unread: int = 0

    def add(self, key: Key, row: dict[str, str]) -> None:
        """Take the row of a network; of two with the same sizes the first counts."""
        size, batch = tables.number(row["input_size"]), tables.number(row["batch_size"])
        times = tables.times(row)
        if size is None or batch is None or "mean_ms" not in times:
            self.unread += 1
            return
        image = key, int(size), int(batch)
        if image in self.networks:
            self.twice += 1
            return
        energy = tables.number(row.get("energy_per_inference_j"))
        more = {"energy_j": energy, "energy_method": "sampled power"} if energy else {}
        self.networks[image] = {**times, **more}
        self.sizes[key].setdefault(int(size), int(batch))


def bring(path: Path, run: RunDir, device: str = "") -> tuple[str, tuple[str, ...]]:
    """Write the tables at a path as a submission; return their source and what was left out."""
    found, every = _Found(), tables.find(path)
    for table in every:
        if not table.of_layers:
            for key, row in tables.rows(table, device):
                found.add(key, row)
    source = path.resolve().stem
    with submission.opened(run, source) as file:
        writer = _Writer(found, source, file)
        rows = sum(writer.passes(table, device) for table in every if table.of_layers)
        writer.rest()
        if not file.points:
            raise ResultsError(f"{path}: no row with a time in {count(len(every), 'table')}")
    notes = _notes(found, writer, every, rows)
    if odd := tables.left_out(path):
        notes = chain(notes, [f"left out {', '.join(odd)}: {files.COPY_IT}"])
    return source, tuple(notes)


def _notes(found: _Found, writer: _Writer, every: Sequence[Table], rows: int) -> Iterator[str]:
    yield (f"{count(len(every), 'table')}: {count(len(writer.done), 'network')}, "
           f"{count(rows, 'layer row')}")  # fmt: skip
    if found.twice + writer.twice:
        yield f"{count(found.twice + writer.twice, 'network')} more than once; the first counts"
    if found.unread:
        yield f"{count(found.unread, 'row')} without size or time left out"
    if writer.without:
        yield f"{count(writer.without, 'network')} with times of layers alone"
    if writer.shapeless:
        yield (
            f"{count(writer.shapeless, 'layer row')} without the layer's shape: no network of "
            "torchvision has such a layer (or torch is not installed)"
        )
    if writer.means:
        yield f"{count(writer.means, 'layer row')} without a median: the mean stands for it"
    yield f"flagged {HOST_COPIES}: its convolutions copy between host and GPU in every call"


class _Writer:
    """Writes networks with their layers into a shard, one pass at a time."""

    def __init__(self, found: _Found, source: str, file: ImportedRows) -> None:
        self._found, self._source, self._file = found, source, file
        self.done: set[Image] = set()
        self.twice = self.without = self.shapeless = self.means = 0

    def passes(self, table: Table, device: str) -> int:
        """Write the networks of a table of layers; return the layer rows."""
        written = 0
        for key, rows in _passes(tables.rows(table, device)):
            size = int(tables.number(rows[0].get("input_size")) or 0)
            image = key, size, self._found.sizes.get(key, {}).get(size, 1)
            if image in self.done:
                self.twice += 1
            else:
                self.without += image not in self._found.networks
                written += self._write(image, rows)
        return written

    def rest(self) -> None:
        """Write the networks whose layers no table has."""
        for image in self._found.networks:
            if image not in self.done:
                self._write(image, [])

    def _write(self, image: Image, rows: Sequence[dict[str, str]]) -> int:
        self.done.add(image)
        point = self._point(image)
        shared = axis_cells(point.axes) | {"point_id": point.point_id}
        names = ("model", "algorithm", "device", "batch_size", "input_size", "gpu", "point_id")
        base = {name: shared[name] for name in names} | {"op": "conv2d", "direction": "forward"}
        texts = cells(base, LAYER_COLUMNS)
        layers = [self._layer(texts, index, image, one) for index, one in enumerate(rows)]
        times = self._found.networks.get(image, {})
        self._file.commit(point, times, layers, HOST_COPIES, valid=True)
        return len(layers)

    def _layer(
        self, texts: Sequence[str], index: int, image: Image, row: dict[str, str]
    ) -> list[str]:
        """Return the texts of a layer row; `texts` are those that all rows of its pass share."""
        found, times = [*texts], tables.times(row)
        stated = tuple(row.get(name) or "" for name in _STATED)
        known, shape = _geometry(image[0].model, *image[1:], row["layer"], stated)
        self.shapeless += not known
        for place, text in shape:
            found[place] = text
        if "median_ms" not in times and "mean_ms" in times:
            times["median_ms"] = times["mean_ms"]
            self.means += 1
        own = {"percentage": tables.number(row.get("percentage")), "layer": row["layer"]}
        for name, value in {**times, **own, "call_index": index}.items():
            found[_PLACE[name]] = cell(value)
        return found

    def _point(self, image: Image) -> Point:
        key, size, batch = image
        own: dict[str, Any] = {
            "model": key.model, "algorithm": key.algorithm, "gpu": key.device,
            "input_size": size, "batch_size": batch,
        }  # fmt: skip
        return submission.point(self._source, own)


def _passes(
    rows: Iterable[tuple[Key, dict[str, str]]],
) -> Iterator[tuple[Key, list[dict[str, str]]]]:
    """Yield the layer rows of one pass after the other: of one image, each layer once."""
    before: Key | None = None
    found: list[dict[str, str]] = []
    for key, row in rows:
        first = found[0] if found else row
        if found and (
            key != before
            or row["layer"] == first["layer"]
            or row.get("input_size") != first.get("input_size")
        ):
            assert before is not None  # noqa: S101 - set with the first row
            yield before, found
            found = []
        before = key
        found.append(row)
    if before is not None:
        yield before, found


@lru_cache(maxsize=65536)
def _geometry(
    model: str, size: int, batch: int, layer: str, texts: tuple[str, ...]
) -> tuple[bool, list[tuple[int, str]]]:
    """Return whether a layer's shape is known, and place and text of each cell of it."""
    stated = _cells_of(dict(zip(_STATED, texts, strict=True)))
    shape = layer_shapes.of_layer(model, size, batch, layer, stated)
    # no shape: only the same layer of the same image is known to be the same work
    unknown = {**stated, "unique_key": f"conv2d_of_{model}_{size}_n{batch}_{layer}"}
    found = unknown if shape is None else shape
    return shape is not None, [
        (_PLACE[name], cell(value)) for name, value in found.items() if name != "layer"
    ]


def _cells_of(row: dict[str, str]) -> Cells:
    """Return the cells of a shape as far as a row states them; a size is 3, (3, 3) or 3x3."""
    found: Cells = {name: row[name] for name in ("in_channels", "out_channels")}
    for column, name in _SIDES.items():
        pair = [part.strip() for part in row[column].strip("()[] ").replace("x", ",").split(",")]
        down, across = pair[0], pair[-1] or pair[0]
        found |= {f"{name}_h": down, f"{name}_w": across}
        found[column] = down if down == across else f"{down}x{across}"
    return found
