"""Clusters for tests: started once per run, emptied between tests, stopped whatever happens.

A test takes `cluster` (with accounting) or `bare_cluster` (sacct is disabled there), and the
environment then points every Slurm program at it; `special_cluster` starts one with other options.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from uuid import uuid4

import pytest

from lab import Lab, Options, why_not
from labtools import point_at

if TYPE_CHECKING:
    from collections.abc import Iterator


HERE = Path(__file__).parent


class StartCluster(Protocol):
    """What `special_cluster` gives: keyword arguments of `Options` in, a running cluster out."""

    def __call__(self, **options: Any) -> Lab: ...  # noqa: D102


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark everything in this folder `slurm`."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slurm)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `status` remember what Slurm said for as long as a test, not in a person's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def _shared(_slurm_is_here: None) -> Iterator[Lab]:
    yield from _running(Options())


@pytest.fixture(scope="session")
def _shared_bare(_slurm_is_here: None) -> Iterator[Lab]:
    yield from _running(Options(accounting=False, max_array_size=5))


@pytest.fixture(scope="session")
def _slurm_is_here() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def cluster(_shared: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Give an idle cluster with accounting, and point this process at it."""
    yield from _lent(_shared, monkeypatch)


@pytest.fixture
def bare_cluster(_shared_bare: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """Give an idle cluster without accounting, of five tasks an array, and point us at it."""
    yield from _lent(_shared_bare, monkeypatch)


@pytest.fixture
def special_cluster(
    _slurm_is_here: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[StartCluster]:
    """Give a function that starts a cluster with other options, and points this process at it."""
    labs: list[Lab] = []

    def start(**options: Any) -> Lab:
        lab = Lab(_new_directory(), Options(**options)).start()
        labs.append(lab)
        point_at(lab, monkeypatch)
        return lab

    yield start
    for lab in labs:
        lab.stop()


def _running(options: Options) -> Iterator[Lab]:
    lab = Lab(_new_directory(), options).start()
    yield lab
    lab.stop()


def _lent(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    point_at(lab, monkeypatch)
    yield lab
    lab.clear()


def _new_directory() -> Path:
    # Not tmp_path: a socket's path may have 107 characters.
    return Path(tempfile.gettempdir()) / f"hpcsweep-lab-{uuid4().hex[:12]}"
