"""What TAB offers: the names that exist now, in the folder and with the options typed so far."""

from __future__ import annotations

import pytest

from localruns import completed_by_bash


def offered(desk, line):
    """Return what is offered for the last word of a line."""
    words = line.split(" ")
    answer = desk.run_process(  # click writes bytes
        _HPCSWEEP_COMPLETE="bash_complete",
        COMP_WORDS=" ".join(words),
        COMP_CWORD=str(len(words) - 1),
    )
    return answer.stdout.split()


def test_sweeps_and_profiles_are_completed_by_name(desk):
    """And files where no name fits."""
    assert offered(desk, "hpcsweep submit quick") == ["plain,quickstart"]
    assert offered(desk, "hpcsweep submit quickstart --cluster h1") == ["plain,h100"]
    assert offered(desk, "hpcsweep submit ./mi") == ["file,./mi"]
    assert offered(desk, "hpcsweep sub") == ["plain,submit"]


def test_what_was_measured_is_completed(measured):
    """Sweeps by their results, wherever these are."""
    desk = measured
    for command in ("collect", "show"):
        assert offered(desk, f"hpcsweep {command} sw") == ["plain,sweep"]
    assert offered(desk, "hpcsweep --results nowhere collect sw") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(desk, shell):
    """As the documentation says; bash runs it here."""
    script = desk.run_process(_HPCSWEEP_COMPLETE=f"{shell}_source").stdout
    assert "_HPCSWEEP_COMPLETE" in script
    if shell == "bash":
        assert "hpcsweep" in completed_by_bash(script)
