"""Whatever is killed, whenever: every point is there in the end, once and undamaged."""

from __future__ import annotations

import sys

import pytest

from killing import torment

pytestmark = pytest.mark.no_second_try

SPEC = """\
workload: noop
axes:
  model: [a, b]
  input_size: {start: 1, stop: 30, num: 30}
measure: {sleep_ms: 20}
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds processes in /proc")
@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 4), *(pytest.param(n, 8, marks=pytest.mark.slow) for n in (1, 2, 3))]
)
def test_nothing_is_lost_whatever_is_killed(tmp_path, seed, kills):
    """Worker, supervisor, submit or all of them with SIGKILL, then the same command again."""
    spec = tmp_path / "kill.yaml"
    spec.write_text(SPEC)
    for found in torment(tmp_path, spec, points=60, rounds=kills, seed=seed):
        assert found.good, found
