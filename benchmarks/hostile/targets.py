"""What is attacked: for each kind of input its seeds, how it is mutated, and who reads it."""

from __future__ import annotations

import csv
import io
import json
import shutil
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import ncufiles
import oldtables
from benchmarks.hostile import mutate, slurm_answers, sweeps
from benchmarks.hostile.place import LOCAL, QUEUED, answer
from hpcsweep.analysis.roofline import rocprof
from hpcsweep.catalog.columns import COMMIT
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import job_script, liveness, settling
from hpcsweep.spec import profile
from hpcsweep.spec.document import MOST_SHOWN
from hpcsweep.spec.lookup import USER_FILE
from hpcsweep.store import chunk_file, seals

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from benchmarks.hostile.place import Place

    Mutate = Callable[[bytes, random.Random], bytes]
    Read = Callable[[Place, bytes], None]

SHIPPED = Path(__file__).parents[2]
_MISTAKES = 2 * MOST_SHOWN + 1  # lines: a file of a person is told all its mistakes at once
_REASONS = 12  # lines: a report without points says why each kind of point failed
_CONFIG = b"""\
results = "results"
cluster = "local"
quiet = true

[submit]
max_gpu_hours = 2.5
cluster = ["l40", "local"]
sample = 3

[report]
where = "input_size=64"
top = 7
"""


@dataclass(frozen=True)
class Target:
    """One kind of input; `mutate` changes a seed, `read` gives the result to the program."""

    name: str
    seeds: Callable[[Place], list[bytes]]
    read: Read
    mutate: Mutate = mutate.mutated
    share: int = 4  # of the inputs, beside those of other targets: what is slow gets fewer

    def draw(self, place: Place, drawn: random.Random) -> bytes:
        """Return an input."""
        return self.mutate(drawn.choice(self.seeds(place)), drawn)


def _shipped(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(SHIPPED.glob(pattern))]


def _sweep(place: Place, data: bytes) -> None:
    path = place.folder / "sweep.yaml"
    path.write_bytes(data)
    place.command("estimate", path, "--cluster", "local", lines=_MISTAKES)


def _profile(place: Place, data: bytes) -> None:
    path = place.folder / "drawn.yaml"
    path.write_bytes(data)
    place.command("estimate", place.folder / "noop.yaml", "--cluster", path, lines=_MISTAKES)

    def rendered() -> None:
        found = profile.load(path)
        if found.in_slurm:
            job_script.render(found, place.submission())

    place.call(rendered, lines=_MISTAKES)
    path.unlink()  # or the next one would extend it


def _config(place: Place, data: bytes) -> None:
    path = place.folder / "config" / "hpcsweep" / USER_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    place.command("config", lines=_MISTAKES)
    path.unlink()


def _file(
    place: Place, path: Path, data: bytes, *commands: tuple[str, ...], lines: int = 2
) -> None:
    """Replace a file while one of some commands runs."""
    before = path.read_bytes() if path.exists() else None
    path.write_bytes(data)
    try:
        place.command(*_one_of(commands, data), lines=lines)
    finally:
        if before is None:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(before)


def _one_of(commands: Sequence[tuple[str, ...]], data: bytes) -> tuple[str, ...]:
    """Return one of the commands that read an input: over many inputs each has its share."""
    return commands[zlib.crc32(data) % len(commands)]


_ALL = (("collect", LOCAL), ("status", LOCAL), ("show", LOCAL), ("logs", LOCAL))
_WAITS = (("status", QUEUED), ("show", QUEUED), ("collect", QUEUED))


def _shard(name: str, place: Place, data: bytes) -> None:
    (found,) = place.local.shards()
    place.local.collect_index.unlink(missing_ok=True)
    _file(place, getattr(found, name), data, *_ALL)


def _sealed(data: bytes, drawn: random.Random) -> bytes:
    """Change cells of a row, which gets a checksum that fits: only another program writes that."""
    head, *lines = data.splitlines()
    rows = [next(csv.reader([line.decode()])) for line in lines]
    for _ in range(drawn.randint(1, 4)):
        row = drawn.choice(rows)
        row[drawn.randrange(len(row) - len(COMMIT))] = drawn.choice(
            [*mutate.NUMBERS, *mutate.WORDS]
        )
    return b"\n".join([head, *map(_line, rows), b""])


def _line(row: list[str]) -> bytes:
    """Return a row without blocks, with its checksum."""
    cells = [*row[: -len(COMMIT)], "0", "0", "0", "0"]
    text = io.StringIO()
    csv.writer(text, lineterminator=",").writerow(" ".join(cell.split()) for cell in cells)
    line = text.getvalue().encode("utf-8", "surrogateescape")
    return line + seals.seal(line, seals.OURS, b"", b"")


def _overall(place: Place) -> list[bytes]:
    return [place.local.shards()[0].overall.read_bytes()]


def _manifest(place: Place, data: bytes) -> None:
    place.local.collect_index.unlink(missing_ok=True)
    _file(place, place.local.submissions()[0].manifest, data, *_ALL)
    _file(place, place.submission().manifest, data, ("status", QUEUED))


def _journal(place: Place, data: bytes) -> None:
    submission = place.submission()
    if zlib.crc32(data) % 3 == 0:
        _file(place, place.local.submissions()[0].jobs, data, ("status", LOCAL))
        return
    before = submission.jobs.read_bytes()
    submission.jobs.write_bytes(data)
    place.call(lambda: [*settling.settle([submission])])
    place.call(lambda: settling.record_ends(submission, liveness.ask_slurm([submission])))
    place.call(lambda: liveness.ask_slurm([submission]).live_chunks_of(submission))
    if zlib.crc32(data) % 3 == 1:
        submission.jobs.write_bytes(data)
        place.command("status", QUEUED)
    submission.jobs.write_bytes(before)


def _chunks(place: Place, data: bytes) -> None:
    submission = place.submission()
    place.queued.collect_index.unlink(missing_ok=True)
    _file(place, submission.chunks, data, *_WAITS)
    path = place.folder / "chunks.jsonl"
    path.write_bytes(data)
    for index in range(4):
        place.call(chunk_file.read_chunk, path, index)


def _memory(place: Place) -> list[bytes]:
    """Return what collect remembers, without what differs from one machine to the next."""
    states = _states(place)
    text = place.local.collect_index.read_bytes()
    for name, state in states.items():
        text = text.replace(state, name)
    return [text]


def _states(place: Place) -> dict[bytes, bytes]:
    if not place.local.collect_index.exists():
        place.command("collect", LOCAL)
    record = json.loads(place.local.collect_index.read_bytes())
    return {b"@%s@" % name.encode(): record[name].encode() for name in ("state", "tables")}


def _remembered(place: Place, data: bytes) -> None:
    for name, state in _states(place).items():
        data = data.replace(name, state)
    place.local.collect_index.write_bytes(data)
    place.command("collect", LOCAL)
    place.local.collect_index.unlink(missing_ok=True)


def _tables(name: str, *commands: str) -> Read:
    def read(place: Place, data: bytes) -> None:
        words = [(command, LOCAL) for command in commands]
        _file(place, getattr(place.local, name), data, *words, lines=_REASONS)

    return read


def _old_tables(place: Place) -> list[bytes]:
    path = place.folder / "old.csv"
    found = []
    sizes = (32, 64)
    names = [("VGG16", algorithm, "V100") for algorithm in oldtables.ALGORITHMS]
    for columns, rows in (
        (oldtables.NETWORKS, oldtables.network_rows),
        (oldtables.LAYERS, oldtables.layer_rows),
    ):
        oldtables.write(path, columns, [row for name in names for row in rows(*name, sizes, 3)])
        found.append(path.read_bytes())
    path.unlink()
    return found


def _imported(place: Place, data: bytes) -> None:
    path = place.folder / "foreign.csv"
    path.write_bytes(data)
    place.command("import", path, "--as", "foreign", "--device", "v100")
    shutil.rmtree(place.folder / "results" / "foreign", ignore_errors=True)


def _foreign(place: Place, data: bytes) -> None:
    """Import a results folder with a manifest of somebody else."""
    theirs = place.folder / "theirs" / "demo"
    if not theirs.exists():
        shutil.copytree(place.local.path, theirs)
    next(theirs.glob("submissions/*/manifest.json")).write_bytes(data)
    place.command("import", theirs, "--as", "foreign")
    shutil.rmtree(place.folder / "results" / "foreign", ignore_errors=True)


def _ncu(place: Place) -> list[bytes]:
    path = place.folder / "seed.csv"
    return [ncufiles.write_wide(path, ncufiles.step(6, 3)).read_bytes()]


def _rocprof(_place: Place) -> list[bytes]:
    names = (*rocprof.VALU, *rocprof.MFMA, *rocprof.MI200_BYTES)
    head = '"Dispatch_Id","Process_Id","Kernel_Name","Counter_Name","Counter_Value",'
    lines = [head + '"Start_Timestamp","End_Timestamp"']
    for i in range(1, 3):
        lines += [
            f'{i},77,"gemm<{i}>","{name}",{i}.5,{1000 * i},{1000 * i + 500}' for name in names
        ]
    return ["\n".join([*lines, ""]).encode()]


def _roofline(gpu: str) -> Read:
    def read(place: Place, data: bytes) -> None:
        path = place.folder / "kernels.csv"
        path.write_bytes(data)
        place.command("roofline", path, "--gpu", gpu)

    return read


def _asked(program: str, *commands: tuple[str, ...]) -> Read:
    """Let a program of Slurm answer, and ask everything that uses it."""

    def read(place: Place, data: bytes) -> None:
        for name, (first, *_more) in slurm_answers.ANSWERS.items():
            answer(place, name, data if name == program else first)
        place.command(*_one_of(commands, data))
        if program == "squeue":
            place.call(lambda: [*settling.settle(place.queued.submissions())])

    return read


def _sbatch(place: Place, data: bytes) -> None:
    for code in (0, 1):
        answer(place, "sbatch", data, code)
        place.call(lambda: slurm.submit(place.folder / "job.sh", timeout=5))
        place.call(lambda: slurm.would_accept(place.folder / "job.sh"))


def _answers(program: str) -> Callable[[Place], list[bytes]]:
    return lambda _place: slurm_answers.ANSWERS[program]


_CLUSTER = (("discover", "--out", "-"), ("doctor", "--cluster", "l40"))
TARGETS: dict[str, Target] = {
    one.name: one
    for one in (
        Target("sweep", lambda _: _shipped("sweeps/*.yaml"), _sweep, sweeps.mutated, share=2),
        Target("sweep-text", lambda _: _shipped("sweeps/*.yaml"), _sweep, share=8),
        Target("profile", lambda _: _shipped("cluster_profiles/*.yaml"), _profile, sweeps.mutated),
        Target("profile-text", lambda _: _shipped("cluster_profiles/*.yaml"), _profile),
        Target("config", lambda _: [_CONFIG], _config, share=8),
        Target("squeue", _answers("squeue"), _asked("squeue", ("status", QUEUED))),
        Target("sacct", _answers("sacct"), _asked("sacct", ("status", QUEUED))),
        Target("sinfo", _answers("sinfo"), _asked("sinfo", *_CLUSTER), share=1),
        Target("scontrol", _answers("scontrol"), _asked("scontrol", *_CLUSTER), share=1),
        Target("sacctmgr", _answers("sacctmgr"), _asked("sacctmgr", *_CLUSTER), share=1),
        Target("sbatch", _answers("sbatch"), _sbatch, share=2),
        Target("shard-rows", _overall, partial(_shard, "overall")),
        Target("shard-rows-sealed", _overall, partial(_shard, "overall"), _sealed),
        Target(
            "shard-layers",
            lambda place: [place.local.shards()[0].layers.read_bytes()],
            partial(_shard, "layers"),
        ),
        Target(
            "shard-samples",
            lambda place: [place.local.shards()[0].samples.read_bytes()],
            partial(_shard, "samples"),
        ),
        Target(
            "shard-env",
            lambda place: [place.local.shards()[0].env.read_bytes()],
            partial(_shard, "env"),
        ),
        Target(
            "manifest",
            lambda place: [
                place.local.submissions()[0].manifest.read_bytes(),
                place.submission().manifest.read_bytes(),
            ],
            _manifest,
        ),
        Target(
            "journal",
            lambda place: [
                place.local.submissions()[0].jobs.read_bytes(),
                place.submission().jobs.read_bytes(),
            ],
            _journal,
        ),
        Target("chunks", lambda place: [place.submission().chunks.read_bytes()], _chunks),
        Target("until", lambda p: [p.local.until.read_bytes()], _tables("until", "status")),
        Target("nodes", lambda p: [p.local.bad_nodes.read_bytes()], _tables("bad_nodes", "status")),
        Target("memory", _memory, _remembered),
        Target(
            "table",
            lambda place: [place.local.overall.read_bytes()],
            _tables("overall", "report", "report", "best", "collect"),
            share=1,
        ),
        Target(
            "table-layers",
            lambda place: [place.local.layers.read_bytes()],
            _tables("layers", "layers"),
            share=1,
        ),
        Target("import-table", _old_tables, _imported),
        Target(
            "import-folder",
            lambda place: [place.local.submissions()[0].manifest.read_bytes()],
            _foreign,
        ),
        Target("export-ncu", _ncu, _roofline("l40"), share=1),
        Target("export-rocprof", _rocprof, _roofline("mi250"), share=1),
    )
}
