"""The words of hpcsweep fit one screen, and help on a command is that command's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcsweep.cluster.slurm import call

if TYPE_CHECKING:
    from localruns import Desk


def test_the_words_fit_one_screen(desk: Desk) -> None:
    """24 lines of 80 columns, with the words of which people ask."""
    done = desk.run("help", "words")
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines) < 24, max(map(len, lines)) < 80) == (0, True, True)
    asked = {
        "point",
        "visit",
        "run",
        "control",
        "contended",
        "chunk",
        "orphan",
        "rehearsal",
        "held",
    }
    assert asked <= {line.split(" ")[0] for line in lines}


def test_help_on_a_command_and_on_none(desk: Desk) -> None:
    """The same as with --help; an unknown topic gets the nearest."""
    assert desk.run("help", "submit").stdout == desk.run("submit", "--help").stdout
    assert desk.run("help").stdout == desk.run("--help").stdout
    assert f"[default: ({call.TIMEOUT:g})" in desk.run("--help").stdout
    refused = desk.run("help", "word")
    assert (refused.returncode, "did you mean 'words'?" in refused.stderr) == (2, True)
