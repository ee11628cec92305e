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


def test_it_may_have_another_name(pretend_gpu, said):
    """Of torch, of NVML and of nvidia-smi it is the same."""
    name = "NVIDIA A100-SXM4-80GB"
    program = (
        "import pynvml; pynvml.nvmlInit()\n"
        "of_nvml = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))\n"
        "print([torch.cuda.get_device_name(), of_nvml])"
    )
    assert said(program, PRETEND_GPU_NAME=name) == [[name, name]]
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    assert pretend_gpu.run(*asked, PRETEND_GPU_NAME=name).stdout == f"{name}\n"
    assert pretend_gpu.run("nvidia-smi", "-L").stdout.startswith("GPU 0: NVIDIA H100 80GB HBM3 (")


def test_a_stream_that_waits_for_a_captured_one_is_captured_too(said):
    """Its work is done by the replay; work that is not joined again spoils the capture."""
    program = """
given, first, second = (torch.zeros(2, device="cuda") for _ in range(3))
side, graph, spoiled = torch.cuda.Stream(), torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        second.copy_(given)
    first.copy_(given)
    torch.cuda.current_stream().wait_stream(side)
given.copy_(torch.ones(2))
print(second.tolist())
graph.replay()
print(first.tolist() + second.tolist())
try:
    with torch.cuda.graph(spoiled):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            second.copy_(given)
except RuntimeError as error:
    print(["unjoined work" in f"{error} {error.__context__}"])
"""
    assert said(program) == [[0, 0], [1, 1, 1, 1], [True]]


def test_what_waits_spoils_a_capture(said):
    """A value that is read on the host, as on a real GPU; the GPU works on."""
    program = """
given, graph = torch.ones(2).cuda(), torch.cuda.CUDAGraph()
try:
    with torch.cuda.graph(graph):
        given[0].item()
except RuntimeError as error:
    print(["not permitted when stream is capturing" in f"{error} {error.__context__}"])
print(given.tolist())
"""
    assert said(program) == [[True], [1, 1]]


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


def test_calls_fail_on_request(said):
    """With the error that torch makes of the status, from the call on that was named."""
    program = """
import os
given = torch.zeros(1, 1, 2, 2).cuda()
def more():
    torch.zeros(1 << 26, device="cuda")
    torch.cuda.empty_cache()
def convolve():
    torch.nn.functional.conv2d(given, given)
def multiply():
    given[0, 0] @ given[0, 0]
def capture():
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        given.copy_(given)
for fail, call, times in (
    ("cudaMalloc=2", more, 1),
    ("cudaMalloc=46@3-3", more, 4),
    ("cudaGraphInstantiateWithFlags=801", capture, 1),
    ("cudnnCreate=1,cudnnConvolutionForward=5000@2", convolve, 3),
    ("cublasGemmEx=13", multiply, 1),
):
    call()
    os.environ["PRETEND_FAIL"] = fail
    for number in range(times):
        try:
            call()
            print([call.__name__, ""])
        except RuntimeError as error:
            print([call.__name__, str(error).splitlines()[0]])
    del os.environ["PRETEND_FAIL"]
"""
    found = said(program)
    words = {name: [message for of, message in found if of == name] for name, _ in found}
    assert [bool(message) for message in words["more"]] == [True, False, False, True, False]
    assert "CUDA out of memory" in words["more"][0]
    assert "busy or unavailable" in words["more"][3]
    assert "operation not supported" in words["capture"][0]
    assert [bool(message) for message in words["convolve"]] == [False, True, True]
    assert "CUBLAS_STATUS_EXECUTION_FAILED" in words["multiply"][0]


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


def test_the_profiler_sees_kernels_copies_and_set_memory(said):
    """Under the operators that queued them; a graph's under its launch, at each replay."""
    program = """
from torch.profiler import ProfilerActivity, profile
given, graph = torch.zeros(8, device="cuda"), torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    given.zero_()
    given.copy_(given + 1)
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as session:
    torch.nn.functional.conv1d(given.view(1, 1, 8), given.view(1, 1, 8))
    given.cpu()
    graph.replay()
    graph.replay()
    torch.cuda.synchronize()
on_gpu = [e for e in session.events() if e.device_type.name == "CUDA"]
in_order = sorted(on_gpu, key=lambda e: e.time_range.start)
print([e.name[:25] for e in in_order])
"""
    (seen,) = said(program)
    replay = ["Memset (Device)", "void at::native::vectoriz", "Memcpy DtoD (Device -> De"]
    convolution = ["void cask_cudnn::computeO", "cudnn_ampere_scudnn_128x6"]
    assert seen == [*convolution, "Memcpy DtoH (Device -> Pa", *replay, *replay]


def test_products_of_matrices_are_computed(said):
    """By cuBLAS and cuBLASLt: single and in batches, with a bias, of each type."""
    program = """
torch.manual_seed(0)
a, b, bias = torch.randn(2, 7, 5).double(), torch.randn(2, 5, 3).double(), torch.randn(3).double()
for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
    x, y, z = (t.to(dtype) for t in (a, b, bias))
    for name, product in {
        "mm": lambda a, b, bias: a[0] @ b[0],
        "mv": lambda a, b, bias: a[0] @ b[0, :, :1].reshape(-1),
        "bmm": lambda a, b, bias: a @ b,
        "linear": lambda a, b, bias: torch.nn.functional.linear(a[0], b[0].t(), bias),
    }.items():
        wanted = product(*(t.double() for t in (x, y, z)))
        error = product(x.cuda(), y.cuda(), z.cuda()).cpu().double() - wanted
        print([name, str(dtype), error.abs().max().item() / torch.finfo(dtype).eps])
"""
    found = said(program)
    assert len(found) == 16
    assert [row for row in found if row[2] > 8] == []  # a few roundings of numbers of about 1
