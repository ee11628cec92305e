"""Weights by torchvision's name: which files they are, which are missing, and their download.

They lie in torch's cache, where a job looks: below TORCH_HOME, or else in the user's own cache.
Only `hpcsweep data get` downloads anything.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import torch

from hpcsweep.errors import Refused, UsageError, first_line
from hpcsweep.measure import models

_HASH: Final = re.compile(r"-([a-f0-9]{8,})\.")  # in a file's name, as torch's hub has it
_SECONDS: Final = 30.0  # without an answer


def get(wanted: Iterable[tuple[str, str]], say: Callable[[str], None]) -> None:
    """Download the weights that are missing, each a network and a name of torchvision.

    Raises:
        UsageError: there are no such weights, or some could not be downloaded.
        Refused: this process is a job of a scheduler.
    """
    if "SLURM_JOB_ID" in os.environ:
        raise Refused("weights are not downloaded in a job; run this on a login node")
    urls = {models.weights_url(*one): one for one in wanted}
    failed = []
    for url, (model, name) in urls.items():
        file = models.cached_weights(url)
        try:
            done = "are there" if file.is_file() else _download(url)
            say(f"weights {name} of {model} {done}: {file}")
        except (OSError, RuntimeError) as error:
            failed.append(f"weights {name} of {model}: {first_line(error)}\n   {url} -> {file}")
    if failed:
        advice = "without a network, copy the files from a machine that has one to these places"
        failed.append(f"{len(failed)} of {len(urls)} are missing; {advice}")
        raise UsageError("\n".join(failed))


def _download(url: str) -> str:
    """Download to a file beside the right one, check its checksum, and rename it."""
    file = models.cached_weights(url)
    file.parent.mkdir(parents=True, exist_ok=True)
    known = _HASH.search(file.name)
    with _patience(_SECONDS):
        torch.hub.download_url_to_file(url, str(file), known and known[1], progress=False)
    return "were downloaded"


@contextmanager
def _patience(seconds: float) -> Iterator[None]:
    """Limit the wait for a network that swallows everything."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def problems(wanted: Iterable[tuple[str, str]]) -> list[str]:
    """Return what is wrong with each of these weights; an empty text where nothing is."""
    return [_problem(*one) for one in wanted]


def _problem(model: str, name: str) -> str:
    try:
        file = models.cached_weights(models.weights_url(model, name))
    except UsageError as error:
        return str(error)
    return "" if file.is_file() else f"{file} is not there"
