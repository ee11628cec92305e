"""Run the study with submitit on this machine: two jobs of half the points, or a job per point."""

import os
import sys
import time

import submitit
from work import measure, write_table


def chunk(numbers, out):
    """Measure the points of a job."""
    return [(number, measure(number, out)) for number in numbers]


def jobs_of(executor, chunks, out):
    """Submit the chunks, at most two at a time: LocalExecutor itself would start all at once."""
    jobs = []
    for numbers in chunks:
        while sum(not job.done() for job in jobs[-2:]) == 2:
            time.sleep(0.02)
        jobs.append(executor.submit(chunk, numbers, out))
    return jobs


if __name__ == "__main__":
    out = os.environ["STUDY_OUT"]
    count = int(os.environ["STUDY_POINTS"])
    parts = 2 if sys.argv[1] == "packed" else count
    chunks = [range(part, count, parts) for part in range(parts)]
    jobs = jobs_of(submitit.LocalExecutor(f"{out}/jobs"), chunks, out)
    write_table(sorted(row for job in jobs for row in job.result()), out)
