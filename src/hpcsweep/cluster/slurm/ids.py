"""Reads job ids in every form that Slurm prints; the parser never raises.

::

    12            a job                       12_[3-9%2]      tasks that wait, two at a time
    12_3          an array's task             12_[1,4-6:2]    lists, ranges, steps
    12+1          a heterogeneous job's part  12_[0-99,...]   cut short by Slurm
    12_3.batch    a step                      12;cluster      as `sbatch --parsable` names it
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

_FORM: Final = re.compile(
    r"(?P<job>\d{1,18})"
    r"(?:_(?:(?P<task>\d{1,18})|\[(?P<tasks>[^\]%]*)(?:%[^\]]*)?(?:\]|$)))?"
    r"(?:\+\d+)?(?:\.[^;]+)?"
    r"(?:;.+)?",
    re.ASCII,
)
_RANGE: Final = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::([1-9]\d{0,6}))?)?", re.ASCII)


@dataclass(frozen=True)
class JobId:
    """One printed job id; `job` is None if the text has none of the known forms."""

    text: str
    job: int | None = None
    task: int | None = None
    tasks: tuple[range, ...] = ()

    @classmethod
    def of(cls, job: int, task: int | None = None) -> JobId:
        """Make the id of a job or of an array's task."""
        return cls(f"{job}" if task is None else f"{job}_{task}", job, task)

    @property
    def key(self) -> tuple[int | None, int | None]:
        return self.job, self.task

    def expand(self) -> Iterator[JobId]:
        """Yield one id per task of a range, or this id."""
        if not self.tasks or self.job is None:
            yield self
        for task in chain.from_iterable(self.tasks):
            yield JobId.of(self.job or 0, task)

    def __str__(self) -> str:
        return self.text


def parse_id(text: str) -> JobId:
    """Read a job id; other text is kept, with `job` None."""
    text = text.strip()
    match = _FORM.fullmatch(text)
    if not match:
        return JobId(text)
    task = int(match["task"]) if match["task"] else None
    tasks = _ranges(match["tasks"] or "")
    return JobId(text, int(match["job"]), task, tasks)


def task_list(tasks: Iterable[int]) -> str:
    """Write task numbers as --array and scancel take them: ``1,4-6``."""
    spans: list[list[int]] = []
    for task in sorted(set(tasks)):
        if spans and spans[-1][-1] == task - 1:
            spans[-1] = [spans[-1][0], task]
        else:
            spans.append([task])
    return ",".join("-".join(map(str, span)) for span in spans)


def numbers(tasks: str) -> Iterator[int]:
    """Yield the numbers of a list as `task_list` and Slurm write it; skip other text."""
    return chain.from_iterable(_ranges(tasks))


def _ranges(tasks: str) -> tuple[range, ...]:
    found = []
    for word in tasks.split(","):
        match = _RANGE.fullmatch(word)
        if match:
            first, last, step = match.groups()
            found.append(range(int(first), int(last or first) + 1, int(step or 1)))
    return tuple(found)
