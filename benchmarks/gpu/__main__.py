"""The command: runs what fits into its time, and prints the table of claims."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.gpu import runner, summary
from benchmarks.gpu.claims import HELD, REFUTED

_OPEN: Final = 3  # nothing is refuted, and something is open


def main(arguments: list[str] | None = None) -> int:
    """Run steps; return 0 if all claims hold, 1 if one is refuted, 3 if one is open."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Measures on the GPU of this machine what could prove hpcsweep wrong.",
        epilog="\n".join(f"  {name:10} {step.says}" for name, step in runner.STEPS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=570.0, help="end before; default 570")
    parser.add_argument("--out", type=Path, default=Path("gpu-proof"), help="folder of the files")
    parser.add_argument("--simulated", action="store_true", help="try it without a GPU")
    chosen = parser.parse_args(arguments)
    out = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        runner.run(out, chosen.seconds, Path(folder), simulated=chosen.simulated)
    page, verdicts = summary.page(out)
    (out / "summary.md").write_text(page)
    print(f"\n{page}\nall of it: {shutil.make_archive(str(out), 'gztar', out)}")
    told = {one.verdict for one in verdicts}
    return 1 if REFUTED in told else 0 if told == {HELD} else _OPEN


if __name__ == "__main__":
    sys.exit(main())
