"""Job ids in every form that Slurm prints."""

from __future__ import annotations

import pytest

from hpcsweep.cluster.slurm import JobId, parse_id

ID_FORMS = [
    ("12", JobId("12", 12)),
    ("12_3", JobId("12_3", 12, 3)),
    ("12_[3-9%2]", JobId("12_[3-9%2]", 12, tasks=(range(3, 10),))),
    ("12_[1,4-6]", JobId("12_[1,4-6]", 12, tasks=(range(1, 2), range(4, 7)))),
    ("12_[0-10:5]", JobId("12_[0-10:5]", 12, tasks=(range(0, 11, 5),))),
    ("12_[4%1]", JobId("12_[4%1]", 12, tasks=(range(4, 5),))),
    ("12+1", JobId("12+1", 12)),
    ("12+1.0", JobId("12+1.0", 12)),
    ("12.batch", JobId("12.batch", 12)),
    ("12_3.extern", JobId("12_3.extern", 12, 3)),
    ("12;cluster", JobId("12;cluster", 12)),
    ("12_3;a.b-c", JobId("12_3;a.b-c", 12, 3)),
    ("12_[0-99,...]", JobId("12_[0-99,...]", 12, tasks=(range(100),))),
    ("12_[0-9,11,1...", JobId("12_[0-9,11,1...", 12, None, (range(10), range(11, 12)))),
    ("12_[0-9,11%", JobId("12_[0-9,11%", 12, None, (range(10), range(11, 12)))),
    ("12_[0x3F]", JobId("12_[0x3F]", 12)),
    ("12_[0-99999999999]", JobId("12_[0-99999999999]", 12)),
    ("9" * 5000, JobId("9" * 5000)),
    ("12_[]", JobId("12_[]", 12)),
    ("  7 ", JobId("7", 7)),
    ("", JobId("")),
    ("JOBID", JobId("JOBID")),
    ("12_", JobId("12_")),
    ("12_[1-3]_4", JobId("12_[1-3]_4")),
    ("-5", JobId("-5")),
    ("١٢", JobId("١٢")),
]


@pytest.mark.parametrize(("text", "expected"), ID_FORMS)
def test_job_ids_are_read_in_every_form(text: str, expected: JobId):
    """One parser for all that squeue, sacct and sbatch print; the rest is kept verbatim."""
    assert parse_id(text) == expected


def test_a_huge_range_costs_nothing():
    """Four million waiting tasks are a range until somebody walks through it."""
    assert len(parse_id("12_[0-4000000]").tasks[0]) == 4_000_001
