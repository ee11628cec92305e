"""``python -m hpcsweep``: the same as the command `hpcsweep`."""

from hpcsweep.cli import run

run()
