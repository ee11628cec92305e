"""Comparing the text of a profile with a cluster made by hand."""

from __future__ import annotations

import pytest

from clusters import CLUSTER
from hpcsweep.cluster.slurm import profile_checks
from hpcsweep.spec import profile


@pytest.fixture
def look(tmp_path):
    """Return a function: a profile's lines and a cluster in, what is not ok out."""

    def examine(text, cluster=CLUSTER, gpu="v100"):
        path = tmp_path / "p.yaml"
        path.write_text(f"gpu: {gpu}\ntime: 60\n{text}")
        found = profile_checks.examine(
            profile.load(path), cluster, lambda names: tuple(names.split(","))
        )
        return [(f.level, f.what, f"{f.detail} -> {f.do}") for f in found if f.level != "ok"]

    return examine
