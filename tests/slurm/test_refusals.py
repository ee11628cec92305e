"""What sbatch prints when it refuses, as errors that say what to change."""

from __future__ import annotations

import pytest

from hpcsweep.slurm import LimitReached, Rejected, Unanswered
from hpcsweep.slurm.refusals import refusal

# What sbatch 22.05 printed, word for word.
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
FAILED = "sbatch: error: Batch job submission failed: "
NO_NODE = "Requested node configuration is not available"


@pytest.mark.parametrize(
    ("printed", "option"),
    [
        (f"sbatch: error: invalid partition specified: x\n{FAILED}Invalid partition", "partition"),
        (f"{FAILED}Required partition not available (inactive or drain)", "partition"),
        (f"{FAILED}User's group not permitted to use this partition", "partition"),
        (f"{FAILED}Invalid feature specification", "constraint"),
        ("sbatch: error: Invalid generic resource (gres) specification", "gres"),
        (f"{FAILED}Invalid qos specification", "qos"),
        (f"{FAILED}Invalid account or account/partition combination specified", "account"),
        (f"sbatch: error: Memory specification can not be satisfied\n{FAILED}{NO_NODE}", "mem"),
        (f"{FAILED}{NO_NODE}", ""),
        (f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)", "time"),
        (f"sbatch: error: QOSMaxWallDurationPerJobLimit\n{FAILED}{POLICY}", "time"),
        (f"sbatch: error: QOSMaxMemoryPerJob\n{FAILED}{POLICY}", "mem"),
        (f"sbatch: error: QOSMaxCpuPerJobLimit\n{FAILED}{POLICY}", "cpus_per_task"),
        (f"sbatch: error: AssocMaxGRESPerJob\n{FAILED}{POLICY}", "gres"),
        (f"{FAILED}{POLICY}", ""),
        (f"{FAILED}More processors requested than permitted", "cpus_per_task"),
        (f"{FAILED}Invalid node name specified", "exclude"),
        (f"{FAILED}Invalid job array specification", "array"),
        ("sbatch: error: Invalid --time specification", "time"),
        ("sbatch: error: Invalid --cpus-per-task specification", "cpus_per_task"),
        ("sbatch: unrecognized option '--nos'\nTry \"sbatch --help\"", "nos"),
        (f"{FAILED}Job dependency problem", "dependency"),
        ("sbatch: error: Unable to open file /no.sh", "script"),
        ("sbatch: error: This does not look like a batch script.  The first", "script"),
        (r"sbatch: error: Batch script contains DOS line breaks (\r\n)", "script"),
        (f"{FAILED}Access/permission denied", ""),
        (f"{FAILED}Words of a later release", ""),
        ("", ""),
    ],
)
def test_every_refusal_names_what_to_change(printed: str, option: str):
    """The error holds Slurm's words, the key of the profile, and a second line with the way out."""
    error = refusal(printed, "job.sbatch")
    assert isinstance(error, Rejected)
    first, advice = str(error).splitlines()
    key = f" (`{option}`)" if option else ""
    told = first.removeprefix(f"job.sbatch: sbatch refuses{key}: ")
    assert told != first
    assert "sbatch:" not in told
    assert advice
    assert error.exit_code == 7


@pytest.mark.parametrize(
    ("printed", "limit"),
    [
        (
            f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{FAILED}{POLICY}",
            "QOSMaxSubmitJobPerUserLimit",
        ),
        (f"sbatch: error: AssocMaxSubmitJobLimit\n{FAILED}{POLICY}", "AssocMaxSubmitJobLimit"),
        (f"sbatch: error: QOSGrpSubmitJobsLimit\n{FAILED}{POLICY}", "QOSGrpSubmitJobsLimit"),
        ("Slurm temporarily unable to accept job, sleeping and retrying", "MaxJobCount"),
        (f"{FAILED}Resource temporarily unavailable", "MaxJobCount"),
    ],
)
def test_a_limit_on_the_number_of_jobs_is_not_a_mistake(printed: str, limit: str):
    """It has its own type: what went in is kept, and the same command sends the rest later."""
    error = refusal(printed, "job.sbatch")
    assert isinstance(error, LimitReached)
    assert error.limit == limit
    assert "same command" in str(error)


@pytest.mark.parametrize(
    ("words", "maybe"),
    [
        ("Unable to contact slurm controller (connect failure)", False),
        ("Socket timed out on send/recv operation", True),
    ],
)
def test_a_lost_answer_may_mean_an_accepted_job(words: str, *, maybe: bool):
    """A time-out leaves open whether the job went in; a refused connection does not."""
    error = refusal(f"{FAILED}{words}", "job.sbatch")
    assert isinstance(error, Unanswered)
    assert error.maybe_accepted is maybe
