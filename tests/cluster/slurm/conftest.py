"""Programs that stand in for Slurm's, and profiles compared with a cluster made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from clusters import CLUSTER
from hpcsweep.cluster.slurm import Place, profile_checks
from hpcsweep.spec import profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Give a function that puts a program of the given name and shell text first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(name: str, text: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return write


@pytest.fixture
def examine(tmp_path):
    """Return a function: a profile's lines, a cluster and sbatch's answer in, all findings out.

    By default sbatch accepts the jobs, and does not say where.
    """

    def examined(text, cluster=CLUSTER, gpu="v100", answer=Place()):  # noqa: B008 - it is frozen
        path = tmp_path / "p.yaml"
        path.write_text(f"gpu: {gpu}\n{text}")
        return profile_checks.examine(profile.load(path), cluster, answer)

    return examined


@pytest.fixture
def look(examine):
    """Return the same function for what is not ok, of jobs of an hour."""

    def not_ok(text, *asked, **answer):
        found = examine(f"time: 60\n{text}", *asked, **answer)
        return [(f.level, f.what, f"{f.detail} -> {f.do}") for f in found if f.level != "ok"]

    return not_ok
