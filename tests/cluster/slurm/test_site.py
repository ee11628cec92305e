"""What is read of the cluster itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from hpcsweep.cluster.slurm import site

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu:v100:2", [("gpu", "v100", 2)]),
        ("gpu:4", [("gpu", "", 4)]),
        ("gpu:nvidia_a100-sxm4-80gb:8(S:0-7)", [("gpu", "nvidia_a100-sxm4-80gb", 8)]),
        (
            "gpu:l40s:4(S:0-1),shard:8,tmp:2G",
            [("gpu", "l40s", 4), ("shard", "", 8), ("tmp", "", 2**31)],
        ),
        ("(null)", []),
    ],
)
def test_generic_resources_are_read(
    program: Callable[[str, str], Path], text: str, expected: list[tuple[str, str, int]]
):
    """With and without type, sockets and units."""
    line = rf"n1\037gpu\037a,b\037{text}\03716\03764000\037idle\037none"
    program("sinfo", f"printf '{line}\\n'")
    (node,) = site.nodes()
    assert [(g.name, g.type, g.count) for g in node.gres] == expected
    assert (node.features, node.cpus, node.memory_mb, node.reason) == (("a", "b"), 16, 64000, "")
