"""Measures points through a worker, as an attempt does, without a folder of results."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from dataclasses import replace

from hpcsweep import environment
from hpcsweep.node.job_limits import Stop
from hpcsweep.node.worker_care import WorkerCare
from measuring import point
from paths import SUPPORT


def asked(model, size=1, launch="eager", **axes):
    """Return a point of its own."""
    return replace(
        point(model, input_size=size, launch=launch, **axes), point_id=os.urandom(8).hex()
    )


@contextmanager
def caring(folder, on_hello=lambda _env: None, run=None, *, forks=False, **variables):
    """Give a function that measures a network; the worker is that of `processes.python`."""
    own = {
        "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
        environment.WORKLOAD: "inference",
        environment.RUN: json.dumps(run or {"gpu": "cpu"}),
    }
    care = WorkerCare(
        log=folder / "log",
        variables=own | variables,
        stop=Stop(lifeline=False),
        kill_wait=1.0,
        end_seconds=2.0,
        on_hello=on_hello,
        forks=forks,
    )

    def measure(model, size=1, launch="eager", limit=60.0, until=float("inf"), **axes):
        return care.outcome_of(asked(model, size, launch, **axes), 0, limit, until)

    def together(*models, **axes):
        return care.outcomes_of([asked(model, **axes) for model in models], 0, 60.0)

    measure.together = together  # type: ignore[attr-defined]
    try:
        yield measure
    finally:
        care.end()
