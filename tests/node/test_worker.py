"""The worker behind a real pipe."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from hpcsweep import environment
from hpcsweep.node.protocol import Request
from hpcsweep.store import typed_json
from measuring import point
from paths import SUPPORT


def test_a_worker_measures_over_its_pipe():
    """A real worker process: hello with the environment, then a row, layers and samples."""
    replies = _worker({"gpu": "cpu"}, [point(), point("tinynets:Hungry"), point(launch="graph")])
    assert replies[0]["env"]["software"]["torch"] == torch.__version__
    assert [reply["status"] for reply in replies[1:]] == ["ok", "oom", "unsupported"]
    assert len(replies[1]["layers"]) == 7
    assert replies[2]["row"]["mem_limit_bytes"] > 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_worker_refuses_a_machine_without_the_promised_gpu():
    """It says so in its hello and leaves."""
    (reply,) = _worker({"gpu": "v100", "gpu_name": "V100"}, [])
    assert "promises gpu 'v100'" in reply["refused"]


def _worker(run, points):
    requests = "".join(json.dumps(typed_json.write(Request(point=p))) + "\n" for p in points)
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcsweep.node.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")]),
            environment.WORKLOAD: "inference",
            environment.RUN: json.dumps(run),
        },
    )
    process.stdin.write(requests)
    process.stdin.flush()
    replies = [json.loads(process.stdout.readline()) for _ in range(1 + len(points))]
    process.stdin.close()
    process.wait(30)
    process.stdout.close()
    return replies
