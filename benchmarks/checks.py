"""What each check of a point is, costs and finds; and whether the others live without it.

    python -m benchmarks.checks              # two minutes on two cores
    python -m benchmarks.checks --tests      # runs the tests of the other checks, too: 15 minutes

For each check: lines and code tokens of its two files; seconds and passes that it takes of a point,
on three networks, by every hook that it has. A *pass* is a call of the network or of a copy of it.
Then the two files are deleted in a copy of the tree, with their line in `catalog/checks`, and the
three networks are measured there: the rows must lack the columns of that check alone.

Exit code 1: something else broke.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tokenize
from collections import Counter
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints to stderr

import torch
from torch import nn

from benchmarks.markdown import print_head, print_row
from hpcsweep import catalog
from hpcsweep.catalog.checks import CHECKS
from hpcsweep.catalog.record import cells_of
from hpcsweep.measure.bench import on_device
from hpcsweep.point import Point

ROOT = Path(__file__).parents[1]
NETWORKS = ("resnet18", "mobilenet_v3_small", "squeezenet1_1")
HOOKS = ("begin", "settled", "look", "disturbed", "end", "after")
_UNCOUNTED = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def point(model: str) -> Point:
    """Return a point as a sweep has it by default, with an explicit algorithm."""
    axes = catalog.axis_defaults("inference") | {"model": model, "gpu": "cpu", "input_size": 96}
    axes |= {"algorithm": "gemm", "num_threads": 1}  # barriers of threads wait for a busy machine
    return Point("inference", axes, catalog.setting_defaults("inference"), "0" * 16)


def files_of(check: str) -> list[Path]:
    """Return the two files of a check."""
    return [Path("src/hpcsweep", part, "checks", f"{check}.py") for part in ("catalog", "measure")]


def tokens(text: str) -> int:
    """Return the number of code tokens: without comments, docstrings and ends of lines."""
    found = tokenize.generate_tokens(io.StringIO(text).readline)
    kept = [token for token in found if token.type not in _UNCOUNTED]
    return sum(not (t.type == tokenize.STRING and t.line.lstrip()[:3] == '"""') for t in kept)


def costs() -> dict[str, dict[str, tuple[float, int]]]:
    """Return the seconds and the passes of each check, by network; wall seconds as `point`."""
    bench = on_device("inference")
    passes = Counter[str]()
    seconds = Counter[str]()
    open_checks = ["point"]

    def count(module: nn.Module, _args: object) -> None:
        if isinstance(module, kinds):
            passes[open_checks[-1]] += 1

    def watch(name: str, check: object, hook: str) -> None:
        inner = getattr(check, hook)

        def watched(*args: object) -> object:
            open_checks.append(name)
            began = time.perf_counter()
            try:
                return inner(*args)
            finally:
                seconds[name] += time.perf_counter() - began
                open_checks.pop()

        setattr(check, hook, watched)

    for name, check in bench.checks.items():
        for hook in HOOKS:
            watch(name, check, hook)
    found: dict[str, dict[str, tuple[float, int]]] = {}
    for model in NETWORKS:
        bench.measure(point(model))  # what is loaded and kept once is no cost of a point
        with torch.inference_mode():
            kinds = (type(bench.workload.build(point(model)).model),)
        seconds.clear()
        passes.clear()
        began = time.perf_counter()
        bench.measure(point(model))
        seconds["point"] = time.perf_counter() - began
        timed = dict(seconds)
        with nn.modules.module.register_module_forward_pre_hook(count):
            bench.measure(point(model))
        found[model] = {name: (timed.get(name, 0.0), passes[name]) for name in (*CHECKS, "point")}
    return found


def told() -> dict[str, list[str]]:
    """Return the columns that the rows of the networks have."""
    bench = on_device("inference")
    return {model: sorted(bench.measure(point(model)).row) for model in NETWORKS}


def without(check: str, columns: dict[str, list[str]], *, tests: bool) -> str:
    """Measure in a copy of the tree without a check; return what broke, or nothing."""
    with tempfile.TemporaryDirectory() as folder:
        for part in ("src", "benchmarks", "tests"):
            ignored = shutil.ignore_patterns("__pycache__", "_data")
            shutil.copytree(ROOT / part, Path(folder, part), ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        for file in (*files_of(check), Path("tests/measure/checks", f"test_{check}.py")):
            Path(folder, file).unlink(missing_ok=file.parts[0] == "tests")
        names = Path(folder, "src/hpcsweep/catalog/checks/__init__.py")
        names.write_text(names.read_text().replace(f'    "{check}",\n', ""))
        words = ["-m", "benchmarks.checks", "--told"]
        done = _run(folder, words)
        if done.returncode:
            return done.stderr.strip().splitlines()[-1]
        lost = {name for name, _, _ in cells_of(CHECKS[check].overall)}
        wanted = {model: sorted({*own} - lost) for model, own in columns.items()}
        if json.loads(done.stdout.splitlines()[-1]) != wanted:
            return "rows lack other columns"
        if tests:
            tested = ("tests/measure/checks", "tests/measure/test_point.py", "tests/catalog")
            done = _run(folder, ["-m", "pytest", "-q", "-x", *tested])
        return done.stdout.strip().splitlines()[-1] if done.returncode else ""


def _run(folder: str, words: list[str]) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": f"{folder}/src"}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environ,
        text=True,
        capture_output=True,
        check=False,
    )


def main() -> int:
    """Print a row for each check; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tests", action="store_true", help="run the tests of the others, too")
    parser.add_argument("--told", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.told:
        print(json.dumps(told()))
        return 0
    columns = told()
    measured = costs()
    print_head("check | lines | tokens | " + " | ".join(NETWORKS) + " | without it")
    broken = 0
    for check in CHECKS:
        texts = [(ROOT / file).read_text() for file in files_of(check)]
        wrong = without(check, columns, tests=asked.tests)
        broken += bool(wrong)
        print_row(
            f"`{check}`",
            sum(text.count("\n") for text in texts),
            sum(map(tokens, texts)),
            *(_cost(*measured[model][check]) for model in NETWORKS),
            wrong or "all else works",
        )
    print_row("the point", "", "", *(_cost(*measured[model]["point"]) for model in NETWORKS), "")
    return 1 if broken else 0


def _cost(seconds: float, passes: int) -> str:
    return f"{seconds:.3f} s, {passes} passes"


if __name__ == "__main__":
    sys.exit(main())
