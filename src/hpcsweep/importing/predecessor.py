"""Imports tables of the program that hpcsweep replaces: one submission, one shard.

Its rows get the flag `host_copies`: its convolutions copy input, weights and output between host
and GPU in every call, so its times are mostly those of copies. `input_size` is that of the image in
every row of its layer tables, so the shape of a layer comes from a pass of the network itself on
the meta device, and stays empty where the row does not fit it. They have ids of their own, never
those of points of a sweep.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcsweep import files
from hpcsweep.catalog.columns import Row
from hpcsweep.catalog.models import MODELS
from hpcsweep.conv.shape import NCHW, ConvShape
from hpcsweep.errors import ResultsError
from hpcsweep.importing import predecessor_tables, submission
from hpcsweep.importing.predecessor_tables import Cells, Key
from hpcsweep.importing.submission import ImportedRows
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

if TYPE_CHECKING:
    from torch import Tensor, nn

HOST_COPIES: Final = "host_copies"
_SIDES: Final = {"kernel_size": "kernel", "stride": "stride", "padding": "pad"}
_CHANNELS: Final = ("in_channels", "out_channels")
_STATED: Final = (*_CHANNELS, *_SIDES)
_POWER: Final = ("power_mean_w", "power_std_w", "power_min_w", "power_max_w")
_MOST: Final = 1 << 16  # pixels of a side, and images: more is no measured pass
_NOTES: Final = {
    "twice": ("network", "more than once; the first counts"),
    "unread": ("row", "without size or time left out"),
    "without": ("network", "with times of layers alone"),
    "shapeless": ("layer row", ("without the layer's shape: no network of torchvision has such a "
                                "layer (or torch is not installed)")),
    "means": ("layer row", "without a median: the mean stands for it"),
}  # fmt: skip

Image = tuple["Key", int, int]  # with input and batch size


@dataclass
class _Import:
    """The networks of all tables, by key and sizes; which were written; what was left out."""

    source: str
    networks: dict[Image, Cells] = field(default_factory=dict)
    sizes: dict[Key, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))
    done: set[Image] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)  # of `_NOTES`, and of layers

    def add(self, key: Key, row: dict[str, str]) -> None:
        """Take the row of a network; of two with the same sizes the first counts."""
        size = predecessor_tables.number(row["input_size"])
        batch = predecessor_tables.number(row["batch_size"])
        times = predecessor_tables.times(row)
        if size is None or batch is None or "mean_ms" not in times:
            self.counts["unread"] += 1
            return
        image = key, int(size), int(batch)
        if image in self.networks:
            self.counts["twice"] += 1
            return
        energy = predecessor_tables.number(row.get("energy_per_inference_j"))
        more = {"energy_j": energy, "energy_method": "sampled power"} if energy else {}
        power = {name: predecessor_tables.number(row.get(name)) for name in _POWER}
        self.networks[image] = {**times, **more, **power}
        self.sizes[key].setdefault(int(size), int(batch))

    def write_pass(self, file: ImportedRows, key: Key, rows: Sequence[dict[str, str]]) -> None:
        """Write a network with its layers, unless it was."""
        size = int(predecessor_tables.number(rows[0].get("input_size")) or 0)
        image = key, size, self.sizes.get(key, {}).get(size, 1)
        if image in self.done:
            self.counts["twice"] += 1
        else:
            self.counts["without"] += image not in self.networks
            self.write(file, image, rows)

    def write(self, file: ImportedRows, image: Image, rows: Sequence[dict[str, str]] = ()) -> None:
        """Write a network, and its layers where a table has them."""
        key, size, batch = image
        own = {
            "model": key.model, "algorithm": key.algorithm, "gpu": key.device,
            "input_size": size, "batch_size": batch,
        }  # fmt: skip
        point = submission.point(self.source, own)
        layers = [self._layer(index, image, row) for index, row in enumerate(rows)]
        file.commit(point, self.networks.get(image, {}), layers, HOST_COPIES, valid=True)
        self.done.add(image)
        self.counts["layers"] += len(layers)

    def _layer(self, index: int, image: Image, row: dict[str, str]) -> Row:
        """Return a layer row."""
        times = predecessor_tables.times(row)
        stated = tuple(row.get(name) or "" for name in _STATED)
        has_shape, shape = _geometry(image[0].model, *image[1:], row["layer"], stated)
        self.counts["shapeless"] += not has_shape
        if "median_ms" not in times and "mean_ms" in times:
            times["median_ms"] = times["mean_ms"]
            self.counts["means"] += 1
        return {
            **shape, **times, "layer": row["layer"], "call_index": index, "device": image[0].device,
            "op": "conv2d", "direction": "forward",
            "percentage": predecessor_tables.number(row.get("percentage")),
        }  # fmt: skip


def bring(path: Path, sweep_dir: SweepDir, device: str = "") -> tuple[str, tuple[str, ...]]:
    """Write the tables at a path as a submission; return their source and what was left out."""
    read = _Import(path.resolve().stem)
    every = predecessor_tables.find(path)
    of_networks = (predecessor_tables.rows(table, device) for table in every if not table.of_layers)
    for key, row in chain.from_iterable(of_networks):
        read.add(key, row)
    with submission.opened(sweep_dir, read.source) as file:
        of_layers = (
            _passes(predecessor_tables.rows(table, device)) for table in every if table.of_layers
        )
        for key, rows in chain.from_iterable(of_layers):
            read.write_pass(file, key, rows)
        for image in (image for image in read.networks if image not in read.done):
            read.write(file, image)
        if not file.points:
            raise ResultsError(f"{path}: no row with a time in {count(len(every), 'table')}")
    layers = count(read.counts["layers"], "layer row")
    notes = [f"{count(len(every), 'table')}: {count(len(read.done), 'network')}, {layers}"]
    for name, (noun, text) in _NOTES.items():
        notes += [f"{count(number, noun)} {text}"] if (number := read.counts[name]) else []
    notes.append(f"flagged {HOST_COPIES}: its convolutions copy between host and GPU in every call")
    if odd := predecessor_tables.left_out(path):
        notes.append(f"left out {', '.join(odd)}: {files.COPY_IT}")
    return read.source, tuple(notes)


def _passes(
    rows: Iterable[tuple[Key, dict[str, str]]],
) -> Iterator[tuple[Key, list[dict[str, str]]]]:
    """Yield the layer rows of one pass after the other: of one image, each layer once."""
    for (key, _), of_image in groupby(rows, lambda pair: (pair[0], pair[1].get("input_size"))):
        own: list[dict[str, str]] = []
        for _, row in of_image:
            if own and row["layer"] == own[0]["layer"]:
                yield key, own
                own = []
            own.append(row)
        yield key, own


@lru_cache(maxsize=65536)
def _geometry(
    model: str, size: int, batch: int, layer: str, texts: tuple[str, ...]
) -> tuple[bool, Row]:
    """Return whether a layer's shape is known, and its cells.

    The network has it if channels, kernel, stride and padding are those that the row states.
    """
    stated = _cells_of(dict(zip(_STATED, texts, strict=True)))
    shape = _of_image(model, size, batch).get(layer)
    sizes = [name for name, text in stated.items() if text and name not in _SIDES]
    fits = shape and all(str(shape[name]) == stated[name] for name in sizes)
    # no shape: only the same layer of the same image is known to be the same work
    unknown = {**stated, "unique_key": f"conv2d_of_{model}_{size}_n{batch}_{layer}"}
    return (True, shape) if shape and fits else (False, unknown)


def _cells_of(row: dict[str, str]) -> Cells:
    """Return the cells of a shape as far as a row states them; a size is 3, (3, 3) or 3x3."""
    stated: Cells = {name: row[name] for name in _CHANNELS}
    for column, name in _SIDES.items():
        pair = [part.strip() for part in row[column].strip("()[] ").replace("x", ",").split(",")]
        down = pair[0]
        across = pair[-1] or pair[0]
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

        from hpcsweep.measure import models  # noqa: PLC0415 - it needs torch
    except ImportError:
        return None
    with torch.device("meta"):
        network = models.build_float32(model, enliven=False)
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
