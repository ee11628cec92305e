"""Finds and reads the predecessor's tables: CSV files of networks, and of their layers.

Names are translated: `implicit precomp gemm`, `guess` (the library chooses), `ResNet152`. The
device stands in a column, or in the name of the file or of a folder around it.
"""

from __future__ import annotations

import csv
import io
import math
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from hpcsweep import files
from hpcsweep.catalog import ALGORITHMS, gpus
from hpcsweep.catalog.models import MODELS
from hpcsweep.errors import ResultsError, UsageError, suggest
from hpcsweep.text import cut

_ALSO: Final = {"guess": "auto", "default": "auto", "winograd_non_fused": "winograd_nonfused"}
_MODELS: Final = {re.sub(r"\W|_", "", name): name for name in MODELS}
_GENERIC: Final = {"", "cuda", "gpu"}  # no name of a device
_TIMES: Final = tuple((name, f"{name}_ms") for name in ("mean", "std", "min", "max", "median"))
_SHOWN: Final = 60  # characters of a name that is not known
_OWN: Final = {"point_id"}  # a column that the predecessor does not have
_LAYERS: Final = {"model", "algorithm", "layer", "mean_ms"}
_OVERALL: Final = {"model", "algorithm", "batch_size", "input_size"}
# bytes of a table, and of its first line
_MOST = 4 << 30
_HEADER = 1 << 20

Cells = dict[str, Any]


class Key(NamedTuple):
    """What one measured network is known by."""

    model: str
    algorithm: str
    device: str


@dataclass(frozen=True)
class Table:
    """One file: a table of networks, or of layers."""

    path: Path
    of_layers: bool


def find(path: Path) -> list[Table]:
    """Return the predecessor's tables at a path, by their headers; `UsageError` for none."""
    paths = _files(path)
    if paths == [path]:
        with _text_of(path):  # say what is wrong with it
            pass
    headers = {file: _columns(file) for file in paths}
    if own := next((file for file, columns in headers.items() if columns >= _OWN), None):
        raise UsageError(_refused(own))
    tables = [
        Table(file, of_layers=columns >= _LAYERS)
        for file, columns in headers.items()
        if columns >= _LAYERS or (columns >= _OVERALL and {"mean", "mean_ms"} & columns)
    ]
    if not tables:
        raise UsageError(
            f"{path}: neither a results folder nor tables with the columns "
            f"{', '.join(sorted(_OVERALL))} or {', '.join(sorted(_LAYERS))}"
        )
    return tables


def left_out(path: Path) -> list[str]:
    """Return the names of what lies among the tables and is no regular file."""
    every = _files(path)
    odd = (file for file in every if file.is_symlink() or not (file.is_file() or file.is_dir()))
    return [str(file.relative_to(path)) for file in odd]


def _files(path: Path) -> list[Path]:
    return sorted(path.rglob("*.csv")) if path.is_dir() else [path]


@contextmanager
def _text_of(path: Path) -> Iterator[io.TextIOWrapper]:
    """Open a table, which must be a regular file; `ResultsError` where it cannot be read."""
    with files.opened(path, most=_MOST) as file:
        try:
            yield io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
        except (UnicodeDecodeError, csv.Error) as error:
            raise ResultsError(f"{path}: cannot be read ({error})") from error


def _columns(path: Path) -> set[str]:
    try:
        with _text_of(path) as file:
            return set(next(csv.reader([file.readline(_HEADER)]), []))
    except ResultsError:
        return set()


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


def rows(table: Table, device: str = "") -> Iterator[tuple[Key, dict[str, str]]]:
    """Yield the rows of a table, each with its key; `device` is for tables that name none.

    `ResultsError` where it cannot be read, `UsageError` without a device or known algorithm.
    """
    around = (folder.name for folder in table.path.absolute().parents[:2])
    parts = (part.lower() for part in (table.path.stem, *around))
    named = next(filter(None, map(gpus.by_file_name, parts)), "")
    keys: dict[tuple[str, str, str], Key] = {}
    with _text_of(table.path) as file:
        for row in csv.DictReader(file):
            texts = row["model"] or "", row["algorithm"] or "", row.get("device") or ""
            if texts not in keys:
                plain = texts[2].strip().lower()
                own = "" if plain in _GENERIC else gpus.by_label(plain) or plain
                keys[texts] = _key(table.path, texts[0], texts[1], own or named or device)
            yield keys[texts], row


def _key(path: Path, model: str, algorithm: str, device: str) -> Key:
    if not device:
        raise UsageError(f"{path}: names no device; --device says which it is, such as v100")
    name = re.sub(r"[\s-]+", "_", algorithm.strip().lower())
    name = _ALSO.get(name, name)
    if name not in ALGORITHMS:
        shown = cut(" ".join(algorithm.split()), _SHOWN)
        raise UsageError(f"{path}: unknown algorithm '{shown}'{suggest(name, ALGORITHMS)}")
    plain = re.sub(r"\W|_", "", model.strip().lower())
    return Key(_MODELS.get(plain, model.strip().lower()), name, device)


def times(row: dict[str, str]) -> Cells:
    """Return the times of a row, whose columns may lack their unit."""
    values = ((name, number(row.get(name) or row.get(short))) for short, name in _TIMES)
    return {name: value for name, value in values if value is not None}


def number(text: str | None) -> float | None:
    """Return a finite number; None for anything else."""
    try:
        value = float(text or "nan")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
