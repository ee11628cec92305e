"""The checksum of a row: what it covers, and which headers it proves."""

from __future__ import annotations

from hpcsweep.store import seals
from hpcsweep.store.seals import OURS, Heads

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
