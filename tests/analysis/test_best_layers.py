"""The fastest algorithm of each layer: only where it is beyond the noise."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import layeredsweep
from hpcsweep.analysis import best_layers, dataset
from hpcsweep.errors import UsageError
from layeredsweep import REPEATED, SWEEP, TIMES, layered


def chosen(run, default="auto", **columns):
    """Return the choice of each layer of the small images."""
    data = dataset.read_dataset(run)
    found = best_layers.per_layer(data, data.rows, default).calls
    small = found[found["config"] == 0].set_index("layer")
    return small["algorithm"].to_dict() if not columns else small


def test_a_layer_takes_the_fastest_that_is_separated_from_the_default(tmp_path):
    """A tie keeps the default: winograd is half a percent faster in conv3."""
    run = layered(tmp_path, REPEATED)
    assert chosen(run) == {"conv1": "gemm", "conv2": "winograd", "conv3": "auto"}
    table = chosen(run, table=True)
    saved = table.loc["conv2", "default_ms"] - table.loc["conv2", "ms"]
    assert saved == pytest.approx(3.0, rel=0.02)
    assert (table.loc["conv1", "tried"], table.loc["conv2", "tried"]) == (1, 2)


def test_a_call_that_fell_back_is_no_candidate(tmp_path):
    """Its time is that of another algorithm: conv1 under winograd ran auto."""
    data = dataset.read_dataset(layered(tmp_path, REPEATED.replace("gemm, ", "")))
    found = best_layers.per_layer(data, data.rows).calls.set_index("layer")
    assert set(found.loc["conv1", "algorithm"]) == {"auto"}
    assert set(found.loc["conv1", "tried"]) == {0}


def test_noise_keeps_the_default(tmp_path):
    """The same times with wide quartiles: only a factor of four remains a difference."""
    assert chosen(layered(tmp_path, REPEATED, spread=0.7)) == {
        "conv1": "auto", "conv2": "winograd", "conv3": "auto",
    }  # fmt: skip


def test_of_single_visits_only_a_large_difference_counts_and_needs_controls(tmp_path):
    """As in every command: winograd's factor of four is one, and so is gemm's third."""
    assert set(chosen(layered(tmp_path)).values()) == {"auto"}
    (tmp_path / "more").mkdir()
    names = ("auto", "gemm", "winograd")
    known = layered(tmp_path / "more", changes={name: {"control_ms": 1.0} for name in names})
    assert chosen(known) == {"conv1": "gemm", "conv2": "winograd", "conv3": "auto"}


def test_what_a_visit_did_to_every_layer_is_no_gain(tmp_path, monkeypatch):
    """All layers of gemm are 20 % faster in one visit of three, and as fast in the others."""
    plain = layeredsweep.layer_rows

    def lucky(point, *options):
        rows = plain(point, *options)
        luck = 0.8 if (point.axes["algorithm"], point.axes["visit"]) == ("gemm", 2) else 1.0
        return [{**row, "median_ms": luck * row["median_ms"]} for row in rows]

    monkeypatch.setitem(TIMES["conv1"], "gemm", 4.0)
    monkeypatch.setattr(layeredsweep, "layer_rows", lucky)
    assert chosen(layered(tmp_path, REPEATED))["conv1"] == "auto"


def test_another_algorithm_may_be_the_default(tmp_path):
    """Where `auto` was not measured, or nobody would take it."""
    run = layered(tmp_path, REPEATED.replace("auto, ", ""))
    assert chosen(run, "gemm") == {"conv1": "gemm", "conv2": "winograd", "conv3": "winograd"}
    with pytest.raises(UsageError, match=r"no convolution under `auto`.*--over"):
        chosen(run)


def test_seeds_are_visits_too(tmp_path):
    """Seeds are repeats of one configuration, not configurations."""
    text = SWEEP.replace("[64, 128]", "[64]").replace("axes:\n", "axes:\n  seed: [0, 1, 2]\n")
    run = layered(tmp_path, text)
    data = dataset.read_dataset(run)
    assert set(dataset.configurations(data.rows)) == {0}
    assert len(best_layers.per_layer(data, data.rows).calls) == 3


def visits_of(configurations, seed=0):
    """Return times of calls under three algorithms in four visits, some of which are missing."""
    draw = np.random.default_rng(seed)
    names = ["config", "algorithm", "visit", "call_index"]
    every = pd.MultiIndex.from_product(
        [range(configurations), ["auto", "fft", "gemm"], range(4), range(9)], names=names
    ).to_frame(index=False)
    rows = every[draw.random(len(every)) > 0.2].copy()
    rows["ms"] = np.exp(draw.normal(rows["call_index"] % 3, 0.1))
    rows["log"], rows["within"] = np.log(rows["ms"]), 1e-4
    return rows.assign(layer=rows["call_index"].astype(str), unique_key="same")


def test_a_configuration_is_chosen_for_by_its_own_visits():
    """What others lack, or have besides, changes nothing."""
    rows = visits_of(3)
    rows.loc[rows["algorithm"] == "fft", "log"] -= rows["visit"] / 10 + 0.3  # some are faster
    together = best_layers.choose(rows, "auto").calls
    assert {*together["algorithm"]} == {"auto", "fft"}
    for config in range(3):
        alone = best_layers.choose(rows[rows["config"] == config], "auto").calls
        mine = together[together["config"] == config].reset_index(drop=True)
        pd.testing.assert_frame_equal(alone, mine)


def test_more_configurations_need_no_more_groupings(monkeypatch):
    """A study of hundreds is grouped as a whole: its pandas calls are as many as those of two."""
    counted = []
    plain = pd.DataFrame.groupby
    monkeypatch.setattr(
        pd.DataFrame, "groupby", lambda *some, **more: counted.append(1) or plain(*some, **more)
    )
    seen = []
    for configurations in (2, 12):
        counted.clear()
        best_layers.choose(visits_of(configurations), "auto")
        seen.append(len(counted))
    assert seen[0] == seen[1]
