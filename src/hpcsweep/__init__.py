"""hpcsweep: sweeps of convolutional-network timings over a Slurm cluster, point by point.

In Python, `load` reads the tables of a sweep and `run` measures one on this machine; they load
pandas (of the extra `analysis`). `algorithms` gives a map of algorithms to a network of one's own
program, and `algorithms_used` tells what ran; they load torch. `import hpcsweep` alone takes a few
milliseconds.
"""

from hpcsweep.version import __version__

TYPE_CHECKING = False  # as in `typing`, whose import alone takes 10 ms
if TYPE_CHECKING:
    from hpcsweep.api import Results, load, run
    from hpcsweep.conv.own_program import algorithms, algorithms_used

__all__ = ["Results", "__version__", "algorithms", "algorithms_used", "load", "run"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - and by name, as no module needs `api`

    from hpcsweep import extras  # noqa: PLC0415

    module = "conv.own_program" if name.startswith("algorithms") else "api"
    try:
        return getattr(import_module(f"hpcsweep.{module}"), name)
    except ModuleNotFoundError as error:
        raise extras.missing(error, f"hpcsweep.{name}") or error from None


def __dir__() -> list[str]:
    return [*globals(), *__all__]
