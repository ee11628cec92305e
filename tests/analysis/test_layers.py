"""Where the time goes: which layers, with which share, under which algorithm."""

from __future__ import annotations

import pandas as pd
import pytest

import resultsfolder
from hpcsweep.analysis import best, layers
from hpcsweep.errors import UsageError
from hpcsweep.measure.measure_point import on_device
from hpcsweep.store import shards
from hpcsweep.store.collect import collector
from layeredsweep import SUBMISSION, SWEEP, layered
from localruns import Desk

MEASURED = """\
workload: inference
axes: {model: ["tinynets:small_vgg"], input_size: [64, 96], algorithm: [auto, gemm]}
measure: {layers: HOW, iterations: 5, warmup: 1, evidence: false, numerics: false}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return two sizes with three algorithms."""
    return layered(tmp_path_factory.mktemp("layered"))


def test_the_slowest_layers_come_first_with_their_share(run):
    """A share is that of the layer pass, `__other__` included, so all shares sum to 100."""
    found = layers.slowest_layers(run, where="input_size=64,algorithm=auto").frame
    assert list(found["layer"][:2]) == ["conv1", "conv2"]
    assert found["share_pct"].sum() == pytest.approx(100)
    assert found.set_index("layer").loc["conv1", "share_pct"] == pytest.approx(100 * 4 / 11)
    assert found.set_index("layer").loc["conv1", "auto"] == 4.0


@pytest.mark.parametrize("by", ["layer", "op", "shape"])
def test_the_share_is_that_of_the_times_beside_it(tmp_path, by):
    """Under the first algorithm, whatever the others took: their rows are not in it."""
    far = {"conv3": {"gemm": 50.0}, "relu": {"winograd": 90.0}}
    run = layered(tmp_path, SWEEP.replace("[64, 128]", "[64]"), means=far)
    found = layers.slowest_layers(run, by=by, metric="mean_ms")
    frame = found.frame
    assert frame["share_pct"].tolist() == pytest.approx(list(100 * frame["auto"] / 11))
    assert frame["share_pct"].is_monotonic_decreasing
    alone = layers.slowest_layers(run, by=by, metric="mean_ms", where="algorithm=auto").frame
    shared = [by, "calls", "share_pct", "auto"]
    pd.testing.assert_frame_equal(frame[shared], alone[shared])
    assert any("shares are of the layer pass, under auto" in note for note in found.notes)


@pytest.fixture
def two(tmp_path):
    """Return a sweep of two networks, its layer rows, and which are of the second network."""
    run = layered(tmp_path, SWEEP.replace("[resnet18]", "[resnet18, squeezenet1_1]"))
    table = pd.read_csv(run.layers)
    models = pd.read_csv(run.overall).set_index("point_id")["model"]
    return run, table, table["point_id"].map(models) == "squeezenet1_1"


def test_calls_are_counted_over_the_points_of_the_times_beside_them(run, two):
    """Of two networks, one with a call more."""
    both, table, other = two
    table[~(other & (table["layer"] == "conv3"))].to_csv(both.layers, index=False)
    found = layers.slowest_layers(both, by="op")
    assert found.frame.set_index("op").loc["conv2d", "calls"] == 2.5
    assert " 2.5 " in found.written("table")
    assert layers.slowest_layers(run, by="op").frame.set_index("op").loc["conv2d", "calls"] == 3


def test_times_are_means_over_the_configurations(run):
    """Two sizes, of which the larger takes four times as long; the note says over what."""
    found = layers.slowest_layers(run)
    assert found.frame.set_index("layer").loc["conv2", "winograd"] == pytest.approx(2.5)
    assert "means over input_size 64, 128" in found.written("table")


def test_a_time_is_a_mean_over_the_points_that_have_the_layer(run, two):
    """Other networks have other layers; the shares are of all points."""
    folder, table, other = two
    table.loc[other, "layer"] = "features." + table.loc[other, "layer"]
    table.to_csv(folder.layers, index=False)
    alone = layers.slowest_layers(run).frame.set_index("layer")
    both = layers.slowest_layers(folder).frame.set_index("layer")
    columns = ["auto", "gemm", "winograd"]
    for name in ("conv1", "conv2"):
        assert both.loc[name, columns].tolist() == pytest.approx(alone.loc[name, columns].tolist())
        assert both.loc[name, "share_pct"] == pytest.approx(alone.loc[name, "share_pct"] / 2)


def test_imported_layers_that_have_only_a_shortest_time_show_it(tmp_path):
    """An empty cell is not zero; a metric that has no number is refused."""
    run = layered(tmp_path, least={name: {"auto": 1.0} for name in ("conv1", "conv2", "conv3")})
    table = pd.read_csv(run.layers)
    table.assign(mean_ms=None, median_ms=None).to_csv(run.layers, index=False)
    found = layers.slowest_layers(run, where="algorithm=auto")
    assert found.record["metric"] == "min_ms"
    assert found.frame.set_index("layer")["auto"].dropna().tolist() == [1.0] * 3
    with pytest.raises(UsageError, match="mean_ms holds no numbers"):
        layers.slowest_layers(run, metric="mean_ms")


def test_each_kind_of_gradient_has_a_row_of_its_own(tmp_path):
    """Imported rows tell the gradient of the input from that of the weights."""
    run = layered(tmp_path)
    before = best.best_of_sweep(run).maps
    table = pd.read_csv(run.layers)
    first = table[table["layer"] == "conv1"]
    data = first.assign(direction="backward_data")
    weights = first.assign(direction="backward_weights", mean_ms=7.0, median_ms=7.0)
    pd.concat([table, data, weights]).to_csv(run.layers, index=False)
    shown = layers.slowest_layers(run, where="input_size=64").frame.set_index("layer")["auto"]
    assert shown["conv1"] == shown["conv1 (backward_data)"] == 4.0
    assert shown["conv1 (backward_weights)"] == 7.0
    assert best.best_of_sweep(run).maps == before


def test_the_title_says_which_part_of_the_points_the_values_are_of(tmp_path):
    """The larger size was measured with one algorithm alone: it is not among the means."""
    run = layered(tmp_path)
    assert layers.slowest_layers(run).title == "demo: slowest by layer, ms of one pass"
    merged = pd.read_csv(run.overall, dtype=str)
    lost = (merged["input_size"] == "128") & (merged["algorithm"] != "auto")
    merged.loc[lost, "status"] = "oom"
    merged.to_csv(run.overall, index=False)
    of = "demo: slowest by layer, ms of one pass, at input_size 64 alone, of 64, 128"
    assert layers.slowest_layers(run).title == of


def test_a_layer_that_ran_another_algorithm_is_marked(run):
    """Not the time of the algorithm that the column names."""
    lines = layers.slowest_layers(run, where="input_size=64").written("table").splitlines()
    assert next(line for line in lines if line.startswith("conv1")).endswith("4~")
    assert next(line for line in lines if line.startswith("conv2")).endswith("1")
    assert "~ some calls ran another algorithm" in lines[-1]


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["conv3", "relu", "__other__"])
def test_a_few_slow_passes_do_not_make_a_layer_the_slowest(tmp_path, slow):
    """A mean that they moved gives way to the median, and the value is marked."""
    run = layered(tmp_path, means={slow: {"gemm": 300.0}})
    merged = pd.read_csv(run.layers)
    hit = (merged["layer"] == slow) & (merged["algorithm"] == "gemm")
    found = layers.slowest_layers(run, where="input_size=64")
    frame = found.frame.set_index("layer")
    assert frame.loc[slow, "gemm"] == pytest.approx(merged[hit]["median_ms"].iloc[0])
    assert frame["share_pct"].sum() == pytest.approx(100)
    assert list(frame.index) == list(layers.slowest_layers(run, metric="median_ms").frame["layer"])
    assert (frame.loc[slow, "medians"], frame.loc["conv1", "medians"]) == ("gemm", "")
    text = found.written("table")
    assert next(line for line in text.splitlines() if line.startswith(slow)).count("^") == 1
    assert "^ the median" in text
    assert "^ the median" in Desk(tmp_path).run("layers", "demo").stdout
    by_mean = layers.slowest_layers(run, metric="mean_ms", where="input_size=64").frame.set_index(
        "layer"
    )
    assert by_mean.loc[slow, "gemm"] == 300


def test_calls_are_summed_by_kind_and_by_work(run):
    """Three convolutions are one kind, and three pieces of work."""
    ops = layers.slowest_layers(run, by="op", where="input_size=64").frame.set_index("op")
    assert (ops.loc["conv2d", "calls"], ops.loc["conv2d", "auto"]) == (3, 10.0)
    shapes = layers.slowest_layers(run, by="shape", where="input_size=64").frame
    assert "conv2-64" in list(shapes["shape"])


def test_unreliable_points_are_left_out_and_counted(tmp_path):
    """Unless all are taken; where all are unreliable, the message says how to take them."""
    doubtful = {"valid": False, "flags": "very_noisy"}
    run = layered(tmp_path, changes={"gemm": doubtful})
    found = layers.slowest_layers(run)
    assert "gemm" not in found.frame
    assert "2 unreliable points left out (very_noisy)" in found.written("table")
    assert "gemm" in layers.slowest_layers(run, unreliable=True).frame
    with pytest.raises(UsageError, match=r"every point is unreliable \(very_noisy\)") as refused:
        layers.slowest_layers(run, where="algorithm=gemm")
    assert all(way in str(refused.value) for way in ("--unreliable", "=True", f"{run.name} --inv"))


def test_imported_times_are_not_to_be_measured_again(tmp_path):
    """Nobody here can: the message says only how to take them."""
    foreign = {"valid": False, "flags": "foreign;very_noisy"}
    run = layered(tmp_path, changes={"gemm": foreign, "auto": foreign, "winograd": foreign})
    with pytest.raises(UsageError, match="every point is unreliable") as refused:
        best.best_of_sweep(run)
    assert "retry" not in str(refused.value)


def test_only_configurations_that_every_algorithm_has_are_compared(tmp_path):
    """A mean over other sizes would be no comparison."""
    text = (
        "name: demo\nworkload: inference\n"
        "axes: {model: [resnet18], input_size: [64, 128], algorithm: [auto, gemm]}\n"
        "exclude: [{algorithm: gemm, input_size: 128}]\n"
    )
    found = layers.slowest_layers(layered(tmp_path, text))
    assert found.frame.set_index("layer").loc["conv1", "auto"] == 4.0
    assert "1 point left out: not every algorithm has that configuration" in found.notes


def test_no_configuration_with_every_algorithm_tells_which_points_were_left_out(tmp_path):
    """They may be what it lacks."""
    out = "{algorithm: gemm, input_size: 64}, {algorithm: winograd, input_size: 128}"
    text = f"{SWEEP}exclude: [{out}]\n"
    run = layered(tmp_path, text, changes={"auto": {"valid": False, "flags": "contended"}})
    with pytest.raises(UsageError, match="no configuration has every algorithm") as refused:
        layers.slowest_layers(run)
    assert "2 unreliable points left out (contended); --unreliable takes" in str(refused.value)


def test_the_rest_is_counted_and_every_form_has_the_same_rows(run):
    """CSV and JSON hold numbers, the others what people read."""
    found = layers.slowest_layers(run, top=2)
    assert "3 layers more; --top 5 shows all" in found.written("table")
    assert len(found.written("csv").splitlines()) == 3
    assert len(found.to_json()["rows"]) == 2
    assert found.written("md").splitlines()[1] == "| --- | ---: | ---: | ---: | ---: | ---: |"
    assert "algorithm" not in found.written("latex").splitlines()[6]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": "mean"}, "no column 'mean'; did you mean 'mean_ms'"),
        ({"metric": "layer"}, "layer holds no numbers"),
        ({"where": "input_size=65"}, "has input_size=65"),
        ({"by": "model"}, "layers are summed by layer, op, shape, not by model"),
    ],
)
def test_what_is_not_there_is_told(run, options, words):
    """With what is there."""
    with pytest.raises(UsageError, match=words):
        layers.slowest_layers(run, **options)


@pytest.mark.parametrize("how", ["unique", pytest.param("batched", marks=pytest.mark.slow), "true"])
def test_shares_of_convolutions_that_were_timed_alone_say_of_what_they_are(tmp_path, how):
    """Of a measured sweep: `percentage` is of the pass, and sums to 100 only in a layer pass."""
    text = MEASURED.replace("HOW", how)
    folder, bench = resultsfolder.make(tmp_path, text), on_device("inference")
    folder.submit(SUBMISSION, text=text)
    shard, sums = folder.shard(SUBMISSION), []
    with shards.ShardWriter(shard) as writer:
        for point in folder.points:
            done = bench.measure(point)
            row = {**resultsfolder.row_of(point, shard), **done.row, "valid": True, "flags": ""}
            writer.commit(row, done.layers)
            shares = [100 * layer["mean_ms"] / done.row["mean_ms"] for layer in done.layers]
            sums.append(sum(layer["percentage"] for layer in done.layers))
            if how != "true":
                assert [layer["percentage"] for layer in done.layers] == pytest.approx(shares)
    collector.collect(folder.sweep_dir)
    found = layers.slowest_layers(folder.sweep_dir)
    assert found.frame["share_pct"].sum() == pytest.approx(100)
    told = next(note for note in found.notes if note.startswith("times are mean_ms; shares are"))
    if how == "true":
        assert sums == pytest.approx([100] * 4)
        assert "of the layer pass, " in told
    else:
        of = f"{min(sums):.0f} to {max(sums):.0f} % of the pass"
        assert f"of the sum of convolutions timed alone, which is {of}, " in told
        assert "__other__" not in set(found.frame["layer"])
