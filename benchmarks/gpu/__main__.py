"""The command: ``python -m benchmarks.gpu STEP... --out DIR``, or ``... summary DIR...``."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import Final

from benchmarks.gpu.runner import FIRST, STEPS, run

_NO_PASS: Final = 3  # nothing failed, and something is unknown


def main(arguments: list[str] | None = None) -> int:
    """Run steps, or sum their files up; return the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["summary"]:
        return _summary(words[1:])
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        epilog=_steps(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    steps = [*STEPS, "all", "first", "second"]
    parser.add_argument("steps", nargs="+", metavar="STEP", choices=steps)
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    parser.add_argument("--seconds", type=float, default=3600.0, help="begin no step after these")
    parser.add_argument("--model", default="resnet152")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--iterations", type=int, default=50)
    parser.add_argument("--sizes", type=int, default=3, help="how many sizes the sweep has")
    parser.add_argument("--gpu", default="gpu", help="the axis `gpu` of the tables' rows")
    parser.add_argument("--rehearse", action="store_true", help="run on a CPU, to try the steps")
    parser.add_argument("--again", action="store_true", help="measure anew what is complete")
    chosen = parser.parse_args(words)
    calls = {"all": (*STEPS,), "first": FIRST, "second": tuple(n for n in STEPS if n not in FIRST)}
    wanted = (name for word in chosen.steps for name in calls.get(word, (word,)))
    names = list(dict.fromkeys(wanted))
    if not chosen.rehearse and not _gpu():
        parser.error("this needs a GPU that this torch supports; --rehearse tries it on a CPU")
    kept = ("model", "size", "iterations", "sizes", "gpu")
    told = {"options": {name: getattr(chosen, name) for name in kept}, "again": chosen.again}
    bad = run(names, chosen.out.resolve(), told, chosen.seconds)
    print(f"all of it: {shutil.make_archive(str(chosen.out), 'gztar', chosen.out)}")
    return 1 if bad else 0


def _summary(words: list[str]) -> int:
    from benchmarks.gpu import claims, summary  # noqa: PLC0415 - they load torch

    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu summary")
    parser.add_argument("paths", nargs="+", type=Path, metavar="DIR", help="folders or files")
    parser.add_argument("--out", type=Path, help="write the page there, too")
    chosen = parser.parse_args(words)
    page, verdicts = summary.page(*summary.load(chosen.paths))
    print(page, end="")
    if chosen.out:
        chosen.out.write_text(page)
    told = claims.tally(verdicts)
    if told[claims.FAIL]:
        return 1
    return _NO_PASS if told[claims.UNKNOWN] or not verdicts else 0


def _gpu() -> bool:
    import torch  # noqa: PLC0415 - the help needs none

    return bool(torch.cuda.is_available())


def _steps() -> str:
    lines = [f"  {name:9} {step.says}; {step.seconds:.0f} s" for name, step in STEPS.items()]
    return "\n".join(["steps, in the order that tells most per minute:", *lines])


if __name__ == "__main__":
    sys.exit(main())
