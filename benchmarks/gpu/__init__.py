"""The proof on a GPU: ``python -m benchmarks.gpu [--seconds N] [--out FOLDER] [--pretend]``.

It runs from a source tree with any torch and torchvision. Each step runs in a process of its own
and writes `OUT/DEVICE/STEP.json` after everything that it finds. The same command goes on where it
stopped, and ends with one table: which claims hold, which are refuted, and which are open.
"""

import sys
import time
from pathlib import Path

BEGAN = time.monotonic()  # before torch is imported, which takes seconds
ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))
