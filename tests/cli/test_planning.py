"""`expand` and `estimate`: what would be measured, and what it would cost."""

from __future__ import annotations

import json
import os
import tracemalloc
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from hpcsweep.cli import planning

NOOP = "workload: noop\naxes: {model: [a], input_size: [1, 2, 3]}\n"


def _expansion(desk, *more):
    """Return the one expansion that the command prints as JSON."""
    (found,) = json.loads(desk.run("expand", "sweep.yaml", *more, "--json").stdout)["expansions"]
    return found


def test_expand_json_is_pure(desk):
    """Machines read stdout; every point is flat."""
    desk.spec(NOOP + "exclude: [{input_size: 2}]\n")
    done = desk.run_process("expand", "sweep.yaml", "--cluster", "local", "--json")
    (record,) = json.loads(done.stdout)["expansions"]
    assert record["points_total"] == 2
    assert [point["input_size"] for point in record["points"]] == [1, 3]
    assert all(len(point["point_id"]) == 16 for point in record["points"])


def test_expand_shows_ten_points_unless_asked_for_all(desk):
    """The rest is counted."""
    desk.spec(NOOP.replace("[1, 2, 3]", "{start: 1, stop: 30, num: 30}"))
    assert "and 20 more" in desk.run("expand", "sweep.yaml").stdout
    assert len(_expansion(desk, "--all")["points"]) == 30


@pytest.mark.parametrize("form", ["text", "--json"])
def test_a_listing_of_all_points_keeps_none_of_them(desk, form):
    """Each is printed as it is made: a million points need no more memory than ten."""
    desk.spec(NOOP.replace("[1, 2, 3]", "{start: 1, stop: 2000, step: 1}"))
    arguments = [str(desk.folder / "sweep.yaml"), "--all", *([form] if form != "text" else [])]
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        planning.expand.main([*arguments[:1]], standalone_mode=False)  # loads what it needs
        tracemalloc.start()
        try:
            planning.expand.main(arguments, standalone_mode=False)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 1.5e6


@pytest.mark.parametrize(
    "rules",
    [
        "",
        "exclude: [{model: longest}, {input_size: 2}]\n",
        "exclude: [{model: a}, {model: longest}]\ninclude: [{model: other, input_size: 77777}]\n",
        "include: [{model: included, gpu: l40}]\n",
        "exclude: [{input_size: {ge: 1}}]\ninclude: [{model: included}]\n",
    ],
)
def test_all_points_have_the_columns_and_widths_of_the_first_ten(desk, rules):
    """Widths come from the values that are left, before any point is printed."""
    desk.spec(
        "workload: noop\naxes: {model: [a, longest], input_size: [1, 2, 1000], "
        f"algorithm: [gemm]}}\n{rules}"
    )
    assert (
        desk.run("expand", "sweep.yaml", "--all").stdout == desk.run("expand", "sweep.yaml").stdout
    )
    for more in (["--cluster", "local"], ["--sample", "1"]):
        few = desk.run("expand", "sweep.yaml", *more).stdout
        assert desk.run("expand", "sweep.yaml", *more, "--all").stdout == few


def test_estimate_tells_the_cost(desk):
    """Before anything is submitted, from rows where there are some."""
    desk.spec(NOOP)
    record = json.loads(desk.run("estimate", "sweep.yaml", "--json").stdout)["estimates"][0]
    assert record["points"] == 3
    assert record["share_from_rows"] == 0
    assert list(record["gpu_hours"]) == ["cpu"]


def test_expand_shows_the_ids_that_will_be_measured_or_none(desk):
    """The gpu is part of an id; where the sweep leaves it to the profile, a line says so."""
    desk.spec(NOOP)
    bare = _expansion(desk)
    assert {point["point_id"] for point in bare["points"]} == {None}
    assert "point_id" not in desk.run("expand", "sweep.yaml").stdout
    assert "--cluster NAME" in desk.run("expand", "sweep.yaml").stdout
    here = _expansion(desk, "--cluster", "local")
    assert here["notes"] == []
    desk.run("submit", "sweep.yaml", "--cluster", "local")
    assert {row["point_id"] for row in desk.rows()} == {p["point_id"] for p in here["points"]}


def test_expand_shows_the_ids_of_a_sweep_that_names_its_gpus(desk):
    """They are those that a profile of that GPU measures."""
    desk.spec(NOOP.replace("}", ", gpu: [l40]}"))
    bare, there = (_expansion(desk, *more) for more in ((), ("--cluster", "l40")))
    assert bare["points"] == there["points"]
    assert bare["notes"] == []
    assert "sweep on l40 (l40): 3" in desk.run("expand", "sweep.yaml", "--cluster", "l40").stdout


def test_expand_writes_values_as_a_sweep_file_does(desk):
    """What is unset says so, as in reports; maps are not those of Python."""
    axes = "num_threads: [null, 2], tf32: [true, false], algorithm: [auto, {fc: gemm}]"
    desk.spec(NOOP.replace("input_size: [1, 2, 3]", axes))
    shown = desk.run("expand", "sweep.yaml").stdout
    assert not any(word in shown for word in ("None", "True", "'fc'"))
    assert "unset" in shown
    assert "true" in shown
    assert '{"fc":"gemm"}' in shown


def test_a_dry_run_says_how_long_its_point_takes(desk):
    """Before it is measured; `estimate` measures none."""
    desk.spec(NOOP)
    assert desk.run("estimate", "sweep.yaml", "--cluster", "v100").stderr == ""
    shown = desk.run("submit", "sweep.yaml", "--dry-run", "--cluster", "local").stdout
    assert "measuring one point here: a 1 1 auto on cpu, about 1 s" in shown


def test_images_need_not_be_square(desk):
    """Their width and channels are axes; the ids of points without them are as ever."""
    head = "workload: inference\naxes:\n  model: [resnet18, vit_b_16]\n  gpu: [cpu]\n"
    desk.spec(head + "  input_size: [224]\n")
    plain = {point["point_id"] for point in _expansion(desk)["points"]}
    desk.spec(head + "  input_size: [224]\n  input_width: [null, 224]\n  input_channels: [3, 4]\n")
    points = _expansion(desk)["points"]
    assert len(points) == 8
    assert {
        p["point_id"] for p in points if not p["input_width"] and p["input_channels"] == 3
    } == plain
    desk.spec(head + "  input_size: [224]\n  input_width: [320]\n")
    told = desk.run("expand", "sweep.yaml").stderr
    assert "6: axes.input_width[0]: found 320, vit_b_16 takes 224 only; correct the width" in told
