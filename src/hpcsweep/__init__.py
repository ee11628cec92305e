"""hpcsweep: sweeps of convolutional-network timings over a Slurm cluster, point by point.

In Python, `load` reads the tables of a sweep and `run` measures one on this machine. They load
pandas, so that `import hpcsweep` alone takes a few milliseconds.
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

    return getattr(import_module("hpcsweep.api"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
