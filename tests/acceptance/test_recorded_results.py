"""What an earlier version measured is read, reported, compared, moved and continued by this one.

`recorded/` was made by `record.sh` with the version of commit eae6417e: every workload, status and
launcher. Only the command line and files are used here, so these tests stand whatever
becomes of the modules. Times in it mean nothing: that machine was busy, and told not to mind.

`expected/` holds what commands print. HPCSWEEP_GOLDEN=write writes it anew, and refuses to
while CHANGELOG.md has no new line: what people see does not change unsaid.
"""

from __future__ import annotations

import csv
import html.parser
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import localruns

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
EXPECTED = HERE / "expected"
CHANGELOG = HERE.parent.parent / "CHANGELOG.md"
TABLES = ("overall", "details", "layers", "samples")
# What collect writes beside what was measured: it may say more than it did
WRITTEN_BY_COLLECT = {"schema_version", "flags", "valid"}
WRITE = os.environ.get("HPCSWEEP_GOLDEN") == "write"

SCREENS = {
    "show-statuses": "show statuses",
    "show-json": "show skipped --json",
    "status": "status statuses skipped injected own_program trained",
    "report-statuses": "report statuses",
    "report-csv": "report statuses --format csv",
    "report-skipped": "report skipped",
    "report-injected": "report injected",
    "report-trained": "report trained",
    "report-command": "report own_program",
    "report-of-sbatch": "report by_sbatch",
    "report-half-done": "report half_done",
    "layers": "layers statuses",
    "best": "best statuses",
    "compare-runs": "compare trained@1 trained@2",
    "compare-columns": "compare statuses:algorithm=auto statuses:algorithm=gemm",
    "predict": "predict between.yaml --from statuses",
    "predict-what-does-not-run": "predict statuses.yaml --from statuses",
    "expand-trained": "expand trained.yaml --json",
    "nothing-to-measure": "submit injected.yaml --cluster local",
    "logs": "logs statuses",
}


class Desk:
    """A copy of the recorded folder, in which commands run as a person would run them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(RECORDED / "desk", folder)
        shutil.copytree(RECORDED / "results", folder / "results")
        an_hour_ago = time.time() - 3600  # as long ago as nobody takes for a run that goes on
        for path in folder.rglob("*"):
            os.utime(path, (an_hour_ago, an_hour_ago))

    def run(self, line: str, expect: int | None = None) -> str:
        """Return what a command prints, on either stream, with what differs by machine masked."""
        env = {"TZ": "UTC", "HOME": str(self.folder), "COLUMNS": "120", "SLURM_CONF": ""}
        done = localruns.Desk(self.folder).run(*line.split(), **env)
        if expect is not None:
            assert done.returncode == expect, done.stdout + done.stderr
        text = f"$ hpcsweep {line}\n{done.stdout}{done.stderr}exit code {done.returncode}\n"
        return self.masked(text)

    def masked(self, text: str) -> str:
        """Replace the folder, versions, durations and the load of this machine."""
        text = text.replace(str(self.folder), "DESK")
        text = re.sub(r"\d+\.\d+\.\d+\+g[0-9a-f]+(\.dirty)?", "VERSION", text)
        text = re.sub(r"\(\d+\.\d+ s\)", "(N s)", text)
        text = re.sub(r"^warning: this machine is busy.*\n", "", text, flags=re.MULTILINE)
        return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"

    def table(self, sweep: str, name: str) -> list[dict[str, str]]:
        """Return the rows of a table."""
        with (self.folder / "results" / sweep / f"{name}.csv").open(newline="") as file:
            return [*csv.DictReader(file)]


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """Give a copy of the recorded folder."""
    return Desk(tmp_path / "desk")


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Desk:
    """Give a copy that the tests of this module only read from."""
    return Desk(tmp_path_factory.mktemp("reading") / "desk")


def same_as_expected(name: str, text: str) -> None:
    """Compare with what is expected, or write it down where a person asked for that."""
    path = EXPECTED / f"{name}.txt"
    if WRITE and not (path.exists() and path.read_text() == text):
        assert changelog_grew(), "say in CHANGELOG.md what changes, and for whom"
        path.write_text(text)
    assert text == path.read_text()


def changelog_grew() -> bool:
    """Say whether CHANGELOG.md differs from what it was when an expectation last changed."""
    git = ["git", "-C", str(HERE)]
    asked = [*git, "log", "-1", "--format=%H", "--", str(EXPECTED)]
    last = subprocess.run(asked, capture_output=True, text=True, check=True)
    since = [*git, "diff", "--quiet", last.stdout.strip() or "HEAD", "--", str(CHANGELOG)]
    return subprocess.run(since, check=False).returncode != 0


@pytest.mark.parametrize("name", SCREENS)
def test_screens_are_what_they_were(reading: Desk, name: str) -> None:
    """Each command prints what it printed of the same shards."""
    same_as_expected(name, reading.run(SCREENS[name]))


class _Words(html.parser.HTMLParser):
    """The words of a page that people read, one element a line."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._silent = False

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._silent = tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self._silent = False

    def handle_data(self, data: str) -> None:
        if not self._silent and data.strip():
            self.words.append(" ".join(data.split()))


def test_a_page_says_what_it_said(reading: Desk) -> None:
    """The words of `report --html`, its figures' labels among them."""
    reading.run("report statuses --html page.html", expect=0)
    words = _Words()
    words.feed((reading.folder / "page.html").read_text())
    same_as_expected("page", reading.masked("\n".join(words.words)))


@pytest.mark.parametrize("sweep", ["statuses", "skipped", "injected", "own_program", "trained"])
def test_its_shards_give_the_rows_that_it_collected(desk: Desk, sweep: str) -> None:
    """Every cell of its tables comes back from its shards alone."""
    before = {name: desk.table(sweep, name) for name in TABLES}
    folder = desk.folder / "results" / sweep
    for path in [*folder.glob("*.csv"), *folder.glob(".collect*")]:
        path.unlink()
    desk.run(f"collect {sweep}", expect=0)
    for name, rows in before.items():
        now = desk.table(sweep, name)
        assert len(now) == len(rows)
        for row, wanted in zip(now, rows, strict=True):
            measured = {k: v for k, v in wanted.items() if k not in WRITTEN_BY_COLLECT}
            assert {k: row.get(k, "") for k in measured} == measured
            assert set(wanted.get("flags", "").split(";")) <= set(row.get("flags", "").split(";"))


def test_a_run_that_was_killed_goes_on(desk: Desk) -> None:
    """Four of twelve points had rows: eight are measured, and their ids are the same."""
    desk.run("submit half_done.yaml --cluster local", expect=0)
    desk.run("collect half_done", expect=0)
    rows = desk.table("half_done", "overall")
    assert len(rows) == len({row["point_id"] for row in rows}) == 12
    assert {row["status"] for row in rows} == {"ok"}
    assert len({row["submission"] for row in rows}) == 2


def test_failed_points_are_measured_again(desk: Desk) -> None:
    """`retry` finds the failures that it recorded."""
    assert "injected: measured 1 crashed, 1 error" in desk.run("retry injected", expect=3)
    desk.run("collect injected", expect=0)
    assert len(desk.table("injected", "overall")) == 8


def test_its_bundle_is_imported(desk: Desk) -> None:
    """Into a folder without anything; the report is that of the sweep itself."""
    report = desk.run("report statuses")
    shutil.rmtree(desk.folder / "results")
    desk.run(f"import {RECORDED / 'statuses.zip'}", expect=0)
    assert desk.run("report statuses") == report


def test_its_folder_is_imported_from_another_machine(desk: Desk, tmp_path: Path) -> None:
    """As results that were copied by hand."""
    report = desk.run("report skipped")
    away = tmp_path / "away"
    shutil.move(desk.folder / "results", away)
    desk.run(f"import {away / 'skipped'}", expect=0)
    assert desk.run("report skipped") == report


def test_it_is_bundled_and_read_back(desk: Desk) -> None:
    """By this version, with the rows of its two submissions."""
    rows = desk.table("trained", "overall")
    desk.run("bundle trained --out trained.zip", expect=0)
    shutil.rmtree(desk.folder / "results")
    desk.run("import trained.zip", expect=0)
    back = desk.table("trained", "overall")
    assert [{name: row[name] for name in rows[0]} for row in back] == rows


def test_a_run_is_removed_and_the_other_stays(desk: Desk) -> None:
    """`rm` knows its runs."""
    desk.run("rm trained@1 --yes", expect=0)
    assert "#1" not in desk.run("report trained", expect=0)
    desk.run("collect trained", expect=0)
    assert len(desk.table("trained", "overall")) == 2
