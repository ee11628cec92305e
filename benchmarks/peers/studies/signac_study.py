"""Run the study with signac-flow: a job per point, two processes."""

import os
from pathlib import Path

import flow
import signac
from work import merge, write_row


class Project(flow.FlowProject):
    """One operation, done where its file is."""


@Project.post.isfile("point.row")
@Project.operation
def point(job):
    """Measure the job's point."""
    write_row(job.sp.number, os.environ["STUDY_OUT"], Path(job.fn("point.row")))


if __name__ == "__main__":
    out = os.environ["STUDY_OUT"]
    count = int(os.environ["STUDY_POINTS"])
    signac.init_project(out)
    project = Project.get_project(out)
    for number in range(count):
        project.open_job({"number": number}).init()
    project.run(np=2)
    merge(Path(out, "workspace"), out)
