"""Blocks that are read from where rows say, and checksums."""

from __future__ import annotations

from pathlib import Path

import pytest

import resultsfolder
from hpcsweep.errors import ResultsError, Unread
from hpcsweep.store import seals
from hpcsweep.store.folders import ShardPath
from hpcsweep.store.seals import OURS, Blocks, Heads
from hpcsweep.store.shards import ShardWriter


@pytest.fixture
def full(tmp_path: Path) -> ShardPath:
    """Return a shard with every point in it."""
    folder = tmp_path / "shards" / "s1"
    folder.mkdir(parents=True)
    shard = ShardPath(folder, 0, 0)
    with ShardWriter(shard) as writer:
        for point in resultsfolder.points_of(tmp_path):
            resultsfolder.commit(writer, point, shard)
    return shard


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 10), (10**15, 10), (0, 10**15), (0, -5), (10**30, 1), (3, 10**30)]
)
def test_a_place_that_does_not_exist_is_damage(full: ShardPath, offset: int, length: int) -> None:
    """A damaged row may name any place; nobody asks for a petabyte."""
    with Blocks() as blocks, pytest.raises(ResultsError, match="damaged"):
        blocks.read(full.layers, offset, length)


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_few_files_are_open_however_many_are_read(tmp_path: Path) -> None:
    """A thousand shards must not exhaust the file descriptors."""
    paths = [tmp_path / f"{number}.csv" for number in range(40)]
    for path in paths:
        path.write_text(f"{path.name}\n")
    with Blocks(limit=3) as blocks:
        before = _open_files()
        for path in paths + paths[::-1]:
            assert blocks.read(path, 0, path.stat().st_size) == f"{path.name}\n".encode()
        assert _open_files() <= before + 3
    assert _open_files() == before


def test_what_is_gone_is_damage_and_what_cannot_be_read_is_not(full: ShardPath) -> None:
    """The second may be read the next time."""
    full.layers.unlink()
    full.samples.unlink()
    full.samples.mkdir()
    with Blocks() as blocks:
        with pytest.raises(ResultsError, match="No such file") as caught:
            blocks.read(full.layers, 0, 10)
        assert not isinstance(caught.value, Unread)
        with pytest.raises(Unread, match="Is a directory"):
            blocks.read(full.samples, 0, 10)


TEXT, LAYERS, SAMPLES = b"0123,ok,resnet18,", b"0123,conv1,1.5\n", b"0123,0,2.25\n"
OTHER = Heads((*OURS.columns[:-6], "new", *OURS.columns[-5:]), OURS.layers)


def sealed(heads: Heads = OURS, layers: bytes = LAYERS) -> bytes:
    """Return a row with its checksum."""
    return TEXT + seals.seal(TEXT, heads, layers, SAMPLES)


def test_the_checksum_covers_row_layers_samples_and_headers() -> None:
    """One changed byte anywhere is noticed."""
    line = sealed()
    assert seals.fits(line, OURS, LAYERS, SAMPLES)
    assert not seals.fits(line.replace(b"18", b"50"), OURS, LAYERS, SAMPLES)
    assert not seals.fits(line, OURS, LAYERS.replace(b"1.5", b"1.4"), SAMPLES)
    assert not seals.fits(line, OURS, LAYERS, SAMPLES.replace(b"2.25", b"2.24"))
    assert not seals.fits(line[:-1], OURS, LAYERS, SAMPLES)
    assert not seals.fits(line, OTHER, LAYERS, SAMPLES)
    assert not seals.fits(line, OURS._replace(layers=OURS.layers[::-1]), LAYERS, SAMPLES)


def test_a_row_without_layers_does_not_depend_on_their_header() -> None:
    """Failed points have none; damage there must not cost them."""
    line = sealed(layers=b"")
    assert seals.fits(line, OURS, b"", SAMPLES)
    assert seals.fits(line, OURS._replace(layers=("damaged",)), b"", SAMPLES)
    assert not seals.fits(line, OTHER, b"", SAMPLES)
