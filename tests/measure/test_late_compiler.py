"""Networks are built and passed through without torch's compiler; who asks for it gets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

# The operator whose module asks the compiler; operators that it marks on the meta device.
PROGRAM = """\
import sys
from hpcsweep.measure import late_compiler
torchvision = late_compiler.torchvision()
import torch
from hpcsweep.measure.shape_pass import shape_pass
with torch.no_grad():
    shapes = shape_pass(torchvision.models.squeezenet1_1(), torch.ones(1, 3, 64, 64))
    shapes = shape_pass(torchvision.models.resnet18(), torch.ones(1, 3, 64, 64))
assert len(shapes.convolution_calls) == 20
assert not [name for name in sys.modules if name.startswith("torch._dynamo")]
boxes = [torch.tensor([[0.0, 0, 4, 4]])]
assert torchvision.ops.roi_align(torch.ones(1, 3, 8, 8), boxes, 2).shape == (1, 3, 2, 2)
asked = sys.modules["torchvision.ops.roi_align"].is_compile_supported("cpu")
assert asked == torch._dynamo.utils.is_compile_supported("cpu")
compiled = torch.compile(torchvision.models.resnet18(), backend="eager")
compiled(torch.ones(1, 3, 64, 64))
assert torch._dynamo.utils.counters["frames"]["ok"] == 1
"""
# as a network that compiles in its pass
COMPILES = """\
import sys
from hpcsweep.measure import late_compiler
import torch
function = torch._compile._disable_dynamo(lambda: sys.modules["torch._dynamo"])
with late_compiler.unmarked():
    assert isinstance(function(), late_compiler.StandIn)
    assert torch.compile(torch.nn.ReLU(), backend="eager")(torch.ones(2)).tolist() == [1, 1]
    assert not isinstance(sys.modules["torch._dynamo"], late_compiler.StandIn)
assert torch._dynamo.aot_compile_types is sys.modules["torch._dynamo.aot_compile_types"]
assert not hasattr(function.__wrapped__, "__dynamo_disable")
assert function() is torch._dynamo
assert hasattr(function.__wrapped__, "__dynamo_disable")
"""
# as a release of torchvision that takes more of the compiler's utilities
TAKES_MORE = """\
import sys
from hpcsweep.measure import late_compiler
sys.modules["torch._dynamo.utils"] = late_compiler.StandIn("torch._dynamo.utils")
from torch._dynamo.utils import counters
import torch._dynamo
assert counters is torch._dynamo.utils.counters
"""


@pytest.mark.parametrize("program", [PROGRAM, COMPILES, TAKES_MORE])
def test_the_compiler_comes_when_somebody_asks_for_it(program):
    """Its import takes longer than those of torch and torchvision, for what runs without it."""
    subprocess.run([sys.executable, "-c", program], check=True)
