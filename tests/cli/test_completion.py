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
    """Sweeps by their results, wherever these are; points by the ids of the sweep."""
    desk = measured
    for command in ("collect", "show"):
        assert offered(desk, f"hpcsweep {command} sw") == ["plain,sweep"]
    assert offered(desk, "hpcsweep --results nowhere collect sw") == []
    known = {row["point_id"] for row in desk.rows()}
    assert {word.removeprefix("plain,") for word in offered(desk, "hpcsweep show sweep ")} == known
    first = min(known)
    assert offered(desk, f"hpcsweep retry sweep --point {first[:9]}") == [f"plain,{first}"]


def test_columns_are_completed(layered_desk):
    """Those of the sweep that is named, else all; the last one of several; of layers theirs."""
    known = offered(layered_desk, "hpcsweep report demo --metric mea")
    assert known == ["plain,mean_ms"]
    assert "plain,energy_j" in offered(layered_desk, "hpcsweep plot --y energy")
    one = offered(layered_desk, "hpcsweep compare demo demo --where algorithm=gemm,input_s")
    assert one == ["plain,algorithm=gemm,input_size"]
    assert "plain,unique_key" in offered(layered_desk, "hpcsweep layers demo --where uni")
    assert offered(layered_desk, "hpcsweep report demo --where uni") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_its_script(desk, shell):
    """As the documentation says; bash runs it here."""
    script = desk.run_process(_HPCSWEEP_COMPLETE=f"{shell}_source").stdout
    assert "_HPCSWEEP_COMPLETE" in script
    if shell == "bash":
        assert "hpcsweep" in completed_by_bash(script)
