"""The table of Slurm's job states, and reasons for which a job never starts."""

from __future__ import annotations

import pytest

from hpcsweep import slurm
from hpcsweep.slurm import STATES, Meaning

# The manuals of squeue (JOB STATE CODES, long and short), sacct, and "Job State Codes".
MANUAL = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "CF": "CONFIGURING",
    "CG": "COMPLETING",
    "DL": "DEADLINE",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "RD": "RESV_DEL_HOLD",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "RQ": "REQUEUED",
    "RS": "RESIZING",
    "RV": "REVOKED",
    "S": "SUSPENDED",
    "SE": "SPECIAL_EXIT",
    "SI": "SIGNALING",
    "SO": "STAGE_OUT",
    "ST": "STOPPED",
    "TO": "TIMEOUT",
}
WITHOUT_SHORT = ["EXPEDITING", "LAUNCH_FAILED", "POWER_UP_NODE", "RECONFIG_FAIL", "UPDATE_DB"]
NAMES = [*MANUAL.values(), *WITHOUT_SHORT]


@pytest.mark.parametrize("name", NAMES)
def test_every_state_of_the_manual_is_in_the_table_once(name: str):
    """Each has a meaning and words for people, whatever Slurm puts around it."""
    assert [state.name for state in STATES].count(name) == 1
    for printed in (name, f"{name} by 1000", f"{name}+", f" {name},UPDATE_DB", name.lower()):
        state = slurm.state_of(printed)
        assert state.name == name
        assert state.meaning is not Meaning.UNKNOWN
        assert state.says


def test_the_table_has_nothing_that_the_manual_has_not():
    """No state was invented, and every short form is the manual's."""
    assert sorted(state.name for state in STATES) == sorted(NAMES)
    assert {state.short: state.name for state in STATES if state.short} == MANUAL
    assert {short: slurm.state_of(short).name for short in MANUAL} == MANUAL


@pytest.mark.parametrize(
    ("meaning", "names"),
    [
        (Meaning.DONE, "COMPLETED"),
        (Meaning.FAILED, "FAILED OUT_OF_MEMORY"),
        (Meaning.TIMEOUT, "TIMEOUT DEADLINE"),
        (Meaning.CANCELLED, "CANCELLED"),
        (
            Meaning.INFRASTRUCTURE,
            "BOOT_FAIL LAUNCH_FAILED NODE_FAIL PREEMPTED RECONFIG_FAIL REVOKED",
        ),
        (Meaning.REQUEUED, "EXPEDITING REQUEUED REQUEUE_FED REQUEUE_HOLD SPECIAL_EXIT"),
    ],
)
def test_who_is_charged_for_an_end(meaning: Meaning, names: str):
    """Only FAILED and OUT_OF_MEMORY are the job's own fault; the cluster's faults are free."""
    assert sorted(s.name for s in STATES if s.meaning is meaning) == sorted(names.split())


def test_only_broken_nodes_are_excluded():
    """Preemption and federation are not the node's fault."""
    at_fault = {state.name for state in STATES if state.node_at_fault}
    assert at_fault == {"BOOT_FAIL", "LAUNCH_FAILED", "NODE_FAIL", "RECONFIG_FAIL"}


def test_an_unknown_state_is_shown_as_itself_and_is_not_over():
    """A word of a later release must not make a chunk run twice."""
    state = slurm.state_of("QUANTUM_LEAP by 7")
    assert (state.name, state.meaning) == ("QUANTUM_LEAP by 7", Meaning.UNKNOWN)
    assert not state.over
    assert slurm.state_of("").meaning is Meaning.UNKNOWN


def test_states_that_are_over_are_those_that_end_an_attempt():
    """Waiting, running and requeued jobs are alive; everything else has ended."""
    alive = {Meaning.PENDING, Meaning.RUNNING, Meaning.REQUEUED}
    assert all(state.over == (state.meaning not in alive) for state in STATES)


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("PartitionTimeLimit", "above the partition's limit"),
        ("(DependencyNeverSatisfied)", "waits for failed"),
        ("launch_failed_requeued_held", "scontrol release"),
        ("QOSMaxWallDurationPerJobLimit", "allows for one job"),
        ("AssocMaxGRESPerJobLimit", "allows for one job"),
        ("Priority", ""),
        ("Resources", ""),
        ("JobArrayTaskLimit", ""),
        ("QOSMaxJobsPerUserLimit", ""),
        ("ReqNodeNotAvail, UnavailableNodes:l40sn[1-3]", ""),
        ("MaxMemPerLimit", "memory"),
        (
            "Job's account not permitted to use this partition (small allows small not lab)",
            "does not take its account",
        ),
    ],
)
def test_reasons_for_which_waiting_is_in_vain_are_told(reason: str, told: str):
    """A job that can never start is told apart from one that has to wait."""
    assert told in slurm.in_vain(reason)
    assert bool(slurm.in_vain(reason)) == bool(told)
