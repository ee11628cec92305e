"""Whatever a file or a program says, a command takes it or refuses it in a line or two of its own.

Sweeps and profiles are in `test_any_file`, each byte of shards, manifests, chunks and journals in
`test_every_byte`; here is what else commands read, changed in the ways that break readers.
"""

from __future__ import annotations

import random
import re
import resource
import shutil
from typing import TYPE_CHECKING

import pytest

import damaged
import ncufiles
import oldtables
from hpcsweep.analysis.roofline import rocprof
from localruns import Desk
from paths import TESTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCRAPS = (
    *("", " ", "0", "-1", "1.5", "9" * 5000, "1e999", "nan", "inf", "1_000", "0x10", "٣", "²"),
    *("null", "[]", "{}", "[" * 2000, '"', "\0", "\r", "\n", "é", "\u2028", "\x1b[2J", "x" * 300),
    *("N/A", "(null)", "UNLIMITED", "PENDING", "NODE_FAIL", "ok", "error", "..", "/", "=1+1"),
    *("0001-01-01T00:00:00", "9999-12-31T23:59:59", "0-9999999", "100000-00:00:00"),
    *("12_[0-99999999999]", "12_[1,4-6:2%3]", "1-", "gpu:l40:4K"),
)
CELL = re.compile(rb"[^,\n|=:\"\x1f]+")
CONFIG = """\
cluster = "local"
quiet = true
[submit]
max_gpu_hours = 2.5
cluster = ["l40", "local"]
[layers]
where = "input_size=64"
top = 7
"""
RESULTS = "results/demo"
# What is changed, below the folder of the desk, and the command that reads it.
READ = {
    f"{RESULTS}/overall.csv": "report demo --metric mean_ms",
    f"{RESULTS}/details.csv": "compare demo demo --metric mean_ms",
    f"{RESULTS}/layers.csv": "layers demo",
    f"{RESULTS}/.collect.json": "collect demo",
    f"{RESULTS}/until.json": "status demo",
    f"{RESULTS}/nodes.json": "status demo",
    f"{RESULTS}/shards/{damaged.LOCAL}/0.0.env.json": "collect demo",
    f"{RESULTS}/submissions/{damaged.QUEUED}/manifest.json": "status demo",
    f"{RESULTS}/submissions/{damaged.QUEUED}/jobs.jsonl": "status demo",
    f"theirs/submissions/{damaged.LOCAL}/manifest.json": "import theirs --as foreign",
    "hpcsweep.toml": "config",
    "networks.csv": "import networks.csv --as foreign --device v100",
    "ncu.csv": "roofline ncu.csv --gpu l40",
    "rocprof.csv": "roofline rocprof.csv --gpu mi250",
    "squeue.txt": "status demo",
    "sacct.txt": "status demo",
    "sinfo.txt": "discover --out -",
    "scontrol.txt": "discover --out -",
    "sacctmgr.txt": "doctor --cluster l40",
    "sbatch.txt": "doctor --cluster l40",
}
# of CPU: a command on a few kilobytes takes a tenth, ten times that on a slow machine
SECONDS = 5.0
LINES = 12  # a report without points says why each kind of point failed
REFUSALS = range(1, 10)  # no signal, and not the code of an interrupt


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Return a folder with all that is attacked, where Slurm's programs print files."""
    folder = tmp_path_factory.mktemp("hostile")
    damaged.make(folder)
    shutil.copytree(folder / RESULTS, folder / "theirs")
    (folder / "hpcsweep.toml").write_text(CONFIG)
    rows = ("AlexNet", "gemm", "V100", (64, 96), 3)
    oldtables.write(folder / "networks.csv", oldtables.NETWORKS, oldtables.network_rows(*rows))
    ncufiles.write_wide(folder / "ncu.csv", ncufiles.step(6, 3))
    _write_rocprof(folder / "rocprof.csv")
    bin_folder = folder / "bin"
    bin_folder.mkdir()
    for answer in (TESTS / "data/slurm").iterdir():
        shutil.copy(answer, folder)
        program = bin_folder / answer.stem
        program.write_text(f"#!/bin/sh\nexec cat {folder / answer.name}\n")
        program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.delenv("HPCSWEEP_CLUSTER")
        yield Desk(folder)


def _write_rocprof(path: Path) -> None:
    head = "Dispatch_Id,Process_Id,Kernel_Name,Counter_Name,Counter_Value"
    names = (*rocprof.VALU, *rocprof.MFMA, *rocprof.MI200_BYTES)
    rows = [f"{n},77,gemm<{n}>,{name},{n}.5,1000,1500" for n in (1, 2) for name in names]
    path.write_text("\n".join([f"{head},Start_Timestamp,End_Timestamp", *rows, ""]))


def changed(data: bytes, drawn: random.Random) -> bytes:
    """Return a file that differs in one to three places: cut, flipped, doubled, other words."""
    for _ in range(drawn.randint(1, 3)):
        at = drawn.randrange(len(data) + 1)
        how = drawn.random()
        cells = [*CELL.finditer(data)]
        lines = data.splitlines(keepends=True)
        if how < 0.1:  # as where a disk is full
            data = data[:at]
        elif how < 0.2 and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << drawn.randrange(8)]) + data[at + 1 :]
        elif how < 0.3 and lines:
            data = b"".join([*lines, *[drawn.choice(lines)] * drawn.choice([1, 300])])
        elif how < 0.8 and cells:
            cell = drawn.choice(cells)
            data = data[: cell.start()] + drawn.choice(SCRAPS).encode() + data[cell.end() :]
        else:
            data = data[:at] + drawn.choice(SCRAPS).encode() + data[at:]
    return data


def run(place: Desk, command: str) -> tuple[int, str]:
    """Run a command; return its exit code and what it said, after checks that hold for any."""
    began = _seconds()
    done = place.run(*command.split())
    shutil.rmtree(place.results / "foreign", ignore_errors=True)
    assert "Traceback" not in done.stdout + done.stderr
    assert "please report it" not in done.stderr, done.stderr
    assert _seconds() - began < SECONDS
    return done.returncode, done.stderr


def _seconds() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


@pytest.mark.parametrize("name", READ)
def test_any_input_is_taken_or_refused(place: Desk, name: str, pytestconfig: pytest.Config) -> None:
    """In seconds and a few lines, without a traceback; what is whole is read."""
    command = READ[name]
    path = place.folder / name
    whole = path.read_bytes()
    assert run(place, command) == (0, "")
    try:
        for number in range(60 if pytestconfig.getoption("--all") else 5):
            path.write_bytes(changed(whole, random.Random(f"{name} {number}")))
            code, said = run(place, command)
            if code:
                assert code in REFUSALS
                assert len(said.splitlines()) <= LINES, said
    finally:
        path.write_bytes(whole)
