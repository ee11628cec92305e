"""A training sweep through the command line: file to table, bad points and all."""

from __future__ import annotations

import csv
import json
import math

from localruns import Desk
from paths import SUPPORT

SWEEP = """
workload: training
axes:
  model: ["tinynets:Residual"]
  input_size: [16]
  batch_size: [4]
  epochs: [2]
  steps_per_epoch: [3]
  lr: [0.01, 1.0e+30]
  num_threads: [1]
include:
  - {model: "tinynets:Residual", dataset: "nowhere:make", input_size: 16}
  - {model: "tinynets:Residual", amp: fp16, input_size: 16}
measure: {warmup: 1, iterations: 2, layers: true}
"""


def test_a_training_sweep_runs_from_file_to_table(tmp_path):
    """Lists and losses that are no numbers survive the shards; every point has its status."""
    desk = Desk(tmp_path)
    path = str(SUPPORT)
    done = desk.run("submit", desk.spec(SWEEP), "--cluster", "local", PYTHONPATH=path)
    assert done.returncode == 3, done.stderr
    assert desk.run("collect").returncode == 0
    with desk.sweep().overall.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["status"] for row in rows] == ["error", "unsupported", "ok", "ok"]
    unknown, refused, good, diverged = rows
    assert len(json.loads(good["epochs_val_accuracy"])) == 2
    assert (good["learning_valid"], diverged["learning_valid"]) == ("true", "false")
    assert not all(map(math.isfinite, json.loads(diverged["epochs_train_loss"])))
    assert "dataset 'nowhere:make': cannot import" in unknown["status_reason"]
    assert "needs a GPU" in refused["status_reason"]
    with desk.sweep().layers.open(newline="") as file:
        directions = {row["direction"] for row in csv.DictReader(file)}
    assert directions == {"forward", "backward", ""}
    table = desk.run("report").stdout
    assert "training, ms of a step (2 ok, 1 unsupported, 1 error)" in table
