"""Conditions choose rows, and what cannot hold is told."""

from __future__ import annotations

import pandas as pd
import pytest

import collectedsweep
from hpcsweep.analysis import compare, plot, report
from hpcsweep.analysis.conditions import parse, select
from hpcsweep.cli import main
from hpcsweep.errors import UsageError
from localruns import Desk

ROWS = pd.DataFrame(
    {
        "model": ["a", "b", "c", "d"],
        "input_size": [8, 16, 32, 64],
        "seed": [1.0, None, 3.0, 4.0],
        "started_at": [f"2026-01-0{day}T10:00:00.000+00:00" for day in (1, 2, 3, 4)],
    }
)


@pytest.mark.parametrize(
    ("text", "models"),
    [
        ("model=a,model=c", "ac"),
        ("input_size=8, input_size = 64 ,model!=a", "d"),
        ("input_size==16", "b"),
        ("input_size>=16,input_size<64", "bc"),
        ("input_size=10..40", "bc"),
        ("input_size=8,input_size=30..70", "acd"),
        ("input_size!=10..40", "ad"),
        ("seed=unset", "b"),
        ("seed<4", "ac"),
        ("started_at>=2026-01-03", "cd"),
        ("started_at=2026-01-02..2026-01-03T12:00", "bc"),
    ],
)
def test_conditions_hold_together_and_values_of_a_column_are_alternatives(text, models):
    """Numbers by size, times by the calendar; an empty cell has no size."""
    assert "".join(select(ROWS, parse(text))["model"]) == models


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model", "is no column=value"),
        ("input_size=8,16", "did you mean 'input_size=8,input_size=16'"),
        ("input_size=>8", r"'input_size=>8' is no column=value .*>="),
        ("input_size<>8", r"is no column=value .*!="),
        ("input_size=8-64", r"a range is input_size=8\.\.64"),
        ("model<b", "model is a text, which has no order"),
        ("input_size>big", "needs a number"),
        ("started_at>soon", "needs a number, or a date"),
        ("model=a,model=x", r"has model=x \(model is one of a, b, c, d\)"),
        ("model!=x", r"has model=x \("),
        ("input_size>64", r"has input_size>64 \(input_size is one of 8, 16, 32, 64\)"),
        ("model=a,input_size=16", r"has input_size=16 \(input_size is one of 8\)"),
    ],
)
def test_a_condition_that_cannot_hold_is_told_with_what_to_type(text, words):
    """Never read as something else: a value that no row has is a mistake, also beside others."""
    with pytest.raises(UsageError, match=words):
        select(ROWS, parse(text))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Give a collected sweep of three batch sizes and two algorithms."""
    return collectedsweep.collected(tmp_path_factory.mktemp("where"))


def test_every_command_that_takes_where_takes_the_same(run):
    """And the option may be repeated: all its conditions count."""
    desk = Desk(run.path.parent.parent)
    assert {n for n, c in main.commands.items() if any(p.name == "where" for p in c.params)} == {
        "report", "layers", "best", "compare", "plot", "roofline",
    }  # fmt: skip
    asked = ("--where", "batch_size>=4,algorithm=gemm", "--where", "algorithm=winograd")
    done = desk.run("report", "demo", *asked, "--format", "csv")
    assert {line.split(",")[2] for line in done.stdout.splitlines()[1:]} == {"4", "16"}, done
    assert "gemm,winograd" in done.stdout.splitlines()[0]
    for command in (["layers"], ["best"], ["plot", "--x", "batch_size"], ["roofline"]):
        done = desk.run(*command, "demo", "--where", "batch_size>99")
        assert "no measured point has batch_size>99" in done.stderr, command
    both = compare.read_side(run.path.parent, "demo:batch_size<=4", "batch_size>1", unreliable=True)
    assert set(both.rows["batch_size"]) == {4}
    assert compare.compare_sides(both, both).verdicts
    assert len(report.read_report(run, where="batch_size=1..4").rows) == 6


def test_a_baseline_is_one_value_of_each_column(run):
    """Anything else could mean several baselines."""
    for text in ("batch_size>=4", "algorithm=gemm,algorithm=winograd", "batch_size=1..4"):
        with pytest.raises(UsageError, match="a baseline is column=value"):
            plot.read_plot(run, "batch_size", baseline=text)
    kept = plot.read_plot(
        run, "batch_size", where="algorithm=gemm,algorithm=winograd", baseline="algorithm=gemm"
    )
    assert kept.rows["_speedup"].max() == 2
