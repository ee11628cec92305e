"""What torch is asked about networks: each is alone, has its own time, and leaves nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcsweep import messages
from hpcsweep.catalog import axis_defaults
from hpcsweep.messages import Message
from hpcsweep.submit import questions
from waiting import given_time, is_alive, wait_for

NETS = """\
import ctypes, os, signal, subprocess, sys, threading, time
from pathlib import Path
import torch
from torch import nn

HERE = Path(__file__).parent

def good():
    assert "HIDDEN" not in os.environ and torch.get_default_dtype() is torch.float32
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten())

def narrow():
    return nn.Conv2d(1, 4, 3)

def rude():
    os.environ["HIDDEN"] = "1"
    os.chdir("/")
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(1)
    torch.conv2d = nn.functional.conv2d = nn.Conv2d.forward = None
    sys.modules["torch.nn"] = sys
    return nn.ReLU()

class Asserts(nn.Conv2d):
    def __init__(self):
        super().__init__(3, 4, 3)

    def forward(self, images):
        assert images.shape[-1] == 224, "a height of 224 is wanted."
        return super().forward(images)

class Looks(nn.Module):
    def forward(self, images):
        return images * {224: 2.0}[images.shape[-1]]

def on_gpu():
    assert torch.cuda.is_available()

def of_job():
    return os.environ["ONLY_IN_JOBS"]

def leaves():
    sys.exit("good bye")

def leaves_hard():
    os._exit(0)

def crashes():
    ctypes.string_at(0)

def too_large():
    return nn.Linear(1 << 30, 1 << 20)

def killed():
    os.kill(os.getpid(), signal.SIGKILL)

def kills_its_parent():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)

def reads():
    return nn.Conv2d(int(input()), 4, 3)

def prints():
    print("out" * 100_000, flush=True)
    os.system("echo out; echo error >&2")
    return good()

def forks():
    os.fork()
    return good()

def never_joined():
    threading.Thread(target=time.sleep, args=(600,)).start()
    return good()

def noted(name, process):
    (HERE / name).write_text(f"{process}")

def starts():
    noted("plain", subprocess.Popen(["sleep", "600"]).pid)
    noted("session", subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            noted("daemon", os.getpid())
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
    while not (HERE / "daemon").exists():
        time.sleep(0.01)
    return good()

def hangs():
    starts()
    time.sleep(600)
"""
GOOD = {"calls", "gflops"}
STARTED = ("plain", "session", "daemon")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with odd networks."""
    (tmp_path / "oddnets.py").write_text(NETS)
    return tmp_path


def tries(*names: str) -> dict[str, list[dict[str, Any]]]:
    """Return the question for each network whether it takes images of 64 x 64."""
    asked = {}
    for name in names:
        axes = {**axis_defaults("inference"), "model": f"oddnets:{name}", "input_size": 64}
        about = {"about": "network", "workload": "inference", "axes": axes}
        asked[f"oddnets:{name}"] = [about]
    return asked


def answers(
    folder: Path, asked: dict[str, list[dict[str, Any]]], seconds: float = 120.0
) -> dict[str, list[questions.Answer]]:
    """Return what is answered about each network."""
    with questions.asking([str(folder)], seconds) as ask:
        return {name: ask(name, about) for name, about in asked.items()}


def test_what_a_network_does_is_told_of_it_alone(folder: Path) -> None:
    """State that one leaves refuses no other; whatever ends one, the others' answers are kept."""
    told = {
        "rude": {},
        "good": {},
        "narrow": {"wrong": "RuntimeError: Given groups=1"},
        "Asserts": {"wrong": f"{folder}/oddnets.py:32: AssertionError: a height of 224 is wanted."},
        "Looks": {"wrong": "KeyError: 64"},
        "on_gpu": {"failed": "AssertionError"},
        "of_job": {"failed": "KeyError: 'ONLY_IN_JOBS'"},
        "leaves": {"wrong": "SystemExit: good bye"},
        "leaves_hard": {"wrong": "it ends the process that runs it, with exit code 0"},
        "crashes": {"failed": "its process ended by signal 11 (Segmentation fault)"},
        "too_large": {"failed": "can't allocate memory"},
        "killed": {"failed": "signal 9 (Killed), perhaps for lack of memory"},
        "reads": {"wrong": "EOFError: EOF when reading a line"},
        "prints": {},
        "forks": {},
        "never_joined": {},
        "starts": {},
        "kills_its_parent": {"failed": ""},  # the last one: nobody is left to try another
    }
    found = answers(folder, tries(*told))
    for name, expected in told.items():
        (answer,) = found[f"oddnets:{name}"]
        assert answer.keys() == (expected.keys() or GOOD), f"{name}: {answer}"
        for key, words in expected.items():
            assert words in answer[key], f"{name}: {answer}"
    assert not [name for name in STARTED if is_alive(int((folder / name).read_text()))]


def test_each_network_has_a_limit_of_its_own_and_leaves_no_process(folder: Path) -> None:
    """Also of those that made themselves independent; what was answered before is kept."""
    asked = tries("hangs", "narrow", "good")
    asked["oddnets:hangs"] = [*tries("good")["oddnets:good"], *asked["oddnets:hangs"]]
    seconds, found = given_time(
        lambda seconds: answers(folder, asked, seconds),
        (folder / "daemon").exists,
    )
    good, hangs = found["oddnets:hangs"]
    assert hangs == {"failed": f"no answer within {seconds:.0f} s"}
    assert list(found["oddnets:narrow"][0]) == ["wrong"]
    assert found["oddnets:good"] == [good]
    assert good.keys() == GOOD
    assert not [name for name in STARTED if is_alive(int((folder / name).read_text()))]


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL]
)
def test_what_was_tried_ends_with_who_asked(folder: Path, number: signal.Signals) -> None:
    """Interrupted or killed, a `submit` leaves no network running."""
    asking = f"""\
from hpcsweep.submit import questions
with questions.asking([{str(folder)!r}]) as ask:
    ask("oddnets:hangs", {tries("hangs")["oddnets:hangs"]!r})
"""
    with subprocess.Popen([sys.executable, "-c", asking], stderr=subprocess.DEVNULL) as asks:
        wait_for("daemon", lambda: (folder / "daemon").exists() and (folder / "daemon").read_text())
        os.kill(asks.pid, number)
        asks.wait()
    pids = [int((folder / name).read_text()) for name in STARTED]
    wait_for("end", lambda: [is_alive(pid) for pid in pids], enough=lambda seen: not any(seen))


@pytest.mark.slow
def test_a_slow_network_is_named_while_it_is_tried(folder: Path) -> None:
    """With the time after which it is given up."""
    said: list[Message] = []
    with messages.told_to(said.append):
        answers(folder, tries("hangs", "good"), 11.0)
    assert [str(one) for one in said] == ["waits for oddnets:hangs, for 11 s at most"]


def test_without_torch_the_reason_stands_for_each_answer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a login node; nothing is wrong with the networks."""
    (folder / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    why = {"failed": "ModuleNotFoundError: No module named 'torch'"}
    found = answers(folder, tries("good", "narrow"))
    assert found == {"oddnets:good": [why], "oddnets:narrow": [why]}
