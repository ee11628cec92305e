"""Writes pictures and CSV files, in the same colours and with the same messages everywhere."""

from __future__ import annotations

import csv
import io
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.errors import UsageError
from hpcsweep.text import harmless

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
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
# text stays text, to search and edit; a dollar in a name begins no formula
_TEXT: Final = {"svg.fonttype": "none", "pdf.fonttype": 42, "text.parse_math": False}


@dataclass(frozen=True)
class Look:
    """The size of a picture in inches, and of its text in points."""

    width: float = 8.5
    height: float | None = None
    font: float = 10.0


LOOK: Final = Look()


def check_picture(path: Path) -> None:
    """Raise `UsageError` where a picture cannot be written, before anything is computed."""
    if path.suffix.lower() not in _KINDS:
        raise UsageError(f"{path}: pictures end in {', '.join(_KINDS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")


@contextmanager
def picture(path: Path, look: Look, height: float) -> Iterator[Figure]:
    """Write what is drawn meanwhile; the suffix says which kind of picture.

    Raises:
        UsageError: labels leave no room, or the file cannot be written.

    """
    from matplotlib import rc_context  # noqa: PLC0415 - most commands draw nothing
    from matplotlib.figure import Figure  # noqa: PLC0415

    check_picture(path)
    height = look.height or height
    style = rc_context({"font.size": look.font, "hatch.linewidth": 0.6, **_TEXT})
    with style, warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = Figure(figsize=(look.width, height), layout="constrained")
        try:
            yield figure
            figure.savefig(path, dpi=110)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from error
        except UserWarning as warning:
            raise UsageError(
                f"{path}: {look.width:g} x {height:g} inches leave no room beside labels and "
                "legend; give more --width or --height, a smaller --font, or fewer lines with "
                "--where"
            ) from warning


def caption(figure: Figure, text: str) -> None:
    """Write a line of small text below a picture."""
    if text:
        figure.supxlabel(text, fontsize="x-small", color="0.35", wrap=True)


def csv_text(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV, with cells as in the tables of collect."""
    text = io.StringIO()
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow({name: _cell(value) for name, value in row.items()})
    return text.getvalue()


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows that have the same keys; `UsageError` where the file cannot be written."""
    write_text(path, csv_text(list(rows[0]), rows))


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
    """Label a logarithmic axis 0.1, 1, 10 instead of powers; also 2 and 5 on a short one."""

    def minor(value: float, _place: int) -> str:
        low, high = axis.get_view_interval()
        leading = f"{value:e}"[0]
        return f"{value:g}" if high < 100 * low and leading in "25" else ""

    axis.set_major_formatter(lambda value, _place: f"{value:g}")
    axis.set_minor_formatter(minor)
