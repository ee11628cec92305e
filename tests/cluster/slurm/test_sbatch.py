"""Submitting where sbatch hangs, retries, or prints more than an id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import LimitReached, Place, Rejected, Unanswered
from hpcsweep.cluster.slurm.sbatch import job_ids, refusal
from hpcsweep.errors import SchedulerError
from waiting import given_time, is_alive, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


# What sbatch printed, word for word, beside what test_talking_to_slurm lets a real one say.
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
FAILED = "sbatch: error: Batch job submission failed: "
FILTER = "sbatch: error: cli_filter plugin terminated with error"
WORDS = st.lists(
    st.from_regex(r"[A-Z][a-z]{2,8}( [a-z0-9.,:]{1,8}){0,4}", fullmatch=True),
    min_size=1,
    max_size=3,
)
NO_NODE = "Requested node configuration is not available"


@pytest.mark.parametrize(
    ("printed", "option"),
    [
        (f"{FAILED}Required partition not available (inactive or drain)", "partition"),
        (f"{FAILED}User's group not permitted to use this partition", "partition"),
        (f"{FAILED}{NO_NODE}", ""),
        (f"{FAILED}Requested time limit is invalid (missing or exceeds some limit)", "time"),
        (f"sbatch: error: QOSMaxMemoryPerJob\n{FAILED}{POLICY}", "mem"),
        (f"sbatch: error: QOSMaxCpuPerJobLimit\n{FAILED}{POLICY}", "cpus_per_task"),
        (f"sbatch: error: AssocMaxGRESPerJob\n{FAILED}{POLICY}", "gres"),
        (f"{FAILED}{POLICY}", ""),
        (f"{FAILED}More processors requested than permitted", "cpus_per_task"),
        ("sbatch: error: Invalid --cpus-per-task specification", "cpus_per_task"),
        ("sbatch: unrecognized option '--nos'\nTry \"sbatch --help\"", "nos"),
        ("sbatch: error: Unable to open file /no.sh", "script"),
        ("sbatch: error: This does not look like a batch script.  The first", "script"),
        (r"sbatch: error: Batch script contains DOS line breaks (\r\n)", "script"),
        (f"{FAILED}Access/permission denied", ""),
        (f"sbatch: error: You must name a project\n{FAILED}Unspecified error", ""),
        (f"{FAILED}Invalid wckey specification", ""),
        ("sbatch: option '--mem' requires an argument\nTry \"sbatch --help\"", "mem"),
        ("sbatch: invalid option -- 'z'", "z"),
        (
            f"sbatch: error: lua: Memory by node is not supported. Use --mem-per-cpu.\n{FILTER}",
            "mem",
        ),
        ("sbatch: fatal: --mem, --mem-per-cpu, and --mem-per-gpu are mutually exclusive.", "mem"),
        *(
            (f"sbatch: error: {words}\n{FAILED}{answer}", "mem")
            for words in (
                "memory limit must be provided for shared jobs",
                "Requested memory 900G is above 512G",
                "Please specify --mem-per-cpu in partition gpu",
                "QOSMinMemory",
            )
            for answer in ("Invalid feature specification", "Unspecified error", POLICY)
        ),
        (f"{FAILED}Memory required by task is not available", "mem"),
        (f"{FAILED}Memory specification can not be satisfied", "mem"),
        (f"{FAILED}Time limit specification required, but not provided", "time"),
        (f"{FAILED}Invalid account or account/partition combination specified", "account"),
        (f"{FAILED}Requested GRES option unsupported by configured SelectType plugin", "gres"),
        ("sbatch: error: Walltime over the limit of partition gpu, of 4 GPUs", "time"),
        ("sbatch: error: lua: account lab has no GPU hours left", "account"),
        ("sbatch: error: lua: partition gpu needs a GPU", "gres"),
        ("ERROR: choose one of the partitions long, short", "partition"),
        (f"sbatch: error: QOSMaxNodePerJobLimit\n{FAILED}{POLICY}", "nodes"),
        (
            f"sbatch: error: ====\nsbatch: error:\nsbatch: error: State a walltime (-t)\n{FAILED}",
            "time",
        ),
        ("sbatch.real: error: Invalid --time specification", "time"),
        (
            "sbatch: error: Parameter --gres=gpu:1 no longer acceptable, please switch to --gpus=1",
            "gres",
        ),
        (f"{FAILED}Required node not available (down, drained or reserved)", ""),
        (f"{FAILED}Duplicate generic resource (gres) specification", "gres"),
        (f"{FAILED}No partition specified or system default partition", "partition"),
        (f"{FAILED}Invalid Trackable RESource (TRES) specification", ""),
        (f"{FAILED}Node count specification invalid", ""),
        (
            "sbatch: error: Invalid GRES specification (with and without type identification)",
            "gres",
        ),
        ("sbatch: error: Please ask hpc-help for a project, and name it", ""),
        (FILTER, ""),
    ],
)
def test_every_refusal_names_what_to_change(printed: str, option: str):
    """The error holds Slurm's words, the key of the profile, and a second line with the way out.

    What a plugin of the site says of it counts more than Slurm's answer behind that.
    """
    error = refusal(printed, "job.sbatch")
    assert isinstance(error, Rejected)
    first, advice = str(error).splitlines()
    key = f" (`{option}`)" if option else ""
    told = first.removeprefix(f"job.sbatch: sbatch refuses{key}: ")
    assert told != first
    assert "sbatch:" not in told
    assert (error.about, error.words) == (option, told)
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
        ("sbatch: error: Slurm job queue full, sleeping and retrying", "MaxJobCount"),
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
        ("Unable to contact slurm controller (receive failure)", True),
        ("Socket timed out on send/recv operation", True),
        ("Zero Bytes were transmitted or received", True),
        ("Protocol authentication error", True),
        ("Connection reset by peer", True),
        ("Message receive failure", True),
        ("Incompatible versions of client and server code", True),
        ("Communication shutdown failure", True),
    ],
)
def test_a_lost_answer_may_mean_an_accepted_job(words: str, *, maybe: bool):
    """A broken connection leaves open whether the job went in; a refused one does not."""
    error = refusal(f"{FAILED}{words}", "job.sbatch")
    assert isinstance(error, Unanswered)
    assert error.maybe_accepted is maybe


@pytest.mark.parametrize(
    "then",
    [
        "kill -KILL $$",
        "kill -PIPE $$",
        "exit 141",
        "exit 255",
        "echo '12;far'; exit 1",
        "echo 12; echo 'sbatch: error: Access/permission denied' >&2; exit 1",
        "echo '/site/sbatch: line 7: /log: Permission denied' >&2; exit 1",
        "echo 'sbatch: warning: QOS debug is not allowed there, moved' >&2; kill -KILL $$",
        "echo 'sbatch: error: Invalid qos\n' >/dev/null; exit 137",
        "echo 'sbatch: error: A word of a plugin' >&2; kill -KILL $$",
        "echo 'client_loop: send disconnect: Broken pipe' >&2; exit 255",
        "echo 'Connection to login1 closed by remote host.' >&2; exit 255",
        "printf 'Greetings\\nTraceback (most recent call last):\\nKeyError: 3\\n' >&2; exit 1",
        "echo 'sbatch: warning: partition gpu is not allowed' >&2; exit 1",
        "exit 1",
        "echo 'sbatch: error: slurm_receive_msg: Socket timed out' >&2; exit 1",
        "echo 'sbatch: error: Slurm controller not responding, sleeping and retrying' >&2; exit 1",
    ],
)
def test_every_other_end_of_sbatch_leaves_open_whether_the_job_went_in(
    program: Callable[[str, str], Path], tmp_path: Path, then: str
):
    """A signal, no word of what is wrong, an id and a failure, a script that broke, several ids."""
    program("sbatch", then)
    with pytest.raises(Unanswered, match="it looks there first") as caught:
        slurm.submit(tmp_path / "job.sh")
    assert caught.value.maybe_accepted


@given(plugin=WORDS, code=st.sampled_from([1, 2, 9, 127, 128, 255]))
def test_whatever_words_a_refusal_has_it_is_one(plugin: list[str], code: int):
    """Plugins and scripts of sites, and later releases, have words of their own."""
    greeting = ["Welcome to the cluster", "17 users are here"]
    said = [f"\x1b[31msbatch: error: {line}\x1b[0m" for line in plugin]
    failed = f"{FAILED}No {plugin[-1]}"
    for told in (
        plugin,
        [*greeting, said[0], *plugin[1:]],
        [*greeting, *said, failed, *greeting],
        [*greeting, failed, *greeting],
    ):
        error = refusal("\r\n".join(told), "job.sbatch", code)
        assert isinstance(error, Rejected)
        assert plugin[-1] in error.words
        assert greeting[0] not in error.words


def test_a_site_that_says_no_on_standard_output_is_heard(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """Where nothing is on the other one."""
    program("sbatch", "echo 'ERROR: name a project'; exit 3")
    with pytest.raises(Rejected, match="refuses: ERROR: name a project"):
        slurm.submit(tmp_path / "job.sh")


def test_a_job_that_is_only_tried_is_told_by_what_sbatch_says(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """Yes with the place, no with Slurm's words; a lost answer, or none in time, is unknown."""
    says = "sbatch: Job 7 to start at 2026-11-28T11:33:15 using 1 processors on nodes n[1-2] in"
    program("sbatch", f'echo "$@" >{tmp_path}/asked; echo "{says} partition gpu" >&2')
    assert slurm.would_accept(options=["-p", "x"]) == Place("gpu", "n[1-2]")
    assert (tmp_path / "asked").read_text() == "--test-only -p x --wrap=true\n"
    program("sbatch", "echo 'a site greets' >&2")
    assert str(slurm.would_accept()) == "it does not say where"
    program("sbatch", "echo 'allocation failure: Invalid feature specification' >&2; exit 1")
    with pytest.raises(Rejected) as caught:
        slurm.would_accept()
    assert (caught.value.about, caught.value.words) == (
        "constraint", "Invalid feature specification",
    )  # fmt: skip
    for words in (
        "Socket timed out on send/recv operation",
        "Zero Bytes were transmitted or received",
    ):
        program("sbatch", f"echo 'allocation failure: {words}' >&2; exit 1")
        answer = slurm.would_accept()
        assert isinstance(answer, slurm.CouldNotAsk)
        assert words in str(answer)


def test_sbatch_that_retries_for_ever_is_ended_early(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """At MaxJobCount sbatch sleeps and retries: it is a limit, not a time-out.

    Behind a site's wrapper, too, it must not submit later what we have reported as refused.
    """
    said = "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying"
    begun = f"echo $! > {tmp_path}/pid; touch {tmp_path}/begun"
    program("sbatch", f"echo '{said}' >&2; sleep 600 & {begun}; wait")
    _, error = given_time(_submit(tmp_path), (tmp_path / "begun").exists)
    assert isinstance(error, LimitReached)
    assert error.limit == "MaxJobCount"
    assert error.maybe_accepted  # it was ended while it tried
    pid = int((tmp_path / "pid").read_text())
    wait_for(f"end of {pid}", lambda: not is_alive(pid))


def _submit(folder: Path) -> Callable[[float], SchedulerError]:
    """Return a function that submits, waits some seconds, and returns what is raised then."""

    def submit(seconds: float) -> SchedulerError:
        with pytest.raises(SchedulerError) as caught:
            slurm.submit(folder / "job.sh", timeout=seconds)
        return caught.value

    return submit


@pytest.mark.parametrize(
    "line",
    ["12", "12;far", "Submitted batch job 12 on cluster far", "Submitted batch job 12, on far."],
)
@pytest.mark.parametrize(
    "site", [[], ["4321.50 core-hours left"], ["17 jobs of yours wait", "job 18 ended"], ["12"]]
)
@pytest.mark.parametrize("end", ["\n", "\r\n", "\x1b[0m\n"])
def test_a_greeting_around_the_job_id_is_not_the_job_id(line: str, site: list[str], end: str):
    """The id has a line of its own, whatever numbers a site prints before and after."""
    for printed in ([*site, line], [line, *site], [*site, line, *site]):
        assert [job.key for job in job_ids(end.join(printed) + end)] == [(12, None)]


def test_without_one_clear_id_it_is_an_open_question(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """None at all, or several: the next command looks into the queue."""
    program("sbatch", "echo Welcome; echo 12; echo 17")
    with pytest.raises(Unanswered, match="several job ids, 12, 17, in") as caught:
        slurm.submit(tmp_path / "job.sh")
    assert caught.value.maybe_accepted
    program("sbatch", "echo Welcome")
    with pytest.raises(Unanswered, match="no job id but 'Welcome'") as caught:
        slurm.submit(tmp_path / "job.sh")
    assert caught.value.maybe_accepted


def test_an_answer_without_an_id_is_shown_in_part(
    program: Callable[[str, str], Path], tmp_path: Path
):
    """A site may greet at length, or refuse with its rules."""
    script = tmp_path / "job.sh"
    for code in (0, 1):
        often = "%.0s' $(seq 9999)"
        program("sbatch", f"printf 'Welcome. {often}; printf 'No. {often} >&2; exit {code}")
        with pytest.raises(SchedulerError) as caught:
            slurm.submit(script)
        assert len(str(caught.value)) < 1000
