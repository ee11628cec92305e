"""Runs odd networks through every algorithm, and looks for false alarms and false proofs.

    python benchmarks/odd_networks.py                        # about twenty minutes on two cores
    python benchmarks/odd_networks.py --only vit mixed       # some networks
    python benchmarks/odd_networks.py --keep odd.jsonl       # goes on after what that file has

Each pair of a network and an algorithm is measured as in a sweep, with one timed pass, at an odd
size and in a batch of 7. The line of a pair has what its row says (coverage, error, evidence) and
what another count says of the coverage: FlopCounterMode on the network with its algorithm, which
sees the convolutions that are still the framework's.

Exit code 1: a pair is a FALSE MISMATCH (the output is right, and a call is said to contradict its
algorithm, but by oneDNN's own report), a FALSE PROOF (proven, but the output is wrong, nothing ran
the algorithm, or a convolution is beyond all back-ends) or a FALSE COVERAGE (the counts differ).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints to stderr
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # no time is quoted, and others may be here
sys.path.insert(0, str(Path(__file__).parent))  # where the factories below are found by name
sys.path.append(str(Path(__file__).parent.parent))

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own habit
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import VisionTransformer

import odd_structures
import odd_zoo
from hpcsweep import catalog
from hpcsweep.cli.verify import Verification
from hpcsweep.conv import backend as backends
from hpcsweep.conv import choice, parts, swap
from hpcsweep.measure import model_builder
from hpcsweep.measure.bench_api import CannotMeasure
from hpcsweep.measure.measure_point import PointBench, on_device
from hpcsweep.measure.network import choose_algorithms
from hpcsweep.measure.shape_pass import shape_pass
from hpcsweep.point import Point

SIZE = 75
BATCH = 7
ALGORITHMS = [name for name in catalog.ALGORITHMS if name != catalog.AUTOTUNE]
ONCE = {"warmup": 0, "iterations": 1, "stop": "fixed", "energy": False}
PERCENT = 0.1  # what the two counts of coverage may differ by
CONVOLUTIONS = ("convolution", "_convolution", "cudnn_convolution")


def vit() -> VisionTransformer:
    """Return a small vision transformer for images of 75: its only convolution is 15 x 15."""
    network = VisionTransformer(SIZE, 15, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=128)
    nn.init.normal_(network.heads.head.weight)  # torchvision's are zero, and so is the output
    return network


class Mixed(nn.Module):
    """Plain convolutions beside functional, transposed, 1-D and 3-D ones, and one of a class."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.filters = nn.Parameter(torch.randn(16, 16, 3, 3) / 12)
        self.up = nn.ConvTranspose2d(16, 8, 3, stride=2)
        self.volume = nn.Conv3d(1, 2, 3, padding=1)
        self.own = Standardised(16, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 8, (1, 3), dilation=2, groups=2, bias=False)
        self.line = nn.Conv1d(8, 4, 5)
        self.head = nn.Linear(4, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use them all."""
        x = F.conv2d(torch.relu(self.first(x)), self.filters, padding=1)
        x = self.volume(self.up(torch.relu(x))[:, None]).flatten(1, 2)
        x = torch.relu(self.last(self.own(torch.relu(x))))
        return self.head(self.line(x.flatten(2)).mean(2))


class Standardised(nn.Conv2d):
    """A convolution whose filters get zero mean first."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002 - torch's own name
        """Convolve."""
        filters = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return F.conv2d(input, filters, self.bias, self.stride, self.padding)


NETWORKS = {
    "alexnet": "alexnet",
    "inception": "inception_v3",
    "googlenet": "googlenet",
    "mobilenet": "mobilenet_v3_small",
    "efficientnet": "efficientnet_b0",
    "resnext": "resnext50_32x4d",
    "densenet": "densenet121",
    "shufflenet": "shufflenet_v2_x1_0",
    "squeezenet": "squeezenet1_1",
    "convnext": "convnext_tiny",
    "vit": f"odd_networks:{vit.__name__}",
    "mixed": f"odd_networks:{Mixed.__name__}",
    **{
        one.__name__.lower(): f"{zoo.__name__}:{one.__name__}"
        for zoo in (odd_zoo, odd_structures)
        for one in zoo.NETWORKS
    },
}
# Operations that the other count does not see: by hand, or unknown, so that no share is told.
OF_THE_MIDDLE = 2 * BATCH * SIZE * SIZE * 8 * 8 * 9
UNSEEN = {
    "odd_zoo:Quantized": 4 * OF_THE_MIDDLE,
    "odd_zoo:in_mkldnn": 2 * OF_THE_MIDDLE,
    "odd_zoo:Deformed": 2 * BATCH * (SIZE - 2) ** 2 * 8 * 8 * 9,
    "odd_zoo:Custom": math.inf,
    "odd_zoo:frozen": math.inf,
}


def main() -> int:
    """Run the pairs that are asked for and not kept already; return the exit code."""
    parser = argparse.ArgumentParser(description="Odd networks through every algorithm.")
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=[*NETWORKS])
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    parser.add_argument("--keep", type=Path, help="a file of results to write, and to go on from")
    asked = parser.parse_args()
    found = kept(asked.keep)
    bench = on_device("inference", "cpu")
    print(f"{SIZE} x {SIZE}, batch {BATCH}, torch {torch.__version__}, {os.cpu_count()} cores")
    print(line("network", "algorithm", "covered", "counted", "error", "evidence", "s", "verdict"))
    for network in asked.only:
        for algorithm in asked.algorithms:
            if (network, algorithm) not in found:
                found[network, algorithm] = pair(network, algorithm, bench)
                keep(asked.keep, found[network, algorithm])
            print(line_of(found[network, algorithm]), flush=True)
    shown = [found[network, name] for network in asked.only for name in asked.algorithms]
    false = [one for one in shown if one["verdict"].startswith("FALSE")]
    proven = sum(one["verdict"] == "proven" for one in shown)
    print(
        f"{len(asked.only)} networks x {len(asked.algorithms)} algorithms: {len(shown)} pairs, "
        f"{proven} proven, {len(false)} false alarms or proofs"
    )
    return 1 if false else 0


def pair(network: str, algorithm: str, bench: PointBench) -> dict[str, Any]:
    """Measure one pair as a sweep would, and count its coverage another way."""
    began = time.perf_counter()
    point = a_point(NETWORKS[network], algorithm)
    told: dict[str, Any] = {"network": network, "algorithm": algorithm}
    try:
        measured = bench.measure(point)
    except CannotMeasure as error:
        return told | {"verdict": f"unsupported: {error}", "s": time.perf_counter() - began}
    finding = Verification(point, measured.row, measured.layers)
    row = measured.row
    told |= {
        "covered": row["algorithm_coverage_pct"],
        "counted": counted(point),
        "error": row["call_rel_error"],
        "evidence": f"{len(finding.unseen)} of {len(finding.convolutions)} unseen",
        "uncovered": row["algorithm_uncovered"],
        "problems": finding.problems,
    }
    return told | {"verdict": verdict(told, finding), "s": time.perf_counter() - began}


def verdict(told: dict[str, Any], finding: Verification) -> str:  # noqa: PLR0911 - one per kind
    """Return `proven`, `not proven` with the reason, or what is false."""
    flags = finding.row["flags"].split(";")
    mismatches = [call for call in finding.unseen if ": mismatch (" in call]
    if mismatches and all(": mismatch (oneDNN ran" in call for call in mismatches):
        return (
            f"not proven: {mismatches[0]}"  # its own report: this CPU has no direct kernel for it
        )
    if mismatches and "inaccurate" not in flags:
        return f"FALSE MISMATCH: {len(mismatches)} calls: {mismatches[0]}"
    covered = told["covered"]
    counted_pct = told["counted"]
    if abs((covered or 0) - counted_pct) > PERCENT:
        return f"FALSE COVERAGE: {covered} in the row, {counted_pct:.1f} counted"
    if not finding.proven:
        return f"not proven: {finding.problems[0]}"
    explicit = told["algorithm"] not in choice.FRAMEWORK_CHOICES
    if "inaccurate" in flags or told["error"] is None or (explicit and not counted_pct):
        return f"FALSE PROOF: error {told['error']}, {counted_pct:.1f} % counted"
    if explicit and told["uncovered"]:
        return f"FALSE PROOF: {told['uncovered']} ran outside"
    return "proven"


def counted(point: Point) -> float:
    """Return which percentage of the convolution work is no convolution operator any more."""
    algorithm = point.axes["algorithm"]
    if algorithm in choice.FRAMEWORK_CHOICES:
        return 100.0
    model, image, whole = built(point.axes["model"])
    with torch.no_grad():
        shapes = shape_pass(model, image)
        choose_algorithms(model, shapes, algorithm, point.measure, backends.choose("cpu"))
        left = operations(model, image)
    swap.restore(model)
    unseen = UNSEEN.get(point.axes["model"], 0)
    return 100 * (whole - left) / (whole + unseen)


@lru_cache(maxsize=1)
def built(name: str) -> tuple[nn.Module, torch.Tensor, int]:
    """Return a network, its images, and the operations of its convolutions."""
    point = a_point(name, catalog.AUTO)
    model = model_builder.build(model_builder.ModelKey.of(point), torch.device("cpu"))
    (image,) = model_builder.make_inputs(point, torch.device("cpu"))
    with torch.no_grad():
        return model, image, operations(model, image)


def operations(model: nn.Module, image: torch.Tensor) -> int:
    """Count the operations of the convolution operators of a real pass."""
    with parts.eagerly(), FlopCounterMode(display=False) as counter:
        model(image.clone())
    ran = counter.get_flop_counts().get("Global", {})
    return sum(flops for packet, flops in ran.items() if packet.__name__ in CONVOLUTIONS)


def a_point(model: str, algorithm: str) -> Point:
    """Return the point of a pair."""
    axes = catalog.axis_defaults("inference") | {"model": model, "gpu": "cpu"}
    axes |= {"input_size": SIZE, "batch_size": BATCH, "algorithm": algorithm, "num_threads": 2}
    return Point("inference", axes, catalog.setting_defaults("inference") | ONCE, "0" * 16)


def kept(path: Path | None) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the results that a file has."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    return {(row["network"], row["algorithm"]): row for row in rows}


def keep(path: Path | None, told: dict[str, Any]) -> None:
    """Add a result to the file."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(told) + "\n")


def line_of(told: dict[str, Any]) -> str:
    """Return the line of a pair."""
    percents = [told.get(name) for name in ("covered", "counted")]
    covered = ["" if value is None else f"{value:.1f} %" for value in percents]
    error = "" if told.get("error") is None else f"{told['error']:.1e}"
    seconds = f"{told['s']:.1f}"
    names = told["network"], told["algorithm"]
    return line(*names, *covered, error, told.get("evidence", ""), seconds, told["verdict"])


def line(*cells: str) -> str:
    """Return cells in columns."""
    widths = (12, 22, 9, 9, 9, 12, 6, 0)
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


if __name__ == "__main__":
    sys.exit(main())
