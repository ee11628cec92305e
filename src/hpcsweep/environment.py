"""The environment variables of hpcsweep; job scripts (`jobs/templates`) name two of them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

# job script or launcher to supervisor
DEADLINE: Final = "HPCSWEEP_DEADLINE"  # seconds since the epoch when the job's time is up
WRAPPER: Final = "HPCSWEEP_WRAPPER"  # the profiler around the supervisor and its workers
LIFELINE: Final = "HPCSWEEP_LIFELINE"  # `stdin`: leave when stdin ends
NEIGHBOURS: Final = "HPCSWEEP_NEIGHBOURS"  # what the supervisors of a job share, and its place
PROGRESS: Final = "HPCSWEEP_PROGRESS"  # `json`: JSON objects on stdout, no text

# of the launcher, which a supervisor takes over: git takes 15 ms of CPU
REVISION: Final = "HPCSWEEP_REVISION"

# supervisor to worker
WORKLOAD: Final = "HPCSWEEP_WORKLOAD"
RUN: Final = "HPCSWEEP_RUN"  # the manifest's `run`, as JSON
ARTIFACTS: Final = "HPCSWEEP_ARTIFACTS"  # folder of traces and checkpoints
LOG: Final = "HPCSWEEP_LOG"  # of the attempt
THREADS: Final = "HPCSWEEP_THREADS"  # of each of several workers on one machine

# set by users
CLUSTER: Final = "HPCSWEEP_CLUSTER"  # as --cluster of submit and estimate
RESULTS: Final = "HPCSWEEP_RESULTS"  # as --results
DEBUG: Final = "HPCSWEEP_DEBUG"  # as --debug
DATA: Final = "HPCSWEEP_DATA"  # folder of datasets
CUDNN: Final = "HPCSWEEP_CUDNN"  # path of another libcudnn
MIOPEN: Final = "HPCSWEEP_MIOPEN"  # path of another libMIOpen

AMD_DRIVER: Final = Path("/dev/kfd")  # the driver of AMD's GPUs; there is none without it
_MIOPEN_DATABASE: Final = "MIOPEN_USER_DB_PATH"

# of the variables of others, the values of these alone are written down as they are
PLAIN: Final = frozenset({
    "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING", "CUDA_DEVICE_ORDER", "TEARDOWN_CUPTI", "CUBLAS_WORKSPACE_CONFIG",
    "PYTORCH_CUDA_ALLOC_CONF",
    "OMP_NUM_THREADS", "OMP_WAIT_POLICY", "OMP_PROC_BIND", "OMP_PLACES", "GOMP_SPINCOUNT",
    "GOMP_CPU_AFFINITY", "KMP_BLOCKTIME", "KMP_AFFINITY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
    "MALLOC_ARENA_MAX", "MIOPEN_FIND_MODE", _MIOPEN_DATABASE, "NVIDIA_TF32_OVERRIDE",
    "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "LOADEDMODULES", "APPTAINER_CONTAINER",
    "SINGULARITY_CONTAINER", "PYTHONPATH", "LD_LIBRARY_PATH", "TORCH_HOME",
    THREADS, DATA, CUDNN, MIOPEN,
})  # fmt: skip
_OF_SLURM: Final = re.compile(
    "SLURMD_NODENAME|SLURM_(JOB_?ID|ARRAY_(JOB|TASK)_(ID|COUNT|MIN|MAX|STEP)|RESTART_COUNT"
    "|CLUSTER_NAME|JOB_(PARTITION|QOS|ACCOUNT|USER|UID|NAME|GPUS|NODELIST|NUM_NODES|CPUS_PER_NODE"
    "|START_TIME|END_TIME)|NODELIST|NNODES|NTASKS|NPROCS|NODEID|PROCID|LOCALID|STEP_ID|STEP_GPUS"
    "|CPUS_(PER_TASK|ON_NODE)|TASKS_PER_NODE|MEM_PER_(NODE|CPU|GPU)|GPUS(_ON_NODE|_PER_NODE)?"
    "|TASK_PID|SUBMIT_HOST|SUBMIT_DIR)"
)
# Of a job: Slurm's variables and those of its task launchers, what Slurm sets to the GPUs of a job,
# and what hpcsweep tells the processes of one. GPUs and `SRUN_*` count only inside a job: elsewhere
# somebody set them on purpose.
_OF_ANY_JOB: Final = ("SLURM", "SBATCH_", "SUBMITIT_", "PMI_", "PMI2_", "PMIX_")
_INSIDE_A_JOB: Final = (
    "SRUN_", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK",
)  # fmt: skip
_OWN_OF_A_JOB: Final = (
    DEADLINE, WRAPPER, LIFELINE, NEIGHBOURS, PROGRESS, REVISION, WORKLOAD, RUN, ARTIFACTS, LOG,
    THREADS,
)  # fmt: skip
# where Slurm is, and what opens it: its programs cannot work without
_OF_THE_CLUSTER: Final = frozenset({
    "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_SOCKET",
})  # fmt: skip
_PASSWORD: Final = re.compile("//[^/\\s]*@")  # of a URL


def readable(name: str, value: str) -> bool:
    """Say whether a variable's value may be written down: others may be secrets."""
    return name in PLAIN and not _PASSWORD.search(value)


def of_slurm(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of Slurm that say what a job is; SLURM_JWT, for one, is a key."""
    return {name: value for name, value in variables.items() if _OF_SLURM.fullmatch(name)}


def outside_a_job(variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables as they would be on a login node: without those of a surrounding job.

    A job inherits what its sender has. One that is sent from inside another job would take over
    its CPUs (`SLURM_CPU_BIND`), tasks (`SLURM_NTASKS`), memory (`SLURM_MEM_PER_CPU`) and GPUs.
    """
    dropped: tuple[str, ...] = (*_OF_ANY_JOB, *_OWN_OF_A_JOB)
    if "SLURM_JOB_ID" in variables:
        dropped = (*dropped, *_INSIDE_A_JOB)
    return {
        name: value
        for name, value in variables.items()
        if name in _OF_THE_CLUSTER or not name.startswith(dropped)
    }


def keep_miopen_apart() -> None:
    """Give MIOpen a database of its own in this process and its children, and complete searches.

    The user's database remembers which solutions were found, with whatever workspace there was: a
    run with little makes the next one slower. MIOpen reads the variables once, so this comes before
    torch is imported. Compiled kernels stay in MIOpen's own cache, which has a folder for each
    version and a file for each architecture, and outlives the job.
    """
    if not AMD_DRIVER.exists():
        return
    os.environ.setdefault("MIOPEN_FIND_MODE", "NORMAL")
    if not os.environ.get(_MIOPEN_DATABASE):
        import atexit  # noqa: PLC0415 - these three only where there is an AMD GPU
        import shutil  # noqa: PLC0415
        import tempfile  # noqa: PLC0415

        folder = tempfile.mkdtemp(prefix="hpcsweep-miopen-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[_MIOPEN_DATABASE] = folder


def programs(path: str | None = None) -> str:
    """Return PATH, or another one, with the folder of this Python last: it has a `python`."""
    path = os.environ.get("PATH", os.defpath) if path is None else path
    return f"{path}{os.pathsep}{Path(sys.executable).parent}"


def torch_home(env: Mapping[str, str]) -> dict[str, str]:
    """Return TORCH_HOME as a job with these variables has it; empty: it is the user's own."""
    home = env.get("TORCH_HOME") or os.environ.get("TORCH_HOME")
    if home:
        return {"TORCH_HOME": home}
    cache = env.get("XDG_CACHE_HOME") or os.environ.get("XDG_CACHE_HOME")
    return {"TORCH_HOME": f"{cache}/torch"} if cache else {}


def config_folder() -> Path:
    """Return the folder of the user's own configuration."""
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "hpcsweep"


def cache_folder() -> Path:
    """Return the folder of what this user's commands may forget."""
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "hpcsweep"
