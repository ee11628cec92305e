"""Prints the name of the first GPU that a vendor's library shows to this process, or its error.

A program of `this_machine`, run as a file by a bare Python, so it imports nothing of this package.
Its arguments are a vendor and a path, once for each library that there may be; the first that loads
is asked. Each line is a JSON object, and a later one of a vendor replaces the one before: the first
says that the library was asked at all, should it end this process.
"""

from __future__ import annotations

import ctypes
import json
import sys

# Characters of a device's name: as many as `cudaDeviceProp.name` and `hipDeviceProp_t.name` have.
_NAME = 256
# No status of CUDA or HIP is negative.
CRASHED = -1
# Of each vendor: functions with the same arguments, as cuda.h and hip_runtime_api.h declare them
FUNCTIONS = {
    "nvidia": ("cuInit", "cuDeviceGet", "cuDeviceGetName"),
    "amd": ("hipInit", "hipDeviceGet", "hipDeviceGetName"),
}


def ask(library: ctypes.CDLL, vendor: str) -> tuple[str, int]:
    """Return the first device's name, else the status of the call that failed."""
    init, get, get_name = FUNCTIONS[vendor]
    device = ctypes.c_int()
    name = ctypes.create_string_buffer(_NAME)
    status = int(
        getattr(library, init)(ctypes.c_uint(0))
        or getattr(library, get)(ctypes.byref(device), ctypes.c_int(0))
        or getattr(library, get_name)(name, ctypes.c_int(_NAME), device)
    )
    return ("" if status else name.value.decode("utf-8", "replace")), status


def _tell(vendor: str, library: str, name: str, status: int) -> None:
    answer = {"vendor": vendor, "library": library, "name": name, "status": status}
    print(json.dumps(answer), flush=True)  # noqa: T201 - `this_machine` reads it


def main(arguments: list[str]) -> None:
    """Ask the libraries, one of each vendor."""
    asked = set()
    for vendor, path in zip(arguments[::2], arguments[1::2], strict=True):
        if vendor in asked:
            continue
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        asked.add(vendor)
        _tell(vendor, path, "", CRASHED)
        _tell(vendor, path, *ask(library, vendor))


if __name__ == "__main__":
    main(sys.argv[1:])
