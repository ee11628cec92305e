"""Laws of job ids: what Slurm may print is read, what nobody prints does not stop us."""

from __future__ import annotations

from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.cluster.slurm import JobId, parse_id, task_list

numbers = st.integers(min_value=0, max_value=4_000_000)
task_sets = st.sets(st.integers(min_value=0, max_value=3000), min_size=1, max_size=60)


@given(st.text())
def test_any_text_is_read_and_kept(text: str):
    """Parsing never raises and keeps the text, but for blanks around it."""
    assert str(parse_id(text)) == text.strip()


@given(st.from_regex(r"[0-9]+_\[[-0-9,:%.]*\]?", fullmatch=True))
def test_any_list_of_tasks_is_read_without_making_it_longer(text: str):
    """Whatever stands in the brackets, the job's number is known and ranges stay ranges."""
    found = parse_id(text)
    assert found.job == int(text.partition("_")[0])
    assert all(isinstance(tasks, range) for tasks in found.tasks)


@given(numbers, st.none() | numbers)
def test_an_id_that_was_made_is_read_back(job: int, task: int | None):
    """`of` and `parse_id` are inverse, with and without a task."""
    made = JobId.numbered(job, task)
    assert parse_id(str(made)) == made


@given(task_sets)
def test_a_task_list_holds_every_task_once_and_in_order(tasks: set[int]):
    """What is written for --array is read back as the same tasks, and written again the same."""
    found = parse_id(f"7_[{task_list(tasks)}]")
    assert list(chain.from_iterable(found.tasks)) == sorted(tasks)
    assert [job.task for job in found.expand()] == sorted(tasks)


@given(task_sets, st.none() | st.integers(min_value=1, max_value=500))
def test_a_throttle_does_not_change_the_tasks(tasks: set[int], throttle: int | None):
    """The number behind % is no task."""
    suffix = "" if throttle is None else f"%{throttle}"
    found = parse_id(f"7_[{task_list(tasks)}{suffix}]")
    assert len(list(found.expand())) == len(tasks)


@given(numbers, numbers, st.sampled_from(["batch", "extern", "interactive", "0", "4294967294"]))
def test_steps_belong_to_their_task(job: int, task: int, step: str):
    """A step's id has the key of the task that it is part of."""
    assert parse_id(f"{job}_{task}.{step}").key == (job, task)
