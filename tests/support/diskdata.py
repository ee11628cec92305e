"""Writes small data sets in the formats that they are published in."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path


def cifar10(root: Path, per_batch: int = 8) -> Path:
    """Write five training batches and a test batch, as the Python version has them."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for number in range(1, 6):
        _batch(folder / f"data_batch_{number}", per_batch, number, "labels", 10)
    _batch(folder / "test_batch", per_batch, 6, "labels", 10)
    return folder


def cifar100(root: Path, images: int = 40) -> Path:
    """Write a training and a test file."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    _batch(folder / "train", images, 1, "fine_labels", 100)
    _batch(folder / "test", 8, 2, "fine_labels", 100)
    return folder


def _batch(path: Path, images: int, seed: int, key: str, classes: int) -> None:
    numbers = np.random.default_rng(seed)
    labels = numbers.integers(0, classes, images).tolist()
    record = {
        "batch_label": path.name,
        key: labels,
        "data": numbers.integers(0, 256, (images, 3072), dtype=np.uint8),
        "filenames": [f"{path.name}_{number}.png" for number in range(images)],
    }
    if key == "fine_labels":
        record["coarse_labels"] = [label // 5 for label in labels]
    path.write_bytes(pickle.dumps(record, protocol=2))
