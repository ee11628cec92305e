"""Checkpoints: a training that was interrupted ends as one that was not."""

from __future__ import annotations

import json
import signal

import psutil
import pytest
import torch
from torchvision import datasets

import diskdata
from hpcsweep import environment
from hpcsweep.errors import UsageError
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.workloads import checkpoints
from hpcsweep.measure.workloads.trainer import Result
from measuring import training
from paths import SUPPORT
from waiting import wait_for

LOSSES = ("epochs_train_loss", "epochs_val_loss", "epochs_train_accuracy", "val_loss_before")
NAME = "fedcba9876543210"


class Interrupted(Exception):
    """Stands for whatever ends a process."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return where an attempt's artifacts go."""
    place = tmp_path / "shards" / "first"
    place.mkdir(parents=True)
    monkeypatch.setenv(environment.ARTIFACTS, str(place))
    return place


def _point(epochs=4, *, measure=None, **axes):
    wanted = {"save_every": 1, **(measure or {})}
    return training(epochs=epochs, deterministic=True, amp="bf16", measure=wanted, **axes)


def _interrupt_after(monkeypatch, epochs):
    """Let the training end right after the checkpoint of an epoch."""
    original = checkpoints.Checkpoints.after_epoch

    def after(self):
        original(self)
        if self.trainer.epoch == epochs:
            raise Interrupted

    monkeypatch.setattr(checkpoints.Checkpoints, "after_epoch", after)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_interrupted_training_ends_as_one_that_was_not(folder, monkeypatch, optimizer):
    """Losses and accuracies of every epoch, and the weights, bit by bit; in another attempt."""
    bench = on_device("training", "cpu")
    point = _point(optimizer=optimizer, lr_schedule="cosine", measure={"save_final": True})
    whole = bench.measure(point).row
    weights = torch.load(folder / f"{NAME}.final.pt", weights_only=True)
    for file in folder.iterdir():
        file.unlink()
    with monkeypatch.context() as patched:
        _interrupt_after(patched, 2)
        with pytest.raises(Interrupted):
            bench.measure(point)
    later = folder.parent / "second"
    later.mkdir()
    monkeypatch.setenv(environment.ARTIFACTS, str(later))
    resumed = on_device("training", "cpu").measure(point).row
    assert (resumed["resumed_epoch"], whole["resumed_epoch"]) == (2, None)
    assert {name: resumed[name] for name in LOSSES} == {name: whole[name] for name in LOSSES}
    again = torch.load(later / f"{NAME}.final.pt", weights_only=True)
    assert all(torch.equal(again[name], value) for name, value in weights.items())
    assert (whole["steps"], resumed["steps"]) == (20, 10), "times are of this attempt alone"


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_augmentation_goes_on_as_if_nothing_had_happened(folder, monkeypatch, tmp_path, workers):
    """Crops and flips depend on seed, epoch and image, not on who loads it, nor since when."""
    diskdata.publish(monkeypatch, datasets.CIFAR10, diskdata.cifar10(tmp_path))
    monkeypatch.setenv(environment.DATA, str(tmp_path))
    axes = {"dataset": "cifar10", "input_size": 32, "num_workers": workers}
    whole = on_device("training", "cpu").measure(_point(3, **axes)).row
    for file in folder.iterdir():
        file.unlink()
    with monkeypatch.context() as patched:
        _interrupt_after(patched, 2)
        with pytest.raises(Interrupted):
            on_device("training", "cpu").measure(_point(3, **axes))
    resumed = on_device("training", "cpu").measure(_point(3, **axes)).row
    assert resumed["resumed_epoch"] == 2
    assert resumed["epochs_train_loss"] == whole["epochs_train_loss"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda state: state.pop("validated"),
        pytest.param(lambda state: state["trainer"].clear(), marks=pytest.mark.slow),
        pytest.param(lambda state: state.pop("before"), marks=pytest.mark.slow),
        pytest.param(lambda state: state["learned"][0].update(other=1), marks=pytest.mark.slow),
        lambda state: state["trainer"]["optimizer"]["param_groups"].append({}),
    ],
)
def test_a_checkpoint_that_half_fits_leaves_no_trace(folder, spoil):
    """Told, not used, and the losses are those of a clean start."""
    clean = on_device("training", "cpu").measure(_point(2)).row
    path = folder / f"{NAME}.last.pt"
    state = torch.load(path, weights_only=True)
    state["trainer"]["epoch"] = 1
    spoil(state)
    torch.save(state, path)
    row = on_device("training", "cpu").measure(_point(2)).row
    assert row["resumed_epoch"] is None
    assert row["epochs_train_loss"] == clean["epochs_train_loss"]


def test_a_named_checkpoint_that_is_done_is_told(folder, tmp_path):
    """There is nothing to time."""
    on_device("training", "cpu").measure(_point(2))
    given = tmp_path / "given.pt"
    (folder / f"{NAME}.last.pt").rename(given)
    with pytest.raises(UsageError, match="has 2 epochs already"):
        on_device("training", "cpu").measure(_point(2, measure={"resume_from": str(given)}))


def test_what_is_kept_is_named_and_the_best_is_the_best(folder):
    """Last, best and every second epoch; each can be read."""
    row = on_device("training", "cpu").measure(_point(measure={"save_every": 2})).row
    kept = set(row["artifacts"].split(";"))
    assert kept == {f"{NAME}.{kind}.pt" for kind in ("last", "best", "epoch2", "epoch4")}
    assert {path.name for path in folder.iterdir()} == kept
    best = torch.load(folder / f"{NAME}.best.pt", weights_only=True)
    assert best["best"] == max(row["epochs_val_accuracy"])


@pytest.mark.parametrize(
    ("ends_after", "accuracies", "best_epoch"),
    [
        (1, (0.1, 0.7, 0.9, 0.9, 0.8), 3),
        (3, (0.1, 0.7, 0.9, 0.9, 0.8), 3),
        (2, (0.1, 0.5, 0.9, 0.6, 0.7), 2),  # later ones are worse: it knows of its own epoch, too
    ],
)
def test_the_best_is_that_of_all_attempts(folder, monkeypatch, ends_after, accuracies, best_epoch):
    """Highest accuracy, then lowest loss; an epoch after the interruption must be better still."""
    losses = (3, 2, 1.5, 1.2, 1.0)
    scripted = [Result(*pair) for pair in zip(losses, accuracies, strict=True)]
    evaluate = "hpcsweep.measure.workloads.training.evaluate"
    monkeypatch.setattr(evaluate, lambda trainer, _: scripted[trainer.epoch])
    with monkeypatch.context() as patched:
        _interrupt_after(patched, ends_after)
        with pytest.raises(Interrupted):
            on_device("training", "cpu").measure(_point())
    on_device("training", "cpu").measure(_point())
    best = torch.load(folder / f"{NAME}.best.pt", weights_only=True)
    assert (best["trainer"]["epoch"], best["best"]) == (best_epoch, 0.9)


def test_final_weights_are_what_the_axis_weights_takes(folder, tmp_path):
    """A plain state dict; training starts where the other ended."""
    done = (
        on_device("training", "cpu")
        .measure(_point(measure={"save_every": 0, "save_final": True}))
        .row
    )
    assert done["artifacts"] == f"{NAME}.final.pt"
    weights = tmp_path / "w.pt"
    (folder / f"{NAME}.final.pt").rename(weights)
    next_one = on_device("training", "cpu").measure(
        _point(1, weights=str(weights), measure={"save_every": 0})
    )
    assert next_one.row["val_loss_before"] == pytest.approx(done["val_loss_after"])


def test_without_a_wish_nothing_stays(folder, monkeypatch):
    """A long training writes for interruptions only, and cleans up."""
    monkeypatch.setattr(checkpoints, "AUTOMATIC_SECONDS", 0.0)
    seen = []
    save = torch.save
    monkeypatch.setattr(torch, "save", lambda *told: (seen.append(told), save(*told)))
    row = on_device("training", "cpu").measure(_point(measure={"save_every": 0})).row
    assert len(seen) == 4
    assert (row["artifacts"], list(folder.iterdir())) == ("", [])


def test_a_finished_training_that_is_retried_starts_anew(folder):
    """Its last checkpoint has nothing left to train."""
    bench = on_device("training", "cpu")
    first, second = (bench.measure(_point(2)).row for _ in range(2))
    assert second["resumed_epoch"] is None
    assert second["epochs_train_loss"] == first["epochs_train_loss"]


@pytest.mark.parametrize("content", [b"", b"junk", None])
def test_a_damaged_checkpoint_is_told_and_not_used(folder, capfd, content):
    """Empty, junk, or somebody else's file: the training begins at the beginning."""
    path = folder / f"{NAME}.last.pt"
    if content is None:
        torch.save({"epoch": 1}, path)
    else:
        path.write_bytes(content)
    row = on_device("training", "cpu").measure(_point(2)).row
    assert row["resumed_epoch"] is None
    assert f"not resumed: {path}: is no checkpoint" in capfd.readouterr().err


@pytest.mark.slow
def test_a_named_checkpoint_has_to_fit(folder, tmp_path):
    """One that does not is the point's error, not a silent start from nothing."""
    with pytest.raises(UsageError, match=r"nowhere\.pt: No such file"):
        on_device("training", "cpu").measure(
            _point(measure={"resume_from": str(tmp_path / "nowhere.pt")})
        )
    on_device("training", "cpu").measure(_point(2))
    given = tmp_path / "given.pt"
    (folder / f"{NAME}.last.pt").rename(given)
    row = on_device("training", "cpu").measure(_point(3, measure={"resume_from": str(given)})).row
    assert row["resumed_epoch"] == 2
    other = _point(3, measure={"resume_from": str(given)}, model="resnet18", input_size=32)
    with pytest.raises(UsageError, match="does not fit this training"):
        on_device("training", "cpu").measure(other)


def test_a_full_disk_costs_the_checkpoint_and_not_the_training(folder, monkeypatch):
    """The row names what is missing, and why."""

    def full(*_args, **_kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    row = on_device("training", "cpu").measure(_point(1)).row
    assert f"no {NAME}.last.pt (cannot be written (No space left on device)" in row["artifacts"]


SLOW = """\
workload: training
axes: {model: ["tinynets:Residual"], dataset: ["owndatasets:slow"], input_size: [16], lr: [0.01],
       batch_size: [4], epochs: [4], steps_per_epoch: [6], deterministic: [true], num_threads: [1]}
measure: {warmup: 1, iterations: 1, layers: false, evidence: false, numerics: false, save_every: 1}
"""


@pytest.mark.slow
def test_a_worker_that_is_killed_goes_on_with_the_same_losses(desk, monkeypatch):
    """SIGKILL in the middle of an epoch, through the supervisor, as when memory runs out."""
    monkeypatch.setenv("PYTHONPATH", str(SUPPORT))
    desk.spec(SLOW)
    running = desk.start("submit", "sweep.yaml", "--cluster", "local")
    wait_for(
        "checkpoint of the second epoch",
        lambda: list(desk.results.glob("sweep/shards/*/*.epoch2.pt")),
    )
    children = psutil.Process(running.pid).children(recursive=True)
    forked = [child for child in children if "hpcsweep.node.worker" in child.cmdline()]
    worker = max(forked, key=psutil.Process.create_time)  # the other one is the template
    worker.send_signal(signal.SIGKILL)
    axes = {"dataset": "owndatasets:slow", "epochs": 4, "steps_per_epoch": 6, "deterministic": True}
    whole = on_device("training", "cpu").measure(training(**axes)).row
    running.communicate(timeout=120)
    (found,) = desk.rows()
    assert found["status"] == "ok", found["status_reason"]
    assert int(found["resumed_epoch"]) >= 2
    for name in LOSSES[:3]:
        assert json.loads(found[name]) == whole[name]
