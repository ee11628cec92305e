"""The shipped training sweeps run on a machine without a GPU, and say what needs one.

They run as shipped but for fewer steps and smaller batches.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
import yaml

from hpcsweep.spec import lookup

QUICK = {"layers": False, "evidence": False, "numerics": False, "warmup": 1, "iterations": 2}
QUICK |= {"save_final": False}  # the weights are hundreds of megabytes
NEEDS_A_GPU = {
    "amd_resnet_baseline": {"ok": 2},
    "nn_perf_roofline": {"ok": 2, "unsupported": 2},
    "resnet18_cifar10_five_experiments": {"ok": 2, "unsupported": 2},
    "resnet50_cifar100_variants": {"ok": 2, "unsupported": 3},
}


def _smaller(name):
    """Return a shipped sweep with less to do."""
    found = yaml.safe_load(lookup.names(lookup.SWEEPS)[name].read_text())
    for values in [found["axes"], *found.get("include", [])]:
        listed = values is found["axes"]
        for axis, small in (("steps_per_epoch", 1), ("epochs", 1), ("batch_size", 4)):
            if axis in values:
                values[axis] = [small] if listed else small
    found["measure"] |= QUICK
    return yaml.safe_dump(found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDS_A_GPU)
def test_a_document_runs_without_a_gpu(desk, name):
    """Exit code 0; what a CPU cannot do is unsupported with its reason, not a crash."""
    desk.spec(_smaller(name), f"{name}.yaml")
    done = desk.run("submit", f"{name}.yaml", "--cluster", "local", "--sample", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = desk.rows(name)
    assert Counter(row["status"] for row in rows) == NEEDS_A_GPU[name]
    for row in rows:
        if row["status"] == "unsupported":
            assert re.search(r"needs a GPU|copies to a GPU|tunes cuDNN", row["status_reason"])
        else:
            assert float(row["throughput_sps"]) > 0
            off = abs(float(row["phase_sum_over_step"]) - 1) > 0.05
            assert off == ("phase_sum" in row["flags"])
    assert desk.run("collect", name).returncode == 0
    assert "seconds of the whole training" in desk.run("report", name).stdout


def test_the_page_names_every_sweep_and_every_sweep_names_the_real_data():
    """One line switches from synthetic data to the document's."""
    page = (lookup.names(lookup.SWEEPS)["quickstart"].parents[1] / "docs" / "seeds.md").read_text()
    for name in [*NEEDS_A_GPU, "resnet152_implicit_precomp_gemm"]:
        assert f"`sweeps/{name}.yaml`" in page
    for name in NEEDS_A_GPU:
        text = lookup.names(lookup.SWEEPS)[name].read_text()
        assert re.search(r"dataset: \[synthetic\] +# the real thing: \[cifar100?\]", text)
