"""What is asked for decides what is sent: the device that is here, the budget, the profile."""

from __future__ import annotations

import pytest

from hpcsweep.cluster.local import this_machine
from hpcsweep.cluster.local.this_machine import LocalDevice
from hpcsweep.errors import Refused
from hpcsweep.spec import profile, sweep_file
from hpcsweep.submit import draft, request
from localruns import FORTY_SLOW, TEN


def test_a_rehearsal_has_ids_of_its_own_and_equal_points_collapse(desk):
    """Two GPU types that are not here become one CPU point each."""
    desk.spec(TEN + "  gpu: [v100, l40]\n")
    done = desk.submit()
    assert "a rehearsal" in done.stdout
    assert {row["gpu"] for row in desk.rows()} == {"cpu"}
    assert len(desk.rows()) == 10


def test_a_budget_is_kept(desk):
    """What is expected to cost more is refused, and nothing is left behind."""
    desk.spec(FORTY_SLOW.replace("100}", "3600000}"))
    done = desk.submit("--max-gpu-hours", "0.5")
    assert done.returncode == Refused.exit_code
    assert "--max-gpu-hours 0.5" in done.stderr
    assert not desk.results.exists()


@pytest.mark.parametrize(("hours", "told"), [(0.00123, "0.00123"), (12345.6, "12345.6")])
def test_an_estimate_above_the_budget_is_told_with_as_many_digits(hours, told):
    """A small one, too."""
    with pytest.raises(Refused, match=f"the estimate of {told} GPU-hours exceeds"):
        draft.check_budget(hours * 3600, hours / 2)


def test_a_profile_that_takes_no_point_is_told_with_the_gpus_of_the_sweep(desk):
    """A mistake: nothing is sent, by no command."""
    desk.spec(TEN + "  gpu: [a100, h100]\n")
    (desk.folder / "v100.yaml").write_text("gpu: v100\n")
    told = (
        "hpcsweep: sweep: no point of this sweep matches profile v100: the sweep asks for gpu: "
        "a100, h100; the profile has gpu: v100\n"
    )
    for command in (["submit", "--no-doctor"], ["submit", "--dry-run"], ["estimate"], ["expand"]):
        done = desk.run(*command, "sweep.yaml", "--cluster", "v100.yaml")
        assert (done.returncode, done.stderr, done.stdout) == (2, told, "")
    assert not desk.results.exists()


def test_more_points_than_anybody_measures_are_refused_at_once(desk):
    """With their number and what to do; `expand` shows the first ten, and a sample is taken."""
    axes = "{model: [a], input_size: {start: 1, stop: 10000, step: 1}, batch_size: {start: 1, stop:"
    desk.spec(f"workload: noop\naxes: {axes} 1000, step: 1}}}}\n")
    for command in (["estimate"], ["expand", "--cluster", "local"]):
        done = desk.run(*command, "sweep.yaml")
        assert done.returncode == 2
        assert "10,000,000 points, at most 300,000 at a time; leave some out" in done.stderr
    assert desk.run("expand", "sweep.yaml").stdout.startswith("sweep: 10,000,000 points\n")
    assert "9 points" in desk.run("estimate", "sweep.yaml", "--sample", "3").stdout


@pytest.mark.parametrize(
    ("named", "device", "rehearsal"),
    [
        ("", "h100", False),
        ("  gpu: [cpu]\n", "cpu", False),
        ("  gpu: [cpu, h100]\n", "h100", False),
        ("  gpu: [cpu, v100]\n", "cpu", False),
        ("  gpu: [v100]\n", "h100", True),
    ],
)
def test_a_sweep_that_asks_for_the_cpu_gets_it_on_a_machine_with_a_gpu(
    desk, monkeypatch, named, device, rehearsal
):
    """Not the GPU under its name, as a rehearsal."""
    monkeypatch.setattr(this_machine, "local_device", lambda *_: LocalDevice(gpu="h100"))
    sweep = sweep_file.load(desk.spec(TEN + named))
    asked = request.make(sweep, profile.load("local"))
    assert (asked.device, asked.rehearsal) == (device, rehearsal)
    assert {point.axes["gpu"] for point in asked.points()} == {device}


def test_variables_of_the_profile_count_for_the_device(desk, monkeypatch):
    """Such as CUDA_VISIBLE_DEVICES: the points run with them."""
    seen = []
    here = LocalDevice(gpu="cpu")
    monkeypatch.setattr(this_machine, "local_device", lambda env: seen.append(env) or here)
    path = desk.spec("launcher: local\nenv: {CUDA_VISIBLE_DEVICES: 1}\n", "mine.yaml")
    request.make(sweep_file.load(desk.spec(TEN)), profile.load(path))
    assert seen == [{"CUDA_VISIBLE_DEVICES": "1"}]
