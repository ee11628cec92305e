"""A point's id, which never changes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.point import Point, varying
from hpcsweep.spec import sweep_file
from hpcsweep.spec.expansion import expand
from paths import GOLDEN

if TYPE_CHECKING:
    from pathlib import Path


IDS = GOLDEN / "point_ids.json"


def _sweep(folder: Path, raw: dict[str, Any]) -> sweep_file.Sweep:
    path = folder / "here.yaml"
    path.write_text(json.dumps({"workload": "noop", **raw}))
    return sweep_file.load(path)


@pytest.mark.parametrize("case", json.loads(IDS.read_text()), ids=lambda case: case["why"])
def test_ids_never_change(tmp_path: Path, case: dict[str, Any]) -> None:
    """Rows of earlier releases are found again: these ids were written down once."""
    points = expand(_sweep(tmp_path, case["sweep"]))
    assert [point.point_id for point in points] == case["ids"]


def test_a_label_names_what_tells_points_apart() -> None:
    """Four points of a training sweep that differ in amp and optimizer alone."""
    points = [
        Point("training", {"model": "a", "input_size": 32, "amp": amp, "optimizer": how, "seed": 0})
        for amp in ("off", "fp16")
        for how in ("sgd", "adam")
    ]
    more = varying(points)
    assert more == ("optimizer", "amp")
    assert len({point.label(more=more) for point in points}) == 4
    assert points[3].label(more=more) == "a 32 optimizer adam amp fp16"
    assert varying(points[:1]) == varying([]) == ()
