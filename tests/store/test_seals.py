"""The checksum of a row: what it covers, and which headers it proves."""

from __future__ import annotations

import zlib

from hpcsweep.store import seals
from hpcsweep.store.seals import FIRST, OURS, Heads
from paths import LAYOUT_1

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


def test_a_checksum_of_the_first_release_proves_its_headers_alone() -> None:
    """It covers none, but there was one pair of them only."""
    old = TEXT + b"%08x" % zlib.crc32(TEXT, zlib.crc32(SAMPLES, zlib.crc32(LAYERS)))
    assert seals.fits(old, FIRST, LAYERS, SAMPLES)
    assert not seals.fits(old, OTHER, LAYERS, SAMPLES)
    assert not seals.fits(old, FIRST._replace(layers=FIRST.layers[1:]), LAYERS, SAMPLES)


def test_the_headers_of_the_first_release_are_known() -> None:
    """A column that is added must be named in `columns.LATER`."""
    shards = LAYOUT_1 / "demo/shards"
    heads = [
        {path.read_bytes().partition(b"\n")[0] + b"\n" for path in shards.glob(f"*/*.{name}.csv")}
        for name in ("overall", "layers")
    ]
    assert heads == [{seals.header(names)} for names in FIRST]
    assert all(seals.is_known(*heads) for heads in (OURS, FIRST))
    assert not seals.is_known(*OTHER)
