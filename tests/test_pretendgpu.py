"""The pretend GPU of the tests: torch's own CUDA code runs on it, and what it promises holds."""

import ast
import json
import subprocess
import sys

import pytest

EVENT = "event = lambda **more: torch.cuda.Event(enable_timing=True, **more)\n"


# One process runs many programs, each a line of JSON, and answers each by one: torch takes seconds
# to be imported, and the libraries read their variables at each call.
SERVANT = """
import contextlib, io, json, os, sys, torch
for line in sys.stdin:
    program, variables = json.loads(line)
    os.environ.update(variables)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, {"torch": torch})
    for name in variables:
        del os.environ[name]
    print(json.dumps(printed.getvalue()), flush=True)
"""


@pytest.fixture(scope="module")
def said(pretend_gpu):
    """Give a function that runs a program, and returns the Python values that it printed."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", SERVANT],
        env=pretend_gpu.environment(PRETEND_COMPUTE="1"),
        stdin=pipe,
        stdout=pipe,
        text=True,
    ) as servant:

        def run(program, **variables):
            servant.stdin.write(json.dumps([program, variables]) + "\n")
            servant.stdin.flush()
            answer = servant.stdout.readline()
            assert answer, "the program failed: its traceback is above"
            return [ast.literal_eval(line) for line in json.loads(answer).splitlines()]

        yield run
        servant.stdin.close()


def test_the_time_between_two_events_is_the_sum_of_what_was_queued(said):
    """However late the host is: 10 kernels of 4 us, an event of 0.5, and the cycles of a delay."""
    program = f"""
import time
{EVENT}
begin, middle, end = event(), event(), event()
given = torch.zeros(1, device="cuda")
torch.cuda.synchronize()
begin.record()
torch.cuda._sleep(1_980_000)
middle.record()
for _ in range(10):
    time.sleep(0.001)
    given.relu()
end.record()
torch.cuda.synchronize()
print([round(begin.elapsed_time(middle), 6), round(middle.elapsed_time(end), 6)])
"""
    assert said(program) == [[1.0005, 0.0405]]
    slower = said(program, PRETEND_CLOCK="990", PRETEND_KERNEL_US="7")
    assert slower == [[2.0005, 0.0705]]


def test_events_in_a_graph_are_recorded_by_each_replay(said):
    """External events hold the times of the last replay."""
    program = f"""
{EVENT}
begin, inner, end = event(), event(external=True), event(external=True)
given, graph = torch.zeros(1, device="cuda"), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    inner.record()
    given.relu()
    given.relu()
    end.record()
torch.cuda.synchronize()
begin.record()
for _ in range(3):
    graph.replay()
    torch.cuda.synchronize()
    print([round(inner.elapsed_time(end), 6), begin.elapsed_time(end)])
"""
    times = said(program)
    assert {inside for inside, _ in times} == {0.0085}
    assert times == sorted(times)
    assert times[0] != times[1]


def test_a_host_whose_time_is_arithmetic_waits_for_a_full_queue(said):
    """Two thousand launches take the host a microsecond each, but for those behind a full queue."""
    program = """
import ctypes
runtime = ctypes.CDLL("libpretend_cudart.so")
runtime.pretend_host_ms.restype = ctypes.c_double
given = torch.zeros(1, device="cuda")
torch.cuda.synchronize()
begin = runtime.pretend_host_ms()
for _ in range(2000):
    torch.cuda._sleep(1980 * 100)
print(round(runtime.pretend_host_ms() - begin, 3))
torch.cuda.synchronize()
print(round(runtime.pretend_host_ms() - begin, 3))
"""
    variables = {"PRETEND_HOST_US": "1"}
    # the device begins with the first launch; the host goes on when the one 1,024 before it ended
    assert said(program, **variables) == [97.601, 200.001]
    assert said(program, **variables, PRETEND_QUEUE="4000") == [2, 200.001]


def test_a_device_that_waits_for_a_host_whose_time_is_arithmetic_is_idle(said):
    """As long as the host works, 3 ms; a delay of 1 ms hides nothing of it."""
    program = f"""
import ctypes
{EVENT}
runtime = ctypes.CDLL("libpretend_cudart.so")
runtime.pretend_host_works.argtypes = [ctypes.c_double]
begin, end = event(), event()
begin.record()
runtime.pretend_host_works(3.0)
torch.cuda._sleep(1_980_000)
end.record()
torch.cuda.synchronize()
print([round(begin.elapsed_time(end), 6)])
"""
    assert said(program, PRETEND_HOST_US="0", PRETEND_EVENT_US="0") == [[4.0]]


def test_a_kernel_that_fails_is_told_by_the_next_call_that_waits_and_by_all_after(pretend_gpu):
    """It is sticky: memory and launches are refused, too. torch's own threads may not end then."""
    program = """
import os, sys, torch
given = torch.zeros(1, device="cuda")
os.environ["PRETEND_FAIL"] = "kernel=700@2"
def more():
    torch.zeros(1 << 26, device="cuda")
synchronize = torch.cuda.synchronize
for call in (given.relu, synchronize, given.relu, given.relu, synchronize, given.relu, more):
    try:
        call()
        print([""])
    except RuntimeError as error:
        print([str(error).splitlines()[0]])
sys.stdout.flush()
os._exit(0)
"""
    done = pretend_gpu.run(sys.executable, "-c", program)
    found = [words for (words,) in map(ast.literal_eval, done.stdout.splitlines())]
    assert found[:4] == [""] * 4
    assert set(found[4:]) == {"CUDA error: an illegal memory access was encountered"}
