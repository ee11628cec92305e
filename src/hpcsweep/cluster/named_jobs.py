"""Finds the submission and chunk that a person names: by id, by SUBMISSION:CHUNK, or by a point."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from hpcsweep.errors import ResultsError, UsageError, suggest
from hpcsweep.store import chunk_file
from hpcsweep.store.folders import SubmissionDir, SweepDir

_ID_CHARACTERS: Final = frozenset("0123456789abcdef")
_SHORTEST_PREFIX: Final = 4  # of the id of a point: shorter numbers are those of chunks


def find_point(sweep_dir: SweepDir, prefix: str) -> tuple[SubmissionDir, int]:
    """Return the newest submission and chunk of a point; `UsageError` unless one point fits."""
    homes: dict[str, tuple[SubmissionDir, int]] = {}
    for submission in sweep_dir.submissions():
        with suppress(ResultsError):
            for chunk, ids in chunk_file.read_ids(submission.chunks):
                homes.update({i: (submission, chunk) for i in ids if i.startswith(prefix)})
    if not homes and (damaged := sweep_dir.damage()):
        raise ResultsError(f"{sweep_dir.name}: '{prefix}' is not in what can be read; {damaged[0]}")
    if not homes:
        raise UsageError(f"{sweep_dir.name}: no submission, chunk or point '{prefix}'")
    if len(homes) > 1:
        some = ", ".join(sorted(homes)[:3])
        raise UsageError(
            f"{sweep_dir.name}: {len(homes)} points begin with '{prefix}' ({some}, ...)"
        )
    return next(iter(homes.values()))


def resolve(sweep_dir: SweepDir, what: str | None) -> tuple[SubmissionDir, int | None]:
    """Return the submission, and the chunk if one is named; `UsageError` where there is none."""
    by_id = {submission.id: submission for submission in sweep_dir.submissions()}
    if not by_id:
        raise UsageError(f"{sweep_dir.name}: nothing was submitted yet")
    newest = [*by_id.values()][-1]
    if what is None:
        return newest, None
    name, colon, chunk = what.rpartition(":")
    if not (colon and chunk.isdecimal()):
        name = what
        short = len(what) < _SHORTEST_PREFIX
        if what.isdecimal() and (short or int(what) < _chunks(newest)):
            return _chunk(newest, int(what))
        if name not in by_id and not short and _ID_CHARACTERS.issuperset(what):
            return find_point(sweep_dir, what)
    if name not in by_id:
        have = ", ".join(by_id)
        raise UsageError(
            f"{sweep_dir.name}: no submission '{name}'{suggest(name, by_id)} (has: {have})"
        )
    return (by_id[name], None) if name == what else _chunk(by_id[name], int(chunk))


def _chunks(submission: SubmissionDir) -> int:
    """Return the number of chunks; by the attempts if the manifest is damaged."""
    manifest = submission.manifest_or_none()
    if manifest:
        return manifest.chunks
    attempts = submission.sweep_dir.shards_of(submission.id)
    return 1 + max((shard.chunk for shard in attempts), default=-1)


def _chunk(submission: SubmissionDir, number: int) -> tuple[SubmissionDir, int]:
    """Return a chunk that exists; `UsageError` for another one."""
    last = _chunks(submission) - 1
    if number > last:
        has = f"chunks 0 to {last}" if last else "chunk 0 alone"
        name = submission.sweep_dir.name
        raise UsageError(f"{name}: {submission.id} has no chunk {number}, it has {has}")
    return submission, number
