"""Rounds that a strategy wants, measured here: what knows nothing of forecasts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from hpcsweep import messages
from hpcsweep.messages import Message
from hpcsweep.spec import sweep_file
from hpcsweep.submit import request
from hpcsweep.submit.in_rounds import submit_in_rounds

if TYPE_CHECKING:
    from collections.abc import Collection

    from hpcsweep.submit.request import Request
    from localruns import Desk

SPEC = """\
workload: noop
axes: {model: [a, b, c, d, e]}
measure: {sleep_ms: 1%s}
"""


@dataclass
class Pairs:
    """Wants two points at a time that have no row, until four are measured."""

    desk: Desk
    asked: Request
    code: int = 10
    rows: list[int] = field(default_factory=list)  # that there were before each round

    def next_points(self) -> Collection[str]:
        """Return two points, or none."""
        done = {row["point_id"] for row in self.desk.rows()} if self.rows else set()
        self.rows.append(len(done))
        left = [point.point_id for point in self.asked.expansion if point.point_id not in done]
        return left[:2] if len(done) < 4 else []

    def progress(self) -> str:
        """Count the rounds."""
        return f"pair {len(self.rows)}"

    def finish(self) -> int:
        """Return a code of its own."""
        return self.code


def asked_of(desk: Desk, more: str = "", **options: float) -> Request:
    """Return the request for five points on this machine."""
    sweep = sweep_file.load(str(desk.spec(SPEC % more)))
    return request.of_cluster(sweep, "local", request.Options(**options))


def test_each_round_is_what_the_strategy_wants_of_the_rows_so_far(desk: Desk):
    """Its code is that of the command; the budget is its own, and is not asked for twice."""
    asked = asked_of(desk, max_gpu_hours=0.0)
    strategy = Pairs(desk, asked)
    said: list[Message] = []
    with messages.told_to(said.append):
        assert submit_in_rounds(desk.sweep(), asked, strategy, watch=False) == 10
    assert strategy.rows == [0, 2, 4]
    assert Counter(row["model"] for row in desk.rows()) == Counter("abcd")
    assert len(desk.sweep().submissions()) == 2
    told = [str(message) for message in said]
    assert [line for line in told if "pair" in line] == ["sweep: pair 1", "sweep: pair 2"]
    assert not [line for line in told if "next: " in line]  # the strategy says what comes next


@pytest.mark.parametrize("code", [2, 10])
def test_a_failed_point_ends_no_round_and_its_exit_code_stays(desk: Desk, code):
    """Unless that of the end is worse."""
    asked = asked_of(desk, ", fail: [{when: {model: a}, how: error}]")
    strategy = Pairs(desk, asked, code)
    with messages.told_to([].append):
        assert submit_in_rounds(desk.sweep(), asked, strategy, watch=False) == max(code, 3)
    assert Counter(row["status"] for row in desk.rows()) == {"error": 1, "ok": 3}
