"""Data sets on disk: in the published formats, whole, damaged and missing."""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from torchvision import datasets
from torchvision.models import SqueezeNet1_1_Weights

import askinghere
import diskdata
from hpcsweep import environment, messages
from hpcsweep.errors import Refused, UsageError
from hpcsweep.measure.data import downloads, loaders
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.model_builder import build_float32, cached_weights
from hpcsweep.submit import questions
from localruns import Desk
from measuring import training

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Return the folder that profiles name."""
    monkeypatch.setenv(environment.DATA, str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_cifar_is_read_as_it_is_published(root, monkeypatch, name, classes):
    """All batches, labels as they are, images of the size asked for."""
    diskdata.publish(monkeypatch, getattr(datasets, name.upper()), getattr(diskdata, name)(root))
    opened = loaders.open_data(training(dataset=name, input_size=48, batch_size=8))
    assert (opened.num_classes, opened.train_samples, opened.val_samples) == (classes, 40, 8)
    images, labels = next(opened.epoch(0))
    assert (tuple(images.shape), images.dtype) == ((8, 3, 48, 48), torch.float32)
    assert all(0 <= label < classes for label in labels.tolist())
    _, val = downloads.open_cifar(name, 32)
    file = {"cifar10": "cifar-10-batches-py/test_batch", "cifar100": "cifar-100-python/test"}[name]
    published = pickle.loads((root / file).read_bytes())
    labels = published["labels" if name == "cifar10" else "fine_labels"]
    assert [label for _, label in val] == labels
    pixels = torch.tensor(published["data"][0]).view(3, -1).float()
    scaled = pixels - pixels.mean(1, keepdim=True)
    found = val[0][0].flatten(1) - val[0][0].flatten(1).mean(1, keepdim=True)
    spread = scaled.std(1, keepdim=True) / found.std(1, keepdim=True)
    torch.testing.assert_close(found * spread, scaled, rtol=1e-4, atol=1e-2)


def test_validation_images_are_always_the_same_and_training_images_are_not(root, monkeypatch):
    """Only training is cropped and flipped at random."""
    diskdata.publish(monkeypatch, datasets.CIFAR10, diskdata.cifar10(root))
    train, val = downloads.open_cifar("cifar10", 32)
    assert torch.equal(val[0][0], val[0][0])
    assert len({train[0][0].sum().item() for _ in range(20)}) > 1


def test_a_training_runs_on_cifar(root, monkeypatch):
    """From files to a row, with loader processes."""
    diskdata.publish(monkeypatch, datasets.CIFAR10, diskdata.cifar10(root))
    wanted = training(dataset="cifar10", input_size=32, num_workers=1, steps_per_epoch=2)
    row = on_device("training", "cpu").measure(wanted).row
    assert (row["train_samples"], row["val_samples"]) == (2 * wanted.axes["batch_size"], 8)
    assert "synthetic_data" not in row["flags"]


def test_where_cifar_is_not_as_many_random_images_are(root, monkeypatch):
    """Whether the folder lacks it or there is no folder; the row has a flag."""
    axes = {"input_size": 2, "batch_size": 100, "steps_per_epoch": None}
    for name, classes in (("cifar10", 10), ("cifar100", 100)):
        opened = loaders.open_data(training(**axes, dataset=name))
        assert (opened.name, opened.flags) == ("synthetic", ("synthetic_data",))
        assert (opened.num_classes, opened.steps, opened.val_samples) == (classes, 500, 10_000)
    monkeypatch.delenv(environment.DATA)
    assert loaders.open_data(training(dataset="cifar10")).flags == ("synthetic_data",)


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return os.system, ("touch evil",)


@pytest.mark.parametrize("damage", [b"", b"not a pickle", "half", "more", "gone"])
def test_a_file_that_is_not_as_it_was_published_is_not_read(root, monkeypatch, damage):
    """Empty, other content, cut, more, missing: the folder, and what to do; nothing of it runs."""
    monkeypatch.chdir(root)
    folder = diskdata.publish(monkeypatch, datasets.CIFAR10, diskdata.cifar10(root))
    file = folder / "data_batch_3"
    if damage == "half":
        damage = file.read_bytes()[: file.stat().st_size // 2]
    elif damage == "more":
        damage = pickle.dumps({**pickle.loads(file.read_bytes()), "data": Evil()})
    file.unlink() if damage == "gone" else file.write_bytes(damage)
    with pytest.raises(UsageError, match=r"cifar-10-batches-py is missing or damaged") as caught:
        loaders.open_data(training(dataset="cifar10"))
    assert str(caught.value).endswith("on a login node: hpcsweep submit SWEEP --download")
    assert not (root / "evil").exists()


def test_a_misspelt_data_set_is_told_before_anything_runs(tmp_path):
    """With file, line, key and the nearest name."""
    desk = Desk(tmp_path)
    desk.spec("workload: training\naxes:\n  model: [resnet18]\n  dataset: [cifar_10]\n")
    done = desk.run("expand", "sweep.yaml")
    assert done.returncode == 2
    assert "sweep.yaml:4: axes.dataset[0]: found 'cifar_10'" in done.stderr
    assert "did you mean 'cifar10'" in done.stderr


def test_nothing_is_downloaded_in_a_job_or_to_nowhere(tmp_path, monkeypatch):
    """Nor is there anything else to download than CIFAR."""
    downloads.get_data("synthetic", {})
    downloads.get_data("mine:data", {})
    monkeypatch.delenv(environment.DATA, raising=False)
    with pytest.raises(UsageError, match="HPCSWEEP_DATA is not set; name the folder"):
        downloads.get_data("cifar10", {})
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with pytest.raises(Refused, match="login node"):
        downloads.get_data("cifar10", {environment.DATA: str(tmp_path)})


def test_cifar_goes_to_the_folder_that_the_profile_names(tmp_path, monkeypatch):
    """Torchvision fetches it; a folder of this environment counts where the profile has none."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setenv(environment.DATA, str(tmp_path / "mine"))
    fetched, told = [], []

    class Fetched(datasets.CIFAR10):
        def __init__(self, root, download):
            fetched.append(root)

    monkeypatch.setattr(datasets, "CIFAR10", Fetched)
    for env in ({environment.DATA: str(tmp_path / "site")}, {}):
        with messages.told_to(told.append):
            downloads.get_data("cifar10", env)
    assert fetched == [str(tmp_path / "site"), str(tmp_path / "mine")]
    assert told[0].text == f"cifar10 is in {tmp_path}/site/cifar-10-batches-py"


WANTED = ("squeezenet1_1", "IMAGENET1K_V1")
SWEEP = f"workload: inference\naxes: {{model: [{WANTED[0]}], weights: [{WANTED[1]}, random]}}\n"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_args: object) -> None:
        """Say nothing."""


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Publish weights on this machine, as torchvision does elsewhere; return the file."""
    folder = tmp_path / "published"
    folder.mkdir()
    draft = folder / "draft.pth"
    torch.save(build_float32(WANTED[0], seed=7).state_dict(), draft)
    digits = hashlib.sha256(draft.read_bytes()).hexdigest()[:8]
    file = draft.rename(folder / f"squeezenet1_1-{digits}.pth")
    handler = functools.partial(_Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/{file.name}"
        monkeypatch.setattr(SqueezeNet1_1_Weights.IMAGENET1K_V1.value, "url", url)
        monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
        monkeypatch.delenv("SLURM_JOB_ID", raising=False)
        yield file
        server.shutdown()


def test_submit_fetches_the_weights_of_a_sweep_to_where_a_point_looks(
    published: Path, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; the second time they are there."""
    monkeypatch.setattr(questions, "asking", askinghere.asking)  # with the URL of this process
    desk.spec(SWEEP)
    place = desk.folder / "home" / "hub" / "checkpoints" / published.name
    for told in ("were downloaded", "are there"):
        done = desk.run("submit", "sweep.yaml", "--download", "--max-gpu-hours", "0")
        assert "exceeds --max-gpu-hours 0" in done.stderr
        assert done.stdout == f"weights IMAGENET1K_V1 of squeezenet1_1 {told}: {place}\n"
    built = build_float32(*WANTED)
    same = build_float32(WANTED[0], seed=7, enliven=False).state_dict()
    assert all(torch.equal(value, same[name]) for name, value in built.state_dict().items())


@pytest.mark.slow
def test_submit_downloads_below_the_torch_home_of_the_profile(published: Path, desk: Desk) -> None:
    """A job has that one; a job of another profile has the user's own."""
    desk.spec(SWEEP)
    (desk.folder / "site.yaml").write_text(
        f"gpu: cpu\nlauncher: sbatch\ntime: 10\nenv: {{TORCH_HOME: {desk.folder}/scratch}}\n"
    )
    clusters = ("--cluster", "site.yaml", "--cluster", "local")
    desk.run("submit", "sweep.yaml", *clusters, "--download", "--max-gpu-hours", "0")
    for home in ("scratch", "home"):
        assert (desk.folder / home / "hub" / "checkpoints" / published.name).is_file()


def test_what_cannot_be_downloaded_is_named_with_its_place(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network somebody has to copy it; a damaged file is none, and leaves nothing."""
    cached, home = cached_weights(published.name), {"TORCH_HOME": os.environ["TORCH_HOME"]}
    published.write_bytes(published.read_bytes()[:-1] + b"x")
    with pytest.raises(UsageError, match=r"invalid hash value"):
        downloads.get_weights([WANTED], home)
    published.unlink()
    with pytest.raises(UsageError) as caught:
        downloads.get_weights([WANTED], home)
    url = SqueezeNet1_1_Weights.IMAGENET1K_V1.value.url
    assert f"{url} -> {cached}" in str(caught.value)
    assert "1 of 1 are missing; without a network, copy the files" in str(caught.value)
    assert not list(cached.parent.iterdir())
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with pytest.raises(Refused, match="login node"):
        downloads.get_weights([WANTED], home)


def test_problems_are_told_for_each_of_several_weights(published: Path) -> None:
    """Missing, unknown, or none."""
    missing, unknown = (downloads.problem(WANTED[0], name) for name in (WANTED[1], "IMAGENET1K_V9"))
    assert missing["wrong"].startswith(f"{cached_weights(published.name)} is not there; ")
    assert unknown["wrong"].startswith(
        "squeezenet1_1 has IMAGENET1K_V1, DEFAULT, a path, or 'random'"
    )
    assert unknown["wrong"].endswith("; did you mean 'IMAGENET1K_V1'?")
    home = {"TORCH_HOME": os.environ["TORCH_HOME"]}
    downloads.get_weights([WANTED], home)
    assert downloads.problem(*WANTED) == {}
