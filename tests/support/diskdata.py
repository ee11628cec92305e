"""Writes small data sets in the formats that they are published in."""

from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
from torchvision import datasets

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def publish(patch: pytest.MonkeyPatch, kind: Any, folder: Path) -> Path:
    """Let torchvision take the files of a folder for those that were published."""

    def checksum(name: str) -> str:
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    for which in ("train_list", "test_list"):
        patch.setattr(kind, which, [[name, checksum(name)] for name, _ in getattr(kind, which)])
    patch.setattr(kind, "meta", {**kind.meta, "md5": checksum(kind.meta["filename"])})
    return folder


def cifar10(root: Path, per_batch: int = 8) -> Path:
    """Write five training batches and a test batch, as the Python version has them."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for number in range(1, 6):
        _batch(folder / f"data_batch_{number}", per_batch, number, "labels", 10)
    _batch(folder / "test_batch", per_batch, 6, "labels", 10)
    _meta(folder, datasets.CIFAR10, 10)
    return folder


def cifar100(root: Path, images: int = 40) -> Path:
    """Write a training and a test file."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    _batch(folder / "train", images, 1, "fine_labels", 100)
    _batch(folder / "test", 8, 2, "fine_labels", 100)
    _meta(folder, datasets.CIFAR100, 100)
    return folder


def _meta(folder: Path, kind: Any, classes: int) -> None:
    names = [f"class {number}" for number in range(classes)]
    (folder / kind.meta["filename"]).write_bytes(pickle.dumps({kind.meta["key"]: names}))


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
