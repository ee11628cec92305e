"""A submission that went in, and programs of Slurm that print what a test wants."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from hpcsweep.store.folders import SweepDir
from hpcsweep.store.jobs_file import Queued

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from hpcsweep.store.folders import SubmissionDir


@pytest.fixture
def submission(tmp_path: Path) -> SubmissionDir:
    """Give a submission of two chunks, of which one went in, an hour ago."""
    made = SweepDir(tmp_path / "s").submission("20261121-073323-l40")
    made.path.mkdir(parents=True)
    made.shards.mkdir(parents=True)
    sent = (datetime.now(timezone.utc) - timedelta(hours=1)).isoformat()
    made.append_job(Queued(job_id="7", tasks=1, submitted_at=sent))
    return made


@pytest.fixture
def say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give a function that lets squeue and sacct print recorded lines."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def tell(squeue: str = "", sacct: str = "") -> None:
        for name, text in (("squeue", squeue), ("sacct", sacct)):
            (tmp_path / f"{name}.txt").write_text(text.replace("|", "\x1f"))
            (tmp_path / name).write_text(f"#!/bin/sh\ncat '{tmp_path}/{name}.txt'\n")
            (tmp_path / name).chmod(0o755)

    return tell
