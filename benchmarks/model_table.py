"""Writes the table of networks from the torchvision that is installed.

Run it when torchvision has new classifiers::

    python benchmarks/model_table.py > src/hpcsweep/catalog/models.csv

Sizes are found on the meta device by bisection and confirmed by real runs on the CPU at the
smallest size and one below; operations are PyTorch's own count of one image.
"""

from __future__ import annotations

import sys
import warnings

import torch
import torchvision
from torch.utils.flop_counter import FlopCounterMode

REFERENCE = 224
LARGEST = 299


def main() -> None:
    """Print one row per classifier, below a header."""
    warnings.simplefilter("ignore")
    print("name,size,fixed,flops,params")
    for name in torchvision.models.list_models(module=torchvision.models):
        print(row(name), flush=True)


def row(name: str) -> str:
    """Return ``resnet18,1,,3628146688,11689512`` for a classifier."""
    model = on_meta(name)
    fixed = not (runs(model, REFERENCE + 1) and runs(model, LARGEST))
    smallest = REFERENCE if fixed else bisect(model)
    confirm(name, smallest, fixed=fixed)
    flops, params = work(model)
    return f"{name},{smallest},{'fixed' * fixed},{flops},{params}"


def work(model: torch.nn.Module) -> tuple[int, int]:
    """Return the operations of one image at the reference size, and the parameters."""
    image = torch.empty(1, 3, REFERENCE, REFERENCE, device="meta")
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(value=False)  # its fused operator is not counted
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(image)
    finally:
        torch.backends.mha.set_fastpath_enabled(value=fused)
    return counter.get_total_flops(), sum(p.numel() for p in model.parameters())


def on_meta(name: str) -> torch.nn.Module:
    """Build a classifier without memory or time; RegNet computes its widths with tensors."""
    block_params = torchvision.models.regnet.BlockParams
    plain = block_params.from_init_params

    def on_cpu(*args: object, **kwargs: object) -> object:
        with torch.device("cpu"):
            return plain(*args, **kwargs)

    block_params.from_init_params = on_cpu
    try:
        with torch.device("meta"):
            return torchvision.models.get_model(name, weights=None).eval()
    finally:
        block_params.from_init_params = plain


def runs(model: torch.nn.Module, size: int, device: str = "meta") -> bool:
    """Say whether a forward pass takes images of a size."""
    try:
        with torch.no_grad():
            model(torch.zeros(1, 3, size, size, device=device))
    except (RuntimeError, AssertionError, ValueError, ZeroDivisionError):
        return False
    return True


def bisect(model: torch.nn.Module) -> int:
    """Return the smallest size that runs."""
    low = 0
    high = LARGEST
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if runs(model, middle) else (middle, high)
    return high


def confirm(name: str, smallest: int, *, fixed: bool) -> None:
    """Run the real network at its smallest size, where it must work, and around, where not."""
    model = torchvision.models.get_model(name, weights=None).eval()
    bad = [smallest // 2, smallest * 2] if fixed else [smallest - 1]
    if not runs(model, smallest, "cpu") or any(runs(model, size, "cpu") for size in bad if size):
        print(f"{name}: the CPU disagrees about {smallest}", file=sys.stderr)


if __name__ == "__main__":
    main()
