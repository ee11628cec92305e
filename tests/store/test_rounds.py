"""What is kept of a sweep that is measured in rounds."""

from __future__ import annotations

import pytest

from hpcsweep.errors import ResultsError
from hpcsweep.store import rounds
from hpcsweep.store.folders import SweepDir
from hpcsweep.store.rounds import AdaptiveRun, Round

BEGUN = AdaptiveRun(device="h100", target=0.03, of=100, rounds=(Round(points=("a", "b")),))
JUDGED = AdaptiveRun(
    device="l40",
    target=0.005,
    of=2000,
    rounds=(Round(points=("a",)), Round(points=("b", "c"), error=0.0213, held_out=2)),
    outcome="target reached",
)


def test_each_device_keeps_its_rounds(tmp_path):
    """One profile after the other may measure a sweep."""
    run = SweepDir(tmp_path)
    assert rounds.read_rounds(run) == {}
    rounds.write_rounds(run, {}, BEGUN)
    rounds.write_rounds(run, rounds.read_rounds(run), JUDGED)
    assert rounds.read_rounds(run) == {"h100": BEGUN, "l40": JUDGED}


@pytest.mark.parametrize("text", ["", "[]", '{"cpu": 3}', '{"cpu": {"device": "cpu"}}'])
def test_a_damaged_file_is_named_with_the_way_out(tmp_path, text):
    """Rows are not lost with it."""
    run = SweepDir(tmp_path)
    run.until.write_text(text)
    with pytest.raises(ResultsError, match=r"until\.json.*remove it: all rows stay"):
        rounds.read_rounds(run)


def test_how_far_it_is_in_words_and_as_a_record():
    """Before anything was judged, and after."""
    assert BEGUN.text() == (
        "round 1, 2 of 100 points asked for; held-out error not known yet, target 3 %"
    )
    assert JUDGED.text() == (
        "round 2, 3 of 2,000 points asked for; held-out error 2.1 % (mean of 2 points), "
        "target 0.5 %: target reached"
    )
    assert [one["points"] for one in JUDGED.to_json()["rounds"]] == [1, 2]
