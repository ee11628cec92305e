"""Cache states."""

from __future__ import annotations

import pytest
import torch

from hpcsweep.measure import caches
from measuring import CPU


def test_hot_prepares_nothing_and_has_one_input():
    """The default leaves the cache alone."""
    assert caches.preparation("hot", CPU)() is None
    assert caches.input_count("hot", CPU, 600_000) == 1


def test_cold_rewrites_a_buffer_of_the_caches_size():
    """What the last pass left is pushed out: every byte of the buffer changes."""
    flush = caches.preparation("cold", CPU)
    (buffer,) = (
        cell.cell_contents
        for cell in flush.__closure__
        if isinstance(cell.cell_contents, torch.Tensor)
    )
    assert buffer.numel() == caches.cache_bytes(CPU)
    flush()
    assert buffer.eq(1).all()


def test_rotated_inputs_outgrow_the_cache():
    """There are enough inputs that the first is gone when its turn comes again."""
    size = caches.cache_bytes(CPU) // 10
    assert caches.input_count("rotated", CPU, size) * size > caches.cache_bytes(CPU)
    assert caches.input_count("rotated", CPU, 1 << 40) == 2


@pytest.mark.parametrize("bytes_of_one", [2048, 12_288, 600_000, 1 << 26])
def test_small_inputs_outgrow_a_large_cache_too(monkeypatch, bytes_of_one):
    """A last-level cache of 50 MB holds 24,000 inputs of 2 kB; the memory for them is bounded."""
    monkeypatch.setattr(caches, "cache_bytes", lambda _device: 50 << 20)
    count = caches.input_count("rotated", CPU, bytes_of_one)
    assert caches.outgrown(CPU, (count - 1) * bytes_of_one + 1)
    assert count * bytes_of_one <= (50 << 20) + 2 * bytes_of_one


def test_what_cannot_outgrow_a_cache_is_told(monkeypatch):
    """The number of inputs is bounded, too."""
    monkeypatch.setattr(caches, "cache_bytes", lambda _device: 50 << 20)
    assert not caches.outgrown(CPU, caches.input_count("rotated", CPU, 16) * 16)


def test_inputs_in_turn_are_drawn_once_and_lie_apart():
    """The first ones are those of fewer; each has memory of its own."""
    drawn = []

    def draw(count):
        drawn.append(count)
        return [torch.full((1, 2, 2, 2), float(n)).to(memory_format=torch.channels_last)
                for n in range(count)]  # fmt: skip

    found = caches.inputs_in_turn(draw, 600)
    assert drawn == [256]
    assert len({x.data_ptr() for x in found}) == len(found) == 600
    assert found[599].is_contiguous(memory_format=torch.channels_last)
    assert [x.mean().item() for x in found[254:258]] == [254, 255, 0, 1]


def test_shared_caches_count_once(tmp_path, monkeypatch):
    """Two cores with an L2 each and one L3 for both; the L1 is no matter."""
    monkeypatch.setattr(caches, "_allowed_cpus", lambda: [0, 1])
    for cpu in (0, 1):
        for index, (level, shared, size) in enumerate(
            [("1", str(cpu), "48K"), ("2", str(cpu), "1024K"), ("3", "0-1", "32M")]
        ):
            folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
            folder.mkdir(parents=True)
            (folder / "level").write_text(level + "\n")
            (folder / "shared_cpu_list").write_text(shared + "\n")
            (folder / "size").write_text(size + "\n")
    assert caches.host_cache_bytes.__wrapped__(tmp_path) == (2 << 20) + (32 << 20)


def test_a_system_that_does_not_say_gets_a_generous_guess(tmp_path, monkeypatch):
    """Without sysfs the buffer is larger than most caches."""
    assert caches.host_cache_bytes.__wrapped__(tmp_path) == 0
    monkeypatch.setattr(caches, "host_cache_bytes", lambda: 0)
    assert caches.cache_bytes(CPU) == 64 << 20
