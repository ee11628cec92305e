"""The command: runs what fits into its time, and prints the table of claims."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.gpu import BEGAN, runner, summary
from benchmarks.gpu.claims import HELD, REFUTED

_OPEN: Final = 3  # nothing is refuted, and something is open
_OUT: Final = "gpu-proof"  # git ignores it, and what begins so


def main(arguments: list[str] | None = None) -> int:
    """Run steps; return 0 if all claims hold, 1 if one is refuted, 3 if one is open."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Measures on the GPU of this machine what could prove hpcsweep wrong.",
        epilog="\n".join(f"  {name:10} {step.says}" for name, step in runner.STEPS.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seconds", type=float, default=565.0, help="end before; default 565")
    parser.add_argument("--out", type=Path, help=f"folder of the files; default {_OUT}")
    parser.add_argument("--pretend", action="store_true", help="try it without a GPU")
    chosen = parser.parse_args(arguments)
    out = (chosen.out or Path(f"{_OUT}-pretended" if chosen.pretend else _OUT)).resolve()
    out.mkdir(parents=True, exist_ok=True)
    told: set[str] = set()

    def keep(folder: Path) -> None:
        """Write what is known by now: the machine may be taken away after any step."""
        page, verdicts = summary.page(folder)
        told.clear()
        told.update(one.verdict for one in verdicts)
        for place in (folder, out):
            (place / "summary.md").write_text(page)
        shutil.make_archive(str(out), "gztar", out)

    with tempfile.TemporaryDirectory() as scratch:
        try:
            ends = BEGAN + chosen.seconds
            runner.run(out, ends, Path(scratch), pretended=chosen.pretend, after=keep)
        except runner.NoDevice as error:
            print(error, file=sys.stderr)
            return _OPEN
    print(f"\n{(out / 'summary.md').read_text()}\nall of it: {out}.tar.gz")
    return 1 if REFUTED in told else 0 if told == {HELD} else _OPEN


if __name__ == "__main__":
    sys.exit(main())
