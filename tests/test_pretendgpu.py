"""The pretend GPU of the tests: torch's own CUDA code runs on it."""

import sys

from localruns import COMMAND

SWEEP = """\
workload: inference
axes: {model: [resnet18], input_size: [64], launch: [eager, graph]}
measure: {warmup: 2, iterations: 3}
"""


def test_torch_finds_one_h100(pretend_gpu):
    """It says what it is, and memory on it holds what was written there."""
    program = "import torch; print(torch.cuda.get_device_name(), torch.arange(3).cuda().tolist())"
    done = pretend_gpu.run(sys.executable, "-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "NVIDIA H100 80GB HBM3 [0, 1, 2]\n"


def test_a_sweep_is_measured_on_it(pretend_gpu, desk):
    """Eager and captured passes have rows of that GPU."""
    desk.spec(SWEEP)
    done = pretend_gpu.run(*COMMAND, "submit", "sweep.yaml", "--cluster", "local", cwd=desk.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = desk.rows()
    assert {row["launch"] for row in rows} == {"eager", "graph"}
    assert {(row["gpu"], row["device_name"], row["status"]) for row in rows} == {
        ("h100", "NVIDIA H100 80GB HBM3", "ok")
    }
