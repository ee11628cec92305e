"""How hpcsweep's measuring compares with that of other tools.

::

    python -m benchmarks.measurement                       # everything, in some minutes
    python -m benchmarks.measurement flops hooks           # these parts

    flops       operations of networks against torch's FlopCounterMode
    timers      our timer against torch.utils.benchmark and pyperf, on the same functions
    hooks       passes with layer timers against passes without

The tables are Markdown. Times are compared in pairs that lie close together: a cell is the median
of their ratios and, in brackets, an interval that holds it with 95 %; a control is a thing paired
with itself. The first part needs no quiet machine, and the exit code tells whether all is
equal. pyperf is installed into a folder of its own at first.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from typing import Final

import torch

from benchmarks.measurement import flops, hooks, timers

_PARTS: Final = {
    "flops": flops.main,
    "timers": timers.main,
    "hooks": hooks.main,
}


def main() -> int:
    """Print the tables of the parts; return 1 where something differs that must be equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=[*_PARTS], help=f"of {', '.join(_PARTS)}")
    parts = parser.parse_args().parts
    if unknown := set(parts) - set(_PARTS):
        parser.error(f"no such part: {', '.join(unknown)}")
    print(f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
          f"torch {torch.__version__}")  # fmt: skip
    good = True
    for name in parts:
        print(f"\n### {name}\n")
        begin = time.monotonic()
        good &= _PARTS[name]()
        print(f"\n{time.monotonic() - begin:.0f} s")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
