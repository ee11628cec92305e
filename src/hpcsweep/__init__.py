"""hpcsweep: sweeps of convolutional-network timings over a Slurm cluster, point by point.

In Python, `load` reads the tables of a sweep and `run` measures one on this machine. They load
pandas (of the extra `analysis`), so that `import hpcsweep` alone takes a few milliseconds.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in `typing`, whose import alone takes 10 ms
if TYPE_CHECKING:
    from hpcsweep.api import Results, load, run

__all__ = ["Results", "__version__", "load", "run"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - and by name, as no module needs `api`

    from hpcsweep import extras  # noqa: PLC0415

    try:
        return getattr(import_module("hpcsweep.api"), name)
    except ModuleNotFoundError as error:
        raise extras.missing(error, f"hpcsweep.{name}") or error from None


def __dir__() -> list[str]:
    return [*globals(), *__all__]
