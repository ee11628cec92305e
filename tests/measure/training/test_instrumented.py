"""Further steps with instruments, on a CPU."""

from __future__ import annotations

import pytest

from hpcsweep.measure.data import loaders
from hpcsweep.measure.machine import memory
from hpcsweep.measure.training import instrumented
from hpcsweep.measure.training.phases import PHASES
from measuring import CPU, make_trainer, training


@pytest.fixture
def ready():
    """Return a trainer and its data."""
    return make_trainer(training()), loaders.open_data(training())


def test_every_phase_of_every_step_is_timed(ready):
    """Six phases that are the step, but for what lies between them."""
    times = instrumented.time_phases(*ready, 4, instrumented.phase_timer(CPU))
    assert {name: len(of_phase) for name, of_phase in times.phases.items()} == dict.fromkeys(
        PHASES, 4
    )
    assert all(time > 0 for of_phase in times.phases.values() for time in of_phase)
    assert len(times.steps) == 4
    assert times.sum_over_step < 1


def test_steps_are_ticked_without_touching_them(ready):
    """One tick more than there are steps."""
    ticker = instrumented.ticker(CPU)
    for _ in range(3):
        ticker.tick()
    assert (ticker.timer, len(ticker.read()), ticker.read()) == ("host", 2, [])


def test_the_memory_of_a_step_is_an_average_in_bytes(ready):
    """Between nothing and all that there is; unknown where the system does not say."""
    watched = memory.watch(CPU)
    assert 0 < instrumented.average_memory(*ready, watched) < watched.limit()

    class Silent:
        def now(self):
            return None

    assert instrumented.average_memory(*ready, Silent()) is None
