"""Sweep to points: order, selection, samples, ids, and what `expand --json` shows."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.errors import UsageError
from hpcsweep.spec import sweep_file
from hpcsweep.spec.expansion import expand
from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def _sweep(folder: Path, raw: dict[str, Any]) -> sweep_file.Sweep:
    path = folder / "here.yaml"
    path.write_text(json.dumps({"workload": "noop", **raw}))
    return sweep_file.load(path)


@pytest.fixture
def gemm() -> sweep_file.Sweep:
    """Return the shipped sweep of three algorithms on three GPUs."""
    return sweep_file.load(ROOT / "sweeps" / "resnet152_gemm.yaml")


@pytest.fixture
def large(tmp_path: Path) -> sweep_file.Sweep:
    """Return ten million combinations, some of them excluded."""
    sizes = {"start": 1, "stop": 1000, "step": 1}
    axes = {"model": ["a"], "input_size": sizes, "batch_size": sizes, "seed": list(range(10))}
    return _sweep(tmp_path, {"axes": axes, "exclude": [{"input_size": {"gt": 999}, "seed": 9}]})


def _values(points: Any, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(point.axes[name] for name in names) for point in points]


def test_the_model_changes_slowest_then_the_axes_as_declared(tmp_path: Path) -> None:
    """So a worker keeps its network; included points come last."""
    raw = {
        "axes": {"batch_size": [1, 2], "model": ["b", "a"], "seed": [3, 1]},
        "include": [{"model": "b", "seed": 7}],
    }
    points = expand(_sweep(tmp_path, raw))
    assert _values(points, "model", "batch_size", "seed") == [
        ("b", 1, 3), ("b", 1, 1), ("b", 2, 3), ("b", 2, 1),
        ("a", 1, 3), ("a", 1, 1), ("a", 2, 3), ("a", 2, 1),
        ("b", 1, 7),
    ]  # fmt: skip


def test_a_rehearsal_keeps_what_any_gpu_would_run(tmp_path: Path) -> None:
    """Algorithms that only one GPU has are rehearsed once; included doubles vanish."""
    raw = {
        "axes": {"model": ["a"], "gpu": ["v100", "mi250"], "algorithm": ["auto", "fft"]},
        "when": [{"if": {"gpu": "mi250"}, "axes": {"algorithm": ["auto", "winograd"]}}],
        "include": [{"model": "a", "algorithm": "fft"}, {"model": "a", "algorithm": "gemm"}],
    }
    rehearsal = expand(_sweep(tmp_path, raw), rehearse="cpu")
    wanted = [("auto",), ("fft",), ("winograd",), ("gemm",)]
    assert _values(rehearsal, "algorithm") == wanted


def test_a_larger_sample_reuses_the_smaller_one(gemm: sweep_file.Sweep) -> None:
    """One size per algorithm and GPU, then ten with both ends, each part of the next."""
    one, ten, every = ({point.point_id for point in expand(gemm, sample=n)} for n in (1, 10, None))
    assert (len(one), len(ten), len(every)) == (8, 80, 800)
    assert one < ten < every
    sizes = {size for (size,) in _values(expand(gemm, sample=10), "input_size")}
    assert {224, 512} < sizes
    assert set(_values(expand(gemm, sample=1), "input_size")) == {(224,)}


def test_a_sample_thins_sizes_and_batches_and_nothing_else(tmp_path: Path) -> None:
    """Models and algorithms stay; axes that move together are thinned together."""
    raw = {
        "axes": {
            "model": ["a", "b"],
            "input_size": [8, 16, 24],
            "batch_size": [4, 2, 1],
            "algorithm": ["auto", "gemm"],
        },
        "zip": [["input_size", "batch_size"]],
    }
    sample = expand(_sweep(tmp_path, raw), sample=2)
    assert set(_values(sample, "input_size", "batch_size")) == {(8, 4), (24, 1)}
    assert len(sample) == len(list(sample)) == 8


@pytest.mark.parametrize("arguments", [{"sample": 0}, {"gpu": "l40", "rehearse": "cpu"}])
def test_arguments_that_mean_nothing_are_refused(
    gemm: sweep_file.Sweep, arguments: dict[str, Any]
) -> None:
    """A message, and not an empty sweep."""
    with pytest.raises(UsageError):
        expand(gemm, **arguments)


def test_the_json_of_an_expansion_has_flat_points(gemm: sweep_file.Sweep) -> None:
    """The total, and as many points as asked for: id and axes side by side."""
    found = expand(gemm, gpu="l40").to_json()
    assert set(found) == {"sweep", "points_total", "notes", "points"}
    assert found["points_total"] == 300
    points = [*found["points"]]
    assert len(points) == 10
    first = points[0]
    assert len(first["point_id"]) == 16
    assert (first["model"], first["input_size"], first["gpu"]) == ("resnet152", 224, "l40")
    everything = expand(gemm, gpu="l40").to_json(limit=None)
    assert [point["point_id"] for point in everything["points"]] == [
        point.point_id for point in expand(gemm, gpu="l40")
    ]


def test_ten_million_points_are_counted_and_begun_without_making_them(
    large: sweep_file.Sweep,
) -> None:
    """Neither the number of points nor the first of them needs the others."""
    tracemalloc.start()
    expansion = expand(large)
    assert len(expansion) == 10_000_000 - 1000
    assert [point.axes["seed"] for point in islice(expansion, 3)] == [0, 1, 2]
    deque((point for point, _ in zip(expansion, range(2_000), strict=False)), maxlen=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000


def test_an_expansion_can_be_walked_twice_and_at_once(gemm: sweep_file.Sweep) -> None:
    """Nothing of one walk is shared with another, so points never change afterwards."""
    expansion = expand(gemm)
    pairs = list(zip(expansion, expansion, strict=True))
    assert all(one == other and one.axes is not other.axes for one, other in pairs)
    assert len({one.point_id for one, _ in pairs}) == 800


def test_planning_needs_the_standard_library_alone() -> None:
    """Whoever has a sweep can expand it without pydantic, YAML or torch."""
    code = "import sys, hpcsweep.spec.expansion; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"pydantic", "yaml", "torch", "numpy"} & set(done.stdout.split())


def test_each_combination_is_sampled_from_what_it_has_left(tmp_path: Path) -> None:
    """An exclude moves the ends of one model and not those of the other."""
    raw = {
        "axes": {"model": ["a", "b"], "input_size": [8, 12, 16, 24, 32]},
        "exclude": [{"model": "b", "input_size": {"gt": 16}}],
    }
    sample = expand(_sweep(tmp_path, raw), sample=2)
    assert _values(sample, "model", "input_size") == [("a", 8), ("a", 32), ("b", 8), ("b", 16)]
    assert len(sample) == 4


def test_a_sample_of_ten_million_combinations_is_chosen_without_listing_them(
    tmp_path: Path,
) -> None:
    """Two numeric axes of thousands of values each, under a constraint that ties them."""
    raw = {
        "axes": {
            "input_size": {"start": 1, "stop": 5000, "step": 1},
            "model": ["a"],
            "batch_size": {"start": 1, "stop": 2000, "step": 1},
        },
        "exclude": [{"input_size": {"gt": 4000}, "batch_size": {"gt": 9}}],
    }
    sample = expand(_sweep(tmp_path, raw), sample=2)
    wanted = [(1, 1), (1, 2000), (5000, 1), (5000, 9)]
    assert _values(sample, "input_size", "batch_size") == wanted


def test_a_sample_of_too_many_points_is_refused_before_it_is_listed(
    large: sweep_file.Sweep,
) -> None:
    """With their number, and what to do; a smaller one of the same sweep is taken."""
    assert len(expand(large, sample=170)) == 289_000
    told = r"here: a sample of 400,000 points, at most 300,000; take fewer values with --sample"
    with pytest.raises(UsageError, match=told):
        expand(large, sample=200)


def test_each_node_has_the_same_points_under_ids_of_its_own(tmp_path: Path) -> None:
    """One node after the other, with what is included, in a sample, too; the others stay."""
    raw = {
        "axes": {"model": ["b", "a"], "input_size": [1, 2, 3]},
        "include": [{"model": "c", "input_size": 9}],
        "measure": {"repeats": 2},
    }
    for sample in (None, 2):
        points = expand(_sweep(tmp_path, raw), gpu="l40", sample=sample)
        plain = [*points]
        twice = points.on_nodes(["n2", "n1"])
        pinned = [*twice]
        assert len(pinned) == len(twice) == 2 * len(plain)
        nodes = [point.axes["on_node"] for point in pinned]
        assert nodes == ["n2"] * len(plain) + ["n1"] * len(plain)
        others = [{**point.axes} for point in pinned]
        for axes in others:
            del axes["on_node"]
        assert others == 2 * [point.axes for point in plain]
        assert len({point.point_id for point in (*plain, *pinned)}) == 3 * len(plain)
        assert [*points.on_nodes([""])] == plain
