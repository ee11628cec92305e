"""Joules of a pass, where rows have them, under a law that is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import knownphysics
import resultsfolder
from hpcsweep.forecast import energy_model, prediction
from knownphysics import NAMED, TEXT, Device

WATTS = {"auto": 60.0, "gemm": 75.0}  # of passes with an algorithm


def joules(points):
    """Return the energy of points by the law: the power of an algorithm, times the time."""
    return points["algorithm"].astype(str).map(WATTS).astype(float) * points["total_ms"] * 1e-3


def measured(noise=0.0, device=None, **changes):
    """Return measurements with energies, as `knownphysics` makes those without."""
    device = device or Device(noise=noise)
    found = knownphysics.with_defaults(knownphysics.measured(device, **changes))
    points, layers = found.points, found.layers
    chance = np.random.default_rng(1).normal(0, noise, len(points))
    return type(found)(points.assign(energy_j=joules(points) * np.exp(chance)), layers)


def two_networks(noise=0.0):
    """Return measurements in which one point is missing, but not the shapes of its layers."""
    full = measured(noise, networks=NAMED, sizes=(32, 48, 64))
    missing = full.points.eval("model == 'resnet18' and input_size == 48 and algorithm == 'auto'")
    return full.of(full.points[~missing])


def test_the_law_is_found_from_other_networks():
    """The energy of a network that no row is of."""
    seen = measured()
    new = seen.points["model"] == "deep"
    found, _ = energy_model.joules(energy_model.fit(seen.points[~new]), seen.points[new])
    assert found == pytest.approx(seen.points.loc[new, "energy_j"].to_numpy(), rel=0.05)


def test_rows_without_an_energy_do_not_count():
    """On many points the GPU would mostly have waited, so there is none."""
    seen = measured()
    seen.points.loc[seen.points.index[::3], "energy_j"] = np.nan
    gone = seen.points[seen.points["energy_j"].isna()]
    true = joules(gone).to_numpy()
    found, _ = energy_model.joules(energy_model.fit(seen.points), gone)
    assert found == pytest.approx(true, rel=0.05)


def test_where_too_few_rows_have_one_nothing_is_said():
    """NaN, not zero; and of a device without rows as well."""
    seen = measured()
    seen.points.loc[seen.points.index[4:], "energy_j"] = np.nan
    assert np.isnan(energy_model.joules(energy_model.fit(seen.points), seen.points)).all()
    bare = seen.points.assign(energy_j=np.nan)
    assert np.isnan(energy_model.joules(energy_model.fit(bare), bare)).all()
    full = measured()
    elsewhere = full.points.assign(gpu="h100")
    assert np.isnan(energy_model.joules(energy_model.fit(full.points), elsewhere)).all()


def test_an_algorithm_without_energies_takes_those_of_the_device():
    """Better than nothing, since power varies less than time."""
    seen = measured()
    learnt = energy_model.fit(seen.points[seen.points["algorithm"] == "gemm"])
    auto = seen.points[seen.points["algorithm"] == "auto"]
    found, _ = energy_model.joules(learnt, auto)
    assert found == pytest.approx(auto["energy_j"].to_numpy(), rel=0.3)


def test_the_factor_of_watts_holds_for_a_network_that_was_not_seen():
    """Of equal watts it has no width; a guess where one point alone was measured, ever so often."""
    exact, noisy = (measured(noise).points for noise in (0.0, 0.1))
    widths = []
    for points in (exact, noisy):
        new = points["model"] == "deep"
        said, factors = energy_model.joules(energy_model.fit(points[~new]), points[new])
        wrong = np.abs(np.log(said / points.loc[new, "energy_j"]))
        assert (wrong <= np.log(factors) + 1e-9).mean() >= 0.8
        widths.append(factors.mean())
    assert widths[0] == pytest.approx(1.0)
    assert 1.1 < widths[1] < 1.4
    one = exact[exact.index == exact.index[0]]
    _, factors = energy_model.joules(energy_model.fit(pd.concat([one] * 5)), one)
    assert factors.tolist() == [4.0]


def test_predicted_tables_have_energies_where_measured_ones_do(tmp_path):
    """With an interval of their own; measured points keep theirs."""
    seen = two_networks(0.02)
    points = resultsfolder.points_of(tmp_path, TEXT)
    found = prediction.predict("demo", points, seen, fill=True)
    assert "the energy of a pass, too, for 1 point\n" in found.text()
    table = pd.read_csv(found.write(tmp_path)[0]).set_index("input_size")
    assert table.loc[48, "energy_method"] == "predicted"
    low, said, high = table.loc[48, ["predicted_lo_j", "energy_j", "predicted_hi_j"]]
    assert low < said < high
    power = said / table.loc[48, "median_ms"] * 1000
    assert power == pytest.approx(WATTS["auto"], rel=0.05)
    true = seen.points.query("model == 'resnet18' and input_size == 32 and algorithm == 'auto'")
    assert table.loc[32, "energy_j"] == pytest.approx(true["energy_j"].item(), rel=1e-6)
    assert np.isnan(table.loc[32, "predicted_lo_j"])


def test_without_energies_the_cells_stay_empty(tmp_path):
    """As on a CPU, which has no energy counter."""
    seen = two_networks()
    bare = type(seen)(seen.points.assign(energy_j=np.nan), seen.layers)
    points = resultsfolder.points_of(tmp_path, TEXT)
    rows = prediction.predict("demo", points, bare, fill=True).rows
    assert not any("energy_j" in row for row in rows)
