"""Nodes that new submissions of a sweep exclude, because they and not the point failed.

Two sources name them: Slurm's accounts of every attempt (NODE_FAIL, BOOT_FAIL, ...:
`slurm.STATES`), and attempts whose worker could not initialise the GPU of its job. Submit keeps the
nodes in `nodes.json`, since the accounts forget them, for a day: by then a site has mended a node,
or a cloud has given its name to another machine. Preemption is not a node's fault.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Final

from hpcsweep import files
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import journal
from hpcsweep.errors import ResultsError
from hpcsweep.spec import directives
from hpcsweep.store import attempt, typed_json
from hpcsweep.store.row_reader import read_rows
from hpcsweep.store.state import AttemptState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from hpcsweep.cluster.slurm.journal import SlurmAnswer
    from hpcsweep.spec.profile import Profile
    from hpcsweep.store.folders import ShardPath, SweepDir

# Messages of CUDA, HIP and torch if the GPU or its driver is broken before any work runs.
_BROKEN: Final = re.compile(
    "CUDA driver initialization failed|CUDA unknown error|initialization error|"
    "no CUDA-capable device|busy or unavailable|system not yet initialized|ECC error|"
    "driver/library version mismatch|Found no NVIDIA driver|No (?:HIP|CUDA) GPUs are available|"
    "torch finds no GPU here"
)
# Slurm sets one of these where it gave the job a GPU; without, a missing `gres` is to blame.
_GIVEN: Final = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")
# How long a node is avoided: see above; longer would take nodes that work from a sweep
_LASTS: Final = timedelta(days=1)
# Bytes: a header has 2,500, so a larger shard has rows, and is not read for that.
_SMALL: Final = 1 << 14


@dataclass(frozen=True)
class BadNode:
    """A node, what happened on it, and when (UTC, ISO 8601)."""

    name: str
    why: str
    at: str

    def __str__(self) -> str:
        return f"{self.name} ({self.why}, {self.at[:16]}Z)"


@dataclass(frozen=True, kw_only=True)
class _NodesFile:
    """Content of `nodes.json`."""

    nodes: tuple[BadNode, ...] = ()


def current(
    sweep_dir: SweepDir, answer: SlurmAnswer, rowless: Iterable[ShardPath] | None = None
) -> list[BadNode]:
    """Return the nodes that the next submission avoids, sorted by name.

    `rowless` are the attempts without a row; by default they are searched for.
    """
    refused = _refused(_rowless(sweep_dir) if rowless is None else rowless)
    nodes = [*_read(sweep_dir), *_failed(sweep_dir, answer), *refused]
    newest = {node.name: node for node in sorted(nodes, key=lambda node: node.at)}
    yesterday = (datetime.now(timezone.utc) - _LASTS).isoformat(timespec="seconds")
    return [node for _, node in sorted(newest.items()) if node.at > yesterday]


def learn(sweep_dir: SweepDir, answer: SlurmAnswer) -> Sequence[BadNode]:
    """Return the nodes to avoid, and keep them; the caller holds the sweep folder's lock."""
    nodes = tuple(current(sweep_dir, answer))
    if nodes != _read(sweep_dir):
        files.write_json(sweep_dir.bad_nodes, typed_json.to_plain(_NodesFile(nodes=nodes)))
    return nodes


def avoiding(profile: Profile, nodes: Sequence[BadNode]) -> Profile:
    """Return the profile with `nodes` added to its excluded nodes."""
    if not nodes:
        return profile
    options = directives.named(profile.sbatch_options)
    own = options.get("exclude", profile.exclude)
    names = [node.name for node in nodes]
    excluded = ",".join([own, *names] if own else names)
    if "exclude" in options:  # which wins over the key
        more = [*profile.sbatch_options, directives.written("exclude", excluded)]
        return profile.model_copy(update={"sbatch_options": more})
    return profile.model_copy(update={"exclude": excluded})


def _failed(sweep_dir: SweepDir, answer: SlurmAnswer) -> Iterator[BadNode]:
    """Yield the nodes that Slurm blames for an attempt of one of this sweep's tasks."""
    jobs = {(job.id.key, job.started): job for job in (*answer.attempts, *answer.tasks.values())}
    broken = [job for job in jobs.values() if job.state.node_at_fault and job.nodes]
    if not broken:
        return
    journals = [journal.read_journal(submission) for submission in sweep_dir.submissions()]
    for job in broken:
        hosts = slurm.hostnames(job.nodes)
        if isinstance(hosts, slurm.CouldNotAsk) or not _is_in_one(journals, job):
            continue
        at = (job.ended or job.started or datetime.now(timezone.utc)).astimezone(timezone.utc)
        why = f"{job.state.name}: {job.state.says}, job {job.id}"
        for host in hosts:
            yield BadNode(host, why, at.isoformat(timespec="seconds"))


def _is_in_one(journals: Iterable[journal.Journal], job: slurm.JobState) -> bool:
    """Say whether a job is of one of these journals' submissions."""
    for sent in journals:
        numbers = {number for number, _task in sent.task_of.values()}
        if job.id.job in numbers and sent.owns(job):
            return True
    return False


def _refused(attempts: Iterable[ShardPath]) -> Iterator[BadNode]:
    """Yield the nodes on which a worker could not initialise its GPU."""
    for shard in attempts:
        record = attempt.read_record(shard)
        if record is None or record.state is not AttemptState.REFUSED:
            continue
        was_given_a_gpu = any(record.slurm.get(name) for name in _GIVEN)
        if was_given_a_gpu and _BROKEN.search(record.reason):
            why = f"its GPU failed to initialise in {shard.submission}:{shard.chunk}"
            yield BadNode(record.node, why, f"{record.updated_at[:19]}+00:00")


def _rowless(sweep_dir: SweepDir) -> Iterator[ShardPath]:
    for shard in sweep_dir.shards():
        try:
            small = shard.overall.stat().st_size < _SMALL
        except OSError:
            continue
        if small and not any(read_rows([shard])):
            yield shard


def _read(sweep_dir: SweepDir) -> tuple[BadNode, ...]:
    if not sweep_dir.bad_nodes.exists():
        return ()
    try:
        return typed_json.from_plain(_NodesFile, files.read_json(sweep_dir.bad_nodes)).nodes
    except (ResultsError, ValueError) as error:
        remedy = "delete it, and submit learns it anew"
        raise ResultsError(f"{sweep_dir.bad_nodes}: cannot be used ({error}); {remedy}") from error
