"""Whatever a file says, what is shown of it is text, on one line, and in its cell."""

from __future__ import annotations

import csv
import io
import re
import shutil

import pandas as pd
import pytest

from hpcsweep.errors import UsageError
from hpcsweep.messages import Message
from layeredsweep import REPEATED, layered
from localruns import Desk

# escape sequences, what has no width or turns the direction, and what ends lines and cells
CONTROLS = "\x1b[31m\x07\x7f\x85\x9b\xad\u200b\u200e\u061c\u202e\u2028\u2029\u2066"
FOREIGN = f"=1+1{CONTROLS}|_&%<b>\t\r\n#"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069]")
FORMS = ("table", "csv", "md", "latex", "json")
COMMANDS = (
    ("report", "demo"),
    ("layers", "demo"),
    ("layers", "demo", "--by", "shape"),
    ("best", "demo"),
    ("compare", "demo", "demo"),
    ("plot", "demo", "--x", "input_size", "--by", "model"),
)


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """Return a sweep whose tables somebody sent: every name in them is foreign."""
    folder = tmp_path_factory.mktemp("foreign")
    run = layered(folder, REPEATED)
    overall = pd.read_csv(run.overall, dtype=str)
    names = ("model", "device_name", "torch_version", "memory_format")
    overall = overall.assign(**dict.fromkeys(names, FOREIGN))
    overall.loc[0, ["status", "status_reason"]] = ["error", FOREIGN]
    overall.to_csv(run.overall, index=False)
    rows = pd.read_csv(run.layers, dtype=str)
    rows["layer"] = rows["layer"].where(rows["layer"] == "__other__", rows["layer"] + FOREIGN)
    rows = rows.assign(unique_key=rows["unique_key"] + FOREIGN, bytes_min=1000)
    rows.to_csv(run.layers, index=False)
    shutil.rmtree(run.shards_dir)  # else the tables were made anew from these
    return Desk(folder)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_cell_runs_a_terminal_a_document_or_a_spreadsheet(foreign, command, form):
    """In every form of every table: controls are shown, markup is escaped, formulas are texts."""
    done = foreign.run(*command, "--format", form)
    assert done.returncode == 0, done.stderr
    assert not RAW.search(done.stdout + done.stderr)
    assert "\t" not in done.stdout
    assert re.search(r"(x1b|u001b)\\?\[31m", done.stdout)
    if form == "csv":
        cells = [cell for row in csv.reader(io.StringIO(done.stdout)) for cell in row]
        assert any("1+1" in cell for cell in cells)
        assert not [cell for cell in cells if cell.startswith("=") or "\n" in cell]
    if form == "md":
        assert not re.search(r"(?<!\\)<b>", done.stdout)
    if form == "latex":
        assert r"\textbar{}\_\&\%\textless{}b\textgreater{}" in done.stdout


def test_what_is_written_for_people_is_text_and_data_stay_exact(foreign, tmp_path):
    """Pictures, pages and exported tables; the merged tables themselves are as they were."""
    before = foreign.results.joinpath("demo", "overall.csv").read_bytes()
    files = ("points.csv", "points.svg", "layers.csv", "page.html")
    points, picture, layers, page = (tmp_path / name for name in files)
    by = ("--x", "input_size", "--by", "model", "--by", "algorithm")
    done = foreign.run("plot", "demo", *by, "--out", points, "--out", picture)
    assert done.returncode == 0, done.stderr
    peaks = ("--peak-compute", "1", "--peak-bw", "1")
    done = foreign.run("roofline", "demo", "--layers", *peaks, "--out", layers)
    assert done.returncode == 0, done.stderr
    done = foreign.run("report", "demo", "--html", page)
    assert done.returncode == 0, done.stderr
    for path in (points, picture, layers, page):
        text = path.read_text()
        assert not RAW.search(text.replace("\n", "")), path
        assert "1+1" in text
        assert "<b>" not in text or path.suffix == ".csv"
    for path in (points, layers):
        cells = [cell for row in csv.reader(path.read_text().splitlines()) for cell in row]
        assert not [cell for cell in cells if cell.startswith("=") or "\t" in cell]
    assert foreign.results.joinpath("demo", "overall.csv").read_bytes() == before


def test_what_slurm_or_a_file_says_is_shown_in_errors_and_messages():
    """Also where no command line prints them: Python prints an exception as it is."""
    assert str(UsageError("no \x1b[31m\u202e")) == "no \\x1b[31m\\u202e"
    assert str(Message("note", "a\x07b", "c\x9b")) == "note: a\\x07b; c\\x9b"
