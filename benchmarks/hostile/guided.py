"""Lets libFuzzer look for inputs that reach new lines of hpcsweep; needs atheris (Linux)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_LIMITS: Final = ("-timeout=5", "-rss_limit_mb=1000", "-print_final_stats=1")


def run(names: list[str], seconds: int, kept: Path) -> int:
    """Run libFuzzer on some targets, one after the other; return 1 where one was beaten."""
    code = 0
    kept.mkdir(parents=True, exist_ok=True)
    for name in names:
        words = [
            sys.executable,
            "-m",
            __spec__.name,
            name,
            f"-max_total_time={seconds // len(names)}",
        ]
        prefix = f"-artifact_prefix={kept.absolute()}/{name}-"
        print(f"{name}: ", end="", flush=True)
        done = subprocess.run(
            [*words, prefix, *_LIMITS], cwd=_ROOT, check=False, capture_output=True, text=True
        )
        told = [line for line in done.stderr.splitlines() if "stat::" in line or "cov:" in line]
        print("; ".join(told[-6:]) or done.stderr[-2000:])
        if done.returncode:
            print(done.stdout[-3000:])
            code = 1
    return code


def _fuzz(name: str, options: list[str]) -> None:
    """Give libFuzzer's inputs to one target; in a process of its own, which it ends."""
    sys.path.insert(0, str(_ROOT / "tests" / "support"))
    import atheris  # noqa: PLC0415 - no part of the environment

    with atheris.instrument_imports(include=["hpcsweep"], enable_loader_override=False):
        from benchmarks.hostile import place as places  # noqa: PLC0415 - to be instrumented
        from benchmarks.hostile import watch  # noqa: PLC0415
        from benchmarks.hostile.targets import TARGETS  # noqa: PLC0415

    with watch.workplace() as folder:
        corpus = folder / "seeds"
        corpus.mkdir()
        (folder / "place").mkdir()
        place = places.enter(folder / "place")
        target = TARGETS[name]
        for number, seed in enumerate(target.seeds(place)):
            (corpus / str(number)).write_bytes(seed)

        def one(data: bytes) -> None:
            place.refused = False
            target.read(place, data)

        atheris.Setup([name, *options, str(corpus)], one)
        atheris.Fuzz()


if __name__ == "__main__":
    _fuzz(sys.argv[1], sys.argv[2:])
