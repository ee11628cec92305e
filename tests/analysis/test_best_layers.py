"""The fastest algorithm of each layer: only where it is beyond the noise."""

from __future__ import annotations

import pytest

from hpcsweep.analysis import best_layers, dataset
from hpcsweep.errors import UsageError
from layeredsweep import SWEEP, TIMES, layered


def chosen(run, default="auto", **columns):
    """Return the choice of each layer of the small images."""
    data = dataset.read(run)
    found = best_layers.per_layer(data, data.rows, default)
    small = found[found["config"] == 0].set_index("layer")
    return small["algorithm"].to_dict() if not columns else small


def test_a_layer_takes_the_fastest_that_is_separated_from_the_default(tmp_path):
    """A tie keeps the default: winograd is half a percent faster in conv3."""
    run = layered(tmp_path)
    assert chosen(run) == {"conv1": "gemm", "conv2": "winograd", "conv3": "auto"}
    table = chosen(run, table=True)
    assert table.loc["conv2", "saving_ms"] == pytest.approx(3.0)
    half = 1.82 * 0.02 / 20**0.5  # of the median's interval, per ms
    assert table.loc["conv2", "half_ms"] == pytest.approx(half * 17**0.5)
    assert (table.loc["conv1", "tried"], table.loc["conv2", "tried"]) == (1, 2)


def test_a_call_that_fell_back_is_no_candidate(tmp_path):
    """Its time is that of another algorithm: conv1 under winograd ran auto."""
    data = dataset.read(layered(tmp_path, SWEEP.replace("gemm, ", "")))
    found = best_layers.per_layer(data, data.rows).set_index("layer")
    assert set(found.loc["conv1", "algorithm"]) == {"auto"}
    assert set(found.loc["conv1", "tried"]) == {0}


def test_noise_keeps_the_default(tmp_path):
    """The same times with wide quartiles: only a factor of four remains a difference."""
    assert chosen(layered(tmp_path, spread=0.7)) == {
        "conv1": "auto", "conv2": "winograd", "conv3": "auto",
    }  # fmt: skip


def test_a_layer_whose_fastest_pass_is_slower_is_not_faster(tmp_path):
    """Load makes passes slower: a median that is lower by luck alone is told by the minimum."""
    rows = {"conv2": {"auto": 1.9, "winograd": 2.0}}
    assert chosen(layered(tmp_path, least=rows))["conv2"] == "auto"


def test_a_machine_that_was_slower_meanwhile_widens_the_intervals(tmp_path, monkeypatch):
    """The relu took 40 % longer under gemm, so gemm's 25 % in conv1 tells nothing."""
    monkeypatch.setitem(TIMES["relu"], "gemm", 0.7)
    assert chosen(layered(tmp_path))["conv1"] == "auto"


def test_another_algorithm_may_be_the_default(tmp_path):
    """Where `auto` was not measured, or nobody would take it."""
    run = layered(tmp_path, SWEEP.replace("auto, ", ""))
    assert chosen(run, "gemm") == {"conv1": "gemm", "conv2": "winograd", "conv3": "winograd"}
    with pytest.raises(UsageError, match=r"no convolution under `auto`.*--over"):
        chosen(run)


def test_repeats_widen_the_interval_by_what_they_differ(tmp_path):
    """Seeds are repeats of one configuration, not configurations."""
    text = SWEEP.replace("[64, 128]", "[64]").replace("axes:\n", "axes:\n  seed: [0, 1, 2]\n")
    run = layered(tmp_path, text)
    data = dataset.read(run)
    assert set(dataset.configurations(data.rows)) == {0}
    assert len(best_layers.per_layer(data, data.rows)) == 3
