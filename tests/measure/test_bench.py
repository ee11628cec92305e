"""The door into measuring."""

from __future__ import annotations

import pytest
import torch

from hpcsweep.errors import Refused
from hpcsweep.measure import bench


def test_inference_gets_its_bench_and_a_full_environment():
    """The bench that the worker asks for knows where it runs."""
    found = bench.torch_bench("inference", {"gpu": "cpu"})
    assert found.environment()["row"]["torch_version"] == torch.__version__


def test_a_workload_that_this_version_lacks_is_refused():
    """Refused before any point, by name."""
    with pytest.raises(Refused, match="'baking'"):
        bench.torch_bench("baking", {"gpu": "cpu"})
