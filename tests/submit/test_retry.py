"""Taking points again: by status, by id, on which profile, and when there is nothing to take."""

from __future__ import annotations

import json
from collections import Counter

from localruns import Desk

NOOP = """\
workload: noop
axes: {model: [a, b], input_size: [1, 2]}
"""


def test_nothing_to_take_again_is_no_error(desk):
    """Exit code 0; what there is instead is said."""
    desk.spec(NOOP)
    desk.run("submit", "sweep.yaml")
    done = desk.run("retry", "sweep")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no point is error or crashed or timeout (4 ok); nothing to measure again" in done.stdout
    assert len(desk.sweep().submissions()) == 1


def test_points_that_are_not_valid_are_measured_again(desk):
    """Every summary names the command; earlier rows stay, and then there is nothing to do."""
    how = "measure: {fail: [{when: {model: b}, how: contended, attempts: 1}]}\n"
    desk.spec(NOOP + how)
    again = "these 2 points again: hpcsweep retry sweep --invalid"
    shown = [desk.run(*words.split()) for words in (
        "submit sweep.yaml", "status", "collect sweep", "report sweep", "submit sweep.yaml"
    )]  # fmt: skip
    for text in (done.stdout + done.stderr for done in shown):
        assert "2 of them not valid: contended 2" in text or "flagged contended 2" in text
        assert text.count(again) == 1
    told = desk.run("retry", "sweep", "--invalid", "--dry-run").stdout
    assert "2 points to measure again on local" in told
    assert len(desk.rows()) == 4
    assert desk.run("retry", "sweep").stdout.count("nothing to measure again") == 1
    done = desk.run("retry", "sweep", "--invalid")
    assert done.returncode == 0, done.stderr
    assert Counter(row["model"] for row in desk.rows()) == {"a": 2, "b": 4}
    assert "not valid" not in desk.run("collect", "sweep").stdout
    told = desk.run("retry", "sweep", "--invalid")
    assert (told.returncode, "no point is not valid (4 ok)" in told.stdout) == (0, True)


def test_a_machine_that_stays_busy_is_told_with_what_can_be_done(desk):
    """A retry that changed nothing says so; one that did says nothing of it."""
    desk.spec(NOOP + "measure: {fail: [{when: {model: b}, how: contended, attempts: 2}]}\n")
    desk.run("submit", "sweep.yaml")
    told = desk.run("retry", "sweep", "--invalid").stderr
    assert "note: sweep: measured again, still not valid" in told
    assert all(words in told for words in ("min_ms", "--exclusive", "--unreliable"))
    assert "still not valid" not in desk.run("retry", "sweep", "--invalid").stderr


def test_before_any_row_nothing_is_not_valid(desk):
    """There are no tables, either."""
    desk.spec(NOOP)
    desk.run("submit", "sweep.yaml")
    for shard in desk.sweep().shards():
        for path in (shard.overall, shard.samples):
            path.unlink()
    done = desk.run("retry", "sweep", "--invalid")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no point is not valid (no point has a row)" in done.stdout


def test_only_those_of_the_named_points_that_are_not_valid(desk):
    """And with several reasons, those that meet one."""
    desk.spec(NOOP + "measure: {fail: [{when: {model: b}, how: contended}]}\n")
    desk.run("submit", "sweep.yaml")
    by_model = {row["model"]: row["point_id"] for row in desk.rows()}
    named = ("--point", by_model["a"], "--point", by_model["b"])
    assert desk.run("retry", "sweep", "--invalid", "--changed", *named).returncode == 0
    rows = Counter(row["point_id"] for row in desk.rows())
    assert (rows[by_model["a"]], rows[by_model["b"]], len(rows)) == (1, 2, 4)


def test_names_that_do_not_exist_are_bad_input(desk):
    """A status, a point, a profile: each with what there is."""
    desk.spec(NOOP)
    desk.run("submit", "sweep.yaml")
    for arguments, words in (
        (("--status", "crash"), "no status 'crash'; did you mean 'crashed'?"),
        (("--point", "feedbeef"), "no measured point has the id 'feedbeef'"),
        (
            ("--status", "ok", "--cluster", "l40"),
            "nothing was sent to profile 'l40' (profiles used: local)",
        ),
    ):
        done = desk.run("retry", "sweep", *arguments)
        assert done.returncode == 2
        assert words in done.stderr


def test_a_profile_that_lies_anywhere_is_found_again(desk):
    """It was given by its path; the name alone leads nowhere."""
    desk.spec(NOOP)
    (desk.folder / "elsewhere").mkdir()
    (desk.folder / "elsewhere" / "mine.yaml").write_text("launcher: local\n")
    desk.run("submit", "sweep.yaml", "--cluster", "elsewhere/mine.yaml")
    point = desk.rows()[0]["point_id"]
    for more in ((), ("--cluster", "mine"), ("--cluster", "elsewhere/mine.yaml")):
        done = desk.run("retry", "sweep", "--point", point, *more)
        assert done.returncode == 0, done.stderr
    assert Counter(row["point_id"] for row in desk.rows())[point] == 4


def test_profiles_that_have_none_of_the_points_are_left_out(desk):
    """Two profiles measured the sweep; the failure belongs to one."""
    text = NOOP + "measure: {fail: [{when: {gpu: b}, how: error, attempts: 2}]}\n"
    desk.spec(text.replace("[1, 2]}", "[1, 2], gpu: [a, b]}"))
    for gpu in ("a", "b"):
        (desk.folder / f"{gpu}.yaml").write_text(f"launcher: local\ngpu: {gpu}\n")
        desk.run("submit", "sweep.yaml", "--cluster", f"{gpu}.yaml")
    done = desk.run("retry", "sweep")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing" not in done.stdout
    assert Counter(row["gpu"] for row in desk.rows()) == {"a": 4, "b": 8}


def test_a_point_is_measured_again_where_its_last_row_is_from(desk):
    """Two profiles of one device share all points; a profile that is named takes any."""
    text = NOOP + "measure: {fail: [{when: {model: b}, how: error}]}\n"
    for name, sizes in (("one", "1"), ("two", "1, 2")):
        (desk.folder / f"{name}.yaml").write_text("launcher: local\n")
        desk.spec(text.replace("1, 2", sizes))
        desk.run("submit", "sweep.yaml", "--cluster", f"{name}.yaml")
    told = desk.run("retry", "sweep", "--dry-run").stdout
    assert "1 point to measure again on one" in told
    assert "1 point to measure again on two" in told
    named = desk.run("retry", "sweep", "--dry-run", "--cluster", "two").stdout
    assert "2 points to measure again on two" in named
    desk.run("retry", "sweep")
    assert Counter(row["model"] for row in desk.rows()) == {"a": 2, "b": 4}


def test_a_profile_that_was_renamed_takes_the_points_of_its_gpu(desk):
    """One of another GPU takes none."""
    desk.spec(NOOP + "measure: {fail: [{when: {model: b}, how: error, attempts: 1}]}\n")
    (desk.folder / "old.yaml").write_text("launcher: local\ngpu: mine\n")
    desk.run("submit", "sweep.yaml", "--cluster", "old.yaml")
    (desk.folder / "old.yaml").rename(desk.folder / "new.yaml")
    other = desk.run("retry", "sweep", "--cluster", "l40")
    assert "nothing was sent to profile 'l40'" in other.stderr
    done = desk.run("retry", "sweep", "--cluster", "new.yaml")
    assert done.returncode == 0, done.stderr
    assert Counter(row["status"] for row in desk.rows()) == {"ok": 4, "error": 2}
    assert {row["gpu"] for row in desk.rows()} == {"mine"}


def test_an_imported_submission_is_no_profile_of_this_machine(desk, tmp_path):
    """Its profile has the same name, and another GPU."""
    there = Desk(tmp_path / "there")
    there.folder.mkdir()
    (there.folder / "local.yaml").write_text("launcher: local\ngpu: v100\n")
    text = NOOP + "measure: {fail: [{when: {model: b}, how: error, attempts: 1}]}\n"
    for one, profile in ((there, "local.yaml"), (desk, "local")):
        one.spec(text)
        one.run("submit", "sweep.yaml", "--cluster", profile)
    assert desk.run("import", there.sweep().path).returncode == 0
    done = desk.run("retry", "sweep")
    assert "2 points on cpu" in done.stdout, done.stdout + done.stderr
    assert "v100" not in done.stdout


def test_points_that_left_the_sweep_are_told(desk):
    """They failed, and nobody asks for them any more."""
    desk.spec(NOOP + "measure: {fail: [{when: {model: a}, how: error}]}\n")
    desk.run("submit", "sweep.yaml")
    desk.spec(NOOP.replace("[a, b]", "[b]"))
    desk.run("submit", "sweep.yaml")
    done = desk.run("retry", "sweep")
    assert done.returncode == 0
    assert "the sweep no longer has these points (2)" in done.stderr
    assert json.loads(desk.run("collect", "sweep", "--json").stdout)["sweeps"][0]["orphans"] == 4


def test_more_time_or_memory_is_no_help_here(desk):
    """Nor for a point that its own limit ended; both are told, the one before anything is sent."""
    limits = "measure: {fail: [{when: {model: b}, how: hang}]}\npoint_timeout: 1\n"
    desk.spec(NOOP + limits)
    assert desk.run("submit", "sweep.yaml", "--mem", "4G").returncode == 2
    assert not desk.results.exists()
    desk.run("submit", "sweep.yaml")
    done = desk.run("retry", "sweep", "--time", "4h")
    assert done.returncode == 2
    assert "--time 4h: profile 'local' measures on this machine" in done.stderr
    assert len(desk.sweep().submissions()) == 1
    told = desk.run("retry", "sweep", "--status", "oom", "--mem", "4G").stdout
    assert "`hpcsweep submit sweep` takes both, for points without a row" in told


def test_what_more_time_or_memory_does_not_change_is_told(desk):
    """A limit of the sweep's own, and the memory of a GPU; the line of a dry run has the values."""
    text = NOOP.replace("[1, 2]}", "[1, 2], gpu: [a]}")
    fail = "measure: {fail: [{when: {model: b}, how: hang}, {when: {model: a}, how: oom}]}\n"
    desk.spec(f"{text}{fail}point_timeout: 1\n")
    site = desk.folder / "a.yaml"
    site.write_text("launcher: local\ngpu: a\n")
    desk.run("submit", "sweep.yaml", "--cluster", "a.yaml")
    site.write_text("launcher: sbatch\ngpu: a\ntime: 30\n")
    again = ("retry", "sweep", "--status", "oom,timeout", "--dry-run")
    done = desk.run(*again, "--time", "4h", "--mem", "8G")
    assert "again on a (--dry-run: none was); jobs ask for --time 04:00:00 --mem 8G" in done.stdout
    assert "2 points reached the sweep's own limit, `point_timeout`, which --time" in done.stderr
    assert "2 points ran out of the GPU's memory, and --mem is that of the host" in done.stderr
    assert "warning" not in desk.run(*again).stderr
    assert "point_timeout" not in desk.run(*again, "--mem", "8G").stderr
