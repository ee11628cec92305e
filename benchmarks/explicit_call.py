"""What an explicit convolution costs the host: ``python benchmarks/explicit_call.py``.

Passes of one network take turns: with the framework's convolutions, with these again (the control),
and with an explicit algorithm, each on a network of its own. Printed are the host's microseconds
beyond the framework's pass for each call of a convolution, with a 95 % interval of their median.

They are processor time of the thread that issues a pass, which neighbours change little, on a GPU,
or on the pretend one of the tests, whose kernels take 1 us.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import torch
from torch import Tensor, nn

import pretendgpu
from hpcsweep.conv import backend, swap
from hpcsweep.measure import model_builder
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.measure.timing import stats

CONTROL: Final = "framework again"


def main() -> None:
    """Start the passes where there is a GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet152")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--algorithms", nargs="+", default=("gemm", "implicit_gemm"))
    parser.add_argument("--passes", type=int, default=60)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.child:
        measure(chosen)
        return
    words = [sys.executable, __file__, "--child", *sys.argv[1:]]
    subprocess.run(words, env=pretendgpu.host_alone(), check=True)


@torch.inference_mode()
def measure(chosen: argparse.Namespace) -> None:
    """Print what a call costs beyond the framework's."""
    image = torch.zeros(1, 3, chosen.size, chosen.size, device="cuda")
    networks = {name: built(chosen.model) for name in ("framework", CONTROL, *chosen.algorithms)}
    calls = shape_pass(networks["framework"], image).convolutions
    library = backend.choose("cuda")
    for algorithm in chosen.algorithms:
        swap.swap(networks[algorithm])
        decided = swap.assign(networks[algorithm], calls, algorithm, swap.FALLBACK, library)
        lost = sum(call.fallback for call in decided)
        if lost:
            print(f"{algorithm}: {lost} of {len(calls)} calls fall back")
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    order = list(networks)
    for _ in range(chosen.passes):
        for name in order:
            seconds[name].append(host_seconds(networks[name], image))
        order.reverse()
    of_framework = seconds.pop("framework")
    ms = 1000 * statistics.median(of_framework)
    print(f"{chosen.model} at {chosen.size}, {len(calls)} convolutions: {ms:.2f} ms a pass")
    for name, of_pass in seconds.items():
        more = [(b - a) / len(calls) for a, b in zip(of_framework, of_pass, strict=True)]
        ordered = sorted(1e6 * one for one in more)
        rank = stats.median_rank(len(ordered))
        low, high = ordered[rank - 1], ordered[-rank]
        print(f"{name}: {statistics.median(ordered):+.1f} us a call [{low:+.1f}, {high:+.1f}]")


def built(model: str) -> nn.Module:
    """Return a network on the GPU."""
    network = model_builder.build_float32(model, enliven=False)
    return network.to("cuda")


def host_seconds(network: nn.Module, image: Tensor) -> float:
    """Return the processor time to issue a pass to an idle device."""
    torch.cuda.synchronize()
    began = time.thread_time()
    network(image)
    return time.thread_time() - began


if __name__ == "__main__":
    main()
