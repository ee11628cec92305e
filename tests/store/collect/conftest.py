"""Results folders to collect: with submissions and no rows, or with every point measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import resultsfolder

if TYPE_CHECKING:
    from pathlib import Path

    from resultsfolder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """Return a results folder with one submission of all points, and no rows yet."""
    made = resultsfolder.make(tmp_path)
    made.submit("s1")
    return made


@pytest.fixture
def measured(folder: Folder) -> Folder:
    """Return a results folder with every point measured."""
    folder.measure(folder.shard("s1"))
    return folder
