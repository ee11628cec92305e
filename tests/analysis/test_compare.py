"""Which rows are faster or slower: beyond the noise, of what is on both sides, of equal kind.

And what can be a side: a sweep, its submissions, rows of it, folders of other machines.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import pandas as pd
import pytest

import repeatedruns
from hpcsweep import messages
from hpcsweep.analysis.compare import compare_sides, read_side, sides_of_last_runs
from hpcsweep.cli.common import renewed
from hpcsweep.errors import UsageError
from repeatedruns import SWEEP

SECOND = "20260203-000000-bbbbbb"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return the first run."""
    return repeatedruns.run(tmp_path_factory.mktemp("base"), 1)


@pytest.fixture(scope="module")
def three(tmp_path_factory, base):
    """Return three runs, with the first one."""
    folder = tmp_path_factory.mktemp("three")
    return [base, *(repeatedruns.run(folder, seed) for seed in (11, 12))]


def runs(path, *seeds, **options):
    """Return runs whose times are those of `options`."""
    return [repeatedruns.run(path, seed, **options) for seed in seeds]


def side(*runs, where=""):
    """Return a side of one or several runs."""
    return read_side(runs[0].path.parent, "+".join(str(run.path) for run in runs), where)


def verdicts(first, second, **options):
    """Return how many rows have each verdict."""
    return compare_sides(side(first), side(second), **options).verdicts


@pytest.mark.slow
def test_equal_runs_do_not_differ_and_a_slowdown_of_a_tenth_does(three, tmp_path):
    """Half a percent of noise between runs, three a side, 12 rows."""
    same = runs(tmp_path, 2, 3, 4)
    slow = runs(tmp_path, 5, 6, 7, factor=lambda _axes: 1.1)
    assert {"FASTER", "SLOWER"}.isdisjoint(compare_sides(side(*three), side(*same)).verdicts)
    found = compare_sides(side(*three), side(*slow))
    assert found.verdicts == {"SLOWER": 12}
    ratio, low, high = found.judged.mean
    assert low < 1.1 < high
    assert ratio == pytest.approx(1.1, rel=0.01)
    assert compare_sides(side(*slow), side(*three)).verdicts == {"FASTER": 12}


def test_one_run_on_each_side_says_nothing_without_controls(base, tmp_path):
    """A tenth may be another node, load or place in memory; the controls could tell."""
    (slow,) = runs(tmp_path, 2, factor=lambda _axes: 1.1)
    found = compare_sides(side(base), side(slow))
    assert found.verdicts == {"UNDECIDED": 12}
    assert "the noise between runs is unknown" in found.view().written("table")

    def controlled(_axes):
        return {"control_ms": 1.0}

    first, same, slower = (
        repeatedruns.run(tmp_path, seed, more=controlled, factor=lambda _axes, by=by: by)
        for seed, by in ((3, 1.0), (4, 1.02), (5, 1.3))
    )
    assert verdicts(first, same) == {"UNDECIDED": 12}
    assert verdicts(first, slower) == {"SLOWER": 12}


@pytest.mark.slow
def test_one_row_that_is_slower_is_found_by_repeated_runs(three, tmp_path):
    """And named with its ratio, for a machine that has to decide."""

    def planted(axes):
        return 1.1 if (axes["input_size"], axes["algorithm"]) == (96, "gemm") else 1.0

    slow = runs(tmp_path, 3, 4, 5, factor=planted)
    found = compare_sides(side(*three), side(*slow))
    (label,) = found.beyond("SLOWER", 0.05)
    assert label.startswith("resnet18 input_size 96 gemm (1.")
    assert found.beyond("SLOWER", 0.2) == []
    assert "SLOWER" not in compare_sides(side(three[0]), side(slow[0])).verdicts


def test_a_rate_is_faster_where_it_is_higher(base, three, tmp_path):
    """The ratio is that of the column."""
    slow = runs(tmp_path, 2, 3, 4, factor=lambda _axes: 1.1)
    found = compare_sides(side(*three), side(*slow), metric="throughput_ips")
    assert found.verdicts == {"SLOWER": 12}
    assert (found.table["low"] < 1 / 1.1).all()
    assert (found.table["high"] > found.table["ratio"]).all()
    with pytest.raises(UsageError, match="neither a time nor a rate"):
        compare_sides(side(base), side(*slow), metric="input_size")


def test_repeated_runs_tell_the_noise_that_all_rows_share(tmp_path):
    """Every run of the first side is a few percent off as a whole: 8 % more is no slowdown."""
    offs = (1.0, 1.08, 0.95)
    runs = [
        repeatedruns.run(tmp_path, seed, factor=lambda _axes, off=off: off)
        for seed, off in enumerate((*offs, 1.08, 1.6))
    ]
    found = compare_sides(side(*runs[:3]), side(runs[3]))
    assert found.verdicts == {"UNDECIDED": 12}
    assert (found.first.runs, found.second.runs) == (3, 1)
    assert compare_sides(side(*runs[:3]), side(runs[4])).verdicts == {"SLOWER": 12}


def test_what_only_one_side_has_is_told(base, tmp_path):
    """Rows are joined on the axes that are equal."""
    other = repeatedruns.run(tmp_path, 2, SWEEP.replace("32, 64", "32, 48"))
    text = compare_sides(side(base), side(other)).view().written("table")
    assert f"only in {base.path}: 2 configurations (input_size 64 auto" in text
    assert "(input_size 48 auto" in text
    alone = repeatedruns.run(tmp_path, 3, SWEEP.replace("resnet18", "resnet34"))
    with pytest.raises(UsageError, match=r"no measured point has model=vgg16"):
        side(alone, where="model=vgg16")


def test_an_axis_with_one_value_on_each_side_is_what_is_compared(base, tmp_path):
    """Two networks, two GPUs: joined on everything else."""
    other = repeatedruns.run(tmp_path, 2, SWEEP.replace("resnet18", "resnet34"))
    text = compare_sides(side(base), side(other)).view().written("table")
    assert "compared: model resnet18 and resnet34" in text


def test_what_varies_on_both_sides_alike_is_joined_on(tmp_path):
    """Two types of numbers in each run are no mixture."""
    text = SWEEP.replace("axes:\n", "axes:\n  dtype: [float32, bfloat16]\n")
    first, second = (repeatedruns.run(tmp_path, seed, text) for seed in (1, 2))
    assert len(compare_sides(side(first), side(second)).table) == 24


def test_other_versions_are_refused_until_they_are_named(base, tmp_path):
    """Else a ratio would mean something else than it says."""
    newer = repeatedruns.run(
        tmp_path, 2, more=lambda _axes: {"torch_version": "2.10.0", "driver_version": "550"}
    )
    with pytest.raises(
        UsageError, match=r"torch_version: 2.9.0 and 2.10.0; --across torch_version"
    ):
        compare_sides(side(base), side(newer))
    found = compare_sides(side(base), side(newer), across=["torch_version"])
    assert "unknown on one side: driver_version" in found.notes
    half = repeatedruns.run(tmp_path, 3, SWEEP.replace("axes:\n", "axes:\n  dtype: [bfloat16]\n"))
    with pytest.raises(UsageError, match="dtype: float32 and bfloat16"):
        compare_sides(side(base), side(half))


def test_coverage_stands_beside_where_it_is_not_whole(base, tmp_path):
    """A time of which the algorithm did 83 % is another thing."""
    other = repeatedruns.run(tmp_path, 2, more=lambda _axes: {"algorithm_coverage_pct": 83})
    assert "100, 83" in compare_sides(side(base), side(other)).view().written("table")


@pytest.fixture(scope="module")
def twice(tmp_path_factory):
    """Return the results of a sweep that was measured twice."""
    path = tmp_path_factory.mktemp("twice")
    run = repeatedruns.run(path, 1)
    cells = repeatedruns.cells_of(2, factor=lambda _axes: 2.0)
    repeatedruns.again(run, path, SECOND, cells)
    return run


def test_a_submission_is_named_by_its_date(twice):
    """Its rows come from the shards: the table keeps the later row of each point."""
    root = twice.path.parent
    dates = ("demo@20260101", "demo@2026-02-03", "demo")
    first, second, table = (read_side(root, text, renewed=renewed) for text in dates)
    assert [len(side.rows) for side in (first, second, table)] == [12, 12, 12]
    assert second.rows["median_ms"].sum() == table.rows["median_ms"].sum()
    assert second.rows["median_ms"].sum() / first.rows["median_ms"].sum() > 1.9
    assert [side.runs for side in (first, second, table)] == [1, 1, 1]
    assert read_side(root, "demo@2026", renewed=renewed).runs == 2


def test_runs_are_joined_and_rows_chosen(twice):
    """By `+`, and by column=value."""
    root = twice.path.parent
    joined = read_side(root, "demo@20260101+demo@20260203", renewed=renewed)
    assert (joined.runs, len(joined.rows)) == (2, 24)
    chosen = read_side(root, "demo:algorithm=gemm,input_size=64")
    assert list(chosen.rows["median_ms"] > 100) == [True]
    assert len(read_side(root, "demo:algorithm=gemm", "input_size=64").rows) == 1


def test_a_folder_that_was_brought_from_elsewhere_is_a_side(twice, tmp_path):
    """The sweep's folder, the folder around it, or the tables alone."""
    for name in ("overall.csv", "layers.csv"):
        shutil.copy(twice.file(name), tmp_path)
    for path in (twice.path, twice.path.parent, tmp_path):
        assert len(read_side(tmp_path / "results", str(path)).rows) == 12


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dmeo", "did you mean 'demo'"),
        ("demo@2025", "no run '2025'.*2026-01-01"),
        ("demo:gpuu=v100", "no column 'gpuu'; did you mean 'gpu'"),
        ("demo:gpu=v100", "gpu is one of cpu"),
        ("/", "it has no overall.csv and no submissions"),
    ],
)
def test_what_is_not_there_is_told(twice, text, words):
    """With what is there."""
    with pytest.raises(UsageError, match=words):
        read_side(twice.path.parent, text)


@pytest.mark.parametrize(
    ("text", "factor"),
    [
        ("demo@previous", 1.0),
        ("demo@2", 2.0),
        ("demo@2026-02-03", 2.0),
        ("demo@2026-02-03 00:00:00:algorithm=gemm", 2.0),
    ],
)
def test_a_run_is_named_by_date_number_or_place(twice, text, factor):
    """Its rows are its own, also behind a colon of its time."""
    side = read_side(twice.path.parent, text, renewed=renewed)
    per_pixel = side.rows["median_ms"] / side.rows["input_size"].astype(float)
    assert abs(per_pixel.mean() - factor) < 0.1
    assert len(side.rows) == (6 if "gemm" in text else 12)


@pytest.mark.parametrize("at", ["3", "2026-02-03T01", "", "20260203-000000-x"])
def test_a_run_that_is_not_there_is_told_with_those_that_are(twice, at):
    """With number, date and time."""
    with pytest.raises(UsageError, match=r"run 1 \(2026-01-01 .*run 2 \(2026-02-03 00:00:00\)"):
        read_side(twice.path.parent, f"demo@{at}", renewed=renewed)


def test_a_day_with_several_runs_needs_the_time(tmp_path):
    """None of them is taken in silence, nor all of them as repeats."""
    run = repeatedruns.run(tmp_path, 1)
    for hour in ("09", "17"):
        cells = repeatedruns.cells_of(int(hour))
        repeatedruns.again(run, tmp_path, f"20260203-{hour}0000-bbbbbb", cells)
    with pytest.raises(UsageError, match=r"run 2 .*09:00:00.* or run 3 .*17:00:00.*add the time"):
        read_side(run.path.parent, "demo@2026-02-03", renewed=renewed)
    side = read_side(run.path.parent, "demo@2026-02-03T17", renewed=renewed)
    assert set(side.rows["submission"]) == {"20260203-170000-bbbbbb"}


def test_one_sweep_alone_is_its_last_two_runs(twice, tmp_path):
    """With the columns that it names; one run is told, with what makes another."""
    texts = sides_of_last_runs(twice.path.parent, "demo:algorithm=gemm")
    assert texts == ["demo@1:algorithm=gemm", "demo@2:algorithm=gemm"]
    single = repeatedruns.run(tmp_path, 1)
    with pytest.raises(UsageError, match=r"demo has 1 run .*hpcsweep .*submit demo --again"):
        sides_of_last_runs(single.path.parent, "demo")


def test_sides_that_are_the_same_rows_are_told(twice):
    """Whatever they are called; so are some rows that stand on both sides."""

    def told(first, second):
        read = [read_side(twice.path.parent, text, renewed=renewed) for text in (first, second)]
        return "\n".join(compare_sides(*read).notes)

    assert "both sides are the same rows" in told("demo", "demo@2")
    assert "same" not in told("demo@1", "demo@2")
    assert "12 rows of both sides are the same ones" in told("demo@1", "demo@1+demo@2")


def test_two_products_under_one_gpu_are_what_is_compared(tmp_path):
    """The sweeps name one GPU; the devices do not."""

    def on(device):
        return lambda _axes: {"gpu": "l40", "device_name": device}

    (old,) = runs(tmp_path, 2, more=on("NVIDIA L40"))
    (new,) = runs(tmp_path, 3, more=on("NVIDIA L40S"))
    (same,) = runs(tmp_path, 4, more=on("NVIDIA L40"))
    assert "compared: gpu l40 and l40s" in compare_sides(side(old), side(new)).notes
    assert "compared: gpu l40 and l40s" in compare_sides(side(old, same), side(new)).notes
    assert not any("compared" in note for note in compare_sides(side(old), side(same)).notes)


def of(tmp_path, seed, **cells):
    """Return a side with such cells in all of its rows."""
    return side(*runs(tmp_path, seed, more=lambda _axes: cells))


def test_two_versions_of_an_own_network_are_what_is_compared(tmp_path):
    """Versions inside of one side are a mix, which no ratio is of."""
    one, two = (of(tmp_path, seed, own_files=text) for seed, text in ((2, "a"), (3, "b")))
    told = "compared: versions of the own files of resnet18"
    assert told in compare_sides(one, two).notes
    assert told not in compare_sides(one, one).notes
    mixed = replace(one, rows=pd.concat([one.rows, two.rows]))
    with pytest.raises(UsageError, match="differ in own_files: resnet18"):
        compare_sides(mixed, one)


def test_two_revisions_of_one_version_are_told(tmp_path):
    """Of two versions everybody sees that they differ; of a row without one nothing is known."""
    texts = enumerate(("1.0+ga", "1.0+gb", "2.0", None))
    sides = {text: of(tmp_path, 2 + seed, hpcsweep_version=text) for seed, text in texts}
    told = []
    with messages.told_to(lambda message: told.append(str(message))):
        for second in sides.values():
            compare_sides(sides["1.0+ga"], second)
    assert told == ["warning: two revisions of hpcsweep measured the sides: 1.0+ga and 1.0+gb"]


def test_an_interval_that_says_nothing_is_called_unbounded(tmp_path):
    """Not with the seventy digits of its upper end."""
    wild = runs(tmp_path, 2, 3, 4, 5, noise=3.0)
    found = compare_sides(side(*wild[:2]), side(*wild[2:]))
    assert "(unbounded)" in found.view().written("table")
