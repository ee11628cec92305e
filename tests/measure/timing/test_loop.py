"""The measuring loop, on a clock that is made up, so that nothing depends on time."""

from __future__ import annotations

import gc
import itertools
import random
import time
from contextlib import contextmanager

import pytest

from hpcsweep import catalog
from hpcsweep.measure.timing import loop
from hpcsweep.measure.timing.clocks import HostClock
from hpcsweep.measure.timing.loop import Adaptive, Fixed, Lane, Steady, collect


class _FakeClock:
    """Gives the next of some times for each pass, and says what it did."""

    def __init__(self, times, log=None, name=""):
        self.times, self.log, self.name = iter(times), log if log is not None else [], name
        self.elapsed = 0.0

    def block(self, run, count):
        self.log.append((self.name, count))
        times = []
        for _ in range(count):
            run()
            times.append(next(self.times))
        self.elapsed += sum(times) / 1000
        return times

    def now(self):
        return self.elapsed


def _one_lane(times):
    clock = _FakeClock(times)
    return [Lane(lambda: None, clock)], clock


@pytest.mark.parametrize("wanted", [0, 1, 2, 7, 20, 53])
def test_a_fixed_number_of_passes_is_exact(wanted):
    """Not one pass more than asked for, and none where none is wanted."""
    runs = itertools.count()
    lane = Lane(lambda: next(runs), _FakeClock(itertools.repeat(3.0)))
    done = collect([lane], Fixed(wanted))
    assert len(done.times[0]) == wanted
    assert next(runs) == wanted
    assert done.reason == "fixed"


def test_the_seconds_of_timed_passes_are_those_of_their_blocks():
    """Putting timers around layers and looking at the machine between blocks do not count."""

    @contextmanager
    def around(_count):
        time.sleep(0.02)
        yield

    lanes = [Lane(lambda: time.sleep(0.001), HostClock(), around), Lane(lambda: None, HostClock())]
    done = collect(lanes, Fixed(3), at_block_end=lambda: time.sleep(0.01))
    assert done.timed_s == pytest.approx(sum(map(sum, done.times)) / 1000, abs=0.002)
    assert done.seconds > done.timed_s + 0.02


def test_two_lanes_take_turns_and_swap_order():
    """Clean, layers, layers, clean: so that a drift over time falls on both alike."""
    log = []
    lanes = [
        Lane(lambda: None, _FakeClock(itertools.repeat(300.0), log, name))
        for name in ("clean", "layers")
    ]
    collect(lanes, Fixed(4))
    names = [name for name, _ in log]
    assert names == ["clean", "layers", "layers", "clean"] * 2


def test_a_drifting_machine_leaves_the_ratio_of_the_lanes_alone():
    """A machine that becomes twice as slow shows the same mean in both lanes within 3 %."""
    now = itertools.count()

    class Drifting:
        def block(self, run, count):
            return [20.0 + next(now) for _ in range(count)]

    done = collect([Lane(lambda: None, Drifting()), Lane(lambda: None, Drifting())], Fixed(40))
    clean, layers = (sum(times) for times in done.times)
    assert clean / layers == pytest.approx(1, abs=0.03)


def test_what_surrounds_a_lane_is_on_for_its_own_blocks_only():
    """Hooks of the layer lane are never attached while a clean pass runs."""
    attached = []
    seen = {"clean": set(), "layers": set()}

    @contextmanager
    def around(count):
        attached.append(count)
        yield
        attached.pop()

    lanes = [
        Lane(lambda: seen["clean"].add(bool(attached)), _FakeClock(itertools.repeat(30.0))),
        Lane(
            lambda: seen["layers"].add(bool(attached)), _FakeClock(itertools.repeat(30.0)), around
        ),
    ]
    collect(lanes, Fixed(20))
    assert seen == {"clean": {False}, "layers": {True}}


def test_a_lane_that_must_be_read_after_every_pass_gets_single_passes():
    """`most` splits a block; the number of passes stays the same as in the other lane."""
    log = []
    lanes = [
        Lane(lambda: None, _FakeClock(itertools.repeat(1.0), log, "clean")),
        Lane(lambda: None, _FakeClock(itertools.repeat(1.0), log, "graph"), most=1),
    ]
    done = collect(lanes, Fixed(12))
    assert [len(times) for times in done.times] == [12, 12]
    assert {count for name, count in log if name == "graph"} == {1}
    assert max(count for name, count in log if name == "clean") > 1


def test_the_machine_is_looked_at_between_blocks():
    """Telemetry is asked once after every block."""
    looks = []
    lanes, clock = _one_lane(itertools.repeat(30.0))
    collect(lanes, Fixed(20), at_block_end=lambda: looks.append(len(clock.log)))
    assert looks == list(range(1, len(clock.log) + 1))


def test_the_garbage_collector_rests_during_passes_and_comes_back():
    """It would interrupt passes; afterwards it is as it was, even when a pass fails."""
    seen = []
    lanes = [Lane(lambda: seen.append(gc.isenabled()), _FakeClock([1.0]))]
    collect(lanes, Fixed(1))
    assert seen == [False]
    assert gc.isenabled()
    with pytest.raises(StopIteration):
        collect(_one_lane([])[0], Fixed(1))
    assert gc.isenabled()


def test_a_quiet_machine_converges_at_the_fewest_passes():
    """No noise: stop at `least`, once half a second was measured."""
    lanes, clock = _one_lane(itertools.repeat(50.0))
    done = collect(lanes, Adaptive(30, target=0.01, most_seconds=60.0), now=clock.now)
    assert done.reason == "converged"
    assert len(done.times[0]) == 30


def test_short_passes_are_measured_for_half_a_second():
    """Thirty passes of 0.1 ms say nothing about a machine: go on to half a second."""
    lanes, clock = _one_lane(itertools.repeat(0.1))
    done = collect(lanes, Adaptive(30, target=0.01, most_seconds=60.0), now=clock.now)
    assert done.reason == "converged"
    assert 0.5 <= done.seconds < 0.6


def test_more_passes_narrow_the_interval_until_it_converges():
    """With moderate noise the median's interval shrinks below the target, though the IQR cannot."""
    noise = random.Random(1)
    lanes, clock = _one_lane(noise.gauss(20.0, 0.5) for _ in itertools.count())
    done = collect(lanes, Adaptive(30, target=0.004, most_seconds=600.0, steady=0.0), now=clock.now)
    assert done.reason == "converged"
    assert len(done.times[0]) > 100


def test_noise_that_will_not_shrink_ends_the_loop():
    """When the relative IQR has stood still over 64 passes, more passes tell nothing new."""
    noise = random.Random(2)
    lanes, clock = _one_lane(noise.lognormvariate(3.0, 0.4) for _ in itertools.count())
    done = collect(lanes, Adaptive(30, target=1e-4, most_seconds=600.0), now=clock.now)
    assert done.reason == "stable_noise"
    assert 30 + 64 <= len(done.times[0]) < 5000


def test_the_time_cap_ends_the_loop():
    """A machine that never settles is left after `most_seconds`, with what was measured."""
    growing = itertools.accumulate(itertools.repeat(1.05), lambda a, b: a * b, initial=20.0)
    lanes, clock = _one_lane(growing)
    done = collect(lanes, Adaptive(30, target=1e-6, most_seconds=3.0), now=clock.now)
    assert done.reason == "timeout"
    assert done.times[0]


def test_collecting_garbage_takes_none_of_the_time_for_passes():
    """Torch's objects take a while, on a busy machine longer than a short cap."""
    lanes, clock = _one_lane(itertools.repeat(10.0))

    def slow(_phase, _info):
        clock.elapsed += 30.0

    gc.callbacks.append(slow)
    try:
        done = collect(lanes, Adaptive(30, target=1e-9, most_seconds=0.4), now=clock.now)
    finally:
        gc.callbacks.remove(slow)
    assert len(done.times[0]) == 40
    assert done.seconds == pytest.approx(0.4)


def test_a_cap_of_nothing_still_gives_one_block():
    """`max_seconds: 0` measures something: a row needs a number."""
    lanes, clock = _one_lane(itertools.repeat(5.0))
    done = collect(lanes, Adaptive(30, target=1e-6, most_seconds=0.0), now=clock.now)
    assert done.reason == "timeout"
    assert len(done.times[0]) >= 1


def test_warm_up_waits_until_there_is_no_trend():
    """A machine that becomes faster for a while is warm only when it has stopped doing so."""
    lanes, clock = _one_lane(20.0 + max(0.0, 40.0 - i) for i in itertools.count())
    done = collect(lanes, Steady(10), now=clock.now)
    assert done.reason == "steady"
    assert len(done.times[0]) > 40


def test_warm_up_ends_on_a_machine_that_never_calms_down():
    """After ten seconds the machine is taken as it is."""
    growing = itertools.accumulate(itertools.repeat(1.02), lambda a, b: a * b, initial=20.0)
    lanes, clock = _one_lane(growing)
    done = collect(lanes, Steady(10), now=clock.now)
    assert done.reason == "timeout"
    assert done.seconds >= 10


def test_the_settings_choose_the_rules():
    """`stop: fixed` counts, `stop: adaptive` judges; a warm-up's first call is over by then."""
    settings = catalog.setting_defaults("inference")
    assert loop.stopping_rule(settings) == Fixed(20)
    assert loop.warm_up_rule(settings) == Fixed(9)
    settings["stop"] = "adaptive"
    assert loop.stopping_rule(settings) == Adaptive(30, target=0.01, most_seconds=60.0)
    assert loop.warm_up_rule(settings) == Steady(9)
