"""Asks Slurm about the open tasks of journals: one question for its queue, one for its accounts.

`liveness` judges the answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
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
    by_cluster: dict[str, list[Journal]] = {}
    for journal in unclear:
        for array in journal.arrays if journal.open_chunks else ():
            by_cluster.setdefault(slurm.parse_id(array).cluster, []).append(journal)
    with ThreadPoolExecutor(1) as pool:  # if slurmctld is down, each question waits for a timeout
        future = pool.submit(slurm.this_cluster)
        answer = SlurmAnswer()
        for cluster, group in by_cluster.items():
            answer = _added(answer, cluster, group)
        return replace(answer, here=future.result())


def _added(answer: SlurmAnswer, cluster: str, group: Sequence[Journal]) -> SlurmAnswer:
    """Ask one cluster about the tasks that were sent to it."""
    arrays = (array for journal in group for array in journal.arrays)
    ids = dict.fromkeys(a for a in arrays if slurm.parse_id(a).cluster == cluster)
    survey = slurm.survey(ids, min(journal.submitted_at for journal in group))
    listed = {(*key, cluster): job for key, job in survey.jobs.items()}
    mute = any(missing.program == "squeue" for missing in survey.unanswered)
    return replace(
        answer,
        tasks={**answer.tasks, **listed},
        attempts=(*answer.attempts, *survey.attempts),
        unanswered=(*answer.unanswered, *survey.unanswered),
        mute=answer.mute | ({cluster} if mute else set()),
    )
