"""Patterns of maps that match no layer are refused before the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpcsweep.errors import SpecError
from hpcsweep.spec import profile, sweep_file
from hpcsweep.submit import request
from hpcsweep.submit.check_inputs import check_inputs

if TYPE_CHECKING:
    from localruns import Desk

SITE = "gpu: cpu\nlauncher: sbatch\ntime: 10\n"
SWEEP = """\
workload: inference
maps:
  early: &early
    "featurs.*": fft
    default: gemm
axes:
  model: [alexnet, "mymodel:net"]
  input_size: [64, 96]
  algorithm: [auto, *early, {"[0f]*": direct}]
"""
OWN = """\
from torch import nn
from pathlib import Path

def net():
    with Path(__file__).with_name("built").open("a") as file:
        print("built", file=file)
    print("a factory may print")
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())
"""
TOLD = """\
sweep.yaml:4: axes.algorithm[1].featurs.*: this pattern matches no convolution of alexnet; \
did you mean 'features.8'?
sweep.yaml:4: axes.algorithm[1].featurs.*: this pattern matches no convolution of mymodel:net; \
layers are 0 ...
"""


@pytest.mark.parametrize(
    "options",
    [
        ("--cluster", "local", "--cluster", "site.yaml"),
        pytest.param(("--cluster", "local"), marks=pytest.mark.slow),
        pytest.param(("--cluster", "site.yaml", "--dry-run"), marks=pytest.mark.slow),
    ],
)
def test_a_pattern_that_matches_no_layer_is_refused_before_the_queue(
    desk: Desk, options: tuple[str, ...]
) -> None:
    """Nothing is left behind. A network of the user's own is built once, whatever it prints."""
    desk.spec(SWEEP)
    desk.spec(SITE, "site.yaml")
    (desk.folder / "mymodel.py").write_text(OWN)
    done = desk.run("submit", "sweep.yaml", *options)
    assert (done.returncode, done.stderr) == (2, f"hpcsweep: {TOLD}"), done.stdout
    assert (desk.folder / "built").read_text() == "built\n"
    assert not desk.results.exists()


def test_what_could_not_be_checked_here_is_a_note(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login node may have no torch; weights cannot be looked for there, either."""
    without = desk.folder / "without"
    without.mkdir()
    (without / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(without))
    said: list[str] = []
    (desk.folder / "mymodel.py").write_text(OWN)
    asked = _asked(desk, SWEEP)
    check_inputs([asked, asked], said.append)
    why = "ModuleNotFoundError: No module named 'torch' (alexnet, mymodel:net)"
    assert said == [f"note: map patterns are not checked here: {why}"]
    with_weights = SWEEP.replace("  input_size", "  weights: [IMAGENET1K_V1]\n  input_size")
    with pytest.raises(SpecError, match="nobody could tell whether they are there"):
        check_inputs([_asked(desk, with_weights)], said.append)


def _asked(desk: Desk, text: str) -> request.Request:
    return request.make(sweep_file.load(desk.spec(text)), profile.load("local"))
