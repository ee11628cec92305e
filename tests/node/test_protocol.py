"""Only a whole reply to the very request is believed; anything else costs its own point alone."""

from __future__ import annotations

import json

import pytest

import leaving
from caring import caring
from hpcsweep import processes

OUTCOME = {"status": "ok", "point_id": "ID", "row": {"median_ms": 1.5}}


def reply(**other):
    """Return a reply with a good outcome, but for some of its keys."""
    return json.dumps({"outcomes": [OUTCOME | other]})


@pytest.fixture
def measure(tmp_path, monkeypatch):
    """Measure with a real worker whose points do what their model names."""
    monkeypatch.setattr(processes, "python", leaving.worker)
    with caring(tmp_path) as found:
        yield found


def said_by_liar(tmp_path, monkeypatch, said):
    """Return the outcome of a point whose worker says this."""
    monkeypatch.setattr(processes, "python", leaving.liar(said))
    with caring(tmp_path) as found:
        return found("any")


def test_a_good_reply_is_believed(tmp_path, monkeypatch):
    """So the others are refused for what is wrong with them."""
    outcome = said_by_liar(tmp_path, monkeypatch, reply())
    assert (outcome.status, outcome.row["median_ms"]) == ("ok", 1.5)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("", "no JSON object"),
        ("{", "no JSON object"),
        ("[1, 2]", "no JSON object"),
        ("[" * 100_000, "no JSON object"),
        ("1" * 10_000, "no JSON object"),
        ("{}", "keys are missing"),
        (json.dumps({"outcomes": []}), "answers no point"),
        (json.dumps({"outcomes": [OUTCOME, OUTCOME]}), "not this request"),
        (reply(point_id="0123"), "answers 0123"),
        (reply(status="fine"), "fine"),
        (reply(row=[]), "`row`"),
        (reply(timed_s=True), "`timed_s`"),
        ("\x00\x01", "no JSON object"),
    ],
)
def test_a_reply_that_is_no_answer_is_a_crash_with_a_plain_reason(tmp_path, monkeypatch, said, why):
    """Of another form, or to another request."""
    outcome = said_by_liar(tmp_path, monkeypatch, said)
    assert (outcome.status, outcome.row) == ("crashed", {})
    assert outcome.reason.startswith("the worker's reply cannot be trusted: ")
    assert why in outcome.reason


@pytest.mark.parametrize("act", ["forges", "half_a_line", "binary"])
def test_what_a_network_writes_to_the_line_is_its_own_crash(measure, act):
    """The points before and after it have their own times."""
    assert [measure("nothing", 1).row["median_ms"], measure("waits", 2).row["median_ms"]] == [1, 2]
    assert measure(act, 3).status == "crashed"
    assert [measure("nothing", 4).row["median_ms"], measure("waits", 5).row["median_ms"]] == [4, 5]


@pytest.mark.parametrize("act", ["forks", "forks_in_c", "prints", "forges_late"])
def test_what_comes_from_a_copy_or_late_gives_no_point_the_time_of_another(measure, act):
    """A copy has no line, what is printed goes to the log, and what is late meets a new worker."""
    found = [measure("does_by_size", ms, act=act).row["median_ms"] for ms in (1, 2, 3)]
    assert found == [1, 2, 3]


def test_a_worker_without_its_line_ends_at_once(measure):
    """It closed every file that is not its own."""
    assert measure("closes").status == "crashed"
    assert measure("nothing").status == "ok"
