"""What is read from Slurm's words without a Slurm: ids, states, refusals, times.

Talking to a real one is tested in tests/on_slurm/. Here programs are stood in for only where a real
cluster cannot be made to do it: hang, print nonsense, be of another release.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import psutil
import pytest

from hpcsweep import slurm
from hpcsweep.errors import MissingDependency, SchedulerError
from hpcsweep.slurm import (
    STATES,
    CouldNotAsk,
    JobId,
    LimitReached,
    Meaning,
    Rejected,
    Unanswered,
    Why,
    parse_id,
)
from hpcsweep.slurm.refusals import refusal
from hpcsweep.slurm.site import _parse_gres

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SINCE = datetime(2026, 1, 1, tzinfo=timezone.utc)

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


ID_FORMS = [
    ("12", JobId("12", 12)),
    ("12_3", JobId("12_3", 12, 3)),
    ("12_[3-9%2]", JobId("12_[3-9%2]", 12, tasks=(range(3, 10),))),
    ("12_[1,4-6]", JobId("12_[1,4-6]", 12, tasks=(range(1, 2), range(4, 7)))),
    ("12_[0-10:5]", JobId("12_[0-10:5]", 12, tasks=(range(0, 11, 5),))),
    ("12_[4%1]", JobId("12_[4%1]", 12, tasks=(range(4, 5),))),
    ("12+1", JobId("12+1", 12)),
    ("12+1.0", JobId("12+1.0", 12)),
    ("12.batch", JobId("12.batch", 12)),
    ("12_3.extern", JobId("12_3.extern", 12, 3)),
    ("12;cluster", JobId("12;cluster", 12, cluster="cluster")),
    ("12_3;a.b-c", JobId("12_3;a.b-c", 12, 3, cluster="a.b-c")),
    ("12_[0-99,...]", JobId("12_[0-99,...]", 12, tasks=(range(100),))),
    ("12_[0-9,11,1...", JobId("12_[0-9,11,1...", 12, None, (range(10), range(11, 12)))),
    ("12_[0-9,11%", JobId("12_[0-9,11%", 12, None, (range(10), range(11, 12)))),
    ("12_[0x3F]", JobId("12_[0x3F]", 12)),
    ("12_[]", JobId("12_[]", 12)),
    ("  7 ", JobId("7", 7)),
    ("", JobId("")),
    ("JOBID", JobId("JOBID")),
    ("12_", JobId("12_")),
    ("12_[1-3]_4", JobId("12_[1-3]_4")),
    ("-5", JobId("-5")),
    ("١٢", JobId("١٢")),
]


@pytest.mark.parametrize(("text", "expected"), ID_FORMS)
def test_job_ids_are_read_in_every_form(text: str, expected: JobId):
    """One parser for all that squeue, sacct and sbatch print; the rest is kept verbatim."""
    assert parse_id(text) == expected


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("12_3.batch", "12_3"),
        ("12;c", "12"),
        ("12_[1,4-6%2]", "12_[1,4-6]"),
        ("what", "what"),
    ],
)
def test_scancel_is_given_an_id_that_it_takes(text: str, target: str):
    """Steps, clusters and throttles are left out."""
    assert parse_id(text).target == target


def test_a_huge_range_costs_nothing():
    """Four million waiting tasks are a range until somebody walks through it."""
    assert len(parse_id("12_[0-4000000]").tasks[0]) == 4_000_001


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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("5:30", 330),
        ("24:00:00", 86400),
        ("1-00:00:00", 86400),
        ("2-12", 216000),
        ("1-02:03", 93780),
        ("UNLIMITED", None),
        ("INFINITE", None),
        ("INVALID", None),
        ("N/A", None),
        ("", None),
        ("-", None),
        ("1:2:3:4", None),
    ],
)
def test_slurm_times_are_read_in_every_form(text: str, seconds: int | None):
    """As limits and as times that passed; no limit, and what is no time, are None."""
    assert slurm.duration(text) == seconds


def test_a_limit_of_zero_is_none():
    """Slurm's way to say that there is no limit."""
    assert slurm.duration("0:00") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:v100:2", [("gpu", "v100", 2)]),
        ("gpu:4", [("gpu", "", 4)]),
        ("gpu:nvidia_a100-sxm4-80gb:8(S:0-7)", [("gpu", "nvidia_a100-sxm4-80gb", 8)]),
        (
            "gpu:l40s:4(S:0-1),shard:8,tmp:2G",
            [("gpu", "l40s", 4), ("shard", "", 8), ("tmp", "", 2**31)],
        ),
        ("(null)", []),
    ],
)
def test_generic_resources_are_read(text: str, expected: list[tuple[str, str, int]]):
    """With and without type, sockets and units."""
    assert [(g.name, g.type, g.count) for g in _parse_gres(text)] == expected


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Give a function that puts a program of the given name and shell text first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def write(name: str, text: str) -> Path:
        path = folder / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    return write


def test_without_slurm_every_question_is_answered_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """No program, no exception: the answer says that it is absent; submitting says it too."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not slurm.available()
    answers = [
        slurm.queue(["1"]),
        slurm.attempts(["1"], SINCE),
        slurm.config(),
        slurm.nodes(),
        slurm.partitions(),
        slurm.qos(),
        slurm.associations(),
        slurm.hostnames("a[1-2]"),
        slurm.would_accept(tmp_path / "job.sh"),
    ]
    assert all(isinstance(a, CouldNotAsk) and a.why is Why.ABSENT for a in answers)
    assert len(slurm.survey(["1"], SINCE).unanswered) == 2
    with pytest.raises(MissingDependency, match="sbatch: not found"):
        slurm.submit(tmp_path / "job.sh")
    with pytest.raises(SchedulerError, match="scancel: not found"):
        slurm.cancel(["1"])


def test_a_program_that_hangs_is_ended(program: Callable[[str, str], Path], tmp_path: Path):
    """The answer after our patience is that there is none, and the program is gone."""
    program("squeue", f"echo $$ > {tmp_path}/pid; exec sleep 60")
    answer = slurm.queue(["1"], timeout=0.5)
    assert isinstance(answer, CouldNotAsk)
    assert (answer.why, "no answer within 0.5 s" in str(answer)) == (Why.NO_ANSWER, True)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_an_order_without_an_answer_is_an_error(program: Callable[[str, str], Path]):
    """Nobody may believe that a job was cancelled when Slurm did not say so."""
    program("scancel", "exec sleep 60")
    with pytest.raises(SchedulerError, match="no answer within"):
        slurm.cancel(["1"], timeout=0.3)


def test_a_submission_that_hangs_may_have_been_accepted(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """The error says so, and says how to look."""
    program("sbatch", "exec sleep 60")
    with pytest.raises(Unanswered, match="may be in the queue") as caught:
        slurm.submit(tmp_path / "job.sh", timeout=0.3)
    assert caught.value.maybe_accepted


def test_sbatch_that_retries_for_ever_is_ended_early(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """At MaxJobCount sbatch sleeps and retries; after `patience` it is a limit, not a time-out."""
    said = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    program("sbatch", f"echo '{said}' >&2; exec sleep 600")
    with pytest.raises(LimitReached) as caught:
        slurm.submit(tmp_path / "job.sh", timeout=300, patience=0.3)
    assert caught.value.limit == "MaxJobCount"


def test_what_a_sites_script_started_is_ended_with_it(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """An sbatch behind a wrapper must not submit later what we have reported as refused."""
    said = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    program("sbatch", f"echo '{said}' >&2; sleep 60 & echo $! > {tmp_path}/pid; wait")
    with pytest.raises(LimitReached):
        slurm.submit(tmp_path / "job.sh", timeout=300, patience=0.5)
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while _is_alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_greeting_around_the_job_id_is_not_the_job_id(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """The id is found among a site's own lines; none at all is an open question, not a job."""
    program("sbatch", "echo Welcome; echo '12;far'; echo 'Have a nice day'")
    assert slurm.submit(tmp_path / "job.sh").key == (12, None)
    program("sbatch", "echo Welcome")
    with pytest.raises(Unanswered, match="no job id but 'Welcome'") as caught:
        slurm.submit(tmp_path / "job.sh")
    assert caught.value.maybe_accepted


def test_a_program_that_cannot_start_is_not_called_missing(
    program: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A missing interpreter and a broken wrapper have their own words; nothing else is raised."""
    interpreted, wrapper = program("sbatch", ""), program("squeue", "")
    interpreted.write_text("#!/gone/sh\n")
    wrapper.write_bytes(b"")  # executable, but no program
    monkeypatch.setenv("PATH", str(wrapper.parent))
    with pytest.raises(Unanswered, match=r"No such file or directory: sbatch") as caught:
        slurm.submit(tmp_path / "job.sh")
    assert not caught.value.maybe_accepted
    answer = slurm.queue(["1"])
    assert isinstance(answer, CouldNotAsk)
    assert (answer.why, "Exec format error" in str(answer)) == (Why.FAILED, True)


def test_the_last_words_of_a_program_that_hangs_are_told(program: Callable[[str, str], Path]):
    """A missing slurm.conf makes clients retry for a minute; they say so at once."""
    said = "cannot stat file /etc/slurm.conf: No such file or directory, retrying"
    program("squeue", f"echo 'squeue: error: {said}' >&2; exec sleep 60")
    answer = slurm.queue(["1"], timeout=0.5)
    assert str(answer) == f"squeue: no answer within 0.5 s; {said}"


def test_a_slow_answer_to_a_submission_is_waited_for(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """Only sbatch's own word that it retries shortens our patience."""
    program("sbatch", "sleep 0.6; echo '7;far'")
    job = slurm.submit(tmp_path / "job.sh", timeout=30, patience=0.2)
    assert job == JobId("7;far", 7, cluster="far")


def test_nonsense_in_an_answer_is_left_out(program: Callable[[str, str], Path]):
    """Headings of clusters, torn lines, other encodings and unknown states do not stop us."""
    line = r"12_3\037GLIDING\037None\037n\377|,\037N/A\037N/A\037garbage"
    program("squeue", f"printf 'CLUSTER: far\\n\\n{line}\\n12_4\\037RUN'")
    (job,) = slurm.queue(["12"])
    assert (job.id.key, job.state.name, job.state.meaning) == ((12, 3), "GLIDING", Meaning.UNKNOWN)
    assert (job.nodes, job.ended) == ("n\N{REPLACEMENT CHARACTER}|,", None)


def test_any_other_failure_is_told_in_slurms_words(program: Callable[[str, str], Path]):
    """The last line of a program's errors is the reason; an exit code where there is none."""
    program("sinfo", "echo first >&2; echo 'sinfo: error: the moon is full' >&2; exit 3")
    program("scontrol", "exit 4")
    assert str(slurm.nodes()) == "sinfo: the moon is full"
    assert str(slurm.partitions()) == "scontrol: exit code 4"


def test_what_changes_slurms_answers_is_taken_out_of_the_environment(
    program: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """A user's formats and defaults are not ours; questions are asked in the C locale."""
    for name in ("SQUEUE_FORMAT", "SACCT_FORMAT", "SBATCH_PARTITION", "SLURM_TIME_FORMAT"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    for name in ("squeue", "sbatch"):
        program(name, f"env > {tmp_path}/{name}; echo 1")
    slurm.queue(["1"])
    slurm.submit(tmp_path / "job.sh")
    asked, ordered = ((tmp_path / n).read_text().splitlines() for n in ("squeue", "sbatch"))
    assert not [line for line in [*asked, *ordered] if line.endswith("=x")]
    assert {"LC_ALL=C", "SLURM_BITSTR_LEN=0"} <= set(asked)
    assert "LC_ALL=C.UTF-8" in ordered  # the job inherits it


def test_very_many_jobs_are_asked_for_by_their_user(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """A command line has an end, so the answer is sifted here instead; it is still one call."""
    line = r"\037RUNNING\037\037n1\037N/A\037N/A\037N/A\n"
    program(
        "squeue", f"echo \"$@\" | head -c 400 >> {tmp_path}/calls\nprintf '5{line}999999{line}'"
    )
    found = slurm.queue(str(job) for job in range(50_000))
    assert [job.id.job for job in found] == [5]
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 1
    assert f"--user={os.getuid()}" in calls[0]


def test_nothing_to_ask_asks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """No ids, or none that is one, is an empty answer, even where there is no Slurm."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert slurm.queue([]) == []
    assert slurm.queue(["not an id"]) == []
    assert slurm.attempts([], SINCE) == []
    assert slurm.survey([], SINCE) == slurm.Survey({}, ())
    assert slurm.hostnames("") == slurm.hostnames("None assigned") == ()
    assert slurm.hostnames("n1,n2") == ("n1", "n2")
    slurm.cancel([])


def test_the_package_needs_the_standard_library_only():
    """Asking for a job's state must not cost the import of anything heavy."""
    program = "import sys, hpcsweep.slurm; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    tops = {name.partition(".")[0] for name in done.stdout.split()}
    assert tops - set(sys.stdlib_module_names) <= {"hpcsweep", "__main__"} | _preloaded()


def _preloaded() -> set[str]:
    """Return what this interpreter loads before any program, such as editable-install hooks."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_queue_and_accounts_are_asked_at_the_same_time(program: Callable[[str, str], Path]):
    """A hang of both costs our patience once: each saw the other running before it was ended."""
    meet = 'until [ -e squeue.up ] && [ -e sacct.up ]; do sleep 0.02; done; touch "$0.seen"'
    text = f'cd "${{0%/*}}"; touch "$0.up"; {meet}; exec sleep 60'
    paths = [program(name, text) for name in ("squeue", "sacct")]
    survey = slurm.survey(["1"], SINCE, timeout=2)
    assert [answer.program for answer in survey.unanswered] == ["squeue", "sacct"]
    assert all(path.with_suffix(".seen").exists() for path in paths)


def test_an_array_that_the_accounts_have_not_split_yet_is_not_a_job_of_its_own(
    program: Callable[[str, str], Path],
):
    """Sacct lists a new array as one job without a task; the queue's tasks are the truth."""
    queued = r"12_0\037RUNNING\037\037n1\037N/A\037N/A\037N/A\n"
    past = r"12\037PENDING\037None\037\037N/A\037N/A\037N/A\0370:0\n"
    program("squeue", f"printf '{queued}'")
    program("sacct", f"printf '{past}'")
    assert list(slurm.survey(["12"], SINCE).jobs) == [(12, 0)]
