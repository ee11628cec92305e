"""What a point changes or leaves running is seen; what is made once and for good is not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils import data

import leaving
from caring import caring
from hpcsweep import processes
from hpcsweep.measure.machine.remains import ProcessState

ACTS = {
    "spins": "thread spinning: _spin in",
    "spins_unnamed": "thread without a name: _spin in",
    "plans": "_spin in",
    "keeps_a_child": "process ",
    "changes_folder": "working directory: ",
    "lowers_a_limit": "RLIMIT_DATA: ",
    "sets_a_variable": "variable OMP_SCHEDULE: None became dynamic",
    "traces": "sys.getprofile",
    "collects_nothing": "garbage collection",
    "hears": "signal 28",
    "sets_an_alarm": "timer 0: False became True",
    "masks_files": "Umask: ",
    "is_nice": "priority: ",
    "stops_the_clock": "replaced: time.perf_counter_ns",
    "ignores": "SigIgn: ",
    "lets_others_go": "scheduling: ",
    "adds_a_folder": "sys.path: ",
    "redirects_output": "file 2: ",
}


@pytest.mark.parametrize("act", ACTS)
def test_what_a_point_leaves_is_told_in_its_row_and_the_next_one_has_a_new_process(
    tmp_path, monkeypatch, act
):
    """Points that leave nothing share a process, those before and those after it."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as measure:
        first, second, after, last = map(measure, ("nothing", act, "nothing", "nothing"))
    pids = [one.row["node"] for one in (first, second, after, last)]
    assert pids[0] == pids[1] != pids[2] == pids[3]
    assert [one.left for one in (first, after, last)] == [[], [], []]
    assert ACTS[act] in "; ".join(second.left)


PROFILE = torch.profiler.profile()
HOOKS = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
ATEN = torch.library.Library("aten", "IMPL")


@pytest.mark.parametrize(
    ("change", "undo", "told"),
    [
        (
            lambda: torch.set_default_dtype(torch.float64),
            lambda: torch.set_default_dtype(torch.float32),
            "default_dtype",
        ),
        (
            lambda: torch.set_default_device("meta"),
            lambda: torch.set_default_device(None),
            "function_stack",
        ),
        (
            lambda: torch.use_deterministic_algorithms(mode=True),
            lambda: torch.use_deterministic_algorithms(mode=False),
            "deterministic_algorithms",
        ),
        (
            lambda: torch.set_grad_enabled(False),
            lambda: torch.set_grad_enabled(True),
            "is_grad_enabled",
        ),
        (
            lambda: torch.set_autocast_enabled("cpu", bool(1)),
            lambda: torch.set_autocast_enabled("cpu", bool(0)),
            "autocast",
        ),
        (
            lambda: torch.autograd.set_detect_anomaly(True),
            lambda: torch.autograd.set_detect_anomaly(False),
            "is_anomaly_enabled",
        ),
        (
            lambda: setattr(torch.backends.mkldnn, "enabled", False),
            lambda: setattr(torch.backends.mkldnn, "enabled", True),
            "mkldnn_enabled",
        ),
        (
            lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "bf16"),
            lambda: setattr(torch.backends.mkldnn.conv, "fp32_precision", "none"),
            "precision mkldnn conv",
        ),
        (
            lambda: torch.set_flush_denormal(True),
            lambda: torch.set_flush_denormal(False),
            "denormal",
        ),
        (
            lambda: nn.modules.module.register_module_forward_hook(print),
            nn.modules.module._global_forward_hooks.clear,
            "global_forward_hooks",
        ),
        (
            lambda: setattr(nn.functional, "relu", nn.functional.gelu),
            lambda: setattr(nn.functional, "relu", _RELU),
            "nn.functional.relu",
        ),
        (
            lambda: setattr(nn.Conv2d, "forward", lambda _self, x: x),
            lambda: setattr(nn.Conv2d, "forward", _CONV),
            "Conv2d.forward",
        ),
        (
            lambda: setattr(torch, "manual_seed", lambda _: None),
            lambda: setattr(torch, "manual_seed", _SEED),
            "torch.manual_seed",
        ),
        (PROFILE.__enter__, lambda: PROFILE.__exit__(None, None, None), "torch profiler"),
        (HOOKS.__enter__, lambda: HOOKS.__exit__(None, None, None), "saved tensors"),
        (
            lambda: torch.backends.mha.set_fastpath_enabled(False),
            lambda: torch.backends.mha.set_fastpath_enabled(True),
            "fast path",
        ),
        (lambda: ATEN.impl("relu", torch.abs, "CPU"), ATEN._destroy, "kernels of aten"),
        (torch.inference_mode().__enter__, lambda: None, "inference_mode"),
    ],
)
def test_a_change_of_torch_is_told(change, undo, told):
    """Its switches, modes and hooks, and the functions that a network calls."""

    def whole():
        state = ProcessState()
        try:
            change()
            found.extend(state.changes())
        finally:
            undo()
        left.extend(state.changes() if told != "inference_mode" else [])

    found, left = [], []
    thread = threading.Thread(target=whole)  # modes belong to a thread
    thread.start()
    thread.join()
    assert told in "; ".join(found)
    assert left == []


_RELU, _CONV, _SEED = nn.functional.relu, nn.Conv2d.forward, torch.manual_seed


def test_what_is_made_lazily_and_for_good_is_no_change():
    """Pools of threads that wait, loaders that ended, gradients."""
    state = ProcessState()
    pool = ThreadPoolExecutor(2)
    assert [*pool.map(abs, (-1, 2))] == [1, 2]
    loader = data.DataLoader(data.TensorDataset(torch.ones(4, 3, 8, 8)), num_workers=1)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    for (batch,) in loader:
        net(batch).sum().backward()
    torch.optim.SGD(net.parameters(), 0.1).step()
    found = state.changes()
    pool.shutdown()
    assert found == []
