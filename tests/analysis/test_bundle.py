"""The one file of a sweep holds what a reviewer needs, and a stranger measures it again."""

from __future__ import annotations

import hashlib
import json
import zipfile

import pytest

import resultsfolder
from hpcsweep.errors import UsageError
from hpcsweep.store.collect import collector
from hpcsweep.store.folders import SUMS
from localruns import Desk

NET = """from pathlib import Path
from torch import nn
from parts.block import block
WIDTH = int((Path(__file__).parent / "width.json").read_text())
def net():
    return nn.Sequential(block(WIDTH), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 5))
"""
BLOCK = "from torch import nn\ndef block(width):\n    return nn.Conv2d(3, width, 3)\n"
SWEEP = """name: own
workload: inference
axes: {model: ["mynet:net"], input_size: [8, 16]}
measure: {iterations: 4, warmup: 3}
"""


@pytest.mark.slow
def test_what_was_measured_can_be_measured_again(desk):
    """Although the network changed since; by the commands that the README tells."""
    (desk.folder / "parts").mkdir()
    files = {"mynet.py": NET, "parts/__init__.py": "", "parts/block.py": BLOCK, "width.json": "4"}
    for name, text in files.items():
        (desk.folder / name).write_text(text)
    desk.spec(SWEEP)
    assert desk.submit("--collect").returncode == 0
    (desk.folder / "parts" / "block.py").write_text("")
    done = desk.run("bundle", "own")
    assert (done.returncode, "changed" in done.stderr) == (0, False), done.stderr
    with zipfile.ZipFile(desk.folder / "own.zip") as archive:
        archive.extractall(desk.folder / "theirs")
    theirs = desk.folder / "theirs" / "own"
    (digest,) = (path.name for path in (theirs / "own_files").iterdir())
    for name, text in files.items():
        assert (theirs / "own_files" / digest / name).read_text() == text
    sums = dict(line.split("  ")[::-1] for line in (theirs / SUMS).read_text().splitlines())
    paths = [path for path in theirs.rglob("*") if path.is_file() and path.name != SUMS]
    assert {str(path.relative_to(theirs)) for path in paths} == sums.keys()
    assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in paths} == {*sums.values()}
    readme = (theirs / "README.md").read_text()
    assert "ran 3 warm-up passes and 4 timed passes (host) in 1 visit;" in readme
    again = "hpcsweep --results again submit sweep.yaml --cluster profiles/local.yaml"
    assert f"$ {again}" in readme
    assert f'PYTHONPATH="$PWD/own_files/{digest}:' in readme
    elsewhere = type(desk)(theirs)
    own = str(theirs / "own_files" / digest)
    done = elsewhere.run(*again.split()[1:], "--collect", PYTHONPATH=own)
    assert done.returncode == 0, done.stderr
    again = (theirs / "again" / "own" / "details.csv").read_text()
    assert again.count(f"model={digest}") == 2


@pytest.mark.slow
def test_own_files_that_are_other_ones_now_are_named(desk):
    """Where an earlier version of hpcsweep did not keep them."""
    (desk.folder / "mynet.py").write_text(NET.replace("parts.block", "block"))
    (desk.folder / "block.py").write_text(BLOCK)
    (desk.folder / "width.json").write_text("4")
    desk.spec(SWEEP.replace("8, 16", "8"))
    assert desk.submit("--collect").returncode == 0
    for path in sorted((desk.results / "own" / "own_files").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    assert desk.run("bundle", "own", "--out", "same.zip").returncode == 0
    with zipfile.ZipFile(desk.folder / "same.zip") as archive:
        assert sum(name.endswith("block.py") for name in archive.namelist()) == 1
    (desk.folder / "block.py").write_text(f"{BLOCK}# other\n")
    done = desk.run("bundle", "own")
    assert (done.returncode, "mynet:net" in done.stderr) == (0, True)
    with zipfile.ZipFile(desk.folder / "own.zip") as archive:
        assert b"not in here" in archive.read("own/README.md")


def test_own_files_are_named_before_they_are_sent_and_stay_private(tmp_path):
    """A token beside the code would else go unseen, and be read by others who see the bundle."""
    made = resultsfolder.make(tmp_path)
    made.submit("s1")
    digest = "0123456789abcdef"
    made.measure(made.shard("s1"), median_ms=2.0, own_files=f"model={digest}")
    kept = made.sweep_dir.own_files / digest
    kept.mkdir(parents=True)
    for name, rights in (("net.py", 0o644), ("wandb.ini", 0o600)):
        (kept / name).touch()
        (kept / name).chmod(rights)
    collector.collect(made.sweep_dir)
    done = Desk(tmp_path).run("bundle", "demo")
    assert "model resnet18 (0123456789abcdef): net.py, wandb.ini" in done.stdout
    assert (tmp_path / "demo.zip").stat().st_mode & 0o777 == 0o600
    (own,) = json.loads(Desk(tmp_path).run("bundle", "demo", "--json").stdout)["own_files"]
    assert (own["digest"], own["files"]) == (digest, ["net.py", "wandb.ini"])
    with zipfile.ZipFile(tmp_path / "demo.zip") as archive:
        attributes = archive.getinfo(f"demo/own_files/{digest}/wandb.ini").external_attr
    assert attributes >> 16 & 0o777 == 0o600


def test_a_file_that_is_no_bundle_stays(layered_desk):
    """One of the same kind is replaced."""
    out = layered_desk.folder / "demo.zip"
    out.write_text("mine")
    refused = layered_desk.run("bundle", "demo")
    assert (refused.returncode, out.read_text()) == (UsageError.exit_code, "mine")
    out.unlink()
    for _ in range(2):
        done = layered_desk.run("bundle", "demo")
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def layered_desk(tmp_path_factory):
    """Return the folder of a collected sweep with layers, `demo`."""
    from layeredsweep import REPEATED, layered

    folder = tmp_path_factory.mktemp("layered")
    layered(folder, REPEATED)
    return Desk(folder)
