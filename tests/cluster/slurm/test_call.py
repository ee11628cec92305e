"""Running Slurm's programs: absent, hanging, failing, printing nonsense.

Programs are stood in for only where a real cluster cannot be made to do it; tests/on_slurm talks to
a real one.
"""

from __future__ import annotations

import os
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest

from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import CouldNotAsk, Unanswered, site
from hpcsweep.errors import MissingDependency, SchedulerError
from waiting import given_time

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 5400),
        ("24:00:00", 86400),
        ("1-02:03", 93780),
        ("UNLIMITED", None),
        ("INFINITE", None),
        ("N/A", None),
        ("", None),
        ("0:00", None),
    ],
)
def test_slurm_times_are_read_in_every_form(text: str, seconds: int | None):
    """As limits and as times that passed; no limit, and what is no time, are None."""
    assert slurm.duration(text) == seconds


@pytest.mark.parametrize("read", [slurm.number, slurm.amount, slurm.duration])
def test_a_number_of_thousands_of_digits_is_none(read):
    """Python refuses to read it."""
    assert read("9" * 5000) is None


SINCE = datetime(2026, 1, 1, tzinfo=timezone.utc)
NO_CONF = "no slurm.conf was found; set SLURM_CONF, or work on a login node"


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
        site.nodes(),
        site.partitions(),
        slurm.hostnames("a[1-2]"),
        slurm.would_accept(tmp_path / "job.sh"),
    ]
    assert all(isinstance(a, CouldNotAsk) and a.text.startswith("not found") for a in answers)
    assert len(slurm.survey(["1"], SINCE).unanswered) == 2
    with pytest.raises(MissingDependency, match="sbatch: not found"):
        slurm.submit(tmp_path / "job.sh")
    with pytest.raises(SchedulerError, match="scancel: not found"):
        slurm.cancel(["1"])


def test_a_program_that_hangs_is_ended(
    program: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The answer after our patience is that there is none, and the program is gone."""
    said = "echo 'squeue: error: the moon is full, retrying' >&2"  # it may be the reason
    program("squeue", f"{said}; echo $$ > {tmp_path}/pid; touch {tmp_path}/begun; exec sleep 600")
    seconds, answer = given_time(_queue(monkeypatch), (tmp_path / "begun").exists)
    longer = f"`slurm_timeout = {6 * seconds:g}` in hpcsweep.toml waits longer"
    told = f"squeue: no answer within {seconds:g} s ({longer}); the moon is full, retrying"
    assert str(answer) == told
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def _queue(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], Any]:
    """Return a function that asks squeue, and waits some seconds for the answer."""

    def ask(seconds: float) -> Any:
        monkeypatch.setattr(slurm.call, "TIMEOUT", seconds)
        return slurm.queue(["1"])

    return ask


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
    assert "Exec format error" in str(answer)


@pytest.mark.parametrize(
    "then",
    [
        "echo 'x: fatal: Could not establish a configuration source' >&2; exit 1",
        "echo 'x: fatal: Unable to process configuration file' >&2; exit 1",
    ],
)
def test_a_missing_slurm_conf_is_no_controller_that_is_down(
    program: Callable[[str, str], Path], then: str, tmp_path: Path
):
    """Waiting does not help: the advice is where to look, in a question and in a submission."""
    for name in ("scontrol", "sbatch"):
        program(name, then)
    assert str(site.describe()) == f"scontrol: {NO_CONF}"
    with pytest.raises(slurm.Rejected, match=f"^sbatch: {NO_CONF}$"):
        slurm.submit(tmp_path / "job.sh")


def test_a_program_that_looks_for_its_slurm_conf_for_ever_is_told_so(
    program: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is ended, and its words are no controller that is down, either."""
    said = "x: error: s_p_parse_file: cannot stat file /a: retrying in 1sec"
    program("scontrol", f"echo '{said}' >&2; touch {tmp_path}/said; exec sleep 600")

    def ask(seconds: float) -> Any:
        monkeypatch.setattr(slurm.call, "TIMEOUT", seconds)
        return site.describe()

    _, answer = given_time(ask, (tmp_path / "said").exists)
    assert str(answer) == f"scontrol: {NO_CONF}"


def test_any_other_failure_is_told_in_slurms_words(program: Callable[[str, str], Path]):
    """The last line of a program's errors is the reason; an exit code where there is none."""
    program("sinfo", "echo first >&2; echo 'sinfo: error: the moon is full' >&2; exit 3")
    program("scontrol", "exit 4")
    assert str(site.nodes()) == "sinfo: the moon is full"
    assert str(site.partitions()) == "scontrol: exit code 4"


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


def test_a_nul_byte_in_an_answer_is_replaced(program: Callable[[str, str], Path]):
    """What Slurm names is an argument of the next question, and no argument can hold one."""
    program("scontrol", r"printf 'a\0b'")
    assert slurm.call.ask("scontrol", "ping") == "a\ufffdb"
