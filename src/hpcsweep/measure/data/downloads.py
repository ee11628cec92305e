"""Opens CIFAR-10 and -100 by torchvision's readers; downloads them, and weights.

torchvision reads only files with the published checksums, since they are pickles, which could run
code.

Data sets are below the folder in the environment variable HPCSWEEP_DATA. A cluster profile sets it
(`env: {HPCSWEEP_DATA: /scratch/me/data}`), so that the folder is no part of a point's id. Weights
are in torch's cache, below TORCH_HOME. Only `submit --download` downloads anything.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import Dataset

from hpcsweep import environment, messages
from hpcsweep.errors import Refused, UsageError, first_line
from hpcsweep.measure import model_builder

# Without an answer of the network, which may drop all packets.
_SECONDS: Final = 30.0


@dataclass(frozen=True)
class Published:
    """A CIFAR: torchvision's class, the number of classes, and the usual scale."""

    kind: str
    classes: int
    # means and deviations of the channels of the training images, as they are commonly given
    scale: tuple[tuple[float, ...], tuple[float, ...]]


CIFAR: Final[Mapping[str, Published]] = {
    "cifar10": Published("CIFAR10", 10, ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    "cifar100": Published("CIFAR100", 100, ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))),
}


def is_there(name: str) -> bool:
    """Say whether the folder of data sets has a CIFAR, if there is such a folder."""
    root = os.environ.get(environment.DATA)
    return bool(root) and _folder(name, Path(str(root)).expanduser()).is_dir()


def open_cifar(name: str, size: int) -> tuple[Dataset[Any], Dataset[Any]]:
    """Return training data and validation data.

    Training images get a border of 4 pixels, and are cropped and flipped at random; images are
    scaled to sizes other than 32.

    Raises:
        UsageError: a file is not there, or not as it was published.
    """
    from torchvision import transforms  # noqa: PLC0415 - two seconds that synthetic data don't need

    root = _root(name)
    to_float = [transforms.ToTensor(), transforms.Normalize(*CIFAR[name].scale)]
    if size != 32:  # that of the files
        to_float.insert(0, transforms.Resize(size))
    # as He et al. 2016, section 4.2
    augment = [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip()]
    augmented = transforms.Compose([*augment, *to_float])
    kind = _torchvision(name)
    try:
        train = kind(root, train=True, transform=augmented)
        return train, kind(root, train=False, transform=transforms.Compose(to_float))
    except (OSError, RuntimeError) as error:
        raise UsageError(
            f"dataset '{name}': a file in {_folder(name, root)} is missing or damaged "
            f"({first_line(error)}); get {name} on a login node: hpcsweep submit SWEEP --download"
        ) from error


def _torchvision(name: str) -> Any:  # noqa: ANN401 - torchvision's class
    from torchvision import datasets  # noqa: PLC0415

    return getattr(datasets, CIFAR[name].kind)


def _folder(name: str, root: Path) -> Path:
    folder: str = _torchvision(name).base_folder
    return root / folder


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
    messages.progress(f"{name} is in {_folder(name, folder)}")


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
    urls = {model_builder.weights_url(*pair): pair for pair in wanted}
    failed = []
    with _torch_home(home), _patient():
        for url, (model, name) in urls.items():
            message = _got(url, model, name)
            if message:
                failed.append(message)
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
        if before is not None:
            os.environ["TORCH_HOME"] = before


def _got(url: str, model: str, name: str) -> str:
    """Download weights unless they exist; return a message if that fails."""
    file = model_builder.cached_weights(url)
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
    """Return what is `wrong` with weights, such as that their file is missing."""
    try:
        file = model_builder.cached_weights(model_builder.weights_url(model, name))
    except UsageError as error:
        return {"wrong": str(error).partition(": ")[2]}
    if file.is_file():
        return {}
    return {"wrong": f"{file} is not there; `submit --download` on a login node downloads it"}
