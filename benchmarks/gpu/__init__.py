"""Proof on one GPU, in steps: ``python -m benchmarks.gpu STEP... --out DIR``.

Each step runs in a process of its own, ends within eight minutes, and writes `DIR/STEP.json` and
`DIR/STEP.txt` after everything that it finds, so that a step that is killed keeps what it found.
``python -m benchmarks.gpu summary DIR...`` says PASS, FAIL or UNKNOWN for each claim.

It runs from a source tree: torch and torchvision are all that it needs.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if str(ROOT / "src") not in sys.path:
    sys.path.insert(0, str(ROOT / "src"))
