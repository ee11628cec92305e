"""Mutates the shipped sweeps, asks for an estimate of each, and says what takes too much.

Run ``python benchmarks/mutations.py [CASES] [SEED]``. A mutation changes numbers, doubles, swaps or
removes parts of a sweep, or breaks its text. Every case must be answered within 5 s of CPU and 500
MB: by an estimate, or by an error of our own words (exit code 2). The cases run one after the other
in child processes that are forked with everything loaded, so that a case costs what it costs alone.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import resource
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

SWEEPS = Path(__file__).parents[1] / "sweeps"
SECONDS, MEGABYTES = 5.0, 500.0
LIMIT_S, LIMIT_MB = 30, 4000  # a case is killed there
NUMBERS = (0, 1, -1, 2, 7, 31, 224, 1000, 10**5, 10**6, 10**7, 10**17, 0.5, 1e300)
LARGE = ("input_size", "batch_size", "seed")
SCRAPS = ("[", "{", ": ", "- ", "\t", "*a", "'", "0", "")
WORDS = ("", "auto", "gemm", "resnet18", "a", "~", "é", "training", "noop", "l40", "x" * 300)


def mutated(text: str, drawn: random.Random) -> str:
    """Return a sweep file that differs in one to four places."""
    if drawn.random() < 0.2:
        at, cut = drawn.randrange(len(text)), drawn.randrange(12)
        return text[:at] + drawn.choice(SCRAPS) + text[at + cut :]
    data = yaml.safe_load(text)
    for _ in range(drawn.randint(1, 4)):
        place, key = drawn.choice([*_places(data)])
        place[key] = _other(place[key], drawn)
    if drawn.random() < 0.5:
        _enlarge(data, drawn)
    return json.dumps(data)


def _places(data: dict[Any, Any] | list[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield every container with every key or index of it."""
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in list(items):
        yield data, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _other(value: object, drawn: random.Random) -> object:
    """Return something else in place of a value."""
    if isinstance(value, list) and value and drawn.random() < 0.7:
        times = drawn.choice([2, 30, 500, 3000])
        return (copy.deepcopy(value) * times)[: 150_000 // max(len(str(value)), 1) + 2]
    if isinstance(value, bool) or drawn.random() < 0.1:
        return drawn.choice([True, False, None, [], {}, *WORDS])
    if isinstance(value, int | float):
        return drawn.choice([*NUMBERS, value * 10, value + 1, -value])
    if isinstance(value, dict) and value and drawn.random() < 0.7:
        return {key: _other(one, drawn) for key, one in value.items()}
    return drawn.choice([value, *WORDS, *NUMBERS])


def _enlarge(data: dict[str, Any], drawn: random.Random) -> None:
    """Give a sweep many values, or many rules."""
    axes = data.get("axes")
    if not isinstance(axes, dict):
        return
    for name in drawn.sample(
        ["input_size", "batch_size", "seed", "num_threads"], drawn.randint(1, 3)
    ):
        most = drawn.choice([10, 100, 215, 1000, 10**6])
        ranged = {"start": 1, "stop": most, "step": 1}
        axes[name] = drawn.choice([ranged, drawn.sample(range(1, 10**6), min(most, 1000))])
    rules = drawn.choice([0, 3, 100, 1000])
    names = [name for name in axes if name in LARGE]
    data["exclude"] = [_condition(names, drawn) for _ in range(rules)]
    if drawn.random() < 0.3:
        whens = range(min(rules, 60))
        data["when"] = [
            {"if": _condition(names, drawn), "axes": {"dtype": ["float16"], "tf32": [True, False]}}
            for _ in whens
        ]


def _condition(names: list[str], drawn: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in drawn.sample(names, drawn.randint(1, len(names))) if names else ():
        low = drawn.randint(1, 1000)
        found[name] = drawn.choice(
            [{"ge": low, "le": low + drawn.randint(0, 300)}, {"not": [low]}, low, [low, low + 1]]
        )
    return found


def case(text: str, name: str) -> dict[str, Any]:
    """Ask for the estimate of one sweep in a forked child; return what that took."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_text(text)
        child = os.fork()
        if not child:
            os._exit(_estimate(path, Path(folder)))
        _, status, used = os.wait4(child, 0)
        said = Path(folder, "said").read_text(errors="replace")
    return {
        "code": os.waitstatus_to_exitcode(status),
        "seconds": used.ru_utime + used.ru_stime,
        "megabytes": used.ru_maxrss / 1024,
        "said": said,
    }


def _estimate(path: Path, folder: Path) -> int:
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_MB << 20, LIMIT_MB << 20))
    os.chdir(folder)
    with Path(folder, "said").open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["hpcsweep", "estimate", str(path), "--cluster", "local"]
    try:
        from hpcsweep import cli  # noqa: PLC0415 - loaded before the fork

        cli.run()
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:  # noqa: BLE001 - it is what is looked for
        traceback.print_exc()
        return 99
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
    return 0


def main(cases: int, seed: int) -> None:
    """Print a line for each case that takes too much or ends badly, then the totals."""
    from hpcsweep import cli  # noqa: F401, PLC0415 - so that no child has to load them
    from hpcsweep.spec import expansion, sweep_file  # noqa: F401, PLC0415
    from hpcsweep.submit import cost  # noqa: F401, PLC0415

    drawn, codes, slow = random.Random(seed), dict[int, int](), 0
    files, took = sorted(SWEEPS.glob("*.yaml")), list[float]()
    for number in range(cases):
        file = drawn.choice(files)
        text = mutated(file.read_text(), drawn)
        found = case(text, file.name)
        codes[found["code"]] = codes.get(found["code"], 0) + 1
        took.append(found["seconds"])
        late = found["seconds"] > SECONDS or found["megabytes"] > MEGABYTES
        slow += late
        if late or found["code"] not in {0, 2}:
            kept = Path(tempfile.gettempdir()) / f"mutation-{seed}-{number}.yaml"
            kept.write_text(text)
            told = found["said"].strip().splitlines()[-1:] or [""]
            print(
                f"{kept}: code {found['code']}, {found['seconds']:.1f} s, "
                f"{found['megabytes']:.0f} MB: {told[0][:200]}",
                flush=True,
            )
    ranked = sorted(took)
    print(
        f"{cases} cases with seed {seed}: {slow} over {SECONDS:g} s or {MEGABYTES:g} MB; "
        f"exit codes {codes}; "
        f"CPU seconds median {ranked[len(ranked) // 2]:.2f}, most {ranked[-1]:.2f}"
    )


if __name__ == "__main__":
    given = [*map(int, sys.argv[1:])]
    main(*given, *(1000, 1)[len(given) :])
