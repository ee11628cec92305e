"""``python -m hpcsweep``: the same as the command `hpcsweep`."""

import os
import sys

if sys.path[0] in {"", os.getcwd()}:  # noqa: PTH109 - the working directory: its modules come last
    sys.path.append(sys.path.pop(0))

from hpcsweep.cli import run

run()
