"""A process is known by more than its number."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

from hpcsweep import processes


def test_a_process_is_known_by_more_than_its_number():
    """A recycled pid, a zombie, and a process of another boot or container are not it."""
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1)
    who = processes.identity(child.pid)
    assert who.is_alive()
    assert not replace(who, start=who.start - 1).is_alive()
    for elsewhere in (replace(who, boot="another"), replace(who, boot=f"{who.boot} pid:[1]")):
        assert (elsewhere.in_sight(), elsewhere.is_alive()) == (False, False)
    assert replace(who, host="renamed").is_alive()
    child.kill()
    while processes.identity(child.pid).start is not None:
        pass  # until it is a zombie
    assert not who.is_alive()
    child.communicate()
    assert not who.is_alive()
