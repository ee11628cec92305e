"""Networks that no graph can hold: which operator waits, and where; the process is replaced."""

from __future__ import annotations

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
