"""Tells which GPU a process here would get, by the library that torch asks; torch is not needed.

Variables hide and order GPUs: CUDA_VISIBLE_DEVICES takes numbers, UUIDs and slices, and CUDA counts
the fastest first unless CUDA_DEVICE_ORDER says otherwise. Only CUDA's driver, or HIP for AMD, knows
what they mean; `nvidia-smi` and `rocm-smi` list every GPU in an order of their own. The library is
asked in a process of its own, since it reads the variables once, and may crash.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hpcsweep.cluster.local import first_device

VENDORS: Final = tuple(first_device.FUNCTIONS)
NO_DEVICE: Final = 100  # CUDA_ERROR_NO_DEVICE, hipErrorNoDevice
_SECONDS: Final = 30.0  # a driver without persistence mode takes some seconds to start


@dataclass(frozen=True, kw_only=True)
class LibraryAnswer:
    """What a vendor's library says: the first device's name, else the status of what failed.

    Without a `library` there is none that loads; the status is -1 if it ended or held its process.
    """

    library: str = ""
    name: str = ""
    status: int = 0


def ask(variables: Mapping[str, str]) -> dict[str, LibraryAnswer]:
    """Return what each vendor's library says to a process with these variables."""
    places = [word for vendor in VENDORS for path in libraries(vendor) for word in (vendor, path)]
    # isolated (-I), without its packages (-S), Python starts in 20 ms; it writes nothing (-B)
    command = [sys.executable, "-I", "-S", "-B", first_device.__file__, *places]
    try:
        told = subprocess.run(
            command,
            env=dict(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired as error:
        told = error.stdout or b""
    answers = dict.fromkeys(VENDORS, LibraryAnswer())
    for line in told.splitlines():
        said = json.loads(line)
        vendor = said.pop("vendor")
        answers[vendor] = LibraryAnswer(**said)
    return answers


def libraries(vendor: str) -> Iterator[str]:
    """Yield where a vendor's library may be; torch's own copy of HIP comes first."""
    if vendor == "nvidia":
        yield "libcuda.so.1"
        return
    torch = importlib.util.find_spec("torch")
    if torch and torch.origin:
        yield str(Path(torch.origin).parent / "lib" / "libamdhip64.so")
    yield "libamdhip64.so"
    yield str(Path(os.environ.get("ROCM_PATH", "/opt/rocm"), "lib", "libamdhip64.so"))
