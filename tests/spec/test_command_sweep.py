"""Sweep files of commands."""

from __future__ import annotations

import json

import pytest

from hpcsweep.errors import SpecError
from hpcsweep.spec import expansion, sweep_file, sweep_keys

GOOD = """\
workload: command
axes: {batch_size: [32, 64], lr: [0.1, 1e-2], precision: [fp32, amp]}
run: python train.py --batch {batch_size} --lr {lr} --{precision}
results: {json: last_line}
"""


def _load(tmp_path, text: str):
    path = tmp_path / "s.yaml"
    path.write_text(text)
    return sweep_file.load(path)


def test_a_point_has_the_axes_of_the_file_and_its_command(tmp_path):
    """In the order of the file; what a command is not asked for has no axis."""
    points = [*expansion.expand(_load(tmp_path, GOOD), gpu="cpu")]
    assert len(points) == len({point.point_id for point in points}) == 8
    assert points[0].axes == {
        "batch_size": 32, "lr": 0.1, "precision": "fp32", "gpu": "cpu", "visit": 1
    }  # fmt: skip
    assert points[0].measure == {
        "run": "python train.py --batch {batch_size} --lr {lr} --{precision}",
        "results": {"json": "last_line"},
    }


def test_the_id_stays(tmp_path):
    """Results of today are found tomorrow."""
    first = next(iter(expansion.expand(_load(tmp_path, GOOD), gpu="cpu")))
    assert first.point_id == "2ae0e48e8c5efc4f"


@pytest.mark.parametrize("points", ["axes: {größe: [7]}", "include: [{größe: 7}]"])
def test_an_axis_has_a_name_of_any_letters(tmp_path, points):
    """Its points have ids, however they are given."""
    text = f"workload: command\nrun: 'true {{größe}}'\n{points}\n"
    (point,) = expansion.expand(_load(tmp_path, text), gpu="cpu")
    assert point.point_id == "d4df691f3a1b9ad9"


def test_axes_may_depend_on_each_other(tmp_path):
    """As those of other workloads."""
    text = GOOD + "exclude: [{precision: amp, lr: 0.1}]\ninclude: [{lr: 1.0, precision: tf32}]\n"
    text += "zip: []\nwhen: [{if: {precision: fp32}, axes: {batch_size: [8]}}]\n"
    points = [*expansion.expand(_load(tmp_path, text), gpu="cpu")]
    told = {(p.axes["batch_size"], p.axes["lr"], p.axes["precision"]) for p in points}
    assert told == {
        (8, 0.1, "fp32"), (8, 0.01, "fp32"), (32, 0.01, "amp"), (64, 0.01, "amp"),
        (None, 1.0, "tf32"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("--{precision}", "--{precison}", "3: run: {precison} is no axis of this sweep"),
        ("--{precision}", "--{precison}", "did you mean 'precision'?"),
        ("--{precision}", "--{0}", "3: run: {0} is no name of an axis"),
        ("--{precision}", "--'{precision}", "3: run: No closing quotation"),
        ("precision: [", "mean_ms: [", "2: axes.mean_ms: is a name of hpcsweep's own"),
        ("precision: [", "out: [", "2: axes.out: is a name of hpcsweep's own"),
        ("precision: [", "a b: [", "cannot name an axis"),
        ("precision: [", "copy: [", "2: axes.copy: cannot name an axis"),
        ("[32, 64]", "[a]", "2: axes.batch_size[0]: found 'a', needs a whole number"),
        ("[fp32, amp]", "[[1]]", "2: axes.precision[0]: found a list, needs text of one line"),
        ("run: ", "ran: ", "ran: unknown key"),
        (GOOD[GOOD.index("run:") : GOOD.index("results")], "", "run: needs a command"),
        ("json: last_line", "json: '{x}.json'", "4: results.json: {x} is no axis"),
        ("json: last_line", "json: a, csv: b", "4: results: needs one of json, csv, pattern"),
        ("json: last_line", "pattern: '('", "4: results.pattern: is no regular expression"),
        ("json: last_line", "pattern: 'loss (.*)'", "4: results.pattern: has no named group"),
        ("json: last_line", "pattern: '(?P<lr>.)'", "cannot be called lr, which is a column"),
        ("json: last_line", "json: a, columns: {n: x}", "cannot be called n, which is a column"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path, old, new, told):
    """Before anything runs."""
    with pytest.raises(SpecError) as error:
        _load(tmp_path, GOOD.replace(old, new))
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("axes", "exclude", "left"),
    [
        ("[false, true, 0, 1, 2]", "true", [False, 0, 1, 2]),
        ("[false, true, 0, 1, 2]", "[1, false]", [True, 0, 2]),
        ("[false, true, 0, 1, 2]", "{not: [true, 1]}", [True, 1]),
        ("[0.1, 0.01, 1]", "{lt: 0.1}", [0.1, 1]),
    ],
)
def test_conditions_are_on_values_as_they_are(tmp_path, axes, exclude, left):
    """True is not 1; numbers compare."""
    text = f"workload: command\naxes: {{k: {axes}}}\nexclude: [{{k: {exclude}}}]\nrun: echo {{k}}\n"
    found = [point.axes["k"] for point in expansion.expand(_load(tmp_path, text), gpu="cpu")]
    assert list(map(repr, found)) == list(map(repr, left))


@pytest.mark.parametrize(
    ("exclude", "told"),
    [("1", "k has no 1, it has false, true"), ("{lt: 1}", "compares numbers, and k has false")],
)
def test_a_condition_that_holds_for_no_value_is_told(tmp_path, exclude, told):
    """Also where Python would call the values equal."""
    text = "workload: command\naxes: {k: [false, true]}\nrun: echo {k}\n"
    with pytest.raises(SpecError, match=told):
        _load(tmp_path, f"{text}exclude: [{{k: {exclude}}}]\n")


def test_a_sweep_may_have_included_points_alone(tmp_path):
    """Each has all axes."""
    text = "workload: command\ninclude: [{a: 3}, {a: 4, b: x}]\nrun: echo {a} {b}\n"
    points = [*expansion.expand(_load(tmp_path, text), gpu="cpu")]
    assert [(point.axes["a"], point.axes["b"]) for point in points] == [(3, None), (4, "x")]


def test_other_workloads_have_no_command(tmp_path):
    """The key is told with its line."""
    text = "workload: noop\naxes: {model: [a]}\nrun: x\n"
    with pytest.raises(SpecError, match="3: run: means nothing to noop"):
        _load(tmp_path, text)


def test_an_editor_takes_any_axis_of_a_command_alone():
    """The JSON Schema knows the axes of all other workloads."""
    schema = json.loads(sweep_keys.schema())
    assert schema["if"] == {"properties": {"workload": {"const": "command"}}}
    assert "$ref" in schema["else"]["properties"]["axes"]
    assert "$ref" not in schema["properties"]["axes"]
    assert {"run", "results", "shell"} <= schema["properties"].keys()
