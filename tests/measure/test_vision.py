"""torchvision works as ever, though torch's compiler was not imported with it."""

from __future__ import annotations

import subprocess
import sys

# The operator whose module asks the compiler; what a part of it asks for has the whole.
PROGRAM = """\
import sys
from hpcsweep.measure import vision
torchvision = vision.torchvision()
import torch
assert not [name for name in sys.modules if name.startswith("torch._dynamo")]
boxes = [torch.tensor([[0.0, 0, 4, 4]])]
assert torchvision.ops.roi_align(torch.ones(1, 3, 8, 8), boxes, 2).shape == (1, 3, 2, 2)
asked = sys.modules["torchvision.ops.roi_align"].is_compile_supported("cpu")
assert asked == torch._dynamo.utils.is_compile_supported("cpu")
compiled = torch.compile(torch.nn.ReLU(), backend="eager")
assert compiled(torch.ones(2)).tolist() == [1, 1]
assert torch._dynamo.utils.counters["frames"]["ok"] == 1
"""
# as a release of torchvision that imports all of the compiler
WHOLE = """\
import sys
from hpcsweep.measure import vision
sys.modules["torch._dynamo.utils"] = vision.Later("torch._dynamo.utils")
import torch._dynamo
assert torch._dynamo.utils is sys.modules["torch._dynamo.utils"]
assert not isinstance(torch._dynamo.utils, vision.Later)
"""


def test_the_compiler_comes_when_somebody_asks_for_it():
    """Its import takes longer than those of torch and torchvision, for an operator of detectors."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
    subprocess.run([sys.executable, "-c", WHOLE], check=True)
