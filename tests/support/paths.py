"""Where the tests' own files and those of the project lie."""

import os
from pathlib import Path

SUPPORT = Path(__file__).resolve().parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
# of real GPUs, by others: extracts are here, `REAL_GPU_FACTS` has more
FACTS = Path(os.environ.get("REAL_GPU_FACTS") or TESTS / "data")
