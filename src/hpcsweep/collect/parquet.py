"""Writes the merged tables as Parquet, too: same rows and columns, with types, far fewer bytes.

Cells have seven significant digits, so numbers are float32: as doubles, every bit of them would be
random, and the eight times of a layer row would be nearly all of the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from hpcsweep import extras, files
from hpcsweep.catalog.columns import COLLECTED, LAYERS, OVERALL, SAMPLES
from hpcsweep.errors import ResultsError

if TYPE_CHECKING:
    from hpcsweep.store.rundir import RunDir

_KINDS: Final = {column.name: column.kind for column in (*SAMPLES, *LAYERS, *OVERALL, *COLLECTED)}
_BLOCK: Final = 1 << 25  # bytes; a cell must fit in


def check() -> None:
    """Raise `MissingDependency` where Parquet cannot be written."""
    extras.need("parquet", "--parquet")


def write(run: RunDir) -> list[Path]:
    """Write a Parquet file beside each merged table, and return their paths.

    Raises:
        ResultsError: a table does not hold what its columns say, or a file cannot be written.
    """
    import pyarrow as pa  # noqa: PLC0415 - optional
    from pyarrow import csv, parquet  # noqa: PLC0415

    kinds = {"int": pa.int64(), "float": pa.float32(), "bool": pa.bool_()}
    kinds["time"] = pa.timestamp("ms", "UTC")
    convert = csv.ConvertOptions(
        column_types={name: kinds.get(kind, pa.string()) for name, kind in _KINDS.items()},
        null_values=[""],
        strings_can_be_null=True,
        true_values=["true"],
        false_values=["false"],
    )
    written = []
    for table in filter(Path.exists, (run.overall, run.layers, run.samples)):
        try:
            rows = csv.read_csv(table, csv.ReadOptions(block_size=_BLOCK), convert_options=convert)
        except pa.ArrowInvalid as error:
            raise ResultsError(f"{table}: {error}") from error
        # the digits of times are random: their bytes compress by place, other cells by repetition
        split = [one.name for one in rows.schema if one.type == pa.float32()]
        repeated = [one.name for one in rows.schema if one.type != pa.float32()]
        path = table.with_suffix(".parquet")
        with files.replacing(path) as file:
            parquet.write_table(
                rows, file, compression="zstd", compression_level=15, store_schema=False,
                use_dictionary=repeated, use_byte_stream_split=split,
            )  # fmt: skip
        written.append(path)
    return written
