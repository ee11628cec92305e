"""Reads CIFAR-10 and -100 as they are published; downloads them, and weights.

CIFAR's files are pickles, which could run code. Only texts, numbers, lists, dictionaries and arrays
are read from them; without the published checksum a point gets the flag `unverified_data`.

Data sets are below the folder in the environment variable HPCSWEEP_DATA. A cluster profile sets it
(`env: {HPCSWEEP_DATA: /scratch/me/data}`), so that the folder is no part of a point's id. Weights
are in torch's cache, below TORCH_HOME. Only `submit --download` downloads anything.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hpcsweep import environment, messages
from hpcsweep.errors import Refused, UsageError, first_line
from hpcsweep.measure import models

import numpy as np  # isort: skip - torch first: if both are missing, errors name torch

Transform = Callable[[Any], Tensor]
UNVERIFIED: Final = "unverified_data"
_SECONDS: Final = 30.0  # without an answer of the network, which may drop all packets
# classes that an array of a pickle is made of, by any version of numpy
_PLAIN: Final = frozenset({
    ("numpy._core.multiarray", "_reconstruct"), ("numpy._core.numeric", "_frombuffer"),
    ("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode"),
})  # fmt: skip


@dataclass(frozen=True)
class Published:
    """A CIFAR: torchvision's class, its folder, files, the key of labels, and the usual scale."""

    kind: str
    folder: str
    train: tuple[str, ...]
    test: str
    labels: str
    classes: int
    # means and deviations of the channels of the training images, as they are commonly given
    scale: tuple[tuple[float, ...], tuple[float, ...]]


CIFAR: Final[Mapping[str, Published]] = {
    "cifar10": Published(
        *("CIFAR10", "cifar-10-batches-py", tuple(f"data_batch_{n}" for n in range(1, 6))),
        *("test_batch", "labels", 10),
        ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    ),
    "cifar100": Published(
        *("CIFAR100", "cifar-100-python", ("train",), "test", "fine_labels", 100),
        ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    ),
}


class Cifar(Dataset[Any]):
    """The images of batch files, as bytes in memory; `transform` makes them floats."""

    def __init__(self, name: str, files: Iterable[Path], transform: Transform) -> None:
        """Read the files; `UsageError` where one is missing or damaged."""
        batches = [_read_batch(name, file) for file in files]
        self._images = torch.cat([images for images, _, _ in batches])
        self._labels = [label for _, labels, _ in batches for label in labels]
        self.verified = all(verified for _, _, verified in batches)
        self._transform = transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(self._images[index]), self._labels[index]


def is_there(name: str) -> bool:
    """Say whether the folder of data sets has a CIFAR, if there is such a folder."""
    root = os.environ.get(environment.DATA)
    return bool(root) and Path(str(root)).expanduser().joinpath(CIFAR[name].folder).is_dir()


def open_cifar(name: str, size: int) -> tuple[Cifar, Cifar]:
    """Return training data and validation data.

    Training images get a border of 4 pixels, and are cropped and flipped at random; images are
    scaled to sizes other than 32.

    Raises:
        UsageError: the files are not there, or damaged.
    """
    from torchvision import transforms  # noqa: PLC0415 - two seconds that synthetic data don't need

    published = CIFAR[name]
    place = _root(name) / published.folder
    to_float = [
        *([transforms.Resize(size, antialias=True)] if size != 32 else []),
        transforms.ConvertImageDtype(torch.float32),
        transforms.Normalize(*published.scale),
    ]
    augment = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    learned = [place / file for file in published.train]
    return (
        Cifar(name, learned, transforms.Compose([*augment, *to_float])),
        Cifar(name, [place / published.test], transforms.Compose(to_float)),
    )


class _Plain(pickle.Unpickler):
    """Unpickles arrays and plain data; refuses all other classes."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as pickle has it
        module = module.replace("numpy.core", "numpy._core")
        if (module, name) not in _PLAIN:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no plain data")
        return super().find_class(module, name)


def _read_batch(name: str, file: Path) -> tuple[Tensor, list[int], bool]:
    """Return the images (uint8, N x 3 x 32 x 32), the labels, and whether they are as published."""
    published = CIFAR[name]
    advice = f"get {name} on a login node: hpcsweep submit SWEEP --download"
    try:
        raw = file.read_bytes()
        images, labels = _parsed(raw, published)
    except FileNotFoundError as error:
        raise UsageError(f"dataset '{name}': no {file}; {advice}") from error
    except OSError as error:
        raise UsageError(f"dataset '{name}': {file}: {error.strerror or error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        what = f"{type(error).__name__}: {error}"
        raise UsageError(f"dataset '{name}': {file} is damaged ({what}); {advice}") from error
    source = _torchvision(name)
    checksum = hashlib.md5(raw, usedforsecurity=False).hexdigest()
    return images, labels, checksum in {known for _, known in source.train_list + source.test_list}


def _parsed(raw: bytes, published: Published) -> tuple[Tensor, list[int]]:
    batch = _Plain(io.BytesIO(raw), encoding="latin1").load()
    images = torch.from_numpy(np.array(batch["data"])).view(-1, 3, 32, 32)
    labels = [int(label) for label in batch[published.labels]]
    if images.dtype != torch.uint8 or not len(labels) == len(images) > 0:
        raise ValueError(f"{len(images)} images of {images.dtype}, {len(labels)} labels")
    if not {*labels} <= {*range(published.classes)}:
        raise ValueError(f"labels are 0 to {published.classes - 1}")
    return images, labels


def _torchvision(name: str) -> Any:  # noqa: ANN401 - torchvision's class
    from torchvision import datasets  # noqa: PLC0415

    return getattr(datasets, CIFAR[name].kind)


def _root(name: str, env: Mapping[str, str] = os.environ) -> Path:
    folder = env.get(environment.DATA)
    if not folder:
        raise UsageError(
            f"dataset '{name}': {environment.DATA} is not set; name the folder of your data sets "
            f"in the cluster profile: env: {{{environment.DATA}: /a/folder}}"
        )
    return Path(folder).expanduser()


def get_data(name: str, env: Mapping[str, str]) -> None:
    """Download CIFAR to the folder of jobs with these variables; do nothing for other data.

    Raises:
        UsageError: no folder is named, or the download failed.
        Refused: this process is a job of a scheduler.
    """
    if name not in CIFAR:
        return
    _refuse_in_job("data")
    folder = _root(name, {**os.environ, **env})
    try:
        with _patient():
            _torchvision(name)(str(folder), download=True)
    except (OSError, RuntimeError) as error:
        reason = first_line(error)
        raise UsageError(f"data '{name}': cannot be downloaded to {folder}: {reason}") from error
    messages.progress(f"{name} is in {folder / CIFAR[name].folder}")


def _refuse_in_job(what: str) -> None:
    if "SLURM_JOB_ID" in os.environ:
        raise Refused(f"{what} are not downloaded in a job; run this on a login node")


def get_weights(wanted: Iterable[tuple[str, str]], home: Mapping[str, str]) -> None:
    """Download missing weights, each a network and a name of torchvision.

    `home` has the TORCH_HOME of the jobs, if their profile sets it.

    Raises:
        UsageError: there are no such weights, or some could not be downloaded.
        Refused: this process is a job of a scheduler.
    """
    _refuse_in_job("weights")
    urls = {models.weights_url(*pair): pair for pair in wanted}
    with _torch_home(home), _patient():
        failed = list(filter(None, (_got(url, *pair) for url, pair in urls.items())))
    if failed:
        advice = "without a network, copy the files from a machine that has one to these places"
        failed.append(f"{len(failed)} of {len(urls)} are missing; {advice}")
        raise UsageError("\n".join(failed))


@contextmanager
def _patient() -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


@contextmanager
def _torch_home(home: Mapping[str, str]) -> Iterator[None]:
    before = os.environ.pop("TORCH_HOME", None)
    os.environ.update(home)
    try:
        yield
    finally:
        os.environ.pop("TORCH_HOME", None)
        os.environ.update({} if before is None else {"TORCH_HOME": before})


def _got(url: str, model: str, name: str) -> str:
    """Download weights unless they exist; return a message if that fails."""
    file = models.cached_weights(url)
    done = "are there"
    try:
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            digits = torch.hub.HASH_REGEX.search(file.name)
            torch.hub.download_url_to_file(url, str(file), digits and digits[1], progress=False)
            done = "were downloaded"
    except (OSError, RuntimeError) as error:
        return f"weights {name} of {model}: {first_line(error)}\n   {url} -> {file}"
    messages.progress(f"weights {name} of {model} {done}: {file}")
    return ""


def problem(model: str, name: str) -> dict[str, str]:
    """Return why weights are `wrong`, or which file of them is `missing`."""
    try:
        file = models.cached_weights(models.weights_url(model, name))
    except UsageError as error:
        return {"wrong": str(error).partition(": ")[2]}
    return {} if file.is_file() else {"missing": f"{file} is not there"}
