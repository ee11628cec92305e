"""A training script that knows nothing of hpcsweep: options in, a table at the end.

Its options are those of many such scripts; `train.yaml` beside it sweeps over some of them.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import torch
from torch import nn


def main() -> None:
    """Train a small network on random images, and write a row for each epoch."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out-dir", type=Path, default=Path("out"))
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    labels = torch.randint(4, (1024,))
    images = torch.randn(1024, 3, 8, 8) + labels.view(-1, 1, 1, 1) / 2
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    criterion = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    rows = []
    for epoch in range(args.epochs):
        right = 0
        for batch in torch.randperm(len(labels)).split(args.batch_size):
            output = model(images[batch])
            loss = criterion(output, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right += int((output.argmax(1) == labels[batch]).sum())
        rows.append({"epoch": epoch + 1, "loss": loss.item(), "accuracy": right / len(labels)})
        print(rows[-1])
    args.out_dir.mkdir(parents=True, exist_ok=True)
    with (args.out_dir / "history.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
