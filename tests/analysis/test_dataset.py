"""The measured rows of a sweep, and the choice among them."""

from __future__ import annotations

import pytest

import resultsfolder
from analysistables import table_of
from collectedsweep import SUBMISSION, SWEEP, cells_of
from hpcsweep.analysis import plot
from hpcsweep.collect import workflow
from hpcsweep.errors import UsageError
from hpcsweep.store import shards


def test_only_measured_points_that_the_sweep_still_has_are_shown(tmp_path):
    """Failures have no time; orphans are no longer asked for."""
    folder = resultsfolder.make(tmp_path, SWEEP)
    folder.submit(SUBMISSION, text=SWEEP)
    shard = folder.shard(SUBMISSION)
    with shards.ShardWriter(shard) as writer:
        for point in folder.points:
            status = "oom" if point.axes["batch_size"] == 16 else "ok"
            cells = cells_of(point.axes) if status == "ok" else {}
            resultsfolder.commit(writer, point, shard, status=status, **cells)
    smaller = SWEEP.replace("[1, 4, 16]", "[1, 16]")
    folder.submit(
        "20260102-000000-bbbbbb", resultsfolder.points_of(tmp_path, smaller), text=smaller
    )
    workflow.collect(folder.run)
    found = plot.read(folder.run, "batch_size")
    assert found.places == [1]
    assert "(6 ok, 6 oom, 6 orphans left out)" in table_of(found)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"x": "bach_size"}, "no column 'bach_size'; did you mean 'batch_size'"),
        ({"y": "troughput_ips"}, "did you mean 'throughput_ips'"),
        ({"by": ["algoritm"]}, "did you mean 'algorithm'"),
        ({"y": "layer_rows", "where": "num_threads=3"}, r"has num_threads=3 \(.*1, 2, 4\)"),
        ({"where": "num_threads"}, "is no column=value"),
        ({"baseline": "num_threads=3"}, r"has num_threads=3 \(.*1, 2, 4\)"),
        ({"baseline": "num_thread=1"}, "did you mean 'num_threads'"),
        ({"y": "status"}, "status holds no numbers"),
        ({"x": "energy_j"}, "no measured point has both energy_j and median_ms"),
    ],
)
def test_what_is_not_there_is_told_with_what_is(run, options, words):
    """The nearest column, or the values that there are."""
    given = {"x": "batch_size", **options}
    with pytest.raises(UsageError, match=words):
        plot.read(run, given.pop("x"), given.pop("y", "median_ms"), **given)
