"""What is told of a collect: as text, as JSON, and what to do about damage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.errors import DamagedResults
from hpcsweep.store.collect.collector import collect
from localruns import Desk
from resultsfolder import edit

if TYPE_CHECKING:
    from pathlib import Path

    from resultsfolder import Folder


def test_what_is_submitted_and_has_no_row_is_missing(folder: Folder) -> None:
    """Whether a job for it lives is for `status` to say."""
    folder.measure(folder.shard("s1"), folder.points[:5])
    report = collect(folder.sweep_dir)
    assert report.missing == 3
    assert "3 submitted points without a row yet; see `hpcsweep status demo`" in report.text()


def test_the_report_is_plain_json(measured: Folder) -> None:
    """For scripts; the text names the tables."""
    report = collect(measured.sweep_dir)
    record: dict[str, Any] = json.loads(json.dumps(report.to_json()))
    assert record["written"] == [str(path) for path in measured.paths()]
    assert record["statuses"] == {"ok": 8}
    text = report.text()
    assert text.startswith("demo: 8 points (8 ok), 16 layer rows\n")
    assert (
        f"wrote overall.csv, details.csv, layers.csv, samples.csv in {measured.sweep_dir.path}"
        in text
    )
    assert "nothing new" in collect(measured.sweep_dir).text()


def test_a_long_list_of_damage_is_cut_in_text_alone(folder: Folder) -> None:
    """One screen for people, everything for programs."""
    for chunk in range(30):
        folder.measure(folder.shard("s1", chunk), folder.points[:1])
        edit(folder.shard("s1", chunk).overall, lambda lines: [lines[0], b"x", lines[1], b""])
    report = collect(folder.sweep_dir)
    assert len(report.to_json()["left_out"]) == 30
    assert "and 10 more like these" in report.text()
    assert len(report.text().splitlines()) < 30


@pytest.mark.parametrize("table", ["samples", "overall"])
def test_a_damaged_point_is_named_with_the_command_that_measures_it_again(
    tmp_path: Path, table: str
) -> None:
    """`status` counts its row; `collect` says that it is lost, and ends with 6 until it is back."""
    desk = Desk(tmp_path)
    desk.spec("workload: noop\naxes: {model: [a], input_size: [1, 2, 3]}\n")
    assert desk.run("submit", "sweep.yaml").returncode == 0
    (shard,) = desk.sweep().shards()
    file = getattr(shard, table)
    content = file.read_bytes()
    file.write_bytes(content[:-2] + (b"0\n" if content[-2:] != b"0\n" else b"1\n"))
    lost = desk.rows()[-1]["point_id"]
    assert "3 ok" in desk.run("submit", "sweep.yaml").stdout
    done = desk.run("collect", "sweep")
    assert done.returncode == DamagedResults.exit_code
    assert "2 points (2 ok)" in done.stdout
    assert "without a row yet" not in done.stdout
    where = f"{shard.overall.relative_to(desk.folder)}:4: row of point {lost}"
    assert f"{where} left out: its checksum does not fit" in done.stdout
    command = f"hpcsweep retry sweep --point {lost}"
    assert done.stderr.rstrip().endswith(command)
    (record,) = json.loads(desk.run_process("collect", "sweep", "--json").stdout)["sweeps"]
    assert (record["lost"], record["missing"], record["remedy"]) == ([lost], 0, command)
    assert desk.run(*command.split()[1:]).returncode == 0
    healed = desk.run("collect", "sweep")
    assert (healed.returncode, healed.stderr) == (0, "")
    assert "3 points (3 ok)" in healed.stdout
