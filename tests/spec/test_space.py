"""Names of maps; combinations that are counted without a list (the laws are in properties/)."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from collectedsweep import collected
from hpcsweep.analysis import formats, layers, plot, report
from hpcsweep.errors import SpecError
from hpcsweep.point import algorithm_name, canonical_json, map_name
from hpcsweep.spec import expansion, sweep_file
from hpcsweep.spec.space import Predicate, Space, When, grid_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from localruns import Desk

MAP = '{"layer1.*": winograd, default: gemm}'
TEXT = {"layer1.*": "winograd", "default": "gemm"}
PLAIN = f"""\
name: demo
workload: inference
axes:
  model: [resnet18]
  algorithm: [auto, {MAP}]
  batch_size: [1, 2]
"""
NAMED = PLAIN + f"maps: {{early: {MAP}}}\n"
ALIASED = PLAIN.replace("axes:", f"maps: {{early: &early {MAP}}}\naxes:").replace(
    f"auto, {MAP}", "auto, *early"
)


def ids(folder: Path, text: str) -> list[str]:
    """Return the ids of a sweep's points."""
    (folder / "a.yaml").write_text(text)
    return [point.point_id for point in expansion.expand(sweep_file.load(folder / "a.yaml"))]


def test_a_name_changes_no_id(tmp_path: Path) -> None:
    """A point is the map; what it is called is for people. The map may be written once."""
    assert ids(tmp_path, PLAIN) == ids(tmp_path, NAMED) == ids(tmp_path, ALIASED)


@pytest.mark.parametrize(
    ("maps", "complaint"),
    [
        ("{gemm: {fc: fft}}", "maps.gemm: is the name of an algorithm"),
        ("{early: {fc: fft}, late: {fc: fft}}", "maps.late: is the same map as 'early'"),
        ("{early: {fc: fft}, late: {fc: gemm}}", "maps.late: no axis `algorithm`"),
        ("{early: {fc: fff}}", "did you mean 'fft'?"),
    ],
)
def test_a_wrong_name_is_refused_with_its_line(tmp_path: Path, maps: str, complaint: str) -> None:
    """Two names for one thing, or one for two, would mislead."""
    (tmp_path / "a.yaml").write_text(PLAIN.replace(MAP, "{fc: fft}") + f"maps: {maps}\n")
    with pytest.raises(SpecError) as caught:
        sweep_file.load(tmp_path / "a.yaml")
    assert complaint in str(caught.value)


def test_a_map_without_a_name_is_called_by_its_checksum() -> None:
    """The same in every sweep, of the map and of its text."""
    text = canonical_json(TEXT)
    assert algorithm_name(text) == algorithm_name(TEXT) == map_name(text) == map_name(TEXT)


@pytest.mark.parametrize(("text", "name"), [(NAMED, "early"), (PLAIN, map_name(TEXT))])
def test_reports_and_plots_call_a_map_by_its_name(tmp_path: Path, text: str, name: str) -> None:
    """Headings, lines, --where and --baseline; a line says what it stands for. CSV has the map."""
    run = collected(tmp_path, text, lambda axes: {"median_ms": 2.0 * axes["batch_size"]})
    found = report.read_report(run).views
    assert formats.written(found, "table").splitlines()[2].split() == [
        "model",
        "input_size",
        "batch_size",
        "auto",
        name,
    ]
    legend = f"   {name}: {canonical_json(TEXT)}"
    assert legend in formats.written(found, "table")
    assert found[0].to_json()["maps"] == {name: TEXT}
    drawn = plot.read_plot(run, "batch_size", baseline=f"algorithm={name}")
    assert drawn.lines == ["auto", name]
    assert legend in formats.written(drawn.views, "table")
    assert name in layers.slowest_layers(run).written("table")
    assert canonical_json(TEXT).replace('"', '""') in run.overall.read_text()


def test_the_terminal_calls_a_map_by_its_name(desk: Desk) -> None:
    """Where points are listed, and where one is measured."""
    maps = "{early: {fc: gemm}, mixed: {fc: fft}}"
    axes = "{model: [a], algorithm: [{fc: gemm}, {fc: fft}, {fc: direct}]}"
    desk.spec(f"workload: noop\naxes: {axes}\nmaps: {maps}\n")
    shown = desk.run("expand", "sweep.yaml").stdout
    assert [line.split()[-1] for line in shown.splitlines()[3:6]] == [
        "early", "mixed", map_name({"fc": "direct"}),
    ]  # fmt: skip
    assert '  early: {"fc":"gemm"}' in shown
    assert "measuring one point here: a 224 1 early on" in desk.submit("--dry-run").stdout


def test_logs_and_failures_call_a_map_by_its_name(desk: Desk) -> None:
    """Wherever a point is named to a person: logs, why points failed, lists of points."""
    maps = "{early: {fc: gemm}, mixed: {fc: fft}}"
    axes = "{model: [a], algorithm: [{fc: gemm}, {fc: fft}, {fc: direct}]}"
    failing = "{fail: [{when: {}, how: error}]}"
    desk.spec(f"workload: noop\naxes: {axes}\nmaps: {maps}\nmeasure: {failing}\n")
    done = desk.submit()
    assert "3 error: RuntimeError: injected error (a 224 1 early and 2 others)" in done.stderr
    assert "(a 224 1 early and 2 others)" in desk.run("status").stdout
    log = desk.run("logs").stdout
    other = map_name({"fc": "direct"})
    for name in ("early", "mixed", other):
        assert f"begins a 224 1 {name} " in log
        assert f"error a 224 1 {name} " in log
        assert f"a 224 1 {name} " in desk.run("show").stdout
    assert "map-" not in log.replace(other, "")
    desk.run("collect")
    assert f"(a 224 1 {other} and 2 others)" in desk.run("report").stderr


DEFAULTS = {"model": None, "input_size": 224, "algorithm": "auto", "gpu": None, "seed": 0}


def _is(*values: Any) -> Predicate:
    return Predicate(frozenset(values))


def test_the_time_depends_on_rules_and_points_and_not_on_combinations() -> None:
    """Of ten to the ten combinations, an exclude leaves twenty, which are found at once."""
    axes = {"model": ["a"], "input_size": range(100_000), "seed": range(100_000)}
    few = {"input_size": Predicate(bounds=(("lt", 99_998),))}
    rest = {"seed": Predicate(bounds=(("ge", 10),))}
    grid = grid_of(Space(axes, DEFAULTS, excludes=(few, rest)))
    assert grid.count == len([*grid.walk()]) == 20
    grid = grid_of(Space(axes, DEFAULTS, excludes=({**few, **rest},)))
    assert grid.count == 10**10 - 99_998 * 99_990


@pytest.mark.parametrize("seed", range(2))
def test_hundreds_of_conditions_match_what_each_of_them_matches_alone(seed: int) -> None:
    """Overlapping ranges, lists and negations on three axes, counted one combination at a time."""
    random = Random(seed)
    axes = {name: [*range(9)] for name in ("model", "input_size", "seed")}
    excludes = [_drawn(random, axes) for _ in range(200)]
    rules = [When({"seed": _is(*range(4))}, {"algorithm": ["gemm", "fft"]})] if seed % 2 else []
    more = [_drawn(random, axes) for _ in range(20)]
    space = Space(axes, DEFAULTS, excludes=tuple(excludes), whens=tuple(rules))
    listed = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    ways = {i: 2 if rules and point["seed"] < 4 else 1 for i, point in enumerate(listed)}
    hit = [[i for i, point in enumerate(listed) if _met(e, point)] for e in excludes]
    kept = set(ways).difference(*hit)
    grid = grid_of(space)
    assert grid.count == len([*grid.walk()]) == sum(ways[i] for i in kept)
    met = grid.met()
    assert [bool(met >> i & 1) for i in range(200)] == [bool(one) for one in hit]
    for one in more:
        assert grid_of(space, only=one).count == sum(ways[i] for i in kept if _met(one, listed[i]))


def _drawn(random: Random, names: Iterable[str]) -> dict[str, Predicate]:
    """Return a condition on each axis: values, all but a value, or a range."""
    low = random.randrange(8)
    tests = [
        _is(*random.sample(range(9), 3)),
        Predicate(frozenset({low}), negate=True),
        Predicate(bounds=(("ge", low), ("lt", low + random.uniform(0, 4)))),
        Predicate(bounds=(("gt", low + 4), ("le", 7.5))),
    ]
    return {name: random.choice(tests) for name in names}


def _met(condition: dict[str, Predicate], point: dict[str, int]) -> bool:
    return all(test(point[name]) for name, test in condition.items())


def test_many_rules_of_the_same_axes_take_no_longer() -> None:
    """Values that all rules have stand once in the grid, and later axes decide between them."""
    rules = [
        When({"input_size": _is(size)}, {"seed": [1, 2, size], "algorithm": ["a"]})
        for size in range(60)
    ]
    axes = {"model": ["a"], "seed": [0], "algorithm": ["b"], "input_size": range(61)}
    assert grid_of(Space(axes, DEFAULTS, whens=tuple(rules))).count == 60 * 3 - 2 + 1
