"""The job script, run by bash for real: environments, failures, signals, profilers."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import hpcsweep
import resultsfolder
from drafts import written
from gate import Gate
from hpcsweep.catalog.columns import CLOCKED
from hpcsweep.cluster.slurm import job_script
from hpcsweep.errors import EXIT_REQUEUE, Refused
from hpcsweep.spec import profile, sweep_file
from hpcsweep.store import ledger
from hpcsweep.submit import request
from localruns import Desk
from waiting import wait_for

if TYPE_CHECKING:
    from hpcsweep.store.folders import SubmissionDir

SOURCE = Path(hpcsweep.__file__).parents[1]
QUICK = "workload: noop\naxes: {model: [a, b]}\n"
# Runs what it is given, keeps the exit code for itself, and writes its report last.
NSYS = """#!/bin/bash
printf '%s\\n' "$@" >"$RECORD.$$"
for word in "$@"; do case $word in --output=*) report=${word#--output=} ;; esac; done
while [ "$1" != bash ]; do shift; done
"$@"
echo report >"${report//%%/%}"
"""
NCU = NSYS.replace("--output=*) report=${word#--output=}", "*.ncu-rep) report=$word")
# As the real one does: it becomes the program that it is given.
ROCPROFV3 = """#!/bin/bash
printf '%s\\n' "$@" >"$RECORD.$$"
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


@dataclass
class Node:
    """A machine that runs job scripts: its programs, and what it knows of them."""

    desk: Desk
    bin: Path

    @property
    def start_up(self) -> Path:
        """Return the site's start-up file; bash expands its name, so that one is plain."""
        return self.desk.folder.parent / "site.sh"

    def program(self, name: str, text: str) -> Path:
        """Put a program on the PATH."""
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def submission(self, site: str, text: str = QUICK, gpu: str = "l40") -> SubmissionDir:
        """Return a submission as `submit` leaves it before it calls sbatch."""
        path = self.desk.folder / "site.yaml"
        path.write_text(f"gpu: {gpu}\n{site}")
        asked = request.make(sweep_file.load(self.desk.spec(text)), profile.load(path))
        submission = written(self.desk.sweep(), asked).submission
        job_script.write(submission, asked.profile, 1)
        return submission

    def start(self, submission: SubmissionDir, *options: str, **env: str) -> subprocess.Popen[str]:
        """Start the script as slurmd does: in the submission's folder, stdout and stderr as one."""
        return subprocess.Popen(
            ["bash", *options, str(submission.script)],
            cwd=submission.path,
            env={
                **os.environ,
                "PATH": f"{self.bin}:{os.environ['PATH']}",
                "RECORD": str(self.desk.folder / "record"),
                "TMPDIR": str(self.desk.folder / "tmp"),
                "SLURM_JOB_ID": "7",
                **env,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, submission: SubmissionDir, *options: str, **env: str) -> tuple[int, str]:
        """Run the script to its end; return its exit code and its log."""
        running = self.start(submission, *options, **env)
        log, _ = running.communicate(timeout=300)
        return running.returncode, log

    def arguments(self) -> list[list[str]]:
        """Return what the profiler was called with, call by call."""
        records = sorted(self.desk.folder.glob("record.*"), key=lambda p: p.stat().st_mtime_ns)
        return [path.read_text().splitlines() for path in records]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Give a machine whose folders have hostile names."""
    folder = tmp_path / 'it\'s a 100% "hostile" $(touch pwned) `folder` ünï'
    for name in ("bin", "tmp"):
        (folder / name).mkdir(parents=True)
    node = Node(Desk(folder), folder / "bin")
    node.program("scontrol", '#!/bin/bash\necho "scontrol $*"\nexit 1\n')
    return node


def environment_at(folder: Path) -> Path:
    """Make a virtual environment in which hpcsweep can be imported."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "hpcsweep.pth").write_text(f"{SOURCE}\n")
    return folder


def rows(submission: SubmissionDir) -> list[dict[str, str]]:
    """Return every row of every attempt."""
    found = submission.sweep_dir.shards_of(submission.id)
    return [row for shard in found for row in resultsfolder.read_shard(shard).rows]


def test_a_virtual_environment_is_activated(node: Node):
    """The worker runs on its Python; Python's own script cannot take every name of a folder."""
    venv = environment_at(node.desk.folder.parent / "it's mine")
    submission = node.submission("venv: ../it's mine\nsetup: ['command -v python']\n")
    code, log = node.run(submission, "-eu")
    assert (code, len(rows(submission))) == (0, 2), log
    assert log.splitlines()[0] == str(venv / "bin" / "python")


HOOK = r"""#!/bin/bash
# What conda's own program does, as far as an activation needs it.
case "$1 $2" in
"shell.bash hook")
  printf 'conda() { local text; text=$(%q shell.posix "$@") && eval "$text"; }\n' "$0" ;;
"shell.posix activate")
  if [ ! -d "$ENVIRONMENTS/$3" ]; then echo "EnvironmentNameNotFound: $3" >&2; exit 1; fi
  echo "export CONDA_DEFAULT_ENV='$3'; PATH=\"\$ENVIRONMENTS/$3/bin:\$PATH\""
  echo '[ "$NOT_SET_ANYWHERE" = 1 ] || :' ;;
*) exit 2 ;;
esac
"""


@pytest.mark.parametrize("where", ["on PATH", "on PATH, not at CONDA_EXE", "in CONDA_EXE"])
def test_a_conda_environment_is_activated(node: Node, where: str):
    """By conda's own hook, with an activation that `set -u` would end."""
    environment_at(node.desk.folder / "envs" / "deep learning")
    env = {"ENVIRONMENTS": str(node.desk.folder / "envs")}
    if where.startswith("on PATH"):
        node.program("conda", HOOK)
        if "CONDA_EXE" in where:  # that of the login node
            env["CONDA_EXE"] = "/opt/login/conda"
    else:
        env["CONDA_EXE"] = str(node.program("conda-of-the-site", HOOK))
    submission = node.submission("conda: deep learning\nsetup: ['command -v python']\n")
    code, log = node.run(submission, "-eu", **env)
    assert (code, len(rows(submission))) == (0, 2), log
    assert log.splitlines()[0].endswith("envs/deep learning/bin/python")


MODULE = """\
module() {
  [ "$1" = load ] && [ "$2" != missing ] || { echo "Unable to locate a modulefile" >&2; return 1; }
  export LOADED="${LOADED:+$LOADED:}$2"
}
"""


def test_modules_are_loaded_in_order(node: Node):
    """By the shell function that a site's start-up file defines."""
    node.start_up.write_text(MODULE)
    site = f"modules: [cuda/12.4, gcc]\nsetup: ['echo \"$LOADED\"']\npython: {sys.executable}\n"
    submission = node.submission(site)
    code, log = node.run(submission, BASH_ENV=str(node.start_up))
    assert (code, len(rows(submission))) == (0, 2), log
    assert log.splitlines()[0] == "cuda/12.4:gcc"


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ("setup: ['true', 'no_such_tool --x', 'touch late']", "failed: no_such_tool --x"),
        ("setup: ['exit 0', 'touch late']", "failed: exit 0"),
        ("setup: ['. /no/such/file', 'touch late']", "failed: . /no/such/file"),
        ("init: [./no_such_file]\nmodules: [cuda]", "failed: ./no_such_file"),
        ("modules: [cuda]\nsetup: ['touch late']", "has no `module`: let `init` in the profile"),
        ("setup: [ml cuda, 'touch late']", "has no `ml`: let `init` in the profile source what"),
        ("modules: [missing]\nsetup: ['touch late']", "failed: module load missing"),
        ("conda: x\nsetup: ['touch late']", "has no `conda`: let `init` in the profile source"),
        ("venv: nowhere\nsetup: ['touch late']", "nowhere/bin/activate"),
        ("python: /no/such/python", "/no/such/python on "),
        ("python: /bin/true\nwrapper: nsys", "nsys is not on PATH on "),
        ("python: /bin/true\nwrapper: rocprofv3", "rocprofv3 is not on PATH on "),
    ],
)
def test_what_cannot_be_set_up_ends_the_job_and_is_named(node: Node, site: str, words: str):
    """Exit code 5, a line in the log, no later line run, no point touched, nothing left behind."""
    node.start_up.write_text(MODULE if "missing" in site else "")
    submission = node.submission(site + "\n")
    code, log = node.run(submission, BASH_ENV=str(node.start_up))
    assert code == Refused.exit_code
    assert words in next(line for line in log.splitlines() if line.startswith("hpcsweep: "))
    assert not (submission.path / "late").exists()
    assert submission.attempts(0) == []
    assert list((node.desk.folder / "tmp").iterdir()) == []


def test_a_python_without_hpcsweep_is_named(node: Node):
    """A fresh environment that nobody installed it into."""
    bare = node.desk.folder / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    code, log = node.run(node.submission("venv: bare\n"), PYTHONPATH="")
    assert code == Refused.exit_code
    assert "cannot import hpcsweep" in log


def test_the_log_of_a_task_on_an_amd_gpu_names_it(node: Node):
    """And the environment of the profile reaches the supervisor."""
    node.program("rocm-smi", "#!/bin/bash\necho 'one MI250'\n")
    spy = "#!/bin/bash\ncase $3 in hpcsweep.node.supervisor) env;; esac\n"
    python = node.program("python-spy", spy)
    site = f"python: {json.dumps(str(python))}\nenv: {{MIOPEN_FIND_MODE: FAST}}\n"
    submission = node.submission(site, gpu="mi250")
    code, log = node.run(submission)
    assert code == 0, log
    assert "one MI250" in log
    assert "MIOPEN_FIND_MODE=FAST" in log
    assert list((node.desk.folder / "tmp").iterdir()) == []


WRAPPERS = {"nsys": (NSYS, "nsys-rep"), "ncu": (NCU, "ncu-rep"), "rocprofv3": (ROCPROFV3, "")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrapper", "number"),
    [
        ("nsys", signal.SIGTERM),
        ("ncu", signal.SIGUSR1),
        ("rocprofv3", signal.SIGUSR1),
    ],
)
def test_signals_and_exit_codes_go_around_a_profiler(node: Node, wrapper: str, number: int):
    """The supervisor is told to stop, the profiler finishes its report.

    The next attempt measures the rest, into a report of its own. Only USR1 asks for a requeue:
    SIGTERM is a cancellation, which a requeue would undo.
    """
    program, suffix = WRAPPERS[wrapper]
    node.program(wrapper, program)
    site = f"wrapper: {wrapper}\nwrapper_options: ['--more=a b']\npython: {sys.executable}\n"
    site += "kill_wait: 1\n"  # what is at the gate then is dropped
    gate = Gate(node.desk)
    submission = node.submission(site, gate.sweep(points=20, passes=3))
    first = node.start(submission, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="0")
    wait_for("point at the gate", gate.waiting)
    first.send_signal(number)
    log, _ = first.communicate(timeout=300)
    assert first.returncode == EXIT_REQUEUE, log
    assert ("scontrol requeue 7_0" in log) is (number == signal.SIGUSR1)
    assert 3 <= len(rows(submission)) < 20
    gate.open()
    code, log = node.run(submission)
    assert code == 0, log
    found = rows(submission)
    assert len(found) == len({row["point_id"] for row in found}) == 20
    for attempt, arguments in enumerate(node.arguments()):
        assert "--more=a b" in arguments
        if suffix:
            assert (submission.shards / f"0.{attempt}.{suffix}").read_text() == "report\n"
        else:
            at = arguments.index("--output-file")
            assert arguments[at - 1 : at + 2] == [
                str(submission.shards),
                "--output-file",
                f"0.{attempt}.%pid%",
            ]
    assert list((node.desk.folder / "tmp").iterdir()) == []


def test_rows_of_a_profiled_run_hold_no_times_and_settle_nothing(node: Node):
    """They say so; another run under the profiler has nothing left, a real one everything."""
    node.program("nsys", NSYS)
    site = f"wrapper: nsys\npython: {sys.executable}\n"
    failing = "measure: {fail: [{when: {model: b}, how: error}]}\n"
    submission = node.submission(site, QUICK + failing)
    code, log = node.run(submission)
    assert code == 0, log
    good, bad = sorted(rows(submission), key=itemgetter("model"))
    assert {good["status"], bad["status"]} == {"profiled"}
    assert (good["profiler"], good["flags"], good["valid"]) == ("nsys", "profiled", "false")
    assert (good["status_reason"], bad["status_reason"]) == (
        "",
        "error: RuntimeError: injected error",
    )
    assert [name for name in CLOCKED if good[name]] == []
    assert (good["layer_rows"], good["samples_bytes"]) == ("0", "0")
    run = node.desk.sweep()
    assert ledger.read_ledger(run).settled() == set()
    assert len(ledger.read_ledger(run, profiled=True).settled()) == 2
    assert node.run(node.submission(f"python: {sys.executable}\n", QUICK + failing))[0] == 0
    assert node.desk.run("collect", "sweep").returncode == 0
    with (node.desk.results / "sweep" / "overall.csv").open() as merged:
        assert {row["status"] for row in csv.DictReader(merged)} == {"ok", "error"}


@pytest.mark.parametrize(
    ("program", "expected", "words"),
    [
        (NCU + "exit 9\n", (0, 2), "hpcsweep: ncu ended with exit code 9"),
        ("#!/bin/bash\necho 'unknown option' >&2\nexit 1\n", (1, 0), "unknown option"),
    ],
)
def test_a_profiler_that_fails_fails_the_job_only_if_it_started_nothing(
    node: Node, program: str, expected: tuple[int, int], words: str
):
    """Where the points were done, the log says what the report is worth."""
    node.program("ncu", program)
    submission = node.submission(f"wrapper: ncu\npython: {sys.executable}\n")
    code, log = node.run(submission)
    assert (code, len(rows(submission))) == expected
    assert words in log
