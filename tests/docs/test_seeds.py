"""The shipped training sweeps run on a machine without a GPU, and say what needs one.

They run as shipped but for fewer steps and smaller batches.
"""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
import yaml

from hpcsweep.spec import lookup, sweep_file
from hpcsweep.spec.expansion import expand

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
    for axis, small in (("steps_per_epoch", 1), ("epochs", 1), ("batch_size", 4)):
        if axis in found["axes"]:
            found["axes"][axis] = [small]
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


# an axis, its value as shipped, and the value that the comment names
ADVICE = re.compile(
    r"^  (\w+): \[.*\](?= +# )(?: +# .*?the real thing: \[(\w+)\]| +# the study: (\d+)| +# null: )",
    re.MULTILINE,
)


def _edited(text):
    """Return a sweep changed as its comments say, and the axes with their new values."""
    chosen = {}
    for axis, real, number in ADVICE.findall(text):
        chosen[axis] = real or (int(number) if number else None)
        new = "null" if chosen[axis] is None else str(chosen[axis])
        text = re.sub(rf"^  {axis}: \[.*\](?= +# )", f"  {axis}: [{new}]", text, flags=re.MULTILINE)
    return text, chosen


def test_a_sweep_edited_as_its_comments_say_is_edited_for_all_of_its_points(tmp_path):
    """Else points that are compared train on other data, or for other steps."""
    edited = set()
    for name, path in lookup.names(lookup.SWEEPS).items():
        text, chosen = _edited(path.read_text())
        file = tmp_path / f"{name}.yaml"
        file.write_text(text)
        points = [*expand(sweep_file.load(str(file)))]
        for axis, value in chosen.items():
            assert {point.axes[axis] for point in points} == {value}, f"{name}: {axis}"
        edited |= {name} if chosen else set()
        if f"{name}_full" in lookup.names(lookup.SWEEPS):
            full = [*expand(sweep_file.load(f"{name}_full"))]
            assert len(full) == len(points)
            assert {point.axes["dataset"] for point in full} == {chosen["dataset"]}
    assert edited == {*NEEDS_A_GPU}


def test_the_gpu_experiments_have_partners_among_those_of_the_cpu():
    """The speed-up over one thread is of the same data, epochs, steps and batch size."""
    same = ("model", "dataset", "input_size", "epochs", "steps_per_epoch", "optimizer")
    for name in ("resnet18_cifar10_five_experiments", "resnet18_cifar10_five_experiments_full"):
        points = [point.axes for point in expand(sweep_file.load(name))]
        assert len({tuple(axes[axis] for axis in same) for axes in points}) == 1
        at_64 = [(axes["num_threads"], axes["amp"]) for axes in points if axes["batch_size"] == 64]
        assert sorted(at_64, key=str) == [(1, "off"), (6, "off"), (None, "fp16"), (None, "off")]
