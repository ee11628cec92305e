"""Predicted against measured: what is faster, slower, or neither beyond the noise."""

from __future__ import annotations

import math

import pytest

from hpcsweep.analysis import best, confirm
from hpcsweep.errors import Refused
from hpcsweep.spec import expansion, sweep_file
from layeredsweep import REPEATED, layered

ITSELF = (1.0, 0.98, 1.02)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the maps of two sizes."""
    return best.read(layered(tmp_path_factory.mktemp("confirm"), REPEATED))


@pytest.mark.parametrize(
    ("mixed", "verdict"),
    [
        ((0.64, 0.62, 0.66), "faster"),
        ((0.97, 0.95, 0.99), "not slower"),
        ((1.01, 0.99, 1.03), "not slower"),
        ((1.2, 1.1, 1.3), "SLOWER"),
        ((0.5, math.nan, math.nan), "UNDECIDED"),
    ],
)
def test_a_difference_has_to_exceed_that_of_the_default_from_itself(found, mixed, verdict):
    """An interval that overlaps with that one is no gain, and no loss."""
    measured = [{"itself": ITSELF, "mixed": mixed}] * 2
    shown = confirm.view(found, [11.0, 44.0], measured)
    assert list(shown.texts["verdict"]) == [verdict] * 2
    gain = 100 * (1 - mixed[0])
    assert shown.texts["measured"][0].startswith(f"{gain:.1f}")
    assert shown.texts["predicted"][0].startswith("36.")


def test_each_map_is_measured_beside_the_default(found, tmp_path):
    """Also where a configuration keeps the default everywhere: then against itself."""
    path = tmp_path / "map.yaml"
    path.write_text(found.sweep_file())
    points = list(expansion.expand(sweep_file.load(path), gpu="cpu"))
    pairs = confirm.pairs(found, points)
    assert [default.axes["input_size"] for default, _ in pairs] == [64, 128]
    assert {default.axes["algorithm"] for default, _ in pairs} == {"auto"}
    assert {mixed.axes["algorithm"]["conv1"] for _, mixed in pairs} == {"gemm"}
    alone = confirm.pairs(found, [points[0]])
    assert alone == [(points[0], points[0])]


def test_maps_of_another_device_are_refused(found):
    """With where to confirm them."""
    confirm.check_device(found, "cpu")
    with pytest.raises(Refused, match=r"the maps are for cpu, and this machine has v100.*srun"):
        confirm.check_device(found, "v100")
