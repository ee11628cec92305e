"""The optional parts of an installation: pip's extras, their packages, and what they serve."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from hpcsweep.errors import MissingDependency


@dataclass(frozen=True, kw_only=True)
class Extra:
    """An extra of `pip install 'hpcsweep[NAME]'`."""

    packages: Mapping[str, str]  # by what Python imports: the name that pip knows
    serves: str  # what does not work without it


EXTRAS: Final[Mapping[str, Extra]] = {
    "measure": Extra(
        packages={"torch": "torch", "torchvision": "torchvision"},
        serves="measuring with this Python, here or in jobs: no row but those of workload noop; "
        "verify, submit --download",
    ),
    "nvidia": Extra(
        packages={"pynvml": "nvidia-ml-py", "cudnn": "nvidia-cudnn-frontend"},
        serves="engines and plans of cuDNN as algorithms; the columns "
        "gpu_util_pct, sm_clock_mhz_mean, sm_clock_mhz_min, throttle_reasons, "
        "power_limit_w, energy_j, temp_c_start, temp_c_end, and flags of throttling, on GPUs",
    ),
    "analysis": Extra(
        packages={"pandas": "pandas", "scipy": "scipy", "numpy": "numpy"},
        serves="report of repeated visits or several nodes, report --html, layers, best, compare, "
        "plot, roofline, bundle, and hpcsweep.load in Python",
    ),
    "plot": Extra(packages={"matplotlib": "matplotlib"}, serves="pictures of plot and roofline"),
    "predict": Extra(
        packages={"sklearn": "scikit-learn", "threadpoolctl": "threadpoolctl"},
        serves="predict, submit --until-error",
    ),
    "parquet": Extra(packages={"pyarrow": "pyarrow"}, serves="collect --parquet"),
    "submitit": Extra(packages={"submitit": "submitit"}, serves="profiles with launcher: submitit"),
}


def lacking(name: str) -> list[str]:
    """Return the packages of an extra that are not installed, as pip calls them."""
    absent = []
    for module, package in EXTRAS[name].packages.items():
        if importlib.util.find_spec(module) is None:
            absent.append(package)
    return absent


def need(name: str, what: str, other: str = "") -> None:
    """Raise `MissingDependency` if an extra is not installed; `other` is what else to do."""
    absent = lacking(name)
    if absent:
        raise MissingDependency(f"{_words(what, absent[0], name)}{other}")


def missing(error: ModuleNotFoundError, what: str) -> MissingDependency | None:
    """Return what to tell of a module that was not found; None if it is of no extra, nor ours."""
    module = (error.name or "").partition(".")[0]
    if module == "hpcsweep":
        return MissingDependency(f"{what}: this installation has no package {error.name}")
    for name, extra in EXTRAS.items():
        if module in extra.packages:
            return MissingDependency(_words(what, extra.packages[module], name))
    return None


def install(name: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'hpcsweep[{name}]'"


def _words(what: str, package: str, extra: str) -> str:
    return f"{what} needs {package}, which is not installed: {install(extra)}"
