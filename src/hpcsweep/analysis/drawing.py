"""Opens and writes a picture, and says how all pictures look; what is drawn is said elsewhere.

matplotlib is loaded when something is drawn: most commands draw nothing.
"""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hpcsweep.catalog import ALGORITHMS
from hpcsweep.errors import UsageError
from hpcsweep.store import named_file
from hpcsweep.text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hpcsweep.store.named_file import IsOurs

Axes = Any  # matplotlib's, or one of them: mypy does not know what `subplots` returns

_MARK: Final = "drawn by hpcsweep"
# of each kind of picture: how a file begins, where matplotlib writes our mark, and how it looks
_KINDS: Final = {
    ".png": (b"\x89PNG", "Software", f"Software\0{_MARK}".encode()),
    ".svg": (b"<?xml", "Creator", f"<dc:title>{_MARK}".encode()),
    ".pdf": (b"%PDF", "Creator", f"/Creator ({_MARK}".encode()),
}
# Okabe and Ito's eight, which colour-blind readers tell apart, then four darker ones.
COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999933", "#000000",
    "#332288", "#882255", "#117733", "#661100",
)  # fmt: skip
# so many markers differ as there are colours
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
# grey in place of black, which nobody sees on the page's dark background
PALETTE: Final = tuple(colour.replace("#000000", "#8c8c8c") for colour in COLOURS)
# text stays text, to search and edit; a dollar in a name begins no formula
_TEXT: Final = {"svg.fonttype": "none", "pdf.fonttype": 42, "text.parse_math": False}
# inches; a column of a paper is narrower (3.3 to 3.5), a whole page of it wider (6.5 to 7)
_WIDE: Final = 6.0


@dataclass(frozen=True)
class Look:
    """The size of a picture in inches, of its text in points, its resolution and its surroundings.

    A narrow one is for a column of a paper, whose caption says title and machine.
    """

    width: float = 8.5
    height: float | None = None
    font: float = 10.0
    dpi: int = 110

    @property
    def titled(self) -> bool:
        return self.width >= _WIDE


LOOK: Final = Look()


def styles(names: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return colour and marker of each name; algorithms have the same in every picture."""
    every = list(names)
    taken = {ALGORITHMS[name].place for name in every if name in ALGORITHMS}
    free = itertools.cycle(sorted({*range(len(COLOURS))} - taken) or [0])
    found = {}
    for name in dict.fromkeys(every):
        place = ALGORITHMS[name].place if name in ALGORITHMS else next(free)
        found[name] = (PALETTE[place], MARKERS[place])
    return found


def check_picture(path: Path) -> None:
    """Raise `UsageError` where a picture cannot be written, before anything is computed."""
    if path.suffix.lower() not in _KINDS:
        raise UsageError(f"{path}: pictures end in {', '.join(_KINDS)}; values in .csv")
    named_file.check(path, _is_picture(path))


def _is_picture(path: Path) -> IsOurs:
    begin, _key, mark = _KINDS[path.suffix.lower()]
    return lambda text: text.startswith(begin) and mark in text


@contextmanager
def picture(path: Path, look: Look, height: float) -> Iterator[Figure]:
    """Write what is drawn meanwhile; the suffix says which kind of picture.

    `UsageError` where labels leave no room, or the file cannot be written.
    """
    from matplotlib import rc_context  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    check_picture(path)
    height = look.height or height
    # thinner lines of hatching than matplotlib's 1.0, which hide the colour of narrow bars
    style = rc_context({"font.size": look.font, "hatch.linewidth": 0.6, **_TEXT})
    with style, warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied")
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = Figure(figsize=(look.width, height), layout="constrained")
        try:
            yield figure
            _write(figure, path, look.dpi)
        except UserWarning as warning:
            raise UsageError(
                f"{path}: {look.width:g} x {height:g} inches leave no room beside labels and "
                "legend; give more --width or --height, a smaller --font, or fewer lines with "
                "--where"
            ) from warning


def _write(figure: Figure, path: Path, dpi: int) -> None:
    kind = path.suffix.lower()
    drawn = io.BytesIO()
    about = {_KINDS[kind][1]: _MARK}
    figure.savefig(drawn, dpi=dpi, format=kind[1:], metadata=about)
    data = drawn.getvalue()
    if kind == ".svg":  # which is XML: no control characters, and browsers obey some
        data = printable(data.decode()).encode()
    with named_file.writing(path, _is_picture(path)) as file:
        file.write(data)


def add_title(figure: Figure, axes: Axes, look: Look, title: str, machine: str) -> None:
    """Write the title above a picture and the machine below it, where `look` wants them."""
    if look.titled:
        axes.set_title(title, wrap=True)
        if machine:
            figure.supxlabel(machine, fontsize="x-small", color="0.35", wrap=True)


def plain_numbers(axis: Axes) -> None:
    """Label a logarithmic axis 0.1, 1, 10 instead of powers; also 2 and 5 on a short one."""

    def minor(value: float, _place: int) -> str:
        low, high = axis.get_view_interval()
        leading = f"{value:e}"[0]
        # over two decades or more the labels of 2 and 5 would touch each other
        return f"{value:g}" if high < 100 * low and leading in "25" else ""

    axis.set_major_formatter(lambda value, _place: f"{value:g}")
    axis.set_minor_formatter(minor)
