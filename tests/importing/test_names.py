"""No name that a record of another site holds leads out of the folder that it is meant for."""

from __future__ import annotations

import json
import zipfile
from contextlib import suppress
from dataclasses import replace

import pytest

import resultsfolder
from hpcsweep import files
from hpcsweep.analysis import bundle as writing
from hpcsweep.errors import HpcsweepError, ResultsError, UsageError
from hpcsweep.importing import importer
from hpcsweep.point import Point
from hpcsweep.store import chunk_file
from hpcsweep.store.collect import collector

ID = "20260101-000000-v100"
DIGEST = "0123456789abcdef"
SECRET = "the private key"
BAD = {
    "absolute": "{own}/keys",
    "above": f"{'../' * 20}{{own}}/keys",
    "above, in a folder": f"a/{'../' * 20}{{own}}/keys",
    "slash": "keys/id_rsa",
    "empty": "",
    "dots": "..",
    "hidden": ".keys",
    "NUL": "{own}/keys\0",
    "line": "keys\nid_rsa",
    "long": "k" * 5000,
}


# what a manifest or a row names beside its file
OF_MANIFESTS = ("id", "sweep", "spec", "launcher", "gpu", "source", "host")
OF_ROWS = ("profile", "model", "weights", "gpu", "sweep", "submission", "chunk", "attempt")


def in_manifest(made, fields, name):
    """Write a name into a manifest as another program may: without a checksum."""
    (submission,) = made.sweep_dir.submissions()
    record = json.loads(submission.manifest.read_text())
    changed = {**record, **dict.fromkeys(fields, name), "crc": None}
    submission.manifest.write_text(json.dumps(changed))


def in_rows(made, columns, name):
    """Measure all points again, with a name in some columns."""
    made.measure(made.shard(ID, 0, 1), **{"median_ms": 2.0, **dict.fromkeys(columns, name)})


def in_digest(made, _, name):
    """Name a folder of own files in each row."""
    in_rows(made, ["own_files"], f"model={name}")


CASES = {
    **{f"profile, {bad}": (in_manifest, ["profile"], bad) for bad in BAD},
    **{f"digest, {bad}": (in_digest, [], bad) for bad in BAD},
    **{f"manifest, {bad}": (in_manifest, OF_MANIFESTS, bad) for bad in ("absolute", "above")},
    **{f"row, {bad}": (in_rows, OF_ROWS, bad) for bad in ("absolute", "above")},
}


@pytest.fixture
def own(tmp_path):
    """Return a folder of the user's own, with a profile and a key."""
    folder = tmp_path / "own"
    (folder / "keys").mkdir(parents=True)
    (folder / "keys" / "id_rsa").write_text(SECRET)
    (folder / "keys.yaml").write_text("gpu: l40\n")
    return folder


@pytest.mark.parametrize("case", CASES)
def test_no_name_in_a_record_leads_out_of_its_folder(tmp_path, own, case, monkeypatch):
    """Neither to read nor to write; whether it is refused or left out, a command ends in order."""
    monkeypatch.setattr(writing, "write_page", lambda _, path: path.touch())  # half of the time
    made = resultsfolder.make(tmp_path)
    made.submit(ID, profile="l40")
    made.measure(made.shard(ID), median_ms=2.0)
    change, names, bad = CASES[case]
    change(made, names, BAD[bad].format(own=own))
    before = {path: path.read_bytes() for path in own.rglob("*") if path.is_file()}
    packed = tmp_path / "x.zip"
    with suppress(HpcsweepError):
        importer.bring(tmp_path / "theirs", made.sweep_dir.path)
    for root in (made.sweep_dir.path, tmp_path / "theirs" / "demo"):
        with suppress(HpcsweepError), files.errors_named():
            collector.collect(resultsfolder.SweepDir(root))
            writing.write(resultsfolder.SweepDir(root), packed)
    assert {path: path.read_bytes() for path in own.rglob("*") if path.is_file()} == before
    assert {path.name for path in tmp_path.iterdir()} <= {
        "demo.yaml",
        "own",
        "results",
        "theirs",
        "x.zip",
    }
    if packed.exists():
        with zipfile.ZipFile(packed) as archive:
            names = archive.namelist()
            assert not any(SECRET.encode() in archive.read(name) for name in names)
            assert all(name.startswith("demo/") and ".." not in name for name in names)


@pytest.mark.parametrize("bad", BAD)
def test_a_chunk_whose_points_have_no_ids_is_damaged(tmp_path, bad):
    """Those name checkpoints and the files of a point."""
    points = (Point("inference", {"model": "resnet18"}, {}, BAD[bad].format(own=tmp_path)),)
    path = tmp_path / "chunks.jsonl"
    chunk_file.write_chunks(path, [chunk_file.Chunk(0, points, 1.0)])
    with pytest.raises(ResultsError, match="chunk 0 is damaged"):
        chunk_file.read_chunk(path, 0)


@pytest.mark.parametrize(
    "place",
    ["own_files", f"own_files/{DIGEST}", f"own_files/{DIGEST}/a.py", "sweep.yaml",
     "shards/*/0.0.samples.csv", "overall.csv"],
)  # fmt: skip
def test_a_link_among_results_is_not_packed(tmp_path, own, place):
    """It may lead to a key; the message names it."""
    made = resultsfolder.make(tmp_path)
    made.submit(ID)
    made.measure(made.shard(ID), median_ms=2.0, own_files=f"model={DIGEST}")
    kept = made.sweep_dir.own_files / DIGEST
    kept.mkdir(parents=True)
    (kept / "a.py").touch()
    collector.collect(made.sweep_dir)
    (path,) = made.sweep_dir.path.glob(place)
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(ResultsError, match=f"{path.name}.* is a link"):
        writing.write(made.sweep_dir, tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def test_paths_of_another_machine_are_not_imported(tmp_path):
    """`retry` and `submit` look there, and `bundle` would take what has the digest."""
    made = resultsfolder.make(tmp_path)
    made.submit(ID, spec="/dev/zero", templates=("/x.j2",), profile_fields={"path": "/x/l40.yaml"})
    made.measure(made.shard(ID), median_ms=2.0)
    found = importer.bring(tmp_path / "theirs", made.sweep_dir.path)
    record = found.sweep_dir.submission(ID).read_manifest()
    assert (record.spec, record.templates, record.profile_path) == ("", (), "")
    assert record == replace(record, run=replace(record.run, search_path=()))


@pytest.mark.parametrize("name", ["..", "-x", "a/b", ".hidden", "a" * 300, "a\0b"])
def test_a_bundle_whose_folder_cannot_be_a_sweep_is_refused(tmp_path, name):
    """Its name would be that of a folder of results."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        member = zipfile.ZipInfo()
        member.filename = member.orig_filename = f"{name}/SHA256SUMS"
        archive.writestr(member, b"")
    with pytest.raises((UsageError, ResultsError)), files.errors_named():
        importer.bring(tmp_path / "theirs", tmp_path / "x.zip")
    assert [path.name for path in tmp_path.iterdir()] == ["x.zip"]
