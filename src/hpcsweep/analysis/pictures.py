"""What all pictures share: colours, plain tick labels, and how a file is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hpcsweep.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

KINDS: Final = (".png", ".svg", ".pdf")
# Okabe and Ito's eight, which colour-blind readers tell apart, then four darker ones.
COLOURS: Final = (
    "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#999933", "#000000",
    "#332288", "#882255", "#117733", "#661100",
)  # fmt: skip


def check(path: Path) -> None:
    """Complain about a picture that cannot be written, before anything is computed.

    Raises:
        UsageError: the suffix is not that of a picture, or the folder is not there.

    """
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"{path}: pictures end in {', '.join(KINDS)}")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")


def save(figure: Figure, path: Path) -> None:
    """Write a picture; `UsageError` where the file cannot be written."""
    check(path)
    try:
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from error


def plain_numbers(axis: Any) -> None:  # noqa: ANN401 - matplotlib's Axis
    """Label a logarithmic axis 0.1, 1, 10 instead of powers."""
    axis.set_major_formatter(lambda value, _place: f"{value:g}")
