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


# The child asks for its death when its parent is gone already; it says so if it lives on.
CHILD_OF_A_DYING_PARENT = """\
import os, time
from hpcsweep import processes
ask = processes._prctl
asks, told = os.pipe()
def ask_late(*option):
    os.write(told, b"x")
    while os.getppid() == parent:
        time.sleep(0.01)
    return ask(*option)
processes._prctl, parent = ask_late, os.getpid()
if os.fork():
    os.read(asks, 1)
    os._exit(0)
processes.die_with_parent()
print("lives on")
"""


def test_a_child_whose_parent_dies_while_it_asks_to_die_with_it_ends():
    """The kernel tells only of a parent that dies later."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD_OF_A_DYING_PARENT], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
