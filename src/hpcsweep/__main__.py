"""``python -m hpcsweep``: the same as the command `hpcsweep`."""

import sys
from pathlib import Path

if sys.path[0] in {"", str(Path.cwd())}:  # the working directory: its modules come last
    sys.path.append(sys.path.pop(0))

from hpcsweep.cli import run

run()
