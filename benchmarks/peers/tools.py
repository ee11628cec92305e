"""How each tool runs the study: its packages, its commands, and where its rows are."""

from __future__ import annotations

import csv
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

STUDIES: Final = Path(__file__).parent / "studies"
_SPEC: Final = """\
name: study
workload: noop
axes: {{model: [a], input_size: {{start: 1, stop: {points}, num: {points}}}}}
measure: {{sleep_ms: {sleep_ms}}}
"""


@dataclass(frozen=True)
class Study:
    """How many points, how long each lasts, in which folder, and the tool's `bin` folder."""

    points: int
    seconds: float
    out: Path
    programs: Path

    def calls(self) -> Counter[str]:
        """Return how often each point began to be measured, as the points themselves wrote it."""
        file = self.out / "calls.txt"
        return Counter(file.read_text().split() if file.exists() else ())


@dataclass(frozen=True)
class Tool:
    """A tool in one way to use it."""

    name: str
    packages: tuple[str, ...]
    commands: Callable[[Study], list[list[str]]]
    """From nothing to the table."""
    resume: Callable[[Study], list[list[str]]]
    """What its documentation says after a crash."""
    how: str = "the same again"
    """That, in words."""
    calls: Callable[[Study], Counter[str]] = field(default=Study.calls)
    rows: Callable[[Study], int] = lambda study: _lines([study.out / "table.csv"])

    @property
    def environment(self) -> str:
        """The folder of its environment; tools of the same packages share it."""
        return self.packages[0].partition("==")[0] if self.packages else ""


def _lines(tables: list[Path]) -> int:
    return sum(len(path.read_text().splitlines()) - 1 for path in tables if path.exists())


def _script(name: str, *words: str) -> Callable[[Study], list[list[str]]]:
    return lambda study: [[str(study.programs / "python"), str(STUDIES / name), *words]]


def _hpcsweep(study: Study) -> list[list[str]]:
    spec = study.out / "study.yaml"
    spec.write_text(_SPEC.format(points=study.points, sleep_ms=1000 * study.seconds))
    run = [sys.executable, "-m", "hpcsweep", "--results", str(study.out / "results")]
    return [[*run, "submit", str(spec), "--cluster", "local", "--workers", "2", "--collect"]]


def _hpcsweep_calls(study: Study) -> Counter[str]:
    """Return how many rows its shards have of each point, read without hpcsweep."""
    found: Counter[str] = Counter()
    for shard in study.out.glob("results/study/shards/**/*overall*.csv"):
        with shard.open(newline="") as file:
            found.update(row["input_size"] for row in csv.DictReader(file) if row.get("input_size"))
    return found


def _reframe(study: Study) -> list[list[str]]:
    settings = STUDIES / "reframe_settings.py"
    tests = STUDIES / "reframe_study.py"
    folders = [f"--prefix={study.out}/reframe", f"--perflogdir={study.out}/perf"]
    report = f"--report-file={study.out}/report.json"
    program = str(study.programs / "reframe")
    return [[program, "-C", str(settings), "-c", str(tests), *folders, report, "-r"]]


def _hydra(study: Study) -> list[list[str]]:
    python = str(study.programs / "python")
    script = str(STUDIES / "hydra_study.py")
    launcher = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"]
    numbers = f"+number=range(0,{study.points})"
    folder = f"hydra.sweep.dir={study.out}/multirun"
    return [[python, script, "--multirun", *launcher, numbers, folder], [python, script, "merge"]]


def _snakemake(study: Study, *more: str) -> list[list[str]]:
    program = str(study.programs / "snakemake")
    return [[program, "-s", str(STUDIES / "Snakefile"), "-c2", "--quiet", "all", *more]]


def _snakemake_again(study: Study) -> list[list[str]]:
    return [*_snakemake(study, "--unlock"), *_snakemake(study, "--rerun-incomplete")]


_OVER: Final = "the same again; it keeps no state"
_SUBMITIT: Final = ("submitit==1.5.4",)
_SIGNAC: Final = ("signac-flow==0.29.1", "signac==2.4.1")
_HYDRA: Final = ("hydra-core==1.3.8", "hydra-joblib-launcher==1.2.0")
_EXCA = _script("exca_study.py")
_FLOW = _script("signac_study.py")
_PACKED, _SINGLE = (_script("submitit_study.py", way) for way in ("packed", "single"))
TOOLS: Final = (
    Tool("hpcsweep", (), _hpcsweep, _hpcsweep, calls=_hpcsweep_calls,
         rows=lambda study: _lines([study.out / "results/study/overall.csv"])),
    Tool("exca", ("exca==0.6.0",), _EXCA, _EXCA),
    Tool("signac-flow", _SIGNAC, _FLOW, _FLOW),
    Tool("submitit, packed", _SUBMITIT, _PACKED, _PACKED, _OVER),
    Tool("snakemake", ("snakemake==9.27.1",), _snakemake, _snakemake_again,
         "`--unlock`, then `--rerun-incomplete`"),
    Tool("ReFrame", ("ReFrame-HPC==4.10.4",), _reframe, _reframe,
         rows=lambda study: _lines([*study.out.glob("perf/**/*.log")])),
    Tool("Hydra + joblib", _HYDRA, _hydra, _hydra, _OVER),
    Tool("submitit, one job each", _SUBMITIT, _SINGLE, _SINGLE, _OVER),
)  # fmt: skip
