"""Imports tables of the program that hpcsweep replaces: one submission, one shard.

Tables are known by their columns: those of networks, and of their layers. The device stands in a
column, or in the name of the file or of a folder around it.

Its rows get the flag `host_copies`: its convolutions copy input, weights and output between host
and GPU in every call, so its times are mostly those of copies. `input_size` is that of the image in
every row of its layer tables, so the shape of a layer comes from a pass of the network itself on
the meta device, and stays empty where the row does not fit it. They have ids of their own, never
those of points of a sweep.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from hpcsweep.catalog import ALGORITHMS, gpus, limits
from hpcsweep.catalog.columns import Row
from hpcsweep.catalog.models import MODELS, REFERENCE_SIZE
from hpcsweep.conv.shape import NCHW, ConvShape
from hpcsweep.errors import ResultsError, UsageError, suggest
from hpcsweep.importing import delimited, submission
from hpcsweep.importing.submission import ImportedRows
from hpcsweep.numerals import ANY, WHOLE
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count, cut

if TYPE_CHECKING:
    from torch import Tensor, nn

HOST_COPIES: Final = "host_copies"
_TABLES: Final = ("*.csv", "*.csv.gz", "*.tsv", "*.tsv.gz")
_OF_LAYERS: Final = {"model", "algorithm", "layer", "mean_ms"}
_OF_NETWORKS: Final = {"model", "algorithm", "batch_size", "input_size"}
_OWN: Final = "point_id"  # a column that the predecessor does not have
_TIMES: Final = ("mean", "std", "min", "max", "median")
_POWER: Final = ("power_mean_w", "power_std_w", "power_min_w", "power_max_w")
_CHANNELS: Final = ("in_channels", "out_channels")
_NUMBERS: Final = {
    **dict.fromkeys((*_TIMES, *(f"{name}_ms" for name in _TIMES), *_POWER), ANY),
    **dict.fromkeys(("energy_per_inference_j", "percentage"), ANY),
    **dict.fromkeys((*_CHANNELS, "batch_size", "input_size"), WHOLE),
}
_SIDES: Final = {"kernel_size": "kernel", "stride": "stride", "padding": "pad"}
_ASKED: Final = {"model", "algorithm", "device", "layer", *_NUMBERS, *_SIDES}
_ALSO: Final = {"guess": "auto", "default": "auto", "winograd_non_fused": "winograd_nonfused"}
_MODELS: Final = {re.sub(r"\W|_", "", name): name for name in MODELS}
_NO_DEVICE: Final = {"", "cuda", "gpu"}
_SHOWN: Final = 60  # characters of a name that is not known
_MOST: Final = 1 << 16  # pixels of a side, and images: more is no measured pass
_AGAIN: Final = "that stands there again"
_NO_TIME: Final = "without size or time"
_NOTES: Final = {
    "twice": ("network", "more than once; the first counts"),
    "without": ("network", "with times of layers alone"),
    "shapeless": ("layer row", ("without the layer's shape: no network of torchvision has such a "
                                "layer (or torch is not installed)")),
    "means": ("layer row", "without a median: the mean stands for it"),
}  # fmt: skip

Cells = Mapping[str, str]


class Key(NamedTuple):
    """What one measured network is known by."""

    model: str
    algorithm: str
    gpu: str


Image = tuple[Key, int, int]  # with input and batch size
Call = tuple[str, int]  # of a layer: the first, second, ...


def bring(path: Path, sweep_dir: SweepDir, device: str = "") -> tuple[str, tuple[str, ...]]:
    """Write the tables at a path as a submission; return their source and what was left out."""
    tables, odd = find(path)
    read = _Import(path.resolve().stem)
    with submission.opened(sweep_dir, read.source, path, tables) as file:
        for table in sorted(tables, key=tables.__getitem__):  # networks first: layers join them
            every = rows(table, device, read.left)
            if tables[table]:
                for image, layers in read.passes(every).items():
                    read.write_pass(file, image, [*layers.values()])
            else:
                for key, row in every:
                    read.add(key, row)
        for image in read.networks.keys() - read.done:
            read.write(file, image)
    written = count(read.counts["layers"], "layer row")
    notes = [f"{count(len(tables), 'table')}: {count(len(read.done), 'network')}, {written}"]
    for name, (noun, text) in _NOTES.items():
        notes += [f"{count(number, noun)} {text}"] if (number := read.counts[name]) else []
    read.left[delimited.TAKEN] = len(read.networks) + read.counts["layers"]
    notes += delimited.account(read.left)
    notes += file.notes()
    notes.append(f"flagged {HOST_COPIES}: its convolutions copy between host and GPU in every call")
    if odd:
        notes.append(f"left out {', '.join(odd)}: no regular file of text")
    return read.source, tuple(notes)


def find(path: Path) -> tuple[dict[Path, bool], list[str]]:
    """Return the tables at a path, and whether each is of layers; the names of unreadable files.

    `UsageError` where there is none.
    """
    tables = {}
    odd = []
    files = [path]
    if path.is_dir():
        files = sorted(chain.from_iterable(path.rglob(pattern) for pattern in _TABLES))
    for file in files:
        try:
            with delimited.opened(file) as table:
                columns = set(table.names)
        except ResultsError:
            if file == path:
                raise
            odd.append(str(file.relative_to(path)))
            continue
        if _OWN in columns:
            raise UsageError(_refused(file))
        if columns >= _OF_LAYERS or columns >= _OF_NETWORKS:
            delimited.check_once(file, table.names, _ASKED)
            tables[file] = columns >= _OF_LAYERS
    if not tables:
        raise UsageError(
            f"{path}: neither a results folder nor tables with the columns "
            f"{', '.join(sorted(_OF_NETWORKS))} or {', '.join(sorted(_OF_LAYERS))}"
        )
    return tables, odd


def _refused(path: Path) -> str:
    """Say why a table of hpcsweep itself is not imported, and what is."""
    folder = path.absolute().parent
    results = folder.parent.parent if folder.parent.name == "shards" else folder
    text = f"{path}: a table of hpcsweep itself, whose rows are imported from their shards"
    if (results / "submissions").is_dir():
        return f"{text}: hpcsweep import {shlex.quote(str(results))}"
    return (
        f"{text}; copy the whole results folder of that sweep (submissions/ and shards/), then "
        "import it. `compare` takes a folder with overall.csv alone"
    )


def rows(path: Path, device: str, left: Counter[str]) -> Iterator[tuple[Key, Cells]]:
    """Yield the rows of a table, each with its key; `device` is for tables that name none.

    `left` counts the rows that are left out, by their reason.

    `ResultsError` where it cannot be read, `UsageError` without a device or known algorithm.
    """
    around = (folder.name for folder in path.absolute().parents[:2])
    named = next(filter(None, map(gpus.by_file_name, (path.stem, *around))), device)
    how = "write fractions behind a point, as that program did"
    for row in delimited.rows(path, _NUMBERS, how, left, usual="."):
        own = (row.get("device") or "").strip().lower()
        gpu = named if own in _NO_DEVICE else own
        yield _key(path, row["model"], row["algorithm"], gpu), row


@lru_cache(maxsize=4096)
def _key(path: Path, model: str, algorithm: str, device: str) -> Key:
    if not device:
        raise UsageError(f"{path}: names no device; --device says which it is, such as v100")
    name = submission.as_algorithm(algorithm)
    name = _ALSO.get(name, name)
    if name not in ALGORITHMS:
        shown = cut(" ".join(algorithm.split()), _SHOWN)
        raise UsageError(f"{path}: unknown algorithm '{shown}'{suggest(name, ALGORITHMS)}")
    own = model.strip().lower()
    return Key(_MODELS.get(re.sub(r"\W|_", "", own), own), name, gpus.by_label(device) or device)


@dataclass
class _Import:
    """The networks of all tables, by key and sizes; which were written; what was left out."""

    source: str
    networks: dict[Image, Row] = field(default_factory=dict)
    batches: dict[tuple[Key, int], int] = field(default_factory=dict)  # the first of each size
    done: set[Image] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)  # of `_NOTES`, and of layers
    left: Counter[str] = field(default_factory=Counter)  # rows that were left out, by their reason

    def add(self, key: Key, row: Cells) -> None:
        """Take the row of a network; of two with the same sizes the first counts."""
        size = submission.number(row["input_size"])
        batch = submission.number(row["batch_size"])
        times = _times(row)
        if not size or not batch or "mean_ms" not in times:
            self.left[_NO_TIME] += 1
            return
        image = key, int(size), int(batch)
        if image in self.networks:
            self.counts["twice"] += 1
            self.left[_AGAIN] += 1
            return
        energy = submission.number(row.get("energy_per_inference_j"))
        more = {"energy_j": energy, "energy_method": "sampled power"} if energy else {}
        power = {name: submission.number(row.get(name)) for name in _POWER}
        self.networks[image] = {**times, **more, **power}
        self.batches.setdefault((key, int(size)), int(batch))

    def passes(self, every: Iterable[tuple[Key, Cells]]) -> dict[Image, dict[Call, Cells]]:
        """Return the layer rows of each network in a table, however that is sorted.

        Of a layer that stands there again, below rows of other networks, the first counts.
        """
        calls = defaultdict[Image, dict[Call, Cells]](dict)
        again = set[Image]()
        for image, rows in groupby(every, lambda of: self._image(*of)):
            times = Counter[str]()
            for _, row in rows:
                times[row["layer"]] += 1
                call = row["layer"], times[row["layer"]]
                if calls[image].setdefault(call, row) is not row:
                    again.add(image)
                    self.left[_AGAIN] += 1
        self.counts["twice"] += len(again)
        return calls

    def _image(self, key: Key, row: Cells) -> Image:
        """Return the network of a layer row: with its own batch size, else the first one."""
        size = int(submission.number(row["input_size"]) or 0)
        batch = int(submission.number(row.get("batch_size")) or 0)
        return key, size, batch or self.batches.get((key, size), 1)

    def write_pass(self, file: ImportedRows, image: Image, layers: Sequence[Cells]) -> None:
        """Write a network with its layers, unless it was."""
        if image in self.done:
            self.counts["twice"] += 1
            self.left[_AGAIN] += len(layers)
        else:
            self.counts["without"] += image not in self.networks
            self.write(file, image, layers)

    def write(self, file: ImportedRows, image: Image, layers: Sequence[Cells] = ()) -> None:
        """Write a network, and its layers where a table has them."""
        key, size, batch = image
        own = {**key._asdict(), "input_size": size, "batch_size": batch}
        point = submission.point(self.source, own)
        every = [self._layer(index, image, row) for index, row in enumerate(layers)]
        network = self.networks.get(image, {})
        impossible = _is_impossible(point.axes, network, every)
        file.impossible += impossible
        flags = f"{HOST_COPIES};{limits.IMPOSSIBLE}" if impossible else HOST_COPIES
        file.commit(point, network, every, flags, valid=not impossible)
        self.done.add(image)
        self.counts["layers"] += len(every)

    def _layer(self, index: int, image: Image, row: Cells) -> Row:
        """Return a layer row.

        Its shape is that of its network's layer, if that has what the row states of it.
        """
        key, size, batch = image
        times = _times(row)
        if "median_ms" not in times and "mean_ms" in times:
            times["median_ms"] = times["mean_ms"]
            self.counts["means"] += 1
        stated = _stated(row)
        shape = _of_image(key.model, size, batch).get(row["layer"])
        if shape is None or any(str(shape[name]) != text for name, text in stated.items()):
            self.counts["shapeless"] += 1
            # only the same layer of the same image is known to be the same work
            same = f"conv2d_of_{key.model}_{size}_n{batch}_{row['layer']}"
            shape = {**stated, "unique_key": same}
        return {
            **shape, **times, "layer": row["layer"], "call_index": index, "device": key.gpu,
            "op": "conv2d", "direction": "forward",
            "percentage": submission.number(row.get("percentage")),
        }  # fmt: skip


def _is_impossible(axes: Mapping[str, Any], network: Row, layers: Sequence[Row]) -> bool:
    """Say whether the time of a network, or of one of its layers, cannot be."""
    calls = [{**axes, **layer} for layer in layers]
    known = MODELS.get(axes["model"])
    images = axes["batch_size"] * (axes["input_size"] / REFERENCE_SIZE) ** 2
    whole = {**axes, **network, "flops": known.flops * images if known else None}
    return any(map(limits.is_impossible, [whole, *calls]))


def _times(row: Cells) -> Row:
    """Return the times of a row, whose columns may lack their unit."""
    every = {f"{name}_ms": row.get(f"{name}_ms") or row.get(name) for name in _TIMES}
    read = {name: submission.milliseconds(text) for name, text in every.items()}
    read["std_ms"] = submission.number(every["std_ms"])  # which may be 0
    return {name: value for name, value in read.items() if value is not None}


def _stated(row: Cells) -> Row:
    """Return the cells of a shape as far as a row states them; a size is 3, (3, 3) or 3x3."""
    stated: Row = {name: row[name] for name in _CHANNELS if row.get(name)}
    for column, name in _SIDES.items():
        both = submission.sides(row.get(column) or "")
        if both is not None:
            down, across = map(str, both)
            stated |= {f"{name}_h": down, f"{name}_w": across}
            stated[column] = submission.pair(down, across)
    return stated


@lru_cache(maxsize=1024)
def _of_image(model: str, size: int, batch: int) -> Mapping[str, Row]:
    """Return the cells of each convolution that is called once; nothing for an unknown network."""
    network = _network(model)
    if network is None or not (1 <= size <= _MOST and 1 <= batch <= _MOST):
        return {}
    import torch  # noqa: PLC0415 - `_network` found it

    shapes: dict[str, Row] = {}
    again: set[str] = set()
    names = {module: name for name, module in network.named_modules()}

    def note(module: nn.Conv2d, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        name = names[module]
        again.update({name} & shapes.keys())
        shapes[name] = _shape_cells(module, inputs[0])

    convolutions = [module for module in names if type(module) is torch.nn.Conv2d]
    hooks = [module.register_forward_hook(note) for module in convolutions]
    try:
        with torch.no_grad():
            network(torch.empty(batch, 3, size, size, device="meta"))
    except (RuntimeError, ValueError):  # the network does not take such images
        return {}
    finally:
        for hook in hooks:
            hook.remove()
    return {name: cells for name, cells in shapes.items() if name not in again}


@lru_cache(maxsize=1)
def _network(model: str) -> nn.Module | None:
    """Return a network of the catalog without weights; None where it, or torch, is not there."""
    if model not in MODELS:
        return None
    try:
        import torch  # noqa: PLC0415 - only tables of layers need it

        from hpcsweep.measure import model_builder  # noqa: PLC0415 - it needs torch
    except ImportError:
        return None
    with torch.device("meta"):
        network = model_builder.build_float32(model, enliven=False)
    for module in network.modules():  # what changes no shape costs most of a pass on this device
        if isinstance(module, (torch.nn.BatchNorm2d, torch.nn.ReLU, torch.nn.Dropout)):
            module.forward = lambda image: image
    return network


def _shape_cells(module: nn.Conv2d, image: Tensor) -> Row:
    """Return the cells of a call; what is added to its output is a parameter, too."""
    shape = ConvShape.of(module, image, NCHW, "cpu")
    row = submission.work_cells(shape)
    added = shape.out_c if shape.bias else 0
    row["params"] += added
    row["bytes_min"] += added * shape.itemsize
    return {name: row[name] for name in row.keys() - {"layer", "dtype", "batch_size"}}
