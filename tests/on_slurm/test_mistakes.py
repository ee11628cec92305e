"""Mistakes in a profile are told before the queue: on a real Slurm, which confirms each of them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hpcsweep.cli import main
from hpcsweep.cluster import slurm
from hpcsweep.cluster.slurm import profile_checks, site
from hpcsweep.errors import Refused, ResultsError, SchedulerError
from hpcsweep.spec import profile
from labtools import arrays, job_numbers, queue, unfinished
from localruns import Desk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from lab import Lab
    from labtools import StartCluster

SPEC = "name: s\nworkload: noop\naxes: {model: [a], input_size: [64]}\n"
GOOD = "gpu: v100\npartition: gpu\nconstraint: gpu2v100\ngres: 'gpu:1'\ntime: 30\n"
MORE_PARTITIONS = (
    "PartitionName=small Nodes=ALL AllowAccounts=small",
    "PartitionName=few Nodes=ALL AllowQos=few",
    "PartitionName=shut Nodes=ALL State=INACTIVE",
    "PartitionName=draining Nodes=ALL State=DRAIN",
    "PartitionName=tiny Nodes=ALL MaxMemPerNode=1000 MaxCPUsPerNode=2",
)
# What a profile says otherwise than GOOD; what is told; what to write instead.
MISTAKES = {
    "partition": ("partition: gpuu", "no partition 'gpuu'", "there are: "),
    "down": ("partition: closed", "closed is DOWN", "`sinfo -s` lists them"),
    "inactive": ("partition: shut", "shut is INACTIVE", "`sinfo -s` lists them"),
    "drain": ("partition: draining", "draining is DRAIN", "Required partition not available"),
    "feature": ("constraint: gpu2v10", "'gpu2v100'?", "there are: "),
    "both features": (
        "constraint: gpul40s&gpu2v10",
        "no feature 'gpu2v10'",
        "did you mean 'gpu2v100'",
    ),
    "counted feature": ("constraint: gpu2v1*1", "'gpu2v1'", "did you mean 'gpu2v100'"),
    "gres name": ("gres: 'gpuu:1'", "no gres 'gpuu'", "did you mean 'gpu'"),
    "gres type": ("gres: 'gpu:v10:1'", "no gres 'gpu:v10'", "did you mean 'gpu:v100'"),
    "gpus": (
        "gres: null\nsbatch_options: [--gpus=v10:1]",
        "no gres 'gpu:v10'",
        "did you mean 'gpu:v100'",
    ),
    "two ways": ("sbatch_options: [--gpus=v100:1]", "Invalid GRES", "with and without type"),
    "two memories": ("mem: 1G\nsbatch_options: [--mem-per-cpu=1G]", "mutually exclusive", "--mem"),
    "account": ("account: labb", "no account 'labb'", "did you mean 'lab'"),
    "qos": ("qos: fw", "no qos 'fw'", "did you mean 'few'"),
    "nodes of nodelist": ("nodelist: 'l40sn1'", "--nodelist=l40sn1", "1 of 3 match"),
    "no such node by name": ("nodelist: v100n9", "no node 'v100n9'", "did you mean 'v100n1'"),
    "mem": ("mem: 63G", "--mem=63G", "16 CPUs 64000M"),
    "mem of partition": ("partition: tiny\nmem: 2G", "MaxMemPerNode", "write `mem: 1000M`"),
    "cpus of partition": (
        "partition: tiny\ncpus_per_task: 4\nmem: 500M",
        "--cpus-per-task=4",
        "Requested node configuration is not available",
    ),
    "nodes": ("nodes: 2", "--nodes=2", "1 of 3 match"),
    "time": ("partition: short\ntime: '2:00:00'", "00:30:00", 'write `time: "00:30:00"` or less'),
    "time of qos": ("qos: brief\ntime: 60", "QOSMaxWallDurationPerJobLimit", "`sacctmgr show qos"),
    "time of a lenient qos": ("qos: calm\ntime: 60", "your QOS, 00:20:00", 'write `time: "00:20'),
    "gres elsewhere": (
        "partition: mi250\nconstraint: null\ngres: 'gpu:v100:1'",
        "0 of 1 match partition mi250, gres gpu:v100:1",
        "gpu:mi250:2 mi250 16 CPUs 64000M",
    ),
    "verbatim": ("sbatch_options: ['-p gpuu']", "no partition 'gpuu'", "there are: "),
}


@pytest.fixture(scope="module")
def _partitions(_shared: Lab) -> Iterator[None]:
    """Give the shared cluster a few more partitions, as a site's administrator would."""
    for line in MORE_PARTITIONS:
        _shared.run("scontrol", "create", *line.split())
    yield
    for line in MORE_PARTITIONS:
        _shared.run("scontrol", "delete", line.split()[0])


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Give a folder with a sweep and a good profile, and work in it."""
    (tmp_path / "cluster_profiles").mkdir()
    (tmp_path / "cluster_profiles/good.yaml").write_text(GOOD)
    monkeypatch.chdir(tmp_path)
    desk = Desk(tmp_path)
    desk.spec(SPEC, "s.yaml")
    return desk


def _write(desk: Desk, text: str, name: str = "bad") -> None:
    (desk.folder / f"cluster_profiles/{name}.yaml").write_text(f"extends: good\n{text}\n")


def _hpcsweep(*arguments: str) -> int:
    """Run a command in this process: there are many of them here."""
    return main(arguments, standalone_mode=False) or 0


@pytest.mark.usefixtures("_partitions")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_before_anything_enters_the_queue(cluster: Lab, desk: Desk, name: str):
    """Refused, with what was found and what to write; no trace is left of the submission."""
    text, found, advice = MISTAKES[name]
    _write(desk, text)
    before = job_numbers()
    with pytest.raises(Refused) as caught:
        _hpcsweep("submit", "s.yaml", "--cluster", "bad")
    told = str(caught.value)
    assert found in told
    assert advice in told
    assert "--no-doctor" in told
    assert job_numbers() <= before
    assert desk.sweep("s").submissions() == []


@pytest.mark.usefixtures("_partitions")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("partition: small\naccount: lab", "small is for accounts small; yours: lab"),
        ("partition: few\nqos: normal", "few is for qos few; yours: normal"),
    ],
)
def test_a_partition_for_others_is_a_warning(
    cluster: Lab, desk: Desk, capsys: pytest.CaptureFixture[str], text: str, told: str
):
    """A newer Slurm may take the job; `status` tells of one that cannot start."""
    _write(desk, text)
    _hpcsweep("submit", "s.yaml", "--cluster", "bad")
    assert told in capsys.readouterr().err


@pytest.mark.usefixtures("_partitions")
def test_every_mistake_would_never_have_run(cluster: Lab, desk: Desk):
    """Slurm itself is asked, with --no-doctor: it refuses, or lets the job wait for ever."""
    waiting = {}
    for number, (name, (text, _, _)) in enumerate(MISTAKES.items()):
        _write(desk, text)
        desk.spec(SPEC.replace("name: s", f"name: s{number}"), "n.yaml")
        try:
            _hpcsweep("submit", "n.yaml", "--cluster", "bad", "--no-doctor")
        except SchedulerError:
            continue
        (submission,) = desk.sweep(f"s{number}").submissions()
        waiting[arrays(submission)[0].job_id] = name
    assert {"down", "mem of partition", "time"} <= {*waiting.values()}  # Slurm takes some of them

    def left() -> list[str]:
        """Return the jobs that run, or that wait for something that waiting may bring."""
        listed = queue(list(waiting))
        return [
            f"{waiting[str(job.id.job)]}: {job.state.name} {job.reason}"
            for job in listed
            if job.state.name != "PENDING" or not slurm.in_vain(job.reason)
        ]

    cluster.wait_for("reasons", left, enough=lambda found: not found)


def test_a_mistake_has_its_line_and_an_exit_code(cluster: Lab, desk: Desk):
    """Also in a dry run; on stderr, without a traceback."""
    _write(desk, "partition: gpuu\ntime: '99:00:00'")
    before = job_numbers()
    for more in ([], ["--dry-run"]):
        done = desk.run("submit", "s.yaml", "--cluster", "bad", *more)
        assert done.returncode == Refused.exit_code
        assert "cluster_profiles/bad.yaml:2: partition: no partition 'gpuu'" in done.stderr
        assert "cluster_profiles/bad.yaml:2: partition: sbatch refuses these jobs: " in done.stderr
        assert "Traceback" not in done.stderr
    done = desk.run("submit", "s.yaml", "--cluster", "bad", "--dry-run", "--no-doctor")
    assert (done.returncode, "`partition`" in done.stderr) == (7, True)
    assert job_numbers() <= before


def test_a_good_profile_is_sent_and_asked_about_once(
    cluster: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    """One round of questions per submit; none where there is nothing to send."""
    asked = []
    describe = site.describe
    monkeypatch.setattr(
        "hpcsweep.cluster.slurm.site.describe", lambda: asked.append(1) or describe()
    )
    for _ in range(2):
        assert _hpcsweep("submit", "s.yaml", "--cluster", "good") == 0
    assert len(asked) == 1


def test_one_bad_profile_keeps_all_of_them_out_of_the_queue(cluster: Lab, desk: Desk):
    """Unless it has nothing to send: what is on its way is not judged again."""
    _write(desk, "gpu: l40\npartition: gpuu")
    before = job_numbers()
    both = ["submit", "s.yaml", "--cluster", "good", "--cluster", "bad"]
    with pytest.raises(Refused, match=r"bad\.yaml:3: partition"):
        _hpcsweep(*both)
    assert job_numbers() <= before
    assert desk.sweep("s").submissions() == []
    _write(desk, "partition: gpuu")  # of the same GPU, so that there is nothing left for it
    assert _hpcsweep("submit", "s.yaml", "--cluster", "good") == 0
    assert _hpcsweep(*both) == 0


def test_nodes_out_of_service_are_a_warning(cluster: Lab, desk: Desk, capsys):
    """The jobs go in and wait; the administrator's reason is shown."""
    cluster.run("scontrol", "update", "nodename=v100n1", "state=drain", "reason=fan, | new")
    assert _hpcsweep("submit", "s.yaml", "--cluster", "good") == 0
    told = capsys.readouterr().err
    assert "warning: nodes: 1 of 3 match" in told
    assert "v100n1: fan, | new" in told
    assert _hpcsweep("doctor", "--cluster", "good") == 0


def test_a_cluster_without_accounts_is_checked_without_them(
    bare_cluster: Lab, desk: Desk, capsys: pytest.CaptureFixture[str]
):
    """It takes any account; the rest is told as ever."""
    _write(desk, "account: phys")
    assert _hpcsweep("submit", "s.yaml", "--cluster", "bad") == 0
    assert "warning:" not in capsys.readouterr().err
    desk.spec(SPEC.replace("[64]", "[65]"), "s.yaml")
    _write(desk, "account: phys\npartition: gpuu")
    with pytest.raises(Refused, match="no partition 'gpuu'"):
        _hpcsweep("submit", "s.yaml", "--cluster", "bad", "--dry-run")


def test_a_silent_controller_is_told_in_one_line_and_soon(
    bare_cluster: Lab, desk: Desk, monkeypatch: pytest.MonkeyPatch
):
    """It costs one patience, not one for each question."""
    (pid,) = (int(p.read_text()) for p in bare_cluster.directory.glob("run/slurmctld.pid"))
    os.kill(pid, signal.SIGSTOP)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(slurm.call, "TIMEOUT", 0.5)
            silent = site.describe()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert str(silent).startswith("scontrol: no answer within 0.5 s")
    (finding,) = profile_checks.look(profile.load("good"), silent)
    assert (finding.level, finding.detail) == ("warn", f"not checked: {silent}")


def test_results_that_cannot_be_written_are_told_first(cluster: Lab, desk: Desk):
    """Nothing is in the queue whose rows would be lost."""
    (desk.folder / "file").write_text("")
    before = job_numbers()
    with pytest.raises(ResultsError, match="cannot be written"):
        _hpcsweep("--results", "file/results", "submit", "s.yaml", "--cluster", "good")
    assert job_numbers() <= before
    assert _hpcsweep("--results", "file/x", "doctor", "--cluster", "good") == Refused.exit_code


# Plugins of a site: one in slurmctld fills in the partition, one in sbatch has a rule of its own.
JOB_SUBMIT = """\
function slurm_job_submit(job, parts, uid)
  if job.partition == nil or job.partition == "auto" then job.partition = "v100" end
  if job.comment == "none" then
    slurm.log_user("You must name a project")
    return slurm.ERROR
  end
  return slurm.SUCCESS
end
function slurm_job_modify(job, record, parts, uid) return slurm.SUCCESS end
return slurm.SUCCESS
"""
CLI_FILTER = """\
function slurm_cli_setup_defaults(options, early) return slurm.SUCCESS end
function slurm_cli_pre_submit(options, offset)
  if options["comment"] ~= "rule" then return slurm.SUCCESS end
  slurm.log_error("Requesting memory by node is not supported. Use --mem-per-cpu.")
  return slurm.ERROR
end
function slurm_cli_post_submit(offset, job, step) return slurm.SUCCESS end
"""


def test_the_plugins_of_a_site_have_their_say(special_cluster: StartCluster, desk: Desk):
    """They choose a partition that sinfo does not have, and refuse in their own words."""
    if not any(Path("/usr/lib").glob("*/slurm*/job_submit_lua.so")):
        pytest.skip("this Slurm has no plugin for Lua")
    lab = special_cluster(accounting=False)
    (lab.directory / "job_submit.lua").write_text(JOB_SUBMIT)
    (lab.directory / "cli_filter.lua").write_text(CLI_FILTER)
    conf = lab.directory / "slurm.conf"
    text = conf.read_text().replace(" Default=YES", "")
    conf.write_text(f"{text}JobSubmitPlugins=lua\nCliFilterPlugins=lua\n")
    lab.run("scontrol", "reconfigure")
    for name in ("null", "auto"):
        _write(desk, f"partition: {name}")
        found = {one.what: one for one in profile_checks.look(profile.load("bad"))}
        assert {one.level for one in found.values()} == {"ok"}
        assert found["partition"].detail.startswith("v100, which the cluster chooses: UP")
        assert found["nodes"].detail.startswith("1 of 1 match partition v100, constraint gpu2v100")
    for comment, words in (("none", "You must name a project"), ("rule", "Use --mem-per-cpu")):
        _write(desk, f"sbatch_options: [--comment={comment}]")
        with pytest.raises(Refused, match=words):
            _hpcsweep("submit", "s.yaml", "--cluster", "bad")
        with pytest.raises(slurm.Rejected, match=words):  # and not "may be in the queue"
            _hpcsweep("submit", "s.yaml", "--cluster", "bad", "--no-doctor")
        assert desk.sweep("s").submissions() == []
    assert unfinished() == []


def test_a_missing_log_folder_is_told(cluster: Lab, desk: Desk):
    """Slurm would take the job, fail it and leave no word."""
    _write(desk, f"sbatch_options: ['--output={desk.folder}/absent/%j.out']")
    with pytest.raises(Refused, match=r"bad.yaml:2: logs: .*/absent: No such file") as caught:
        _hpcsweep("submit", "s.yaml", "--cluster", "bad")
    assert "create the folder" in str(caught.value)
    assert _hpcsweep("doctor", "--cluster", "bad") == Refused.exit_code


def test_the_doctor_says_what_is_well_too(
    cluster: Lab, desk: Desk, capsys: pytest.CaptureFixture[str]
):
    """Limits of the partition, how many nodes match, how many are idle; as text and as JSON."""
    assert _hpcsweep("doctor", "--cluster", "good", "--json") == 0
    (told,) = json.loads(capsys.readouterr().out)["machines"]
    found = {one["what"]: one for one in told["findings"]}
    assert found["partition"]["detail"] == "gpu: UP, time up to 1-00:00:00"
    assert "1 of 3 match" in found["nodes"]["detail"]
    assert "1 idle (v100n1)" in found["nodes"]["detail"]
    assert found["sbatch"]["detail"] == "would accept these jobs: partition gpu, nodes v100n1"
    _write(desk, "partition: gpuu")
    assert _hpcsweep("doctor", "--cluster", "bad") == Refused.exit_code
    out = capsys.readouterr().out
    assert "fail  partition" in out
    assert "did you mean 'gpu'?" in out


def test_a_cluster_without_a_default_partition_wants_one(cluster: Lab, desk: Desk):
    """Without one, and without `partition`, nothing could be sent."""
    _write(desk, "partition: null")
    assert _hpcsweep("doctor", "--cluster", "bad") == 0
    cluster.run("scontrol", "update", "PartitionName=all", "Default=NO")
    try:
        with pytest.raises(Refused, match=r"partition: .*No partition specified or system default"):
            _hpcsweep("submit", "s.yaml", "--cluster", "bad")
    finally:
        cluster.run("scontrol", "update", "PartitionName=all", "Default=YES")
