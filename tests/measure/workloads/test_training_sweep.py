"""A training sweep through the command line: file to table, bad points and all."""

from __future__ import annotations

import csv
import json
import math
import re

import pytest

import diskdata
import resultsfolder
from hpcsweep import environment
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
  - {model: "tinynets:Residual", dataset: "owndatasets:raises", input_size: 16}
  - {model: "tinynets:Residual", amp: fp16, input_size: 16}
  - {model: "tinynets:Residual", dataset: "owndatasets:damaged", input_size: 16, num_workers: 1}
  - {model: "tinynets:Residual", dataset: "owndatasets:no_class", input_size: 16, num_workers: 1}
  - {model: "tinynets:Residual", dataset: "owndatasets:good", input_size: 16, num_workers: 1}
  - {model: "tinynets:Residual", dataset: cifar10, input_size: 16, num_workers: 1}
  - {model: "tinynets:Residual", dataset: cifar100, input_size: 16, batch_size: 10,
     steps_per_epoch: 3}
measure: {warmup: 1, iterations: 2, layers: true, profile: [cprofile]}
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Return a desk where the sweep was run, and what the command said."""
    desk = Desk(tmp_path_factory.mktemp("training"))
    folder = desk.folder / "data"
    (diskdata.cifar10(folder) / "test_batch").write_bytes(b"no batch")
    env = {"PYTHONPATH": str(SUPPORT), environment.DATA: str(folder)}
    done = desk.run("submit", desk.spec(SWEEP), "--cluster", "local", **env)
    assert desk.run("collect").returncode == 0, done.stderr
    return desk, done


@pytest.fixture(scope="module")
def rows(ran):
    """Return the rows of the table by data set; of the two learning rates, the last one's."""
    return resultsfolder.overall(ran[0].sweep())


def _of(rows, **cells):
    (row,) = [r for r in rows if all(r[name] == value for name, value in cells.items())]
    return row


def test_a_training_sweep_runs_from_file_to_table(ran, rows):
    """Every point has its status, and the command's exit code says that some failed."""
    desk, done = ran
    assert done.returncode == 3, done.stderr
    statuses = [row["status"] for row in rows]
    assert (len(rows), statuses.count("ok"), statuses.count("error")) == (9, 4, 4)
    reported = desk.run("report")
    assert reported.returncode == 0, reported.stderr
    table = reported.stdout
    assert re.search(r"training, ms of a step \(4 ok.*[,;] 1 unsupported, 4 error\)", table)
    assert "needs a GPU" in _of(rows, amp="fp16")["status_reason"]


def test_lists_and_losses_that_are_no_numbers_survive_the_shards(rows):
    """A training that diverges keeps its times."""
    good, diverged = (_of(rows, lr=rate) for rate in ("0.01", "1e+30"))
    assert len(json.loads(good["epochs_val_accuracy"])) == 2
    assert (good["learning_valid"], diverged["learning_valid"]) == ("true", "false")
    assert not all(map(math.isfinite, json.loads(diverged["epochs_train_loss"])))


def test_layers_of_both_directions_reach_the_table(ran):
    """And the rest of the pass, which is of both."""
    with ran[0].sweep().layers.open(newline="") as file:
        directions = {row["direction"] for row in csv.DictReader(file)}
    assert directions == {"forward", "backward", ""}


@pytest.mark.parametrize(
    ("dataset", "reason"),
    [
        ("owndatasets:raises", "UsageError: dataset 'owndatasets:raises': raised"),
        (
            "owndatasets:damaged",
            "UsageError: dataset 'owndatasets:damaged': training image 5 raised ValueError",
        ),
        ("owndatasets:no_class", "UsageError: dataset 'owndatasets:no_class': "),
        ("cifar10", "UsageError: dataset 'cifar10': "),
    ],
)
def test_a_bad_data_set_costs_its_own_point_alone(rows, dataset, reason):
    """From loader processes, too, the row has one line; the next point runs."""
    bad = _of(rows, dataset=dataset)
    assert bad["status"] == "error"
    assert bad["status_reason"].startswith(reason)
    assert len(bad["status_reason"]) < 300
    assert _of(rows, dataset="owndatasets:good")["status"] == "ok"
    if dataset == "cifar10":
        assert "cifar-10-batches-py is missing or damaged" in bad["status_reason"]
    if dataset == "owndatasets:no_class":
        assert "has label 2; classes are 0 to 1" in bad["status_reason"]


def test_a_data_set_that_is_not_there_is_drawn_and_its_row_says_so(rows):
    """The folder has CIFAR-10, whose row is of it; as many random images stand for CIFAR-100."""
    row = _of(rows, dataset="cifar100")
    assert "synthetic_data" in row["flags"].split(";")
    assert (row["train_samples"], row["val_samples"]) == ("30", "10000")
    assert "synthetic_data" not in _of(rows, dataset="owndatasets:good")["flags"]


def test_artifacts_lie_beside_the_shard_of_a_real_run(ran, rows):
    """The supervisor tells the worker where; the merged table links them."""
    (submission,) = ran[0].sweep().submissions()
    row = _of(rows, dataset="owndatasets:good")
    names = row["artifacts"].split(";")
    assert names == [f"{row['point_id']}.cprofile.{kind}" for kind in ("txt", "pstats")]
    assert all((submission.shards / name).exists() for name in names)
