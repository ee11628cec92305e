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
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from hpcsweep.catalog import ALGORITHMS, gpus, limits
from hpcsweep.catalog.columns import IMPOSSIBLE, Row
from hpcsweep.catalog.models import MODELS, REFERENCE_SIZE
from hpcsweep.conv.shape import NCHW, ConvShape
from hpcsweep.errors import ResultsError, UsageError, suggest
from hpcsweep.importing import delimited, submission
from hpcsweep.importing.delimited import TAKEN
from hpcsweep.importing.submission import ImportedRows
from hpcsweep.numerals import ANY, WHOLE
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count, cut

if TYPE_CHECKING:
    from torch import Tensor, nn

HOST_COPIES: Final = "host_copies"
_TABLE: Final = re.compile(r".+\.[ct]sv(\.gz)?")
_OF_LAYERS: Final = {"model", "algorithm", "layer", "mean_ms"}
_OF_NETWORKS: Final = {"model", "algorithm", "batch_size", "input_size"}
_OWN: Final = "point_id"  # a column that the predecessor does not have
_TIMES: Final = ("mean", "std", "min", "max", "median")  # with or without their unit
_FIGURES: Final = {
    "energy_j": "energy_per_inference_j", "power_mean_w": "power_mean_w",
    "power_std_w": "power_std_w", "power_min_w": "power_min_w", "power_max_w": "power_max_w",
}  # fmt: skip
_CHANNELS: Final = ("in_channels", "out_channels")
_SIDES: Final = {"kernel_size": "kernel", "stride": "stride", "padding": "pad"}
_NUMBERS: Final = {
    **dict.fromkeys((*_TIMES, *(f"{name}_ms" for name in _TIMES), "percentage"), ANY),
    **dict.fromkeys(_FIGURES.values(), ANY),
    **dict.fromkeys((*_CHANNELS, "batch_size", "input_size"), WHOLE),
    **dict.fromkeys(_SIDES, delimited.SIZES),
}
_ALSO: Final = {"guess": "auto", "default": "auto", "winograd_non_fused": "winograd_nonfused"}
_MODELS: Final = {re.sub(r"\W|_", "", name): name for name in MODELS}
_NO_DEVICE: Final = {"", "cuda", "gpu"}
_SHOWN: Final = 60  # characters of a name that is not known
_MOST: Final = 1 << 16  # pixels of a side, and images: more is no measured pass
_AGAIN: Final = "of what stands there again"

Cells = Mapping[str, str]


class MeasuredNetwork(NamedTuple):
    """What one measured network is known by; a size that a row lacks is 0."""

    model: str
    algorithm: str
    gpu: str
    input_size: int
    batch_size: int


def bring(path: Path, sweep_dir: SweepDir, device: str = "") -> tuple[str, tuple[str, ...]]:
    """Write the tables at a path as a submission; return their source and what was left out."""
    tables, odd = find(path)
    study = _Study(path.resolve().stem)
    with submission.opened(sweep_dir, study.source, path, tables) as file:
        for table in sorted(tables, key=tables.__getitem__):  # networks first: layers join them
            every = rows(table, device, study.counts)
            if tables[table]:
                study.write_layers(file, every)
            else:
                for network, cells in every:
                    study.counts[study.add(network, cells)] += 1
        delimited.check_taken(path, study.counts)
        for network in study.networks:
            if network not in study.written:
                study.write(file, network, [])
    found = count(len(study.written), "network")
    notes = [f"{count(len(tables), 'table')}: {found}, {count(file.calls, 'layer row')}"]
    if study.shapeless:
        why = "no network of torchvision has such a layer (or torch is not installed)"
        notes.append(f"{count(study.shapeless, 'layer row')} without the layer's shape: {why}")
    notes += [*delimited.account(study.counts), *file.notes()]
    notes.append(f"flagged {HOST_COPIES}: its convolutions copy between host and GPU in every call")
    if odd:
        notes.append(f"left out {', '.join(odd)}: no regular file of text")
    return study.source, tuple(notes)


def find(path: Path) -> tuple[dict[Path, bool], list[str]]:
    """Return the tables at a path, and whether each is of layers; the names of unreadable files.

    `UsageError` where there is none.
    """
    tables = {}
    odd = []
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file != path and not _TABLE.fullmatch(file.name):
            continue
        try:
            with delimited.opened(file) as table:
                columns = set(table.names)
        except ResultsError:
            if file == path:
                raise
            odd.append(str(file.relative_to(path)))
            continue
        if _OWN in columns:
            raise UsageError(
                f"{file}: a table of hpcsweep itself, whose rows are imported from their shards; "
                "import the whole results folder of that sweep, with submissions/ and shards/. "
                "`compare` takes a folder with overall.csv alone"
            )
        if columns >= _OF_LAYERS or columns >= _OF_NETWORKS:
            tables[file] = columns >= _OF_LAYERS
    if not tables:
        raise UsageError(
            f"{path}: neither a results folder nor tables with the columns "
            f"{', '.join(sorted(_OF_NETWORKS))} or {', '.join(sorted(_OF_LAYERS))}"
        )
    return tables, odd


def rows(path: Path, device: str, counts: Counter[str]) -> Iterator[tuple[MeasuredNetwork, Cells]]:
    """Yield the rows of a table; `device` is for tables that name none.

    `counts` has the rows that are left out, by their reason.

    `ResultsError` where it cannot be read, `UsageError` without a device or known algorithm.
    """
    around = (folder.name for folder in path.absolute().parents[:2])
    named = next(filter(None, map(gpus.by_file_name, (path.stem, *around))), device)
    how = "write fractions behind a point, as that program did"
    needed = ("model", "algorithm", "input_size")
    for row in delimited.rows(path, _NUMBERS, how, counts, needed=needed, usual="."):
        own = row.get("device", "").strip().lower()
        gpu = named if own in _NO_DEVICE else own
        sizes = [submission.number(row.get(name)) for name in ("input_size", "batch_size")]
        key = _key(path, row["model"], row["algorithm"], gpu)
        yield MeasuredNetwork(*key, *(int(size or 0) for size in sizes)), row


@lru_cache(maxsize=4096)
def _key(path: Path, model: str, algorithm: str, device: str) -> tuple[str, str, str]:
    """Return our names of a network, an algorithm and a device."""
    if not device:
        raise UsageError(f"{path}: names no device; --device says which it is, such as v100")
    name = submission.as_algorithm(algorithm)
    name = _ALSO.get(name, name)
    if name not in ALGORITHMS:
        shown = cut(" ".join(algorithm.split()), _SHOWN)
        raise UsageError(f"{path}: unknown algorithm '{shown}'{suggest(name, ALGORITHMS)}")
    own = model.strip().lower()
    return _MODELS.get(re.sub(r"\W|_", "", own), own), name, gpus.of_text(device)


class _Study:
    """The networks of all tables, which of them were written, and what became of each row."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.networks: dict[MeasuredNetwork, Row] = {}
        self.written: set[MeasuredNetwork] = set()
        self.counts = Counter[str]()
        self.shapeless = 0  # layer rows
        self._batches: dict[MeasuredNetwork, int] = {}  # the first one, by a network without it

    def add(self, network: MeasuredNetwork, cells: Cells) -> str:
        """Take the row of a network, or return why not; of two with the same sizes the first."""
        times = _times(cells)
        if not (network.input_size and network.batch_size and "mean_ms" in times):
            return "without size or time"
        if network in self.networks:
            return _AGAIN
        figures = {name: submission.number(cells.get(own)) for name, own in _FIGURES.items()}
        method = "sampled power" if figures["energy_j"] else None
        self.networks[network] = {**times, **figures, "energy_method": method}
        self._batches.setdefault(network._replace(batch_size=0), network.batch_size)
        return TAKEN

    def write_layers(
        self, file: ImportedRows, every: Iterator[tuple[MeasuredNetwork, Cells]]
    ) -> None:
        """Write the networks of a table of layers, however that is sorted.

        One without a batch size is of the first network of its kind. Of a layer that stands there
        again the first counts.
        """
        passes = defaultdict[MeasuredNetwork, dict[str, Cells]](dict)
        for known, cells in every:
            batch = known.batch_size or self._batches.get(known, 1)
            network = known._replace(batch_size=batch)
            again = network in self.written or cells["layer"] in passes[network]
            self.counts[_AGAIN if again else TAKEN] += 1
            if not again:
                passes[network][cells["layer"]] = cells
        for network, layers in passes.items():
            if layers:
                self.write(file, network, [_layer(network, cells) for cells in layers.values()])

    def write(self, file: ImportedRows, network: MeasuredNetwork, layers: list[Row]) -> None:
        """Write a network with its layers."""
        self.written.add(network)
        point = submission.point(self.source, network._asdict())
        calls = []
        for index, layer in enumerate(layers):
            self.shapeless += "in_h" not in layer
            calls.append({**layer, "call_index": index})
        totals = self.networks.get(network, {})
        whole = {**totals, "flops": _flops(network)}
        impossible = any(limits.is_impossible({**point.axes, **row}) for row in (whole, *calls))
        file.impossible += impossible
        flags = f"{HOST_COPIES};{IMPOSSIBLE}" if impossible else HOST_COPIES
        file.commit(point, totals, calls, flags, valid=not impossible)


def _flops(network: MeasuredNetwork) -> float | None:
    """Return the operations of a pass as far as they grow with the image."""
    known = MODELS.get(network.model)
    images = network.batch_size * (network.input_size / REFERENCE_SIZE) ** 2
    return known.flops * images if known else None


def _times(cells: Cells) -> Row:
    """Return the times of a row."""
    times: Row = {}
    for name in _TIMES:
        text = cells.get(f"{name}_ms") or cells.get(name)
        # a deviation may be 0
        ms = submission.number(text) if name == "std" else submission.milliseconds(text)
        if ms is not None:
            times[f"{name}_ms"] = ms
    return times


def _layer(network: MeasuredNetwork, cells: Cells) -> Row:
    """Return a layer row, with the shape of its network's layer if that has what the row states."""
    layer = cells["layer"]
    times = _times(cells)
    if "mean_ms" in times:
        times.setdefault("median_ms", times["mean_ms"])
    stated = _stated(cells)
    shape = _shapes(network.model, network.input_size, network.batch_size).get(layer)
    if shape is None or any(str(shape[name]) != text for name, text in stated.items()):
        # only the same layer of the same image is known to be the same work
        image = f"{network.input_size}_n{network.batch_size}"
        shape = {**stated, "unique_key": f"conv2d_of_{network.model}_{image}_{layer}"}
    return {
        **shape, **times, "layer": layer, "device": network.gpu, "op": "conv2d",
        "direction": "forward", "percentage": submission.number(cells.get("percentage")),
    }  # fmt: skip


def _stated(cells: Cells) -> Row:
    """Return the cells of a shape as far as a row states them; a size is 3, (3, 3) or 3x3."""
    stated: Row = {name: cells[name] for name in _CHANNELS if cells.get(name)}
    for column, name in _SIDES.items():
        both = submission.sides(cells.get(column, ""))
        if both is not None:
            down, across = map(str, both)
            stated |= {f"{name}_h": down, f"{name}_w": across}
            stated[column] = submission.pair(down, across)
    return stated


@lru_cache(maxsize=1024)
def _shapes(model: str, size: int, batch: int) -> Mapping[str, Row]:
    """Return the cells of each convolution of a network; nothing where they are not known."""
    network = _network(model)
    if network is None or not (1 <= size <= _MOST and 1 <= batch <= _MOST):
        return {}
    import torch  # noqa: PLC0415 - `_network` found it

    shapes: dict[str, Row] = {}

    def note(name: str, module: nn.Conv2d, inputs: tuple[Tensor, ...], _output: Tensor) -> None:
        shapes[name] = _shape_cells(module, inputs[0])

    hooks = [
        module.register_forward_hook(partial(note, name))
        for name, module in network.named_modules()
        if type(module) is torch.nn.Conv2d
    ]
    try:
        with torch.no_grad():
            network(torch.empty(batch, 3, size, size, device="meta"))
    except (RuntimeError, ValueError):  # the network does not take such images
        return {}
    finally:
        for hook in hooks:
            hook.remove()
    return shapes


@lru_cache(maxsize=1)
def _network(model: str) -> nn.Module | None:
    """Return a network of the catalog without weights; None where it, or torch, is not there."""
    if model not in MODELS:
        return None
    try:
        import torch  # noqa: PLC0415 - only tables of layers need it

        from hpcsweep.measure import model_builder  # noqa: PLC0415 - it needs torch

        with torch.device("meta"):
            network = model_builder.build_float32(model, enliven=False)
    except (ImportError, NotImplementedError):  # RegNets compute with values while they are built
        return None
    for module in network.modules():  # what changes no shape costs most of a pass on this device
        if isinstance(module, (torch.nn.BatchNorm2d, torch.nn.ReLU, torch.nn.Dropout)):
            module.forward = lambda image: image
    return network


def _shape_cells(module: nn.Conv2d, image: Tensor) -> Row:
    """Return the cells of a call; what is added to its output is a parameter, too."""
    shape = ConvShape.of(module, image, NCHW, "cpu")
    row = submission.work_cells(shape)
    if shape.bias:
        row["params"] += shape.out_c
        row["bytes_min"] += shape.out_c * shape.itemsize
    return {name: row[name] for name in row.keys() - {"layer", "dtype", "batch_size"}}
