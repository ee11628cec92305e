"""Which files of the user's own a point is made of; both sides see the same, and it is kept."""

from __future__ import annotations

import compileall
import os
import subprocess
import sys
import tempfile
from importlib.util import spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hpcsweep
from hpcsweep import sources
from hpcsweep.point import Point
from hpcsweep.sources import Sources

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = {
    "nets.py": "import json\nimport numpy\nfrom pkg.deep import block\n\ndef tiny(): block()",
    "pkg/__init__.py": "",
    "pkg/deep/__init__.py": "from .block import block\n",
    "pkg/deep/block.py": "from .. import sizes\nfrom ..more import starred\ndef block(): ...\n",
    "pkg/sizes.py": "A = 1\n",
    "pkg/more/__init__.py": "",
    "pkg/more/starred.py": "B = 1\n",
    "pkg/more/unused.py": "C = 1\n",
    "lazy.py": "def tiny():\n  try:\n    from far import away\n  except ImportError:\n    pass",
    "far/away.py": "D = 1\n",  # in a namespace package
    "far/out/side.py": "E = 1\n",  # in one inside it
    "reads.py": (
        "from pathlib import Path\nHERE = Path(__file__).parent\n"
        "def tiny(): return [open(HERE / 'cfg' / 'net.yaml'), open('w.pt'), 'gone.json', 'log.txt']"
    ),
    "cfg/net.yaml": "width: 8\n",
    "w.pt": "weights",
    "log.txt": "written by the network",
    "chosen.py": "F = 1\n",
    "broken.py": "def (\n",
    "ring.py": "import gnir\n",
    "gnir.py": "import ring\n",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder of networks of every kind."""
    for name, text in FILES.items():
        path = tmp_path / "own" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "own"


def digest(folder: Path, name: str, axis: str = "model") -> str:
    """Return the digest of what an axis names, read anew."""
    return Sources([str(folder)]).digest(axis, name)


def edited(path: Path) -> None:
    """Change a file."""
    path.write_text(path.read_text() + "# changed\n")


@pytest.mark.parametrize(
    ("model", "counts", "not_counts"),
    [
        (
            "nets:tiny",
            ["nets.py", "pkg/__init__.py", "pkg/deep/__init__.py", "pkg/deep/block.py",
             "pkg/sizes.py", "pkg/more/__init__.py", "pkg/more/starred.py"],
            ["pkg/more/unused.py", "lazy.py"],
        ),
        ("lazy:tiny", ["lazy.py", "far/away.py"], ["far/out/side.py"]),
        ("far.out.side:E", ["far/out/side.py"], ["far/away.py"]),
        ("reads:tiny", ["reads.py", "cfg/net.yaml", "w.pt"], ["log.txt"]),
        ("broken:net", ["broken.py"], ["nets.py"]),
        ("ring:net", ["ring.py", "gnir.py"], []),
    ],
)  # fmt: skip
def test_a_digest_changes_with_all_that_a_factory_leads_to(folder, model, counts, not_counts):
    """And with nothing else: neither with a time, nor with a file that it does not read."""
    before = digest(folder, model)
    assert len(before) == sources.DIGITS
    for name in not_counts:
        edited(folder / name)
    for name in counts:
        os.utime(folder / name, (1, 1))
    assert digest(folder, model) == before
    for name in counts:
        edited(folder / name)
        after = digest(folder, model)
        assert after != before, name
        before = after


def test_modules_are_found_without_being_imported_and_alike_in_another_process(folder):
    """Also where the folder is on PYTHONPATH there, or lies elsewhere: no path is in a digest."""
    before, elsewhere = {*sys.modules}, folder.parent / "elsewhere"
    here = digest(folder, "nets:tiny")
    assert not {"nets", "pkg", "numpy"} & ({*sys.modules} - before)
    folder.rename(elsewhere)
    code = (
        "import sys; from hpcsweep.sources import Sources\n"
        "print(Sources({}).digest('model', 'nets:tiny'), 'torch' in sys.modules)"
    )
    source = str(Path(hpcsweep.__file__).parents[1])
    for folders, path in (([str(elsewhere)], [source]), ([], [source, str(elsewhere)])):
        told = subprocess.run(
            [sys.executable, "-c", code.format(folders)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path)}, cwd=folder.parent,
            capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert told.split() == [here, "False"]


@pytest.mark.parametrize("name", ["torch.nn:Conv2d", "json:loads", "pytest:fixture", "gone:net"])
def test_what_is_installed_or_not_there_has_no_digest(folder, name):
    """Its version stands in other columns, or it is no file of the user's own."""
    assert not digest(folder, name)
    assert not digest(folder, "hpcsweep.sources:Sources")  # a checkout of this program


@pytest.mark.parametrize("how", ["pyc", "so"])
def test_modules_that_are_no_source_count_by_their_bytes(folder, how):
    """What they import does not count: only source tells."""
    (folder / "nets.py").write_text("import chosen\n")
    target = folder / "nets.pyc"
    if how == "pyc":
        compileall.compile_file(folder / "nets.py", legacy=True, quiet=1)
    else:
        target = folder / f"nets{next(iter(_suffixes()))}"
        target.write_bytes(b"\x7fELF")
    (folder / "nets.py").unlink()

    def now() -> str:
        return Sources([str(folder), str(target)]).digest("model", "nets:tiny")

    before = now()
    assert before
    target.write_bytes(target.read_bytes() + b"\0")
    assert now() != before


def _suffixes() -> list[str]:
    from importlib.machinery import EXTENSION_SUFFIXES

    return EXTENSION_SUFFIXES


def _same_size_and_time(path: Path) -> None:
    before = path.stat()
    path.write_text("stranger"[: before.st_size].ljust(before.st_size, "x"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replaced(path: Path) -> None:
    path.with_name("new").write_text("another")
    path.with_name("new").replace(path)


@pytest.mark.parametrize("change", [_same_size_and_time, _replaced])
def test_weights_count_by_content_also_while_a_process_goes_on(folder, change: Callable):
    """Python keeps the modules that it imported, so their digests stay; files are read again."""
    lasting = Sources([str(folder)])
    point = Point("inference", {"model": "reads:tiny", "weights": "w.pt"}, {})
    before = sources.parts(lasting.cell(point))
    assert {*before} == {"model", "weights"}
    edited(folder / "reads.py")
    assert sources.parts(lasting.cell(point)) == before
    change(folder / "w.pt")
    after = sources.parts(lasting.cell(point))
    assert after["weights"] != before["weights"]
    assert after["weights"] == digest(folder, "w.pt", "weights")


def test_points_of_nothing_own_have_an_empty_cell(folder, monkeypatch):
    """Networks and weights by torchvision's name; a no-op runs no network."""
    monkeypatch.setattr(sources, "_in_use", [str(folder)])
    for workload, model, weights in (
        ("inference", "resnet18", "IMAGENET1K_V1"),
        ("inference", "resnet18", "gone.pt"),
        ("noop", "nets:tiny", "random"),
    ):
        assert not sources.own_files_here(Point(workload, {"model": model, "weights": weights}, {}))
    training = {"model": "resnet18", "dataset": "nets:tiny", "weights": "random"}
    cell = sources.own_files_here(Point("training", training, {"resume_from": "w.pt"}))
    assert [*sources.parts(cell)] == ["dataset", "resume_from"]


def test_imports_count_from_every_folder_in_which_python_or_the_sweep_looks(folder, monkeypatch):
    """Such as the working directory, and PYTHONPATH; what is installed does not count."""
    for name in ("cwd", "elsewhere"):
        (folder.parent / name).mkdir()
        (folder.parent / name / f"in_{name}.py").write_text("A = 1\n")
    monkeypatch.syspath_prepend(str(folder.parent / "elsewhere"))
    (folder / "both.py").write_text("import in_cwd, in_elsewhere, pytest\n")
    seen = Sources([str(folder), str(folder.parent / "cwd")])
    assert set(seen.files("model", "both:net")) == {"both.py", "in_cwd.py", "in_elsewhere.py"}


def test_an_editable_install_is_ones_own(folder, monkeypatch):
    """As a factory, and imported by one; a finder knows its folder, which may have another name."""

    class Finder:
        @staticmethod
        def find_spec(name, path=None, target=None):
            init = str(folder / "pkg" / "__init__.py")
            inside = [str(folder / "pkg")]
            return (
                spec_from_file_location(name, init, submodule_search_locations=inside)
                if name == "mylab"
                else None
            )

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    places = Sources([]).files("model", "mylab.deep.block:block")
    assert {"mylab/__init__.py", "mylab/deep/block.py", "mylab/sizes.py"} < set(places)
    (folder.parent / "thin").mkdir()
    (folder.parent / "thin" / "thin.py").write_text("from mylab import sizes\n")
    places = Sources([str(folder.parent / "thin")]).files("model", "thin:net")
    assert set(places) == {"thin.py", "mylab/__init__.py", "mylab/sizes.py"}


@pytest.fixture
def _restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the path of the process as it was."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sources, "_in_use", [])


@pytest.mark.usefixtures("_restored")
def test_the_folders_are_absolute_and_each_is_named_once(tmp_path, monkeypatch):
    """The sweep's, the working directory, then those of PYTHONPATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["src", "", str(tmp_path)]))
    found = sources.folders_for(Path("sweeps/a.yaml"))
    assert found == tuple(map(str, (tmp_path / "sweeps", tmp_path, tmp_path / "src")))


@pytest.mark.usefixtures("_restored")
def test_modules_are_looked_for_there_last_and_not_in_the_working_directory(tmp_path, monkeypatch):
    """`python -m` puts that first, and a job has another one."""
    monkeypatch.chdir(tmp_path)
    sys.path.insert(0, str(tmp_path))
    sources.look_in(["/one", "/two"])
    assert str(tmp_path) not in sys.path
    assert sys.path[-2:] == ["/one", "/two"]


@pytest.mark.usefixtures("_restored")
def test_a_file_is_the_first_that_is_there(tmp_path):
    """Else it is where it should be; an absolute name stays as it is."""
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "w.pt").touch()
    assert sources.file("w.pt") == Path("w.pt")
    sources.look_in(folders)
    assert sources.file("w.pt") == tmp_path / "b" / "w.pt"
    assert sources.file("v.pt") == tmp_path / "a" / "v.pt"
    assert sources.file("/x/w.pt") == Path("/x/w.pt")


@pytest.mark.usefixtures("_restored")
def test_a_password_in_pythonpath_is_not_kept(tmp_path, monkeypatch):
    """The folders go into the manifest; a URL is none, and its colons part it."""
    urls = ("https://user:secret@host/simple", "ftp://secret@host:21/a")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/first", *urls, "/last"]))
    found = sources.folders_for(tmp_path / "a.yaml")
    assert "secret" not in " ".join(found)
    assert {"/first", "/last"} <= {*found}


def test_a_version_is_kept_once_and_an_edit_is_another(tmp_path):
    """With the digest that rows have."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    net = tmp_path / "pkg" / "kept_net.py"
    net.write_text("NAME = 'sizes.json'\ndef net(): ...\n")
    (tmp_path / "sizes.json").write_text("{}")
    results = tmp_path / "results"
    digests = []
    for _ in range(2):
        for _ in range(2):
            seen = Sources([str(tmp_path)])
            seen.keep("model", "pkg.kept_net:net", results)
        digests.append(seen.digest("model", "pkg.kept_net:net"))
        net.write_text(f"{net.read_text()}\n")
    names = ("pkg/__init__.py", "pkg/kept_net.py", "sizes.json")
    expected = {f"{digest}/{name}" for digest in digests for name in names}
    assert sources.files_below(results).keys() == expected
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
        Sources([str(net.parent)]).keep("model", "private_net:net", root / "kept")
        (copy,) = (root / "kept").rglob("private_net.py")
        assert copy.stat().st_mode & 0o777 == expected


def test_what_is_not_ones_own_or_large_is_not_kept(tmp_path):
    """Networks of torchvision have no file; data of many bytes stay where they are."""
    (tmp_path / "large_net.py").write_text("DATA = 'large.bin'\n")
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(1 << 25)
    for value in ("resnet18", "large_net:net"):
        Sources([str(tmp_path)]).keep("model", value, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
