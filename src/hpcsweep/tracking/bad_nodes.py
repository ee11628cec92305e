"""Nodes that broke, not the point: new submissions of the sweep avoid them.

What is at fault is read from two places: Slurm's accounts of every attempt (NODE_FAIL, BOOT_FAIL,
...: `slurm.STATES`), and attempts whose worker could not initialise the GPU that the job was given.
Submit keeps it in `nodes.json`, so that a later one without accounts still knows. A node that a
person allows again is blamed only for what happens after that. Preemption is not a node's fault.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

from hpcsweep import files, slurm
from hpcsweep.errors import ResultsError, UsageError, suggest
from hpcsweep.store import attempt, rundir, shards
from hpcsweep.store.state import AttemptState
from hpcsweep.tracking import journal

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.attempt import AttemptRecord
    from hpcsweep.store.rundir import RunDir, ShardPath
    from hpcsweep.tracking.journal import Answer

# What CUDA, HIP and torch say when the GPU or its driver is broken before any work is asked of it.
_BROKEN: Final = re.compile(
    "CUDA driver initialization failed|CUDA unknown error|initialization error|"
    "no CUDA-capable device|busy or unavailable|system not yet initialized|ECC error|"
    "driver/library version mismatch|Found no NVIDIA driver|No (?:HIP|CUDA) GPUs are available|"
    "torch finds no GPU here"
)
# Slurm sets one of these where it gave the job a GPU; without, a missing `gres` is to blame.
_GIVEN: Final = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")
_SMALL: Final = 1 << 14  # bytes: a larger shard has rows


@dataclass(frozen=True)
class BadNode:
    """A node, what happened on it, and when (UTC, ISO 8601)."""

    name: str
    why: str
    at: str

    def __str__(self) -> str:
        """Say it in a few words."""
        return f"{self.name} ({self.why}, {self.at[:16]}Z)"


def current(
    run: RunDir, answer: Answer, rowless: Iterable[ShardPath] | None = None
) -> list[BadNode]:
    """Return the nodes that the next submission avoids, by name.

    `rowless` are the attempts that have no row, where the caller knows them.
    """
    record = _read(run)
    nodes = {entry["name"]: BadNode(**entry) for entry in record["nodes"]}
    for found in (*_failed(run, answer), *_refused(_rowless(run) if rowless is None else rowless)):
        if found.name not in nodes or nodes[found.name].at < found.at:
            nodes[found.name] = found
    allowed = record["allowed"]
    return sorted(
        (node for node in nodes.values() if node.at > allowed.get(node.name, "")),
        key=lambda node: node.name,
    )


def learn(run: RunDir, answer: Answer) -> list[BadNode]:
    """Return the nodes to avoid, and keep them; the caller holds the run folder's lock."""
    nodes = current(run, answer)
    record = _read(run)
    kept = [asdict(node) for node in nodes]
    if kept != record["nodes"]:
        files.write_json(run.bad_nodes, {**record, "nodes": kept})
    return nodes


def allow(run: RunDir, names: Sequence[str], answer: Answer) -> None:
    """Let new submissions use nodes again; the caller holds the run folder's lock.

    Raises:
        UsageError: a node that is not avoided.

    """
    avoided = {node.name for node in current(run, answer)}
    for name in names:
        if name not in avoided:
            have = ", ".join(sorted(avoided)) or "none"
            raise UsageError(
                f"{run.name}: node '{name}' is not avoided{suggest(name, avoided)} (are: {have})"
            )
    record = _read(run)
    allowed = {**record["allowed"], **dict.fromkeys(names, journal.now())}
    nodes = [entry for entry in record["nodes"] if entry["name"] not in names]
    files.write_json(run.bad_nodes, {"nodes": nodes, "allowed": allowed})


def avoiding(profile: Profile, nodes: Sequence[BadNode]) -> Profile:
    """Return the profile with the nodes among those that it excludes."""
    names = [node.name for node in nodes if node.name not in _unknown(nodes)]
    if not names:
        return profile
    own = [profile.exclude] if profile.exclude else []
    return profile.model_copy(update={"exclude": ",".join([*own, *names])})


def _unknown(nodes: Sequence[BadNode]) -> set[str]:
    """Return the nodes that the cluster does not have any more: sbatch refuses their names."""
    there = slurm.nodes() if nodes else []
    if isinstance(there, slurm.CouldNotAsk) or not there:
        return set()
    return {node.name for node in nodes} - {node.name for node in there}


def _failed(run: RunDir, answer: Answer) -> Iterator[BadNode]:
    """Yield the nodes that Slurm blames for an attempt of one of this sweep's tasks."""
    told = {(job.id.key, job.started): job for job in (*answer.attempts, *answer.tasks.values())}
    broken = [job for job in told.values() if job.state.node_at_fault and job.nodes]
    if not broken:
        return
    mine = {array for submission in run.submissions() for array, _ in _tasks(submission)}
    for job in broken:
        hosts = slurm.hostnames(job.nodes)
        if job.id.job in mine and not isinstance(hosts, slurm.CouldNotAsk):
            at = (job.ended or job.started or datetime.now(timezone.utc)).astimezone(timezone.utc)
            why = f"{job.state.name}: {job.state.says}, job {job.id}"
            yield from (BadNode(host, why, at.isoformat(timespec="seconds")) for host in hosts)


def _tasks(submission: rundir.SubmissionDir) -> Iterable[journal.Task]:
    return journal.sent(submission).chunk_of


def _refused(attempts: Iterable[ShardPath]) -> Iterator[BadNode]:
    """Yield the nodes on which a worker could not initialise the GPU that it was given."""
    for shard in attempts:
        said = attempt.read(shard)
        if said and _to_blame(said):
            at = datetime.fromisoformat(said.updated_at).isoformat(timespec="seconds")
            why = f"its GPU failed to initialise in {shard.submission}:{shard.chunk}"
            yield BadNode(said.node, why, at)


def _to_blame(said: AttemptRecord) -> bool:
    given = any(said.slurm.get(name) for name in _GIVEN)
    return given and said.state is AttemptState.REFUSED and bool(_BROKEN.search(said.reason))


def _rowless(run: RunDir) -> Iterator[ShardPath]:
    for shard in run.shards():
        try:
            small = shard.overall.stat().st_size < _SMALL
        except OSError:
            continue
        if small and not shards.read_keys(shard.overall):
            yield shard


def _read(run: RunDir) -> dict[str, Any]:
    """Return what was kept: the nodes, and when which node was allowed again."""
    try:
        record = files.read_json(run.bad_nodes) if run.bad_nodes.exists() else {}
        nodes = [asdict(BadNode(**entry)) for entry in record.get("nodes", [])]
        return {"nodes": nodes, "allowed": dict(record.get("allowed", {}))}
    except (ResultsError, TypeError, ValueError) as error:
        raise ResultsError(
            f"{run.bad_nodes}: cannot be used ({error}); delete it, and submit learns it anew"
        ) from error
