"""What torch's errors mean: no memory, no operator, and networks that no graph can hold."""

from __future__ import annotations

import pytest
import torch

from hpcsweep.measure import torch_errors
from localruns import COMMAND

NETS = """\
import torch
from torch import nn

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
    def forward(self, x):
        return self.conv(x)

class Copies(Plain):
    def forward(self, x):
        return self.conv(x) * torch.tensor([2.0]).to(x.device)

class Reads(Plain):
    def forward(self, x):
        y = self.conv(x)
        return y if y.is_meta else y * y.sum().item()

class Branches(Plain):
    def forward(self, x):
        y = self.conv(x)
        return y if y.is_meta or y.sum() > -1 else -y

class Refuses(Plain):
    aside = 0  # passes on other streams: three before the capture
    def forward(self, x):
        if x.is_cuda and torch.cuda.current_stream() != torch.cuda.default_stream():
            self.aside += 1
            if self.aside > 3:
                raise RuntimeError("no graph of me, please")
        return self.conv(x)
"""
SWEEP = """\
workload: inference
axes:
  model: ["nets:Copies", "nets:Reads", "nets:Branches", "nets:Refuses", "nets:Plain"]
  input_size: [32]
  launch: [graph]
measure: {warmup: 1, iterations: 3, layers: false, numerics: false}
"""
WHY = {
    "nets:Copies": "aten::to synchronizes (data goes between host and GPU)",
    "nets:Reads": "aten::item synchronizes",
    "nets:Branches": "aten::is_nonzero synchronizes (a branch asks for a value)",
    "nets:Refuses": "RuntimeError: no graph of me, please",
}
LINES = {"nets:Copies": 13, "nets:Reads": 18, "nets:Branches": 23, "nets:Refuses": 31}


def test_running_out_of_memory_is_recognised():
    """A real allocation that cannot be had, and the texts that GPUs and libraries use."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 55)
    assert torch_errors.is_out_of_memory(caught.value)
    assert torch_errors.is_out_of_memory(MemoryError())
    assert torch_errors.is_out_of_memory(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried"))
    assert torch_errors.is_out_of_memory(RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"))
    told = "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    assert torch_errors.is_out_of_memory(RuntimeError(f"cuDNN error: {told}"))
    assert not torch_errors.is_out_of_memory(RuntimeError("shape mismatch"))


@pytest.mark.parametrize("refused", [0, 3])
def test_no_engine_is_no_memory_where_the_allocator_refused_some(monkeypatch, refused):
    """After it tried each plan of cuDNN, torch tells only that there is none."""
    error = RuntimeError("GET was unable to find an engine to execute this computation")
    assert not torch_errors.is_out_of_memory(error)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"num_ooms": refused})
    assert torch_errors.is_out_of_memory(error) is bool(refused)


def test_a_missing_operator_is_recognised():
    """Torch says that an operator lacks a dtype; here a real one."""
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        torch.linalg.qr(torch.ones(2, 2, dtype=torch.float16))
    assert torch_errors.is_missing_operator(caught.value)
    assert not torch_errors.is_missing_operator(RuntimeError("shape mismatch"))


def test_a_network_that_no_graph_can_hold_is_unsupported_and_says_why(pretend_gpu, desk):
    """It names the operator and the line; a network after it is measured."""
    desk.spec(SWEEP)
    (desk.folder / "nets.py").write_text(NETS)
    command = (*COMMAND, "submit", "sweep.yaml", "--cluster", "local")
    done = pretend_gpu.run(*command, cwd=desk.folder, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {row["model"]: row for row in desk.rows()}
    plain = rows.pop("nets:Plain")
    assert (plain["status"], plain["status_reason"]) == ("ok", "")
    assert len(rows) == 4
    for model, row in rows.items():
        line = f"{(desk.folder / 'nets.py').resolve()}:{LINES[model]}"
        assert row["status"] == "unsupported"
        assert row["status_reason"] == (
            f"the network cannot be captured as a CUDA graph: {WHY[model]}, {line}; "
            "take `launch: eager`"
        )
