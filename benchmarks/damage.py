"""Damages every byte of small results folders, and counts what becomes of their rows.

Run ``python -m benchmarks.damage [--only FILE,...] [--step N] [--bits]``. Each file that holds
measurements, or tells where they are, is damaged at each byte: one bit is flipped (with `--bits`
each of the eight), the byte is zeroed, lost, or doubled, the file is cut there. After each damage
`collect` reads the folder, and then the ledger, which says what is not sent again:

* a row that is intact is in the table; one that was changed is not: each row there is one that was
  written, cell by cell, with its layers and samples;
* each row that is left out is named with file and line, each damaged file by its name;
* nothing is raised but an error of hpcsweep's own, and a chunk that waits in Slurm's queue counts
  as queued, or `submit` refuses.

Where the files of a submission are damaged and not its shards, every row stays.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import traceback
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import resultsfolder
from hpcsweep import processes
from hpcsweep.catalog.columns import COMMIT, SHARD_COLUMNS
from hpcsweep.cluster import slurm, status
from hpcsweep.cluster.slurm import bad_nodes, liveness
from hpcsweep.errors import HpcsweepError, ResultsError
from hpcsweep.store import attempt, ledger, rounds
from hpcsweep.store.collect.collector import collect
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.jobs_file import Cancelled, Ended, Queued, Sending, Started
from hpcsweep.store.state import AttemptState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hpcsweep.store.collect.summary import CollectReport

LOCAL = "20260101-100000-local"
QUEUED = "20260102-100000-l40"
_CELLS = [name for name in SHARD_COLUMNS if name not in COMMIT]
_STATE = slurm.state_of("RUNNING")
_RUNNING = slurm.JobState(id=slurm.parse_id("4242_0"), state=_STATE, source="squeue")
_ANSWER = liveness.SlurmAnswer({(4242, 0, ""): _RUNNING})  # of Slurm, not asked 56,000 times
_COUNTED = ("damages", "rows kept", "rows dropped", "dropped and named", "rows invented", "wrong")


def damages(whole: bytes, step: int, *, bits: bool) -> Iterator[tuple[str, int, bytes]]:
    """Yield every damage of one byte, and every cut, by kind."""
    for at in range(0, len(whole), step):
        byte = whole[at]
        before = whole[:at]
        after = whole[at + 1 :]
        for bit in range(8) if bits else (at % 8,):
            yield "flipped", at, before + bytes([byte ^ 1 << bit]) + after
        if byte:
            yield "zeroed", at, before + b"\0" + after
        yield "lost", at, before + after
        yield "doubled", at, before + bytes([byte, byte]) + after
        yield "cut", at, before


@dataclass(frozen=True)
class Folder:
    """Results of four points: three measured here, one of them again on Slurm, one that waits."""

    sweep_dir: SweepDir
    waits: str  # a point of a chunk that is in the queue

    @cached_property
    def rows(self) -> dict[Path, list[bytes]]:
        """Return the lines of the rows of each shard, as they were written."""
        paths = [shard.overall for shard in self.sweep_dir.shards()]
        return {path: path.read_bytes().splitlines()[1:] for path in paths}

    @cached_property
    def true_rows(self) -> set[tuple[str, ...]]:
        """Return the cells of every row that was written."""
        lines = (line.decode() for lines in self.rows.values() for line in lines)
        return {tuple(cells[: -len(COMMIT)]) for cells in csv.reader(lines)}

    @cached_property
    def blocks(self) -> dict[str, set[bytes]]:
        """Return the lines of layers and of samples that were written."""
        return {
            name: {
                line
                for shard in self.sweep_dir.shards()
                for line in getattr(shard, name).read_bytes().splitlines()
            }
            for name in ("layers", "samples")
        }

    @cached_property
    def content(self) -> dict[Path, bytes]:
        """Return the files of the shards as they were written."""
        shards = self.sweep_dir.shards()
        paths = [path for one in shards for path in (one.overall, one.layers, one.samples)]
        return {path: path.read_bytes() for path in paths}

    def queue(self, submission: Any) -> set[int]:  # noqa: ANN401
        """Say what lives, as `submit` asks Slurm."""
        return _ANSWER.live_chunks_of(submission)

    def files(self) -> dict[str, Path]:
        """Return the files that are damaged, by name."""
        first, second = self.sweep_dir.submissions()
        one, two = self.sweep_dir.shards()
        return {
            **{f"shard {name}": getattr(one, name) for name in ("overall", "layers", "samples")},
            "shard env": one.env,
            "newer shard": two.overall,
            **{f"local {name}": getattr(first, name) for name in ("manifest", "chunks", "jobs")},
            **{f"queued {name}": getattr(second, name) for name in ("manifest", "chunks", "jobs")},
            "until": self.sweep_dir.until,
            "nodes": self.sweep_dir.bad_nodes,
            "memory": self.sweep_dir.collect_index,
        }


def make(path: Path) -> Folder:
    """Write such a folder."""
    made = resultsfolder.make(path)
    run = made.sweep_dir
    points = made.points
    for number, (name, some) in enumerate(((LOCAL, points[:3]), (QUEUED, points[2:4]))):
        fields = {"launcher": ("local", "sbatch")[number], "profile": name[16:]}
        submission = made.submit(name, some, round=number, **fields)
        with resultsfolder.shards.ShardWriter(made.shard(name)) as writer:
            for place, point in enumerate(points[:3] if not number else points[2:3]):
                cells = {"status": ("ok", "oom", "ok")[place], "mean_ms": 1.5 + place + 10 * number}
                resultsfolder.commit(writer, point, made.shard(name), **cells)
        attempt.write_record(
            made.shard(name), attempt.AttemptRecord(state=AttemptState.STOPPED, pid=7), {}
        )
        now = "2026-01-01T10:00:00+00:00"
        for entry in (
            (Started(process=processes.identity()), Ended(ended=2.0))
            if not number
            else (
                Sending(sending=0, tasks=1, at=now),
                Queued(job_id="4242", tasks=1, submitted_at=now),
                Cancelled(cancelled="", at=now),
            )
        ):
            submission.append_job(entry)
    first = rounds.Round(points=(points[0].point_id,), error=0.1, held_out=2)
    rounds.write_rounds(
        run, {}, rounds.AdaptiveRun(device="cpu", target=0.03, of=8, rounds=(first,))
    )
    node = bad_nodes.BadNode("n1", "NODE_FAIL", "2026-01-01T00:00:00+00:00")
    run.bad_nodes.write_text(f'{{"nodes": [{str(vars(node)).replace(chr(39), chr(34))}]}}')
    collect(run)
    return Folder(run, points[3].point_id)


def check(folder: Folder, path: Path, found: bytes) -> tuple[Counter[str], list[str]]:
    """Damage a file, and count; return what is wrong, too."""
    run = folder.sweep_dir
    counts = Counter[str](damages=1)
    wrong = list[str]()
    whole = path.read_bytes()
    remembered = run.collect_index.read_bytes()
    path.write_bytes(found)
    try:
        if path != run.collect_index:
            run.collect_index.unlink()
        report = collect(run)
        counts += _rows(folder, path, found, report, wrong)
        _ledger(folder, wrong)
        status.read_status(run.path.parent, [run.name])
    except HpcsweepError as error:
        wrong.append(f"refused: {error}")
    except Exception:  # noqa: BLE001 - it is what is looked for
        wrong.append(traceback.format_exc(limit=-3))
    finally:
        path.write_bytes(whole)
        run.collect_index.write_bytes(remembered)
    counts["wrong"] += bool(wrong)
    return counts, wrong


def _rows(
    folder: Folder, path: Path, found: bytes, report: CollectReport, wrong: list[str]
) -> Counter[str]:
    """Compare the tables with what was written."""
    counts: Counter[str] = Counter()
    rows = resultsfolder.overall(folder.sweep_dir)
    for row in rows:
        if tuple(row[name] for name in _CELLS) not in folder.true_rows:
            counts["rows invented"] += 1
            wrong.append(f"invented: {row['point_id']}")
    for name in ("layers", "samples"):
        _head, *lines = getattr(folder.sweep_dir, name).read_bytes().splitlines()
        written = {line.removesuffix(b",true,,1") for line in lines}  # what points are worth
        if not written <= folder.blocks[name]:
            counts["rows invented"] += 1
            wrong.append(f"invented in {name}")
    there = {row["point_id"] for row in rows}
    named = "\n".join([*report.left_out, *report.notes])
    now = {**folder.content, path: found} if path in folder.content else folder.content
    for shard, lines in folder.rows.items():
        intact = [*kept(folder, shard, now)]
        counts["rows kept"] += len(intact)
        counts["rows dropped"] += len(lines) - len(intact)
        ids = {line[:16].decode() for line in intact}
        wrong += [f"an intact row of {one} is not in the table" for one in sorted(ids - there)]
        _check_names(shard, now[shard], intact, named, counts, wrong)
    return counts


def kept(folder: Folder, shard: Path, now: dict[Path, bytes]) -> Iterator[bytes]:
    """Yield the rows of a shard that are intact, with their blocks."""
    lines = set(now[shard].split(b"\n")[:-1])
    for line in folder.rows[shard]:
        places = [int(cell) for cell in line.rsplit(b",", len(COMMIT))[1:-1]]
        blocks = (shard.with_name(shard.name.replace("overall", n)) for n in ("layers", "samples"))
        same = all(
            now[block][at : at + size] == folder.content[block][at : at + size]
            for block, at, size in zip(blocks, places[::2], places[1::2], strict=True)
        )
        if same and line in lines:
            yield line


def _check_names(  # noqa: PLR0913, PLR0917 - what is compared
    shard: Path,
    text: bytes,
    intact: list[bytes],
    named: str,
    counts: Counter[str],
    wrong: list[str],
) -> None:
    """Check that each line that is no intact row is named."""
    lines = text.split(b"\n")
    for number, line in enumerate(lines[:-1], 1):
        if line and line not in intact and (number > 1 or line[:16].isalnum()):
            if f"{shard}:{number}: " in named:
                counts["dropped and named"] += 1
            else:
                wrong.append(f"{shard.name}:{number} was dropped and is not named")
    if lines[-1]:
        counts["dropped and named"] += 1
        if f"{shard}: torn last line" not in named:
            wrong.append(f"{shard.name}: the torn line is not named")


def _ledger(folder: Folder, wrong: list[str]) -> None:
    """Check that what waits in the queue is not sent again, or that `submit` refuses."""
    if not folder.sweep_dir.submissions()[-1].read_jobs():
        return  # cut in the first entry: as if `submit` was killed before it called sbatch
    try:
        known = ledger.read_ledger(folder.sweep_dir, folder.queue)
    except ResultsError:
        return
    if folder.waits not in known.settled():
        wrong.append("a point that waits in the queue would be sent again")


def _answer(_journals: object) -> liveness.SlurmAnswer:
    return _ANSWER


def main() -> int:
    """Print a line for each file, and for each kind of damage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--step", type=int, default=1, help="damage every so many bytes only")
    parser.add_argument("--bits", action="store_true", help="flip each of the eight bits")
    given = parser.parse_args()
    memory = Path("/dev/shm")
    by_file: dict[str, Counter[str]] = {}
    by_kind: dict[str, Counter[str]] = {}
    told: Counter[str] = Counter()
    asked = mock.patch.object(liveness, "ask_journals", _answer)  # a Mock would keep every call
    with asked, tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        folder = make(Path(name))
        for file, path in folder.files().items():
            if given.only and file not in given.only.split(","):
                continue
            whole = path.read_bytes()
            by_file[f"{file} ({len(whole):,} bytes)"] = counts = Counter()
            for kind, at, found in damages(whole, given.step, bits=given.bits):
                more, wrong = check(folder, path, found)
                counts += more
                by_kind[kind] = by_kind.get(kind, Counter()) + more
                told[file] += bool(wrong)
                if wrong and told[file] <= 3:
                    print(f"{file}, {kind} at byte {at}: {'; '.join(wrong)[:1500]}", flush=True)
    _print("file", by_file)
    _print("damage", by_kind)
    return int(any(told.values()))


def _print(title: str, counted: dict[str, Counter[str]]) -> None:
    print(f"\n{title:28s}" + "".join(f"{name:>18s}" for name in _COUNTED))
    for name, counts in {**counted, "all": sum(counted.values(), Counter())}.items():
        print(f"{name:28s}" + "".join(f"{counts[one]:18,}" for one in _COUNTED))


if __name__ == "__main__":
    sys.exit(main())
