"""Writes pictures, pages and tables to the files that a user names, with the same messages.

Such a file replaces what is not there, is empty, or was written as the same kind of output, and
nothing else; and nothing of a results folder. Pictures and pages have a mark inside, a sweep its
checksum, so that an edited one is kept, and a CSV file its header.
"""

from __future__ import annotations

import csv
import hashlib
import io
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from hpcsweep import files
from hpcsweep.catalog import ALGORITHMS
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.store import folders
from hpcsweep.text import in_sheet, printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Axes = Any  # matplotlib's, or one of them: mypy does not know what `subplots` returns

_MARK: Final = "drawn by hpcsweep"
# of each kind of picture: how a file begins, where matplotlib writes our mark, and how it looks
_KINDS: Final = {
    ".png": (b"\x89PNG", "Software", f"Software\0{_MARK}".encode()),
    ".svg": (b"<?xml", "Creator", f"<dc:title>{_MARK}".encode()),
    ".pdf": (b"%PDF", "Creator", f"/Creator ({_MARK}".encode()),
}
_SUM: Final = b"# written by hpcsweep, checksum "
_MOST: Final = 1 << 28  # bytes; what is larger was not written here
# Okabe and Ito's eight, which colour-blind readers tell apart, then four darker ones.
COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999933", "#000000",
    "#332288", "#882255", "#117733", "#661100",
)  # fmt: skip
# so many markers differ as there are colours
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
PALETTE: Final = tuple(colour.replace("#000000", "#8c8c8c") for colour in COLOURS)  # dark and light
# text stays text, to search and edit; a dollar in a name begins no formula
_TEXT: Final = {"svg.fonttype": "none", "pdf.fonttype": 42, "text.parse_math": False}


def styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return colour and marker of each name; algorithms have the same in every picture."""
    every = list(names)
    places = {name: algorithm.place for name, algorithm in ALGORITHMS.items()}
    taken = {places[name] for name in every if name in places}
    free = [place for place in range(len(COLOURS)) if place not in taken] or [0]
    others = (name for name in every if name not in places)
    places |= {name: free[at % len(free)] for at, name in enumerate(others)}
    return {name: (PALETTE[places[name]], MARKERS[places[name]]) for name in every}


@dataclass(frozen=True)
class Look:
    """The size of a picture in inches, of its text in points, its resolution and its surroundings.

    What is narrower than `WIDE` is for a column of a paper, whose caption says title and machine.
    """

    width: float = 8.5
    height: float | None = None
    font: float = 10.0
    dpi: int = 110

    @property
    def titled(self) -> bool:
        return self.width >= WIDE


WIDE: Final = 6.0  # inches
LOOK: Final = Look()


def check(path: Path, is_ours: Callable[[bytes], bool]) -> Path | None:
    """Return the file to write, None for a device or a pipe; refuse to replace another's file.

    `UsageError` where it is another's file, a folder, or belongs to results.
    """
    with suppress(OSError):
        if _is_stream(path.stat()):
            return None
    real = Path(os.path.realpath(path))
    if real.is_dir():
        raise UsageError(f"{path}: is a folder; name a file in it, such as {path / 'NAME'}")
    if not real.parent.is_dir():
        raise UsageError(f"{path}: No such file or directory: there is no folder {path.parent}")
    if folders.holds_results(real):
        raise UsageError(f"{path}: belongs to the results; choose a place outside of them")
    if real.exists() and not _may_go(real, is_ours):
        text = "exists, and hpcsweep did not write it as this output, or it was edited since"
        raise UsageError(f"{path}: {text}; remove it, or choose another name")
    return real


def _is_stream(state: os.stat_result) -> bool:
    """Say whether a path is a pipe or a terminal, or what stdout or stderr go to."""
    if stat.S_ISREG(state.st_mode):
        with suppress(OSError):  # closed
            return any(os.path.samestat(state, os.fstat(number)) for number in (1, 2))
    return stat.S_ISCHR(state.st_mode) or stat.S_ISFIFO(state.st_mode)


def _may_go(path: Path, is_ours: Callable[[bytes], bool]) -> bool:
    try:
        with files.opened(path, most=_MOST) as file:
            text = file.read(_MOST)
    except ResultsError:
        return False
    return not text or is_ours(text)


@contextmanager
def writing(
    path: Path, is_ours: Callable[[bytes], bool], *, most: int = 0o666
) -> Iterator[IO[bytes]]:
    """Write a file that a user names, whole or not at all; `UsageError` where `check` refuses.

    It gets no rights beyond `most`.
    """
    real = check(path, is_ours)
    try:
        with path.open("ab") if real is None else files.replacing(real, most=most) as file:
            yield file
    except (OSError, ResultsError) as error:
        cause = error.__cause__ if isinstance(error, ResultsError) else error
        raise UsageError(f"{path}: {getattr(cause, 'strerror', None) or error}") from error


def check_picture(path: Path) -> None:
    """Raise `UsageError` where a picture cannot be written, before anything is computed."""
    if path.suffix.lower() not in _KINDS:
        raise UsageError(f"{path}: pictures end in {', '.join(_KINDS)}; values in .csv")
    check(path, _is_picture(path))


def _is_picture(path: Path) -> Callable[[bytes], bool]:
    begin, _key, mark = _KINDS[path.suffix.lower()]
    return lambda text: text.startswith(begin) and mark in text


@contextmanager
def picture(path: Path, look: Look, height: float) -> Iterator[Figure]:
    """Write what is drawn meanwhile; the suffix says which kind of picture.

    `UsageError` where labels leave no room, or the file cannot be written.
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
            kind = path.suffix.lower()
            drawn = io.BytesIO()
            about = {_KINDS[kind][1]: _MARK}
            figure.savefig(drawn, dpi=look.dpi, format=kind[1:], metadata=about)
            data = drawn.getvalue()
            if kind == ".svg":  # which is XML: no control characters, and browsers obey some
                data = printable(data.decode()).encode()
            with writing(path, _is_picture(path)) as file:
                file.write(data)
        except UserWarning as warning:
            raise UsageError(
                f"{path}: {look.width:g} x {height:g} inches leave no room beside labels and "
                "legend; give more --width or --height, a smaller --font, or fewer lines with "
                "--where"
            ) from warning


def head(figure: Figure, axes: Axes, look: Look, title: str, machine: str) -> None:
    """Write the title above a picture and the machine below it, where `look` wants them."""
    if look.titled:
        axes.set_title(title, wrap=True)
        if machine:
            figure.supxlabel(machine, fontsize="x-small", color="0.35", wrap=True)


def csv_text(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as CSV for people, who may open it as a spreadsheet."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(map(in_sheet, names))
    table.writerows([_cell(row.get(name)) for name in names] for row in rows)
    return text.getvalue()


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows that have the same keys; `UsageError` where the file cannot be written."""
    text = csv_text(list(rows[0]), rows).encode()
    head = text[: text.index(b"\n") + 1]
    with writing(path, lambda before: before.startswith(head)) as file:
        file.write(text)


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return in_sheet(value) if isinstance(value, str) else value


def write_sweep(path: Path, text: str) -> None:
    """Write a sweep with its checksum; `UsageError` where the file cannot be written."""
    with writing(path, lambda before: before == _summed(before.rpartition(_SUM)[0])) as file:
        file.write(_summed(text.encode()))


def _summed(text: bytes) -> bytes:
    return text + _SUM + hashlib.sha256(text).hexdigest()[:16].encode() + b"\n"


def plain_numbers(axis: Axes) -> None:
    """Label a logarithmic axis 0.1, 1, 10 instead of powers; also 2 and 5 on a short one."""

    def minor(value: float, _place: int) -> str:
        low, high = axis.get_view_interval()
        leading = f"{value:e}"[0]
        return f"{value:g}" if high < 100 * low and leading in "25" else ""

    axis.set_major_formatter(lambda value, _place: f"{value:g}")
    axis.set_minor_formatter(minor)
