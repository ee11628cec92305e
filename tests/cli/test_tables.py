"""The commands that make tables, and the report of them."""

from __future__ import annotations

import csv
import json

import pytest

import quickstart


@pytest.mark.slow
def test_report_writes_a_page_and_names_it(desk):
    """Instead of the table; with --json, beside it."""
    quickstart.collected(desk.folder)
    done = desk.run("report", "quickstart", "--html", "page.html")
    assert (done.returncode, done.stdout) == (0, "open page.html\n")
    assert (desk.folder / "page.html").read_text().startswith("<!doctype html>")
    shard = desk.folder / "results/quickstart/shards/a/0.0.overall.csv"
    shard.parent.mkdir(parents=True)
    shard.touch()
    (mine := desk.folder / "mine.html").write_text("<!doctype html><title>mine - hpcsweep</title>")
    for path in (shard, mine):
        before = path.read_bytes()
        refused = desk.run("report", "quickstart", "--html", path)
        *_, told = refused.stderr.splitlines()
        assert (refused.returncode, told.startswith("hpcsweep: ")) == (2, True)
        assert path.read_bytes() == before
    done = desk.run("report", "quickstart", "--html", "page.html", "--json")
    record = json.loads(done.stdout)
    assert (record["sweep"], record["files"]) == ("quickstart", ["page.html"])


def test_report_compares_any_column_of_the_rows_that_are_asked_for(layered_desk):
    """In every form; JSON and CSV have the same values."""
    options = ("report", "demo", "--where", "input_size=64", "--metric", "mean_ms")
    told = layered_desk.run(*options)
    assert told.returncode == 0, told.stderr
    assert told.stdout.startswith("demo: mean (ms) (9 ok)")
    (row,) = csv.DictReader(layered_desk.run(*options, "--format", "csv").stdout.splitlines())
    record = json.loads(layered_desk.run(*options, "--json").stdout)
    assert record["statuses"] == {"ok": 9}
    assert float(row["winograd"]) == record["rows"][0]["mean_ms"]["winograd"]
    assert "| resnet18 | 64 |" in layered_desk.run(*options, "--format", "md").stdout
    for wrong, words in (("mean", "did you mean 'mean_ms'"), ("input_size", "is an axis")):
        refused = layered_desk.run("report", "demo", "--metric", wrong)
        assert (refused.returncode, words in refused.stderr) == (2, True)
