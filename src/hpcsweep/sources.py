"""Digests of the user's own files that a point is made of: modules, files that they name, weights.

The modules are the factory's and all that it imports, at any place and through others, found as an
import would find them: none is imported, so `submit` needs no torch. Those of the standard library
and of installed distributions are not the user's own; editable installs are. A digest is of names
and contents. Compute nodes take it before a module is imported first, and keep it as Python keeps
the module, so that a later edit does not count as what runs.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import os
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Final

from hpcsweep import files, search_path
from hpcsweep.catalog import workload_of
from hpcsweep.point import Point

FACTORIES: Final = ("model", "dataset")  # axes whose values may be `package.module:factory`
AXES: Final = (*FACTORIES, "weights", "resume_from")  # that name files of the user's own
# what rows name the version of, also where it is installed from a checkout
_LIBRARIES: Final = frozenset({*sys.stdlib_module_names, "hpcsweep", "torch", "torchvision"})
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})
_STANDARD: Final = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})
# files that a module may name in a text; others are rather what it writes
_READ: Final = (
    ".py", ".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".pt", ".pth", ".bin",
    ".onnx", ".safetensors", ".c", ".cc", ".cpp", ".cu", ".h", ".so",
)  # fmt: skip
_LARGEST: Final = 1 << 30  # bytes of such a file; of a larger one the size counts
DIGITS: Final = 16  # 64 bits, as the id of a point
_DIGEST: Final = re.compile(f"[0-9a-f]{{{DIGITS}}}")
# unlike the methods of Path, these are False for what may not be read
_is_file = os.path.isfile
_is_dir = os.path.isdir


@dataclass(frozen=True)
class _OwnFile:
    """A file of the user's own; `imported`: Python reads it once in a process."""

    name: str
    path: Path
    imported: bool = True


@dataclass
class _CodeNames:
    """What the code of a module, with all its functions, imports, and its texts."""

    imports: list[tuple[int, str, Sequence[str]]] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)


class Sources:
    """The files of the user's own, as they are while this object lives; modules as first seen."""

    def __init__(self, folders: Sequence[str]) -> None:
        importlib.invalidate_caches()
        self._folders = [*folders]
        self._specs: dict[str, ModuleSpec] = {}
        self._modules: dict[str, list[_OwnFile]] = {}
        self._digests: dict[tuple[object, ...], str] = {}

    def cell(self, point: Point) -> str:
        """Return the digests of what a point is made of, by axis; empty: nothing of one's own."""
        if not workload_of(point.workload).runs_network:
            return ""
        values = {**point.measure, **point.axes}
        named = ((axis, str(values.get(axis) or "")) for axis in AXES)
        digests = ((axis, self.digest(axis, value)) for axis, value in named if value)
        return ";".join(f"{axis}={digest}" for axis, digest in digests if digest)

    def digest(self, axis: str, value: str) -> str:
        """Return the digest of what an axis names; empty if that is not there, or not one's own."""
        lines = {f"{file.name} {self._content(file)}" for file in self._named(axis, value)}
        return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:DIGITS] * bool(lines)

    def files(self, axis: str, value: str) -> dict[str, Path]:
        """Return the files that an axis names, by their places in a folder that imports find."""
        places = dict[str, Path]()
        for file in self._named(axis, value):
            module = file.name.partition(":")[0]
            beside = (self._own(module) or file.path).parent
            package = Path(*self._package(module).split(".")) if module else Path()
            place = os.path.normpath(package / os.path.relpath(file.path, beside))
            places[file.path.name if place.startswith("..") else place] = file.path
        return places

    def _named(self, axis: str, value: str) -> list[_OwnFile]:
        if axis in FACTORIES:
            module, colon, _ = value.partition(":")
            return self._of_module(module) if colon else []
        path = search_path.file(value, self._folders)
        named = path.is_file() and (axis != "weights" or search_path.is_file(value))
        return [_OwnFile("", path, imported=False)] if named else []

    def _package(self, module: str) -> str:
        inside = self._specs[module].submodule_search_locations
        return module if inside else module.rpartition(".")[0]

    def spec(self, module: str) -> ModuleSpec | None:
        """Find a module as an import would, without importing it or its packages."""
        if module not in self._specs:
            parent, _, last = module.rpartition(".")
            above = self.spec(parent) if parent else None
            inside = above.submodule_search_locations if above else None
            if parent and inside is None:
                return None
            if inside is None:
                here = {"", str(Path.cwd())}  # comes last, if it is one of the folders
                outside = [entry for entry in sys.path if entry not in here]
                spec = _search(module, [*outside, *self._folders])
            else:
                # as if it was at the top, since a namespace package would ask for its parent, which
                # is not imported
                spec = PathFinder.find_spec(last, [*getattr(inside, "_path", inside)])
            if spec is None:
                return None
            self._specs[module] = spec
        return self._specs[module]

    def _of_module(self, module: str) -> list[_OwnFile]:
        if module not in self._modules:
            self._modules[module] = [*self._walk(module)]
        return self._modules[module]

    def _walk(self, first: str) -> Iterator[_OwnFile]:
        """Yield the files of the user's own that importing a module leads to."""
        left = [first]
        done = set[str]()
        while left:
            name = left.pop()
            if name in done or not all(map(str.isidentifier, name.split("."))):
                continue
            done.add(name)
            left += [name.rpartition(".")[0]] if "." in name else []
            path = self._own(name)
            if path is None:
                continue
            yield _OwnFile(name, path)
            seen = _seen(path)
            left += _imports(self._package(name), seen)
            yield from _files(name, [*_roots(path, seen), *map(Path, self._folders)], seen)

    def _own(self, name: str) -> Path | None:
        """Return the file of a module, if it is the user's own."""
        top = name.partition(".")[0]
        package = None if top in _LIBRARIES else self.spec(top)
        if package is None or (package.has_location and not _is_own(package.origin)):
            return None
        spec = self.spec(name)
        if spec is None or not spec.has_location or not _is_own(spec.origin):
            return None
        path = Path(spec.origin or "")
        return path if path.is_file() else None

    def _content(self, own: _OwnFile) -> str:
        try:
            status = own.path.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if own.name and not own.imported and status.st_size > _LARGEST:
                return f"{status.st_size} bytes"
            key = (own.path, *(() if own.imported else stamp))
            if key not in self._digests:
                self._digests[key] = files.sha256(own.path)
            return self._digests[key]
        except OSError as error:
            return f"unreadable: {error.strerror}"


_lasting = lru_cache(maxsize=4)(Sources)


def own_files_here(point: Point) -> str:
    """Return the cell of a point in this process, which keeps the modules that it imported."""
    return _lasting(search_path.in_use()).cell(point)


def parts(cell: str) -> dict[str, str]:
    """Return the digests of a cell by axis."""
    return dict(part.split("=", 1) for part in cell.split(";") if "=" in part)


def is_digest(text: str) -> bool:
    """Say whether a text that a record holds is a digest, which names a folder."""
    return bool(_DIGEST.fullmatch(text))


def _search(name: str, places: list[str]) -> ModuleSpec | None:
    """Ask all finders as an import does: an editable install has a finder of its own."""
    for finder in sys.meta_path:
        search = getattr(finder, "find_spec", None)
        with suppress(ImportError, ValueError, KeyError):
            path = places if finder is PathFinder else None
            spec: ModuleSpec | None = search(name, path) if search else None
            if spec is not None:
                return spec
    return None


def _imports(package: str, seen: _CodeNames) -> Iterator[str]:
    """Yield the modules that a module of a package may import; most parts are no modules."""
    for level, name, parts in seen.imports:
        above = package.split(".")[: len(package.split(".")) - level + 1] if level else []
        target = ".".join(filter(None, (*above, name)))
        yield from (target, *(f"{target}.{part}" for part in parts))


def _seen(path: Path) -> _CodeNames:
    """Return what the source of a module names; nothing where it is no source, or broken."""
    seen = _CodeNames()
    with suppress(SyntaxError, ValueError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                seen.imports += [(0, alias.name, ()) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                parts = [alias.name for alias in node.names]
                seen.imports.append((node.level, node.module or "", parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                seen.texts.add(node.value)
    return seen


def _is_own(origin: str | None) -> bool:
    path = Path(origin or os.devnull)
    return _INSTALLED.isdisjoint(path.parts) and not any(map(path.is_relative_to, _STANDARD))


def _roots(path: Path, seen: _CodeNames) -> list[Path]:
    """Return the folders from which a module may name files: its own, the next, and named ones."""
    near = (path.parent, path.parent.parent)
    named = [text for text in seen.texts if 0 < len(text) < 100 and text.isprintable()]
    inside = {root / text for root in near for text in named}
    return [*near, *sorted(filter(_is_dir, inside))]


def _files(name: str, roots: Sequence[Path], seen: _CodeNames) -> Iterator[_OwnFile]:
    """Yield the files that a module names in a text, each where it is found first."""
    for text in sorted(seen.texts):
        if Path(text).suffix in _READ and len(text) < 255 and text.isprintable():
            path = next((root / text for root in roots if _is_file(root / text)), None)
            if path:
                yield _OwnFile(f"{name}:{text}", path, imported=False)
