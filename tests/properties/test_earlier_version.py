"""Results of the version before `details.csv`: read, collected, continued, imported, compared.

`fixtures/earlier_version` was measured and collected by that version: AlexNet at two sizes with two
algorithms, on a busy machine.
"""

from __future__ import annotations

import csv
import shutil
from typing import TYPE_CHECKING

import pandas as pd
import pytest

import hpcsweep
import resultsfolder
from hpcsweep.catalog.columns import (
    COLLECTED,
    COMMIT,
    FROZEN,
    LAYER_COLUMNS,
    LAYERS,
    MERGED_COLUMNS,
    OF_POINT,
    OVERALL,
    OWN,
    SAMPLES,
    SCHEMA_VERSION,
)
from hpcsweep.catalog.columns import kinds as every_kind
from hpcsweep.catalog.record import packaged
from hpcsweep.store import chunk_file
from hpcsweep.store.collect.collector import collect
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.shards import ShardWriter
from localruns import Desk
from paths import TESTS

if TYPE_CHECKING:
    from pathlib import Path

    from hpcsweep.point import Point

EARLIER = TESTS / "fixtures" / "earlier_version"


@pytest.fixture
def old(tmp_path: Path) -> SweepDir:
    """Return the results as that version left them."""
    shutil.copytree(EARLIER, tmp_path / "results" / "old")
    return SweepDir(tmp_path / "results" / "old")


def rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table."""
    with path.open(newline="") as file:
        return [*csv.DictReader(file)]


def points_of(sweep_dir: SweepDir) -> tuple[Point, ...]:
    """Return the points of its chunk."""
    return chunk_file.read_chunk(sweep_dir.submissions()[0].chunks, 0).points


def without_rows(sweep_dir: SweepDir, count: int) -> list[bytes]:
    """Take the last rows of its shard away, as if the job had been killed; return them."""
    (shard,) = sweep_dir.shards()
    lines = shard.overall.read_bytes().splitlines(keepends=True)
    shard.overall.write_bytes(b"".join(lines[:-count]))
    return lines[-count:]


def measured_now(sweep_dir: SweepDir, points: tuple[Point, ...]) -> None:
    """Measure points in the next attempt, by this version."""
    (shard,) = sweep_dir.shards()
    with ShardWriter(shard.next_attempt()) as writer:
        for point in points:
            now = {"hpcsweep_version": "9.9", "median_ms": 2.0}
            resultsfolder.commit(writer, point, shard.next_attempt(), **now)


def test_the_frozen_columns_are_those_of_that_version() -> None:
    """The same kinds as today, where they are known today: old cells mean what they meant."""
    frozen = packaged(FROZEN)
    today = {"overall": (*OVERALL, *COLLECTED), "layers": LAYERS, "samples": SAMPLES}
    for table, columns in today.items():
        kinds = {row["column"]: row["kind"] for row in frozen if row["table"] == table}
        assert [*kinds] == [*rows_of(EARLIER / f"{table}.csv")[0]]
        assert {c.name: c.kind for c in columns if c.name in kinds}.items() <= kinds.items()
        assert kinds.keys() <= every_kind().keys()


def test_its_tables_are_read_without_its_shards(old: SweepDir) -> None:
    """By Python and by reports: every column of the reference is there."""
    shutil.rmtree(old.shards_dir)
    results = hpcsweep.load(old.path)
    # what commands say has columns of its own names
    assert list(results.overall) == [name for name in MERGED_COLUMNS if name not in OWN]
    assert len(results.overall) == 4
    assert list(results.layers) == [*LAYER_COLUMNS, *OF_POINT]
    assert results.layers["valid"].isna().all()
    assert "alexnet" in Desk(old.path.parent.parent).run("report", "old").stdout


def test_its_shards_give_the_same_rows(old: SweepDir) -> None:
    """Every cell is there; layer rows gain what their points are worth."""
    before = rows_of(old.overall)
    layers = rows_of(old.layers)
    assert collect(old).left_out == []
    for row, wanted in zip(resultsfolder.overall(old), before, strict=True):
        assert {name: row[name] for name in wanted} == wanted
    assert len(rows_of(old.overall)[0]) < 40
    assert not rows_of(old.details)[0].keys() & {"energy_j", "val_accuracy_after"}
    worth = {row["point_id"]: (row["valid"], row["flags"], row["visit"]) for row in before}
    assert [*rows_of(old.layers)[0]] == [*LAYER_COLUMNS, *OF_POINT]
    for row, wanted in zip(rows_of(old.layers), layers, strict=True):
        point = dict(zip(OF_POINT, worth[row["point_id"]], strict=True))
        assert row.items() >= {**wanted, **point}.items()


def test_a_sweep_that_it_half_measured_goes_on(old: SweepDir) -> None:
    """Its shard stays as it is, the new one has a header of its own; however often one collects."""
    points = points_of(old)
    without_rows(old, 2)
    assert collect(old).points == 2
    shard = old.shards()[0]
    header = shard.overall.read_bytes()
    measured_now(old, points[2:])
    report = collect(old)
    assert (report.points, report.shards_read, report.left_out) == (4, 2, [])
    assert shard.overall.read_bytes() == header
    versions = {row["point_id"]: row["hpcsweep_version"] for row in rows_of(old.overall)}
    assert [versions[point.point_id] for point in points] == ["0.1.0", "0.1.0", "9.9", "9.9"]
    tables = [path.read_bytes() for path in old.merged()]
    old.collect_index.unlink()
    assert collect(old).shards_read == 2
    assert [path.read_bytes() for path in old.merged()] == tables
    assert {row["schema_version"] for row in rows_of(old.details)} == {SCHEMA_VERSION}


def test_nothing_of_it_is_measured_again(old: SweepDir) -> None:
    """The points have the ids that they had."""
    desk = Desk(old.path.parent.parent)
    done = desk.run("submit", str(old.sweep_file), "--cluster", "local")
    assert "nothing to measure" in done.stdout + done.stderr, done


def test_a_damaged_header_of_it_is_named_and_not_guessed(old: SweepDir) -> None:
    """Its record does not name its columns: each row is left out, and can be measured again."""
    (shard,) = old.shards()
    shard.overall.write_bytes(shard.overall.read_bytes().replace(b"median_ms", b"mediao_ms", 1))
    report = collect(old)
    assert (report.points, report.unreadable) == (0, [str(shard.overall)])
    assert len(report.left_out) == len(report.destroyed) == 4
    assert all("its checksum does not fit" in text for text in report.left_out)
    assert "retry" in report.remedy


def test_it_is_imported_and_compared_with_what_is_measured_now(
    old: SweepDir, tmp_path: Path
) -> None:
    """Whole, or as a folder of tables alone."""
    desk = Desk(tmp_path)
    folder = tmp_path / "elsewhere" / "old"
    shutil.move(old.path, folder)
    done = desk.run("import", folder)
    assert done.returncode == 0, done.stderr
    assert {row["source"] for row in rows_of(old.overall)} != {""}
    shutil.copytree(EARLIER, tmp_path / "results" / "new")
    new = SweepDir(tmp_path / "results" / "new")
    without_rows(new, 4)
    measured_now(new, points_of(new))
    collect(new)
    shutil.rmtree(folder / "submissions")
    across = ("--across", "torch_version,device_name")
    for side in ("old", str(folder)):
        done = desk.run("compare", side, "new", *across, "--unreliable", "--format", "csv")
        assert len(done.stdout.splitlines()) == 5, done


def test_parquet_of_it_has_every_column(old: SweepDir) -> None:
    """So sweeps of all versions can be read together."""
    desk = Desk(old.path.parent.parent)
    assert desk.run("collect", "old", "--parquet").returncode == 0
    table = pd.read_parquet(old.file("overall.parquet"))
    assert list(table) == [name for name in MERGED_COLUMNS if name not in OWN]
    assert not {*table} & {*COMMIT}
