"""The cluster that the tests start is real, private and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lab as lab_module
from lab import Lab, LabError, Options, claim_ports, processes
from waiting import wait_for

SCRIPT = str(Path(lab_module.__file__))


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path):
    """A broken configuration is told with the daemon's last words; process and folder are gone."""
    folder = tmp_path / "lab"
    with pytest.raises(LabError, match=r"slurmctld ended[^$]*NoSuchKey"):
        Lab(folder, Options(accounting=False, lines=("NoSuchKey=1",))).start()
    assert not processes(folder)
    assert not folder.exists()


def test_a_folder_that_exists_is_neither_used_nor_removed(tmp_path: Path):
    """Start refuses a folder with something in it; stop does not remove what start did not make."""
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(FileExistsError):
        Lab(tmp_path).start()
    Lab(tmp_path).stop()
    assert (tmp_path / "thesis.tex").exists()


def test_a_killed_test_run_leaves_no_cluster_behind(tmp_path: Path):
    """The guard stops the cluster of a process that died without doing so."""
    folder = tmp_path / "lab"
    program = (
        "import sys, time, pathlib, lab\n"
        f"it = lab.Lab(pathlib.Path({str(folder)!r}), lab.Options(accounting=False)).start()\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(Path(SCRIPT).parent)},
    )
    with owner:
        assert owner.stdout.readline() == b"up\n"
        assert processes(folder)
        owner.kill()
    wait_for("end of all", lambda: processes(folder), enough=lambda pids: not pids)
    wait_for("end of the folder", lambda: not folder.exists())


def test_two_labs_that_start_at_once_get_different_ports(monkeypatch: pytest.MonkeyPatch):
    """Though nobody listens on them yet; what a lab gave back is free again."""
    few = claim_ports(4)
    monkeypatch.setattr(lab_module, "PORTS", list(few))
    with pytest.raises(LabError, match="no free port"):
        claim_ports(1)
    for claim in few.values():
        claim.close()
    again = claim_ports(4)
    for claim in again.values():
        claim.close()
    assert again.keys() == few.keys()
