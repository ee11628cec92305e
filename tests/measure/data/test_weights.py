"""Weights by torchvision's name: downloaded on a login node, never by a point."""

from __future__ import annotations

import functools
import hashlib
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest
import torch
from torchvision.models import SqueezeNet1_1_Weights

from hpcsweep.errors import Refused, UsageError
from hpcsweep.measure.data import weights
from hpcsweep.measure.models import build_float32, cached_weights

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from localruns import Desk

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


def test_data_get_fetches_the_weights_of_a_sweep_to_where_a_point_looks(
    published: Path, desk: Desk
) -> None:
    """Once; the second time they are there."""
    desk.spec(SWEEP)
    place = desk.folder / "home" / "hub" / "checkpoints" / published.name
    for told in ("were downloaded", "are there"):
        done = desk.run("data", "get", "sweep.yaml")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"weights IMAGENET1K_V1 of squeezenet1_1 {told}: {place}\n"
    built = build_float32(*WANTED)
    same = build_float32(WANTED[0], seed=7, enliven=False).state_dict()
    assert all(torch.equal(value, same[name]) for name, value in built.state_dict().items())


def test_data_get_looks_below_the_torch_home_of_the_profile(published: Path, desk: Desk) -> None:
    """A job has that one; a job of another profile has the user's own."""
    desk.spec(SWEEP)
    (desk.folder / "site.yaml").write_text(
        f"gpu: cpu\nlauncher: sbatch\ntime: 10\nenv: {{TORCH_HOME: {desk.folder}/scratch}}\n"
    )
    clusters = ("--cluster", "site.yaml", "--cluster", "local")
    done = desk.run("data", "get", "sweep.yaml", *clusters)
    assert done.returncode == 0, done.stderr
    for home in ("scratch", "home"):
        assert (desk.folder / home / "hub" / "checkpoints" / published.name).is_file()


def test_a_sweep_without_such_weights_needs_none(desk: Desk) -> None:
    """Random weights and files are not fetched; a data set needs a folder."""
    desk.spec("workload: inference\naxes: {model: [resnet18], weights: [random, w.pt]}\n")
    assert "needs no weights" in desk.run("data", "get", "sweep.yaml").stdout
    assert "--to FOLDER" in desk.run("data", "get", "cifar10").stderr


def test_what_cannot_be_downloaded_is_named_with_its_place(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network somebody has to copy it; a damaged file is none, and leaves nothing."""
    cached = cached_weights(published.name)
    published.write_bytes(published.read_bytes()[:-1] + b"x")
    with pytest.raises(UsageError, match=r"invalid hash value"):
        weights.get([WANTED], print)
    published.unlink()
    with pytest.raises(UsageError) as caught:
        weights.get([WANTED], print)
    url = SqueezeNet1_1_Weights.IMAGENET1K_V1.value.url
    assert f"{url} -> {cached}" in str(caught.value)
    assert "1 of 1 are missing; without a network, copy the files" in str(caught.value)
    assert not list(cached.parent.iterdir())
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    with pytest.raises(Refused, match="login node"):
        weights.get([WANTED], print)


def test_problems_are_told_for_each_of_several_weights(published: Path) -> None:
    """Missing, unknown, or none."""
    missing, unknown = weights.problems([WANTED, (WANTED[0], "V9")])
    assert missing == f"{cached_weights(published.name)} is not there"
    assert "squeezenet1_1 has IMAGENET1K_V1" in unknown
    weights.get([WANTED], print)
    assert weights.problems([WANTED]) == [""]
