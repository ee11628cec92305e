"""Options of sbatch: every spelling, what nobody may set, and the variables of whoever submits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcsweep.spec import directives

WORDS = st.text("abz019=,:%'\" -#\\$", min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("entry", "options"),
    [
        *((text, [("time", "60")]) for text in ("--time=60", "--time 60", "-t60", "-t 60")),
        ("--no-req", [("no-requeue", "")]),
        ("--exclusive --mem=3G", [("exclusive", ""), ("mem", "3G")]),
        ("-Hp gpu -N2", [("hold", ""), ("partition", "gpu"), ("nodes", "2")]),
        ("--comment='a  b' -k", [("comment", "a  b"), ("no-kill", "")]),
        ("--gres=gpu:1", [("gres", "gpu:1")]),  # and not the beginning of --gres-flags
        ("--no", [("no", "")]),  # of --no-kill and --no-requeue: sbatch refuses it
        ("--of-a-later-version=1", [("of-a-later-version", "1")]),
    ],
)
def test_options_are_read_as_sbatch_reads_them(entry: str, options: list[tuple[str, str]]):
    """Long and short, shortened, and several in one line."""
    assert directives.read(entry) == options


@pytest.mark.parametrize(
    "entry",
    [
        *("--array=0-3", "-a 0-3", "-a0", "--arr=1", "--exclusive -a1", "-Ha1", "-kWa1"),
        *("--chdir=/tmp", "-D/tmp", "--chd /tmp", "--wait", "-W", "--parsable", "-Q", "--quiet"),
        *("--clusters=a", "--cluster=a", "-M a", "--wrap=true", "--test-only", "-V"),
    ],
)
def test_what_hpcsweep_relies_on_is_refused_in_every_spelling(entry: str):
    """The complaint names the option."""
    names = [name for name, _ in directives.read(entry) if name in directives.RESERVED]
    with pytest.raises(ValueError, match=f"--{names[0]} "):
        directives.checked(entry)


def test_of_opposites_the_last_counts():
    """As of an option that is given twice."""
    found = directives.named(["--requeue", "--no-requeue -t1", "-t2"])
    assert found == {"no-requeue": "", "time": "2"}
    assert "no-requeue" not in directives.named(["--no-req", "--requeue"])


def options_of(own: tuple[str, ...] = (), **environment: str) -> list[str]:
    """Return the entries that variables add to a profile with these options."""
    set_ = {f"SBATCH_{name}": value for name, value in environment.items()}
    return [one.entry for one in directives.taken(set_, own)]


def test_each_variable_is_an_option_unless_the_profile_has_one_for_the_same():
    """Memory, GPUs and requeueing can be said in several ways."""
    variables = {"ACCOUNT": "a b", "TIMELIMIT": "9", "MEM_PER_NODE": "7", "GPUS": "1"}
    every = ["'--account=a b'", "--gpus=1", "--mem=7", "--time=9"]
    assert options_of(**variables) == every
    assert options_of(("mem-per-cpu", "time", "gres"), **variables) == every[:1]
    assert options_of(("requeue",), NO_REQUEUE="1") == []


@pytest.mark.parametrize("value", ["", "yes", "1", "no", "0", "user"])
def test_a_flag_is_set_as_sbatch_says(value: str):
    """Empty, `yes` or a number but 0; `--exclusive` takes words, too."""
    wanted = {"no": [], "0": [], "user": ["--exclusive=user"]}.get(value, ["--exclusive"])
    assert options_of(EXCLUSIVE=value) == wanted
    assert options_of(ACCOUNT="", REQUEUE="off") == []


@pytest.mark.parametrize(
    "name",
    [
        *("ARRAY_INX", "OUTPUT", "ERROR", "JOB_NAME", "WAIT", "CLUSTERS", "OPEN_MODE", "SIGNAL"),
        *("INPUT", "DEBUG", "OF_A_LATER_VERSION"),
        *("COMMENT", "MEM", "NODELIST", "TIME"),  # sbatch does not read these
    ],
)
def test_a_variable_that_would_mislead_hpcsweep_is_not_taken(name: str):
    """It says why."""
    (found,) = directives.variables({f"SBATCH_{name}": "1", "SLURM_CONF": "x"})
    assert found.refusal.startswith(f"SBATCH_{name} is not taken: ")
    assert options_of(**{name: "1"}) == []


def test_inside_a_job_no_variable_is_taken():
    """It may be of that job."""
    (found,) = directives.variables({"SBATCH_ACCOUNT": "a", "SLURM_JOB_ID": "1"})
    assert "inside a job" in found.why_not
    (found,) = directives.variables({"SBATCH_ACCOUNT": "a\n#SBATCH --uid=0"})
    assert "line end" in found.why_not


@given(WORDS)
def test_whatever_a_variable_holds_comes_back_as_its_options_value(value: str):
    """Blanks, quotes and signs of the shell are kept."""
    (entry,) = options_of(RESERVATION=value)
    assert directives.read(entry) == [("reservation", value)]
