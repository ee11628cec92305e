"""Tables as the predecessor wrote them: of networks, and of their layers, image after image."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

NETWORKS = [
    "model", "algorithm", "batch_size", "input_size", "mean", "std", "min", "max", "median",
    "power_mean_w", "power_std_w", "power_min_w", "power_max_w", "energy_per_inference_j", "device",
]  # fmt: skip
LAYERS = [
    "model", "algorithm", "input_size", "layer", "in_channels", "out_channels", "kernel_size",
    "stride", "padding", "mean_ms", "std_ms", "percentage",
]  # fmt: skip
ALGORITHMS = (
    "guess", "gemm", "implicit gemm", "implicit precomp gemm", "direct", "fft", "fft tiling",
    "winograd", "winograd nonfused",
)  # fmt: skip
MODELS = ("ResNet152", "VGG16", "DenseNet121", "GoogLeNet")


def time_of(algorithm: str, device: str, size: int, layer: int) -> float:
    """Return the time of a layer: exact, so that a test knows what comes of it."""
    slow = 1.0 if algorithm == "guess" else 1.25 if layer % 2 else 0.75
    return slow * (layer + 1) * size / 1000 * (2.0 if device == "V100" else 1.0)


def layer_rows(
    model: str, algorithm: str, device: str, sizes: Iterable[int], layers: int
) -> list[list[object]]:
    """Return the rows of a table of layers: those of one image after those of the one before."""
    return [
        [
            model, algorithm, size, f"conv{layer}", 64, 64,
            "(3, 3)", "(1, 1)", 1, f"{time_of(algorithm, device, size, layer):.6f}", "0.0001", "5",
        ]
        for size in sizes
        for layer in range(layers)
    ]  # fmt: skip


def network_rows(
    model: str, algorithm: str, device: str, sizes: Iterable[int], layers: int
) -> list[list[object]]:
    """Return the rows of a table of networks."""
    rows: list[list[object]] = []
    for size in sizes:
        whole = sum(time_of(algorithm, device, size, layer) for layer in range(layers))
        times = (whole, 0.01, whole * 0.9, whole * 1.5, whole)
        rows.append([model, algorithm, 1, size, *times, 80.0, 2.0, 70.0, 90.0, 1.5, device])
    return rows


def write(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(columns)
        table.writerows(rows)


def folder(
    path: Path, names: Sequence[tuple[str, str, str]], sizes: Sequence[int], layers: int
) -> int:
    """Write a table of layers for each model, algorithm and device, and one of all networks.

    The device of a table of layers stands in its name alone. Return how many layer rows there are.
    """
    path.mkdir()
    networks: list[list[object]] = []
    count = 0
    for model, algorithm, device in names:
        rows = layer_rows(model, algorithm, device, sizes, layers)
        name = f"{model}_{algorithm.replace(' ', '_')}_{device}_layers.csv"
        write(path / name, LAYERS, rows)
        networks += network_rows(model, algorithm, device, sizes, layers)
        count += len(rows)
    write(path / "combined_overall.csv", NETWORKS, networks)
    return count
