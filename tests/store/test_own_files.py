"""The user's own files are kept once per digest, in a folder from which they import."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from hpcsweep.sources import Sources
from hpcsweep.store import own_files
from hpcsweep.store.folders import SweepDir


def kept(sweep_dir):
    """Return what is kept, by digest and place."""
    return {
        str(path.relative_to(sweep_dir.own_files))
        for path in own_files.listed(sweep_dir.own_files).values()
    }


def test_a_version_is_kept_once_and_an_edit_is_another(tmp_path):
    """With the digest that rows have."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    net = tmp_path / "pkg" / "kept_net.py"
    net.write_text("NAME = 'sizes.json'\ndef net(): ...\n")
    (tmp_path / "sizes.json").write_text("{}")
    sweep_dir = SweepDir(tmp_path / "results" / "demo")
    sweep_dir.path.mkdir(parents=True)
    digests = []
    for _ in range(2):
        for _ in range(2):
            seen = Sources([str(tmp_path)])
            own_files.keep(sweep_dir, seen, "model", "pkg.kept_net:net")
        digests.append(seen.digest("model", "pkg.kept_net:net"))
        net.write_text(f"{net.read_text()}\n")
    names = ("pkg/__init__.py", "pkg/kept_net.py", "sizes.json")
    assert kept(sweep_dir) == {f"{digest}/{name}" for digest in digests for name in names}
    assert digests[0] != digests[1]


@pytest.mark.parametrize(
    ("of_file", "of_folder", "expected"),
    [(0o600, 0o755, 0o600), (0o640, 0o755, 0o640), (0o644, 0o700, 0o600), (0o644, 0o750, 0o640)],
)
def test_a_copy_can_be_read_by_nobody_else_than_before(of_file, of_folder, expected):
    """Also where a folder keeps others out, such as a home: results may lie where all look."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)  # as those of tests are private
        (root / "home").mkdir()
        net = root / "home" / "private_net.py"
        net.write_text("def net(): ...\n")
        net.chmod(of_file)
        net.parent.chmod(of_folder)
        sweep_dir = SweepDir(root)
        own_files.keep(sweep_dir, Sources([str(net.parent)]), "model", "private_net:net")
        (copy,) = sweep_dir.own_files.rglob("private_net.py")
        assert copy.stat().st_mode & 0o777 == expected


def test_what_is_not_ones_own_or_large_is_not_kept(tmp_path):
    """Networks of torchvision have no file; data of many bytes stay where they are."""
    sweep_dir = SweepDir(tmp_path)
    (tmp_path / "large_net.py").write_text("DATA = 'large.bin'\n")
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(1 << 25)
    for value in ("resnet18", "large_net:net"):
        own_files.keep(sweep_dir, Sources([str(tmp_path)]), "model", value)
    assert not sweep_dir.own_files.exists()
