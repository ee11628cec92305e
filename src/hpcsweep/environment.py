"""The environment variables of hpcsweep: those between the parts of a run, and those of users.

Job scripts (`jobs/templates`) write two of them by name.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

# job script or launcher to supervisor
DEADLINE: Final = "HPCSWEEP_DEADLINE"  # seconds since the epoch when the job's time is up
WRAPPER: Final = "HPCSWEEP_WRAPPER"  # the profiler around the supervisor and its workers
LIFELINE: Final = "HPCSWEEP_LIFELINE"  # `stdin`: leave when stdin ends
PROGRESS: Final = "HPCSWEEP_PROGRESS"  # `json`: one JSON object a point on stdout, no text

# supervisor to worker
WORKLOAD: Final = "HPCSWEEP_WORKLOAD"
RUN: Final = "HPCSWEEP_RUN"  # the manifest's `run`, as JSON
ARTIFACTS: Final = "HPCSWEEP_ARTIFACTS"  # folder of traces and checkpoints
THREADS: Final = "HPCSWEEP_THREADS"  # of each of several workers on one machine

# set by users
CLUSTER: Final = "HPCSWEEP_CLUSTER"  # as --cluster of submit and estimate
RESULTS: Final = "HPCSWEEP_RESULTS"  # as --results
DEBUG: Final = "HPCSWEEP_DEBUG"  # as --debug
DATA: Final = "HPCSWEEP_DATA"  # folder of datasets
CUDNN: Final = "HPCSWEEP_CUDNN"  # path of another libcudnn
MIOPEN: Final = "HPCSWEEP_MIOPEN"  # path of another libMIOpen


def results_folder(given: str | os.PathLike[str] = "") -> Path:
    """Return the folder of all results: the one given, else the user's, else ``results``."""
    return Path(given or os.environ.get(RESULTS) or "results")
