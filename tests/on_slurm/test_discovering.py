"""From an unknown cluster to rows: docs/clusters.md on a real Slurm, and what was discovered."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

import pytest

from hpcsweep.cli import main
from hpcsweep.errors import Refused
from hpcsweep.spec import profile
from labtools import wait_for_the_end
from localruns import Desk
from paths import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from lab import Lab

PAGE = ROOT / "docs/clusters.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NODES = {"v100": "v100n1", "l40s": "l40sn1", "mi250": "mi250n1"}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """Give an empty folder, and work in it."""
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)


@pytest.mark.slow
def test_the_page_leads_from_an_unknown_cluster_to_rows(cluster: Lab, desk: Desk):
    """Every file is written as it stands there, every command run, every line of output seen."""
    printed = ""
    for kind, text in BLOCK.findall(PAGE.read_text()):
        if kind == "yaml":
            name = text.splitlines()[0].removeprefix("# ")
            (desk.folder / name).write_text(text)
        elif kind == "text":
            assert set(text.splitlines()) <= set(printed.splitlines()), printed
        for line in text.splitlines() if kind == "console" else ():
            wait_for_the_end(cluster)
            program, *arguments = shlex.split(line.removeprefix("$ "))
            assert program == "hpcsweep"
            done = desk.run(*arguments)
            printed = done.stdout
            wanted = Refused.exit_code if "typo" in line else 0
            assert done.returncode == wanted, (line, done.stdout, done.stderr)
    first = desk.sweep("first")
    assert len(desk.rows("first")) == 80
    assert len(first.overall.read_text().splitlines()) == 81
    for shard in first.shards():
        gpu = shard.submission.split("-")[-1].split(".")[0]
        assert json.loads(shard.env.read_text())["slurm"]["SLURMD_NODENAME"] == NODES[gpu]


def test_every_gpu_type_gets_a_profile_that_the_doctor_passes(
    cluster: Lab, desk: Desk, capsys: pytest.CaptureFixture[str]
):
    """Partition, feature, GRES, time and shares are this cluster's; accounts are left open."""
    assert not main(["discover"], standalone_mode=False)
    for gpu, node in NODES.items():
        found = profile.load(gpu)
        assert found.path.parent.name == "cluster_profiles"
        assert (found.gpu, found.partition, found.gres) == (gpu, gpu, f"gpu:{gpu}:1")
        assert (found.time_seconds, found.mem_mb, found.cpus_per_task) == (86400, 31 * 1024, 8)
        assert found.account is found.qos is None
        text = found.path.read_text()
        assert node in text
        assert "# account: one of lab, " in text
        assert not main(["doctor", "--cluster", gpu], standalone_mode=False), capsys.readouterr()
    assert profile.load("v100").constraint == "gpu2v100"
    assert profile.load("l40s").constraint == "gpul40s"


def test_a_profile_that_exists_is_kept(
    cluster: Lab, desk: Desk, capsys: pytest.CaptureFixture[str]
):
    """Unless one says --force; `--out -` and --json write nothing at all."""
    mine = desk.folder / "site/v100.yaml"
    mine.parent.mkdir()
    mine.write_text("gpu: mine\n")
    for out, *more in (["-"], ["site", "--json"]):
        main(["discover", "--out", out, *more], standalone_mode=False)
    assert [path.name for path in mine.parent.iterdir()] == ["v100.yaml"]
    capsys.readouterr()
    for _ in range(2):
        main(["discover", "--out", "site"], standalone_mode=False)
    out = capsys.readouterr().out
    assert "v100.yaml: exists and was kept" in out
    assert "mi250.yaml: unchanged" in out
    assert mine.read_text() == "gpu: mine\n"
    main(["discover", "--out", "site", "--force"], standalone_mode=False)
    assert profile.load(mine).gpu == "v100"


NOOP = "workload: noop\naxes: {model: [a], gpu: [v100, l40]}\n"


def test_a_profile_that_may_get_any_gpu_is_told_so_and_those_of_the_example_may_not(
    cluster: Lab, desk: Desk
):
    """The partition `gpu` has three kinds of GPUs; the study asked for two of them."""
    spec = desk.spec(NOOP)
    text = "gpu: l40\ngpu_name: 'L40S?$'\npartition: gpu\ngres: gpu:1\ntime: 5\nmem: 100M\n"
    (desk.folder / "any.yaml").write_text(text)
    done = desk.run("submit", desk.spec(NOOP, "other.yaml"), "--cluster", "any.yaml")
    assert "3 nodes match this profile, 1 of them with L40S" in done.stderr
    assert "add `constraint: gpul40s`" in done.stderr
    ours = [ROOT / f"examples/{name}.yaml" for name in ("gpu2v100", "gpul40s")]
    done = desk.run("submit", spec, *(word for path in ours for word in ("--cluster", path)))
    assert done.returncode == 0, done.stderr
    assert "match this profile" not in done.stderr
    wait_for_the_end(cluster)
    assert {row["gpu"]: row["node"] for row in desk.rows("sweep")} == {
        "v100": "v100n1",
        "l40": "l40sn1",
    }
