"""What Slurm last said: it is kept in the cache, and no cache is no reason to fail."""

from __future__ import annotations

import pytest

from hpcsweep.cluster import last_known
from hpcsweep.cluster.sweep_status import LastKnown
from hpcsweep.store.folders import SweepDir

AT = "2026-01-01T00:00:00+00:00"
TOLD = [
    LastKnown("20260101-000000-l40", "0-2,5", "pending", "Resources", AT),
    LastKnown("20260101-000000-l40", "3", "running", "", AT),
]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the folder of the cache, which does not exist yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_what_is_kept_is_recalled_by_submission_and_chunk(tmp_path, cache):
    """Of each sweep for itself, also where two folders have sweeps of one name."""
    one, other = SweepDir(tmp_path / "a/s"), SweepDir(tmp_path / "b/s")
    assert last_known.recall(one) == {}
    last_known.keep(one, TOLD)
    (chunks,) = last_known.recall(one).values()
    assert {chunk: told.state for chunk, told in chunks.items()} == {
        0: "pending", 1: "pending", 2: "pending", 5: "pending", 3: "running",
    }  # fmt: skip
    assert last_known.recall(other) == {}
    last_known.keep(one, [])
    assert last_known.recall(one) == {}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"sweep": "s", "told": 1}', '{"sweep": "s", "told": [{"at": "soon"}]}'],
)
def test_a_damaged_cache_is_an_empty_one(tmp_path, cache, text):
    """It is replaced by the next answer."""
    sweep = SweepDir(tmp_path / "s")
    last_known.keep(sweep, TOLD)
    (file,) = cache.rglob("*.json")
    file.write_text(text)
    assert last_known.recall(sweep) == {}
    file.write_text(file.read_text().replace(AT, "soon"))
    last_known.keep(sweep, TOLD)
    assert last_known.recall(sweep)


def test_an_unreadable_time_and_a_cache_that_cannot_be_written_cost_nothing(tmp_path, cache):
    """There is nothing to show then."""
    sweep = SweepDir(tmp_path / "s")
    last_known.keep(sweep, TOLD)
    (file,) = cache.rglob("*.json")
    file.write_text(file.read_text().replace(AT, "soon"))
    assert last_known.recall(sweep) == {}
    file.unlink()
    file.parent.rmdir()
    file.parent.write_text("no folder")
    last_known.keep(sweep, TOLD)
    assert last_known.recall(sweep) == {}
