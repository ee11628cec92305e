"""Writes pictures and CSV files, in the same colours and with the same messages everywhere."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.errors import UsageError
from hpcsweep.text import harmless

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from matplotlib.figure import Figure

_KINDS: Final = (".png", ".svg", ".pdf")
# Okabe and Ito's eight, which colour-blind readers tell apart, then four darker ones.
COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999933", "#000000",
    "#332288", "#882255", "#117733", "#661100",
)  # fmt: skip


# so many markers differ as there are colours
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
_TEXT: Final = {"svg.fonttype": "none", "pdf.fonttype": 42}  # text stays text, to search and edit


def check_picture(path: Path) -> None:
    """Raise `UsageError` where a picture cannot be written, before anything is computed."""
    if path.suffix.lower() not in _KINDS:
        raise UsageError(f"{path}: pictures end in {', '.join(_KINDS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")


def save(figure: Figure, path: Path) -> None:
    """Write a picture; `UsageError` where the file cannot be written."""
    from matplotlib import rc_context  # noqa: PLC0415 - most commands draw nothing

    check_picture(path)
    try:
        with rc_context(_TEXT):
            figure.savefig(path, dpi=110)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows that have the same keys; `UsageError` where the file cannot be written."""
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            table.writeheader()
            for row in rows:  # true and false as in the tables that collect writes
                table.writerow({name: _cell(value) for name, value in row.items()})
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return harmless(value) if isinstance(value, str) else value


def write_text(path: Path, text: str) -> None:
    """Write a text; `UsageError` where the file cannot be written."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def plain_numbers(axis: Any) -> None:  # noqa: ANN401 - matplotlib's Axis
    """Label a logarithmic axis 0.1, 1, 10 instead of powers."""
    axis.set_major_formatter(lambda value, _place: f"{value:g}")
