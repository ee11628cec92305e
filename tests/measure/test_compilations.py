"""What torch compiles is never timed: by its own counters, on networks that compile in part."""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from hpcsweep.measure import compilations
from hpcsweep.measure.measure_point import on_device
from hpcsweep.measure.timing.clocks import HostClock
from hpcsweep.measure.timing.loop import Lane
from measuring import point, training
from paths import SUPPORT

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
PLAIN = {"evidence": False, "numerics": False}


@pytest.fixture(autouse=True)
def _forgotten():
    """Compile anew in each test, and leave nothing compiled."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture
def blocks(monkeypatch):
    """Return, for each timed block of passes, whether torch compiled in it."""
    seen, block = [], HostClock.block

    def watched(clock, run, count):
        before = compilations.compilations()
        times = block(clock, run, count)
        seen.append(compilations.compilations() != before)
        return times

    monkeypatch.setattr(HostClock, "block", watched)
    return seen


def _measured(name, **settings):
    return on_device("inference", "cpu").measure(
        point(f"compilednets:{name}", measure=PLAIN | settings)
    )


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("Part", ["stem", "end", "__other__"]),
        ("InPlace", ["stem", "end", "__other__"]),
        ("Function", ["function", "__other__"]),
        ("whole", []),
    ],
)
def test_layers_inside_compiled_code_have_no_rows(blocks, name, layers):
    """Timers would break the code up, and be compiled themselves; the row says so."""
    done = _measured(name)
    assert [row["layer"] for row in done.layers] == layers
    assert "layers_compiled" in done.row["flags"].split(";")
    assert "compiling" not in done.row["flags"]
    assert not any(blocks[-len(done.samples) :])


def test_the_calls_that_are_timed_keep_their_places_and_their_sum():
    """A call's index is its place in the whole pass; shares of rows still sum to 100."""
    rows = _measured("Part").layers
    assert [row["call_index"] for row in rows] == [0, 2, 3]
    assert sum(row["percentage"] for row in rows) == pytest.approx(100)


def test_a_network_that_compiles_again_is_timed_when_torch_has_given_up(blocks):
    """Each third pass of it compiles, eight times; the warm-up is longer then."""
    done = _measured("Again", layers=False)
    assert "recompiled" in done.row["flags"].split(";")
    assert not any(blocks[-2:])
    assert done.row["valid"] or "noisy" in done.row["flags"]


def test_a_network_that_never_stops_is_flagged_and_not_valid(blocks):
    """No number of passes is enough, so its times hold compilations."""
    done = _measured("Always", layers=False, iterations=20)
    assert "compiling" in done.row["flags"].split(";")
    assert not done.row["valid"]
    assert any(blocks)


def test_each_point_compiles_for_its_own_shapes(blocks):
    """Code for the shapes of points before would be slower, and after eight sizes there is none."""
    bench = on_device("inference", "cpu")
    graphs = []
    for size in (16, 20, 24):
        bench.measure(
            point("compilednets:Part", input_size=size, measure=PLAIN | {"layers": False})
        )
        graphs.append(compilations.compilations())  # each point begins at none
    assert graphs[0] == graphs[1] == graphs[2] > 0


@pytest.mark.parametrize(("ran", "more"), [(0, 3), (1, 2), (3, 0), (20, 0)])
def test_a_script_has_had_its_runs_before_it_is_timed(monkeypatch, ran, more):
    """TorchScript looks at the first run and compiles in the second, and has no counters."""
    monkeypatch.setattr(compilations, "compilations", lambda: 0)
    runs = []
    assert compilations.settle(Lane(lambda: runs.append(1), HostClock()).once, ran) == 0
    assert len(runs) == more


def test_after_these_runs_a_script_is_optimised():
    """Its executor has a plan after them, and none before."""
    script, x = torch.jit.script(nn.Sequential(nn.ReLU(), nn.Sigmoid())), torch.zeros(4)
    script(x)
    with pytest.raises(RuntimeError):
        script.get_debug_state()
    compilations.settle(Lane(lambda: script(x), HostClock()).once, compilations.RUNS - 2)
    assert script.get_debug_state().execution_plans


@pytest.mark.parametrize("kind", ["frames", "aot_autograd", "inductor", "compiled_autograd"])
def test_any_counter_of_torch_that_grows_is_a_compilation(monkeypatch, kind):
    """Backward passes and generated code have counters of their own; older torches have fewer."""
    counters = {"stats": Counter(), kind: Counter()}
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(counters=counters))
    left = [1, 0, 1, 1]

    def run():
        counters[kind]["total"] += left.pop() if left else 0

    assert compilations.settle(Lane(run, HostClock()).once, 0) == 3


def test_without_dynamo_nothing_is_looked_at(monkeypatch):
    """It takes seconds to import, so who never compiled has not got it."""
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    compilations.forget()
    assert compilations.compilations() == 0
    assert "torch._dynamo" not in sys.modules


_POINTS = """
import sys
import torch._dynamo  # torchvision has it, too
from hpcsweep.measure.measure_point import on_device
from measuring import point
bench = on_device("inference", "cuda")
for size in (32, 48):
    bench.measure(point(input_size=size, measure={"evidence": False, "energy": False}))
print("torch._inductor.cudagraph_trees" in sys.modules)
"""


def test_points_of_a_gpu_that_compile_nothing_never_load_the_compiler(pretend_gpu):
    """It is six hundred modules, and 1.4 s of processor time in each worker."""
    done = pretend_gpu.run(sys.executable, "-c", _POINTS, PYTHONPATH=str(SUPPORT))
    assert done.stdout.strip() == "False", done.stderr


def test_a_training_is_timed_when_its_steps_compile_nothing_any_more():
    """The warm-up takes as many steps as that needs, and goes back to the start as always."""
    done = on_device("training", "cpu").measure(
        training("compilednets:Again", measure={"layers": True})
    )
    flags = done.row["flags"].split(";")
    assert done.row["warmup_n"] > 20
    assert done.row["steps"] == 5
    assert "compiling" not in flags
    never = on_device("training", "cpu").measure(
        training("compilednets:Always", steps_per_epoch=10)
    )
    assert "compiling" in never.row["flags"].split(";")
    assert not never.row["valid"]


def test_a_training_of_a_part_that_is_compiled_has_no_layer_rows():
    """As one that is compiled as a whole."""
    done = on_device("training", "cpu").measure(
        training("compilednets:Part", measure={"layers": True})
    )
    assert not done.layers
    assert "layers_compiled" in done.row["flags"].split(";")


def test_a_point_that_compiles_nothing_does_not_wait_for_what_others_compiled(monkeypatch):
    """The counters of torch are the process's; each point begins at none."""
    _measured("Part")
    seen, settle = [], compilations.settle
    monkeypatch.setattr(
        compilations,
        "settle",
        lambda *call: seen.append(compilations.compilations()) or settle(*call),
    )
    on_device("inference", "cpu").measure(point("tinynets:Residual", measure=PLAIN))
    assert seen == [0]
