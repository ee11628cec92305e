"""Reads data sets on disk (CIFAR-10 and -100 as published, folders of images); downloads weights.

CIFAR's files are pickles, which could run code. Only texts, numbers, lists, dictionaries and arrays
of bytes are read from them; without the published checksum a point gets the flag `unverified_data`.

Data sets are below the folder in the environment variable HPCSWEEP_DATA. A cluster profile sets it
(`env: {HPCSWEEP_DATA: /scratch/me/data}`), so that the folder is no part of a point's id. Weights
are in torch's cache, below TORCH_HOME. Only `submit --download` downloads anything.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import Dataset

from hpcsweep import messages
from hpcsweep.errors import Refused, UsageError, first_line
from hpcsweep.measure import models

import numpy as np  # isort: skip - torch first: if both are missing, errors name torch
from hpcsweep import environment
from hpcsweep import files as regular
from hpcsweep.errors import ResultsError

Transform = Callable[[Any], Tensor]
Pair = tuple[Dataset[Any], Dataset[Any], int]
_BATCH: Final = 3 * 32 * 32
_MOST: Final = 1 << 30  # bytes of a file
UNVERIFIED: Final = "unverified_data"
# folder, training files, test file, key of the labels, classes
_CIFAR: Final[Mapping[str, tuple[str, tuple[str, ...], str, str, int]]] = {
    "cifar10": (
        "cifar-10-batches-py",
        tuple(f"data_batch_{number}" for number in range(1, 6)),
        "test_batch",
        "labels",
        10,
    ),
    "cifar100": ("cifar-100-python", ("train",), "test", "fine_labels", 100),
}
# channel means and deviations of the training images, as they are commonly given
_CIFAR_SCALE: Final = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
}
_IMAGENET_SCALE: Final = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_MARGIN: Final = 1.14  # 256 over 224: the usual border around the centre that is validated
IMAGE_FOLDER: Final = "imagefolder"
NAMES: Final = (*_CIFAR, IMAGE_FOLDER)


class Cifar(Dataset[Any]):
    """The images of batch files, as bytes in memory; `transform` makes them floats."""

    def __init__(self, name: str, files: list[Path], key: str, transform: Transform) -> None:
        """Read the files; `UsageError` where one is missing or damaged."""
        batches = [_read_batch(name, file, key) for file in files]
        self._images = torch.cat([images for images, _, _ in batches])
        self._labels = [label for _, labels, _ in batches for label in labels]
        self.verified = all(verified for _, _, verified in batches)
        self._transform = transform

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self._transform(self._images[index]), self._labels[index]


def open_cifar(name: str, size: int) -> Pair:
    """Return training data, validation data and the number of classes.

    Training images get a border of 4 pixels, and are cropped and flipped at random; images are
    scaled to sizes other than 32.

    Raises:
        UsageError: the files are not there, or damaged.
    """
    from torchvision import transforms  # noqa: PLC0415 - two seconds that synthetic data don't need

    folder, train, test, key, classes = _CIFAR[name]
    place = _root(name) / folder
    resize = [transforms.Resize(size, antialias=True)] if size != 32 else []
    to_float = [
        *resize,
        transforms.ConvertImageDtype(torch.float32),
        transforms.Normalize(*_CIFAR_SCALE[name]),
    ]
    augment = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    learned = Cifar(
        name, [place / file for file in train], key, transforms.Compose([*augment, *to_float])
    )
    return learned, Cifar(name, [place / test], key, transforms.Compose(to_float)), classes


def open_image_folder(size: int) -> Pair:
    """Return the images below `train/<class>/` and `val/<class>/`.

    Raises:
        UsageError: a folder is missing or empty, or their classes differ.
    """
    from torchvision import transforms  # noqa: PLC0415

    root = _root(IMAGE_FOLDER)
    to_float = [transforms.ToTensor(), transforms.Normalize(*_IMAGENET_SCALE)]
    crop = [transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip()]
    centre = [transforms.Resize(int(size * _MARGIN)), transforms.CenterCrop(size)]
    train = _images(root / "train", transforms.Compose([*crop, *to_float]))
    val = _images(root / "val", transforms.Compose([*centre, *to_float]))
    if train.classes != val.classes:
        raise UsageError(f"dataset '{IMAGE_FOLDER}': {root}: train and val have other classes")
    return train, val, len(train.classes)


def _images(folder: Path, transform: Transform) -> Any:  # noqa: ANN401 - an ImageFolder
    from torchvision import datasets  # noqa: PLC0415

    try:
        return datasets.ImageFolder(str(folder), transform, loader=_open_image)
    except (OSError, RuntimeError) as error:
        words = " ".join(str(error).split())
        raise UsageError(
            f"dataset '{IMAGE_FOLDER}': {folder} needs a folder of images for each class ({words})"
        ) from error


def get_data(name: str, env: Mapping[str, str]) -> None:
    """Download CIFAR to the folder of jobs with these variables; do nothing for other data.

    Raises:
        UsageError: no folder is named, or the download failed.
        Refused: this process is a job of a scheduler.
    """
    if name not in _CIFAR:
        return
    _refuse_in_job("data")
    folder = _root(name, {**os.environ, **env})
    try:
        _published(name)(str(folder), download=True)
    except (OSError, RuntimeError) as error:
        reason = first_line(error)
        raise UsageError(f"data '{name}': cannot be downloaded to {folder}: {reason}") from error
    messages.progress(f"{name} is in {folder / _CIFAR[name][0]}")


def _refuse_in_job(what: str) -> None:
    if "SLURM_JOB_ID" in os.environ:
        raise Refused(f"{what} are not downloaded in a job; run this on a login node")


class _Array:
    """An array of bytes in a pickle, read without numpy's unpickling."""

    array = np.empty(0, np.uint8)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, kind, by_column, raw = state
        if not isinstance(kind, _ArrayType):
            raise pickle.UnpicklingError("an array without a type")
        numbers = np.frombuffer(raw.encode("latin1") if isinstance(raw, str) else raw, np.uint8)
        self.array = numbers.reshape(shape, order="F" if by_column else "C")


class _ArrayType:
    """The type of an array's numbers: bytes alone."""

    def __init__(self, code: str, *_how: object) -> None:
        if code not in {"u1", "|u1"}:
            raise pickle.UnpicklingError(f"an array of {code!r}, not of bytes")

    def __setstate__(self, _state: object) -> None:
        pass  # bytes have no order


def _whole(raw: bytes, kind: _ArrayType, shape: tuple[int, ...], order: str) -> _Array:
    array = _Array()
    array.__setstate__((1, shape, kind, order == "F", bytes(raw)))
    return array


_PLAIN: Final[Mapping[tuple[str, str], Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_how: _Array(),
    ("numpy.core.numeric", "_frombuffer"): _whole,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _ArrayType,
    ("_codecs", "encode"): lambda text, _code: text.encode("latin1"),  # bytes, as Python 3 has them
}


class _Plain(pickle.Unpickler):
    """Unpickles arrays of bytes and plain data; refuses all other classes."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as pickle has it
        stand_in = _PLAIN.get((module.replace("numpy._core", "numpy.core"), name))
        if stand_in is None:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no plain data")
        return stand_in


def _published(name: str) -> Any:  # noqa: ANN401 - torchvision's class
    from torchvision import datasets  # noqa: PLC0415

    return {"cifar10": datasets.CIFAR10, "cifar100": datasets.CIFAR100}[name]


def _is_published(name: str, file: Path, raw: bytes) -> bool:
    source = _published(name)
    checksums = dict(map(tuple, (*source.train_list, *source.test_list)))
    return bool(hashlib.md5(raw, usedforsecurity=False).hexdigest() == checksums[file.name])


def _read_batch(name: str, file: Path, key: str) -> tuple[Tensor, list[int], bool]:
    """Return the images (uint8, N x 3 x 32 x 32), the labels, and whether they are as published."""
    try:
        with regular.opened(file.resolve(strict=True), most=_MOST) as opened:
            raw = opened.read(_MOST)
        batch = _Plain(io.BytesIO(raw), encoding="latin1").load()
        images = torch.from_numpy(batch["data"].array.copy()).view(-1, 3, 32, 32)
        labels = [int(label) for label in batch[key]]
    except FileNotFoundError as error:
        raise UsageError(f"dataset '{name}': no {file}; {_advice(name)}") from error
    except OSError as error:
        raise UsageError(f"dataset '{name}': {file}: {error.strerror or error}") from error
    except ResultsError as error:
        raise UsageError(f"dataset '{name}': {error}") from error
    except Exception as error:  # a damaged pickle may raise anything
        raise _damaged(name, file, f"{type(error).__name__}: {error}") from error
    most = _CIFAR[name][-1] - 1
    if not all(0 <= label <= most for label in labels):
        raise _damaged(name, file, f"labels are 0 to {most}")
    if not len(labels) == len(images) > 0:
        raise _damaged(name, file, f"{len(images)} images, {len(labels)} labels")
    return images, labels, _is_published(name, file, raw)


def _damaged(name: str, file: Path, what: str) -> UsageError:
    return UsageError(f"dataset '{name}': {file} is damaged ({what}); {_advice(name)}")


def _root(name: str, env: Mapping[str, str] = os.environ) -> Path:
    folder = env.get(environment.DATA)
    if not folder:
        raise UsageError(
            f"dataset '{name}': {environment.DATA} is not set; name the folder of your data sets "
            f"in the cluster profile: env: {{{environment.DATA}: /a/folder}}"
        )
    return Path(folder).expanduser()


def _advice(name: str) -> str:
    return f"get {name} on a login node: hpcsweep submit SWEEP --download"


def _open_image(path: str) -> Any:  # noqa: ANN401 - a PIL image
    """Open an image as RGB; `UsageError` names a file that is not an image."""
    from PIL import Image  # noqa: PLC0415 - comes with torchvision

    try:
        with Image.open(path) as image:
            return image.convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise UsageError(
            f"dataset '{IMAGE_FOLDER}': {path} is no image that can be read"
        ) from error


_HASH: Final = re.compile(r"-([a-f0-9]{8,})\.")  # in a file's name, as torch's hub has it
_SECONDS: Final = 30.0  # without an answer


def get_weights(wanted: Iterable[tuple[str, str]], home: Mapping[str, str]) -> None:
    """Download missing weights, each a network and a name of torchvision.

    `home` has the TORCH_HOME of the jobs, if their profile sets it.

    Raises:
        UsageError: there are no such weights, or some could not be downloaded.
        Refused: this process is a job of a scheduler.
    """
    _refuse_in_job("weights")
    urls = {models.weights_url(*pair): pair for pair in wanted}
    with _torch_home(home):
        failed = list(filter(None, (_got(url, *pair) for url, pair in urls.items())))
    if failed:
        advice = "without a network, copy the files from a machine that has one to these places"
        failed.append(f"{len(failed)} of {len(urls)} are missing; {advice}")
        raise UsageError("\n".join(failed))


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
    try:
        done = "are there" if file.is_file() else _download(url)
    except (OSError, RuntimeError) as error:
        return f"weights {name} of {model}: {first_line(error)}\n   {url} -> {file}"
    messages.progress(f"weights {name} of {model} {done}: {file}")
    return ""


def _download(url: str) -> str:
    """Download to a temporary file, check its checksum, and rename it."""
    file = models.cached_weights(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    checksum = _HASH.search(file.name)
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_SECONDS)  # a network may drop all packets
    try:
        torch.hub.download_url_to_file(url, str(file), checksum and checksum[1], progress=False)
    finally:
        socket.setdefaulttimeout(before)
    return "were downloaded"


def problems(wanted: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    """Return, for each of the wanted weights, why they are `wrong`, or which file is `missing`."""
    return [_problem(*pair) for pair in wanted]


def _problem(model: str, name: str) -> dict[str, str]:
    try:
        file = models.cached_weights(models.weights_url(model, name))
    except UsageError as error:
        return {"wrong": str(error).partition(": ")[2]}
    return {} if file.is_file() else {"missing": f"{file} is not there"}
