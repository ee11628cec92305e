"""Which row of a point counts, and the reasons of those that were not measured."""

from __future__ import annotations

from hpcsweep.store import failures

FAILING = """\
workload: noop
axes: {model: [a], input_size: [1, 2, 3, 4]}
measure:
  fail:
    - {when: {input_size: 2}, how: error, attempts: 1}
    - {when: {input_size: [3, 4]}, how: oom}
"""


def row(status, reason="", **axes):
    """Return what a row says of a point that ended so."""
    return {"status": status, "status_reason": reason, "model": "a", **axes}


def test_reasons_that_differ_in_numbers_only_are_one():
    """The most frequent first, each with the first point that has it."""
    rows = [
        row("error", "no", input_size="1"),
        row("oom", "needs 5 GB", input_size="2"),
        row("oom", "needs 7.5 GB", input_size="3"),
        row("timeout", "", input_size="4"),
    ]
    assert [*map(str, failures.grouped(rows))] == [
        "2 oom: needs 5 GB (a 2 and 1 other)",
        "1 error: no (a 1)",
        "1 timeout: no reason was given (a 4)",
    ]


def test_of_several_rows_of_a_point_the_ok_one_counts(desk):
    """A point that failed and was measured later is no failure any more."""
    desk.spec(FAILING.replace("[3, 4]", "3"))
    desk.submit()
    told = [str(one) for one in failures.of(desk.sweep().shards())]
    assert "1 error: RuntimeError: injected error (a 2 1 auto)" in told
    assert desk.run("retry", "sweep").returncode == 0
    (left,) = failures.of(desk.sweep().shards())
    assert left.status == "oom"
    found = failures.rows_of(desk.sweep().shards())
    assert sorted(row["status"] for row in found.values()) == ["ok", "ok", "ok", "oom"]


def test_why_points_failed_is_said_by_submit_and_status(desk):
    """And what to do next."""
    desk.spec(FAILING)
    done = desk.submit()
    reason = "1 error: RuntimeError: injected error (a 2 1 auto)"
    assert f"\n  {reason}\n" in done.stdout
    assert "2 oom: out of memory" in done.stdout
    assert "failed points: hpcsweep show sweep, hpcsweep retry sweep" in done.stdout
    assert f"sweep: local: {reason}" in desk.run("status").stdout
