"""Asks Slurm about the open tasks of journals: one question for its queue, one for its accounts.

`liveness` judges the answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm.journal import Journal, Task, read_journal
from hpcsweep.store.folders import SubmissionDir

_NOWHERE: Final = slurm.Here()


@dataclass(frozen=True)
class SlurmAnswer:
    """Slurm's answer about the tasks of submissions, and which of its programs gave none."""

    tasks: Mapping[Task, slurm.JobState] = field(default_factory=dict)
    attempts: tuple[slurm.JobState, ...] = ()
    unanswered: tuple[slurm.CouldNotAsk, ...] = ()
    here: slurm.Here = _NOWHERE
    mute: frozenset[str] = frozenset()  # clusters whose squeue did not answer; empty: this one


def ask_slurm(submissions: Iterable[SubmissionDir]) -> SlurmAnswer:
    """Ask Slurm once about all tasks that may not be over."""
    return ask_journals(map(read_journal, submissions))


def ask_journals(journals: Iterable[Journal]) -> SlurmAnswer:
    """Ask Slurm once about all tasks in journals that may not be over.

    This cluster is asked, and those that sbatch named. `chunk_state` ignores this cluster's answer
    about ids that another cluster gave.
    """
    unclear = [journal for journal in journals if journal.open_chunks or journal.uncertain]
    if not unclear:
        return SlurmAnswer()
    by_cluster: dict[str, list[str]] = {}
    for journal in unclear:
        for array in journal.arrays if journal.open_chunks else ():
            by_cluster.setdefault(slurm.parse_id(array).cluster, []).append(array)
    since = min(journal.submitted_at for journal in unclear)
    with ThreadPoolExecutor(1) as pool:  # if slurmctld is down, each question waits for a timeout
        future = pool.submit(slurm.this_cluster)
        found = {cluster: slurm.survey(ids, since) for cluster, ids in by_cluster.items()}
        here = future.result()
    silent = [(cluster, why) for cluster, each in found.items() for why in each.unanswered]
    return SlurmAnswer(
        tasks={(*key, name): job for name, each in found.items() for key, job in each.jobs.items()},
        attempts=tuple(job for each in found.values() for job in each.attempts),
        unanswered=tuple(why for _, why in silent),
        here=here,
        mute=frozenset(cluster for cluster, why in silent if why.program == "squeue"),
    )
