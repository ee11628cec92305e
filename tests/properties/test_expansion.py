"""Laws of expansion: a slow, obvious reading of the same file must give the same points.

The reference enumerates every combination and asks each rule about each of them, which is what
`space` avoids. Files are drawn at random: lists and ranges, zips, excludes, includes, `when`.
"""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from hpcsweep import point
from hpcsweep.catalog import axis_defaults, setting_defaults
from hpcsweep.errors import SpecError
from hpcsweep.spec import sweep_file
from hpcsweep.spec.expansion import expand

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Raw = dict[str, Any]

VALUES: dict[str, list[Any]] = {
    "model": ["a", "b", "c"],
    "input_size": [8, 16, 24, 32, 48, 224],
    "batch_size": [1, 2, 4, 8],
    "algorithm": ["auto", "gemm", "fft", "winograd"],
    "gpu": ["v100", "l40", "mi250"],
    "tf32": [False, True],
}
NUMERIC = ("input_size", "batch_size")
OPERATORS = {"lt": operator.lt, "le": operator.le, "gt": operator.gt, "ge": operator.ge}


# --- files -----------------------------------------------------------------------------------


def _values(name: str, size: int | None = None) -> st.SearchStrategy[list[Any]]:
    low, high = (1, len(VALUES[name])) if size is None else (size, size)
    return st.lists(st.sampled_from(VALUES[name]), min_size=low, max_size=high, unique=True)


@st.composite
def _conditions(draw: st.DrawFn, known: dict[str, list[Any]]) -> Raw:
    names = st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=2, unique=True)
    return {name: draw(_tests(name, known[name])) for name in draw(names)}


def _tests(name: str, known: list[Any]) -> st.SearchStrategy[Any]:
    value = st.sampled_from(known)
    several = st.lists(value, min_size=1, max_size=3)
    tests = [value, several, st.fixed_dictionaries({"not": value | several})]
    if name in NUMERIC:
        bounds = st.dictionaries(
            st.sampled_from(sorted(OPERATORS)), st.integers(0, 230), min_size=1, max_size=2
        )
        tests.append(bounds)
    return st.one_of(tests)


@st.composite
def sweep_files(draw: st.DrawFn) -> Raw:
    """Return the data of a no-op sweep's file; some of them the program must refuse."""
    others = st.lists(st.sampled_from(sorted(set(VALUES) - {"model"})), max_size=4, unique=True)
    names = draw(st.permutations(["model", *draw(others)]))
    axes = {name: draw(_values(name)) for name in names}
    zipped: list[str] = []
    if len(names) > 2 and draw(st.booleans()):
        zipped = draw(st.permutations(names))[:2]
        size = min(len(VALUES[name]) for name in zipped)
        size = draw(st.integers(1, size))
        axes |= {name: draw(_values(name, size)) for name in zipped}
    raw: Raw = {"workload": "noop", "axes": axes, "zip": [zipped] if zipped else []}
    known = {name: list(values) for name, values in axes.items()}
    raw["when"] = draw(_rules(axes, zipped)) if draw(st.booleans()) else []
    for rule in raw["when"]:
        for name, values in rule["axes"].items():
            known[name] = list(dict.fromkeys(known.get(name, []) + values))
    raw["exclude"] = draw(st.lists(_conditions(known), max_size=3))
    raw["include"] = draw(st.lists(_points(), max_size=3))
    return raw


@st.composite
def _rules(draw: st.DrawFn, axes: Raw, zipped: list[str]) -> list[Raw]:
    free = sorted(set(VALUES) - {"model", *zipped})
    if not free:
        return []
    target = draw(st.sampled_from(free))
    asked = {name: values for name, values in axes.items() if name != target}
    rule = st.fixed_dictionaries(
        {"if": _conditions(asked), "axes": st.fixed_dictionaries({target: _values(target)})}
    )
    return draw(st.lists(rule, min_size=1, max_size=2))


@st.composite
def _points(draw: st.DrawFn) -> Raw:
    names = draw(st.lists(st.sampled_from(sorted(set(VALUES) - {"model"})), unique=True))
    return {name: draw(st.sampled_from(VALUES[name])) for name in ["model", *names]}


# --- the reference ---------------------------------------------------------------------------


def _matches(condition: Raw, axes: Raw) -> bool:
    return all(_passes(wanted, axes[name]) for name, wanted in condition.items())


def _passes(wanted: Any, value: Any) -> bool:
    if isinstance(wanted, dict):
        if "not" in wanted:
            return not _passes(wanted["not"], value)
        return all(OPERATORS[op](value, bound) for op, bound in wanted.items())
    return value in (wanted if isinstance(wanted, list) else [wanted])


@dataclass
class Reference:
    """Every combination with its rows, the points that remain, and what each rule touched."""

    raw: Raw
    kept: list[tuple[tuple[int, ...], Raw]] = field(default_factory=list)
    excluded: dict[int, int] = field(default_factory=dict)
    ruled: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Ask every rule about every combination."""
        self.excluded = dict.fromkeys(range(len(self.raw["exclude"])), 0)
        self.ruled = dict.fromkeys(range(len(self.raw["when"])), 0)
        for rows, axes in self._combinations():
            rules = [i for i, rule in enumerate(self.raw["when"]) if _matches(rule["if"], axes)]
            if not self._exists(axes, rules):
                continue
            hit = [i for i, rule in enumerate(self.raw["exclude"]) if _matches(rule, axes)]
            for i in hit:
                self.excluded[i] += 1
            if not hit:
                self.kept.append((rows, axes))
                for i in rules:
                    self.ruled[i] += 1

    @property
    def sources(self) -> dict[str, list[list[Any]]]:
        """Return where each axis takes values from: its own or the default, then every rule's."""
        found = {name: [values] for name, values in self.raw["axes"].items()}
        for rule in self.raw["when"]:
            for name, values in rule["axes"].items():
                found.setdefault(name, [[axis_defaults("noop")[name]]]).append(values)
        return found

    @property
    def groups(self) -> list[list[str]]:
        """Return what moves together, the model first and the algorithm last."""
        names = sorted(self.sources, key=lambda name: {"model": 0, "algorithm": 2}.get(name, 1))
        zips = {name: group for group in self.raw["zip"] for name in group}
        groups: list[list[str]] = []
        for name in names:
            group = zips.get(name, [name])
            if group not in groups:
                groups.append(group)
        return groups

    def _combinations(self) -> Iterator[tuple[tuple[int, ...], Raw]]:
        columns = {
            name: list(dict.fromkeys(value for values in found for value in values))
            for name, found in self.sources.items()
        }
        for rows in product(*(range(len(columns[group[0]])) for group in self.groups)):
            axes = dict(axis_defaults("noop"))
            for group, row in zip(self.groups, rows, strict=True):
                axes |= {name: columns[name][row] for name in group}
            yield rows, axes

    def _exists(self, axes: Raw, rules: list[int]) -> bool:
        """Say whether every value comes from the source that holds: the last rule's, or its own."""
        allowed = {name: found[0] for name, found in self.sources.items()}
        for i in rules:
            allowed |= self.raw["when"][i]["axes"]
        return all(axes[name] in values for name, values in allowed.items())

    @property
    def included(self) -> list[Raw]:
        """Return the included points with all of their axes."""
        return [{**axis_defaults("noop"), **given} for given in self.raw["include"]]

    def must_be_refused(self) -> bool:
        """Say whether a rule does nothing, a point is there twice, or nothing is there."""
        points = [axes for _, axes in self.kept] + self.included
        useless = [count for tally in (self.excluded, self.ruled) for count in tally.values()]
        return not points or 0 in useless or len({_key(axes) for axes in points}) < len(points)

    def sample(self, n: int) -> list[Raw]:
        """Return N sizes and for each N batch sizes, of every combination of the other axes."""
        groups: dict[str, list[tuple[tuple[int, ...], Raw]]] = {}
        for rows, axes in self.kept:
            rest = {name: value for name, value in axes.items() if name not in NUMERIC}
            groups.setdefault(_key(rest), []).append((rows, axes))
        taken = [item for group in groups.values() for item in self._thin(group, NUMERIC, n)]
        return [axes for _, axes in sorted(taken, key=lambda item: item[0])]

    def _thin(self, items: list[Any], names: tuple[str, ...], n: int) -> list[Any]:
        if not names:
            return items
        place = next((i for i, group in enumerate(self.groups) if names[0] in group), None)
        if place is not None:
            items = sorted(items, key=lambda item: item[0][place])
        values = list(dict.fromkeys(axes[names[0]] for _, axes in items))
        gaps = max(n - 1, 1)
        if n < len(values):
            values = [values[i * (len(values) - 1) // gaps] for i in range(n)]
        parts = [[item for item in items if item[1][names[0]] == value] for value in values]
        return [item for part in parts for item in self._thin(part, names[1:], n)]


def _key(axes: Raw) -> str:
    return point.canonical_json(axes)


def _load(folder: Path, raw: Raw) -> sweep_file.Sweep:
    path = folder / "drawn.yaml"
    path.write_text(json.dumps(raw))
    return sweep_file.load(path)


def _usable(folder: Path, raw: Raw) -> tuple[sweep_file.Sweep | None, Reference]:
    """Return a sweep and its reference; no sweep where both agree that the file is no good."""
    reference = Reference(raw)
    event(f"refused: {reference.must_be_refused()}")
    if reference.must_be_refused():
        with pytest.raises(SpecError):
            _load(folder, raw)
        return None, reference
    return _load(folder, raw), reference


# --- the laws --------------------------------------------------------------------------------


@given(raw=sweep_files())
def test_an_expansion_is_what_asking_every_rule_about_every_combination_gives(
    tmp_path: Path, raw: Raw
) -> None:
    """Points, their order and their number agree; so do refusals."""
    sweep, reference = _usable(tmp_path, raw)
    if sweep is None:
        return
    expansion = expand(sweep)
    wanted = [axes for _, axes in reference.kept] + reference.included
    assert [point.axes for point in expansion] == wanted
    assert len(expansion) == len(wanted)


@given(raw=sweep_files(), measure=st.sampled_from([{}, {"sleep_ms": 2}, {"sleep_ms": 0.5}]))
def test_an_id_prepared_in_pieces_is_the_id_of_the_point(
    tmp_path: Path, raw: Raw, measure: Raw
) -> None:
    """Ids equal `point.point_id` without defaults, and no two points share one."""
    sweep, _ = _usable(tmp_path, {**raw, "measure": measure})
    if sweep is None:
        return
    settings_given = point.without_defaults(measure, setting_defaults("noop"))
    points = list(expand(sweep))
    for each in points:
        axes = point.without_defaults(each.axes, axis_defaults("noop"))
        assert each.point_id == point.point_id("noop", axes, settings_given)
    assert len({each.point_id for each in points}) == len(points)


@pytest.mark.slow
@given(raw=sweep_files(), n=st.integers(1, 4))
def test_a_sample_is_spread_evenly_over_what_the_constraints_leave(
    tmp_path: Path, raw: Raw, n: int
) -> None:
    """A sample agrees with the reference, is part of the whole, and counts itself rightly."""
    sweep, reference = _usable(tmp_path, {**raw, "include": []})
    if sweep is None:
        return
    sample = expand(sweep, sample=n)
    assert [point.axes for point in sample] == reference.sample(n)
    assert len(sample) == len(reference.sample(n))
    assert {each.point_id for each in sample} <= {each.point_id for each in expand(sweep)}


@given(raw=sweep_files(), n=st.integers(1, 3))
def test_a_sample_of_included_points_too_is_part_of_the_whole(
    tmp_path: Path, raw: Raw, n: int
) -> None:
    """Every combination of the other axes that the sweep has is in the sample as well."""
    sweep, _ = _usable(tmp_path, raw)
    if sweep is None:
        return
    whole, sample = list(expand(sweep)), list(expand(sweep, sample=n))
    assert {each.point_id for each in sample} <= {each.point_id for each in whole}
    assert len(expand(sweep, sample=n)) == len(sample)
    assert _others(sample) == _others(whole)


def _others(points: list[point.Point]) -> set[str]:
    return {
        _key({name: value for name, value in each.axes.items() if name not in NUMERIC})
        for each in points
    }


@given(raw=sweep_files(), gpu=st.sampled_from([*VALUES["gpu"], "other"]))
def test_a_profile_takes_the_points_of_its_gpu_and_those_without_one(
    tmp_path: Path, raw: Raw, gpu: str
) -> None:
    """The rest is left out; what is taken has the profile's gpu, in the order of the whole."""
    sweep, _ = _usable(tmp_path, raw)
    if sweep is None:
        return
    wanted = [
        {**each.axes, "gpu": gpu} for each in expand(sweep) if each.axes["gpu"] in {gpu, None}
    ]
    taken = expand(sweep, gpu=gpu)
    assert len(taken) == len(list(taken))
    assert [_key(each.axes) for each in taken] == list(dict.fromkeys(map(_key, wanted)))
    assert len({each.point_id for each in taken}) == len(taken)


@given(raw=sweep_files(), device=st.sampled_from(["cpu", "l40"]))
def test_a_rehearsal_gives_every_point_the_device_and_equal_points_collapse(
    tmp_path: Path, raw: Raw, device: str
) -> None:
    """Nothing of the sweep is lost but the difference between GPUs, and nothing is twice there."""
    sweep, _ = _usable(tmp_path, raw)
    if sweep is None:
        return
    wanted = {_key({**each.axes, "gpu": device}) for each in expand(sweep)}
    rehearsal = expand(sweep, rehearse=device)
    points = list(rehearsal)
    assert {_key(each.axes) for each in points} == wanted
    assert len(points) == len(rehearsal) == len(wanted)
    assert len({each.point_id for each in points}) == len(points)


@given(
    start=st.integers(1, 10_000),
    stop=st.integers(1, 10_000),
    num=st.integers(1, 300),
)
def test_a_range_by_number_is_the_formula_of_the_documentation(
    tmp_path_factory: pytest.TempPathFactory, start: int, stop: int, num: int
) -> None:
    """Values are ``int(start + i * (stop - start) / (num - 1))``, both ends included."""
    raw = {
        "workload": "noop",
        "axes": {"model": ["a"], "input_size": {"start": start, "stop": stop, "num": num}},
    }
    folder = tmp_path_factory.getbasetemp()
    if num > abs(stop - start) + 1:
        with pytest.raises(SpecError, match="integers in"):
            _load(folder, raw)
        return
    sizes = [each.axes["input_size"] for each in expand(_load(folder, raw))]
    gaps = max(num - 1, 1)
    assert sizes == [int(start + i * (stop - start) / gaps) for i in range(num)]
