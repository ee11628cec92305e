"""Writes the bundle of a sweep: one file with its tables, all that they were made from, and a page.

`importing.bundle` reads it back. The files keep their rights, and the bundle has none that one of
the user's own files in it lacks.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import jinja2
import pandas as pd
import yaml

from hpcsweep import files, sources
from hpcsweep.analysis import dataset, reliability
from hpcsweep.analysis.dataset import Dataset
from hpcsweep.analysis.page import wording
from hpcsweep.analysis.page.write import write_page
from hpcsweep.errors import SpecError
from hpcsweep.spec import sweep_file
from hpcsweep.spec.profile import ProfileFile
from hpcsweep.store import named_file
from hpcsweep.store.folders import SUMS, SweepDir
from hpcsweep.store.manifest import Manifest

# what the page does not tell of rows, and README.md does
_READ: Final = {"own_files", "control_shift_pct", *wording.READ}
_BLOCK: Final = 1 << 20  # bytes that are read at a time: files may be larger than the memory


@dataclass(frozen=True)
class OwnCode:
    """What an axis names, in the version that was measured, and its files if they are at hand."""

    axis: str
    value: str
    digest: str
    files: Mapping[str, Path]

    def __str__(self) -> str:
        names = ", ".join(self.files) or "not kept, and changed or not readable since"
        return f"{self.axis} {self.value} ({self.digest}): {names}"


def write(sweep_dir: SweepDir, path: Path) -> list[OwnCode]:
    """Write the bundle of a collected sweep; return what of the user's own it holds, or lacks.

    `UsageError` where nothing was measured, or the file cannot be written or is no bundle;
    `ResultsError` where a link, a pipe or a device is among the results.
    """
    named_file.check(path, _is_bundle)
    members = _members(sweep_dir)
    with tempfile.TemporaryDirectory() as aside:
        return _write(sweep_dir, path, members, Path(aside))


def _write(sweep_dir: SweepDir, path: Path, members: dict[str, Path], made: Path) -> list[OwnCode]:
    """Write the bundle of these members, and of what is made for it in a folder."""
    write_page(sweep_dir, made / "page.html")  # first: it needs the most memory
    data = dataset.read_dataset(sweep_dir, columns=_READ)
    own = [*_own_files(data)]
    # a new file has these at most; each file of the user's own takes away what it lacks
    rights = 0o666
    for code in own:
        for source in code.files.values():
            rights &= files.reach(source)
    (made / "profiles").mkdir()
    for record in sweep_dir.manifests():
        if record.profile:
            profile = made / "profiles" / f"{record.profile}.yaml"
            profile.write_text(yaml.safe_dump(_profile_keys(record)))
    (made / "README.md").write_text(_readme(data, own))
    members |= sources.files_below(made)
    for code in own:
        for place, source in code.files.items():
            members[f"own_files/{code.digest}/{place}"] = source
    root = sweep_dir.path.name
    sums = ""
    writing = named_file.writing(path, _is_bundle, most=rights)
    with writing as file, zipfile.ZipFile(file, "w") as archive:
        for name, member in members.items():
            sums += f"{_add(archive, f'{root}/{name}', member)}  {name}\n"
        archive.writestr(f"{root}/{SUMS}", sums, zipfile.ZIP_DEFLATED)
    return own


def _is_bundle(text: bytes) -> bool:
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(io.BytesIO(text)) as archive:
        return any(name.endswith(f"/{SUMS}") for name in archive.namelist())
    return False


def _add(archive: zipfile.ZipFile, name: str, path: Path) -> str:
    """Add a file, which may be growing; return the checksum of what was added."""
    digest = hashlib.sha256()
    member = zipfile.ZipInfo(name, time.localtime()[:6])
    member.compress_type = zipfile.ZIP_DEFLATED
    with files.open_regular(path) as file:
        member.external_attr = os.fstat(file.fileno()).st_mode << 16
        with archive.open(member, "w", force_zip64=True) as to:
            while block := file.read(_BLOCK):
                digest.update(block)
                to.write(block)
    return digest.hexdigest()


def _members(sweep_dir: SweepDir) -> dict[str, Path]:
    """Return the files of a results folder that `import` takes, and its tables, by their names.

    `ResultsError` for a link: it may lead to what was never meant for others.
    """
    root = sweep_dir.path
    made = [root / "layout.json", sweep_dir.sweep_file]
    for submission in sweep_dir.submissions():
        made += submission.manifest, submission.chunks
    for shard in sweep_dir.shards():
        made += shard.overall, shard.layers, shard.samples, shard.env
    members = {}
    for path in sweep_dir.merged():
        if path.is_file():
            files.refuse_links(path)
            members[path.name] = path
    for path in made:
        if os.path.lexists(path):
            name = path.relative_to(root)
            files.refuse_links(root, *name.parts)
            members[str(name)] = path
    return members


def _profile_keys(record: Manifest) -> dict[str, Any]:
    """Return a profile as its file would have it; on this machine the GPU is what there is."""
    known = {**vars(record.run), **record.profile_fields}
    if not record.is_local:
        known["gpu"] = record.gpu
    return {key: known[key] for key in ProfileFile.model_fields if known.get(key) is not None}


def _own_files(data: Dataset) -> Iterator[OwnCode]:
    """Yield what the measured networks and data sets are made of, each version once."""
    search_path: list[str] = []
    for record in data.sweep_dir.manifests():
        search_path += record.run.search_path
    now = sources.Sources(search_path)
    rows = pd.concat([data.rows, data.earlier]).reindex(columns=[*sources.AXES, "own_files"])
    for row in rows.dropna(subset=["own_files"]).drop_duplicates().to_dict("records"):
        for axis, digest in sources.parts(row["own_files"]).items():
            value = str(row[axis])
            found = sources.kept(data.sweep_dir.own_files, digest)
            if not found and now.digest(axis, value) == digest:
                found = now.files(axis, value)
            readable = all(os.access(path, os.R_OK) for path in found.values())
            yield OwnCode(axis, value, digest, found if readable else {})


def _readme(data: Dataset, own: Sequence[OwnCode]) -> str:
    rows = data.rows
    again = ""
    with suppress(SpecError):  # of an older version, or of another program
        again = sweep_file.load(data.sweep_dir.sweep_file).name
    counts = reliability.flags(rows).replace("", None).value_counts()
    flags = ", ".join(f"{name} {number}" for name, number in counts.items()) or "none"
    about = {
        "name": data.sweep_dir.path.name, "counts": data.counts(), "when": wording.when(rows),
        "how": wording.how(data), "citation": wording.citation(data), "flags": flags,
        "hardware": dataset.hardware(rows), "notes": data.why_failed(), "own": own, "again": again,
    }  # fmt: skip
    env = jinja2.Environment(finalize=wording.shown, trim_blocks=True, lstrip_blocks=True)  # noqa: S701 - Markdown
    text = resources.files("hpcsweep.analysis").joinpath("bundle.md").read_text(encoding="utf-8")
    template = env.from_string(text)
    return template.render(**about, values=lambda name: wording.values_in(rows, name))
