"""Which node is slow: how often it is found, and how often an equal one is blamed."""

from __future__ import annotations

import csv

import numpy as np
import pandas as pd
import pytest

from analysistables import record_of, table_of
from hpcsweep.analysis import nodes, report, verdicts
from hpcsweep.store.folders import SweepDir

COLUMNS = (
    "model", "algorithm", "input_size", "gpu", "median_ms", "throughput_ips", "status", "flags",
    "valid", "orphan", "point_id", "visit", "on_node", "node", "sm_clock_mhz_mean",
    "driver_version", "submission", "chunk", "attempt",
)  # fmt: skip


def measured(random, number, points, visits, *, slow=0.0, job=0.003, noise=0.02):
    """Return times of equal nodes but the first; each point has a noise of its own, with a tail.

    `noise` of a point at one visit, `job` of all that one node measured.
    """
    shape = (points, number, visits)
    scale = noise * np.exp(0.5 * random.standard_normal((points, 1, 1)))
    logs = scale * (random.standard_gamma(3.0, shape) - 3.0) / np.sqrt(3.0)
    logs += job * random.standard_normal((1, number, 1))
    logs[:, 0] += np.log1p(slow)
    point, node, visit = (axis.ravel() for axis in np.indices(shape))
    return pd.DataFrame(
        {"point": point, "node": node, "visit": visit, "log": logs.ravel()}
    )  # fmt: skip


def verdicts_of(times):
    """Return the verdict about each node."""
    return nodes.judged(times)["verdict"]


@pytest.mark.parametrize(("number", "points", "visits"), [(2, 12, 1), (4, 4, 3), (16, 40, 1)])
def test_of_equal_nodes_one_is_blamed_as_rarely_as_is_said(number, points, visits):
    """However many nodes there are: in a table of them, none is slower or faster."""
    random = np.random.default_rng(number)
    tables = 100
    blamed = 0
    for _ in range(tables):
        blamed += (verdicts_of(measured(random, number, points, visits)) != "").any()
    assert blamed <= verdicts.WRONG * tables


@pytest.mark.parametrize(
    ("slow", "points", "visits", "least"),
    [(0.02, 40, 3, 0.6), (0.03, 40, 1, 0.8), (0.05, 12, 1, 0.8)],
)  # fmt: skip
def test_a_node_that_is_a_little_slower_is_found_among_four(slow, points, visits, least):
    """And it makes no other node look fast: these are blamed as rarely as without it."""
    random = np.random.default_rng(4)
    tables = 50
    found = blamed = 0
    for _ in range(tables):
        judged = verdicts_of(measured(random, 4, points, visits, slow=slow))
        found += judged[0] == nodes.SLOWER
        blamed += (judged.drop(0) != "").any()
    assert found >= least * tables
    assert blamed <= verdicts.WRONG * tables


def test_two_slow_nodes_do_not_hide_each_other():
    """What differs is left out of what the others are compared with."""
    times = measured(np.random.default_rng(1), 5, 30, 3)
    times.loc[times["node"] < 2, "log"] += np.log(1.1)
    judged = nodes.judged(times)
    assert [*judged["verdict"]] == [nodes.SLOWER, nodes.SLOWER, "", "", ""]
    assert judged["ratio"][:2].between(1.08, 1.12).all()
    assert judged["ratio"][2:].between(0.99, 1.01).all()


def table(folder, rows):
    """Return a sweep with a merged table of these rows."""
    sweep_dir = SweepDir(folder / "s")
    sweep_dir.path.mkdir(exist_ok=True)
    with sweep_dir.overall.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for place, row in enumerate(rows):
            writer.writerow({"point_id": f"{place:016x}", **row})
    return sweep_dir


def row(node, size, ms, **more):
    """Return a row of a point that was sent to a node."""
    return {
        "model": "resnet18", "algorithm": "auto", "input_size": size, "gpu": "l40",
        "median_ms": ms, "throughput_ips": 1000 / ms, "status": "ok", "valid": "true",
        "orphan": "false", "visit": 1, "node": node, "on_node": node, "sm_clock_mhz_mean": 1410,
        "driver_version": "550", **more,
    }  # fmt: skip


def swept(slow=1.0, **more):
    """Return four points on three nodes, of which the second has other cells, too."""
    rows = []
    for size in (32, 64, 96, 128):
        noise = size % 5 / 1000
        rows += [row("n1", size, size * (1 + noise)), row("n3", size, size * (1.002 - noise))]
        rows.append(row("n2", size, size * slow, **more))
    return rows


@pytest.mark.parametrize("metric", ["", "throughput_ips"])
def test_the_report_names_the_slow_node_with_what_may_explain_it(tmp_path, metric):
    """Of times and of rates; a device that slows itself down is a finding, no disturbance."""
    cells = {"sm_clock_mhz_mean": 1200, "flags": "throttled", "valid": "false"}
    found = report.read_report(table(tmp_path, swept(1.1, **cells)), metric=metric)
    by_node = {each["node"]: each for each in record_of(found)["nodes"]}
    assert {name: each["verdict"] for name, each in by_node.items()} == {
        "n1": "", "n2": nodes.SLOWER, "n3": "",
    }  # fmt: skip
    assert by_node["n2"]["ratio"] == pytest.approx(1.1, abs=0.005)
    assert by_node["n2"]["low"] < by_node["n2"]["ratio"] < by_node["n2"]["high"]
    assert (by_node["n1"]["sm_clock_mhz_mean"], by_node["n2"]["sm_clock_mhz_mean"]) == (1410, 1200)
    assert (by_node["n1"]["throttled"], by_node["n2"]["throttled"]) == (0, 4)
    told = table_of(found)
    assert "slower by 9.9 % (" in told
    assert told.count("no difference shown (") == 2


def test_a_disturbed_row_is_left_out_and_versions_are_told_where_they_differ(tmp_path):
    """A neighbour says nothing of a node."""
    rows = swept(1.0, driver_version="535")
    rows[0] = {**rows[0], "median_ms": 500, "flags": "contended", "valid": "false"}
    found = report.read_report(table(tmp_path, rows))
    assert {each["verdict"] for each in record_of(found)["nodes"]} == {""}
    assert {each["points"] for each in record_of(found)["nodes"]} == {3, 4}
    told = table_of(found)
    assert "1 row left out (contended)" in told
    assert "driver version" in told


def test_a_point_that_happened_to_move_is_no_comparison_of_nodes(tmp_path):
    """Visits of one point on two nodes are told of only where the sweep was sent to each node."""
    anywhere = {"on_node": ""}
    rows = [row("n1", 32, 1.0, **anywhere), row("n2", 32, 2.0, **anywhere, visit=2)]
    rows.append(row("n2", 64, 1.0, **anywhere))
    assert "nodes" not in record_of(report.read_report(table(tmp_path, rows)))
    asked = [{**each, "on_node": each["node"]} for each in rows]
    found = record_of(report.read_report(table(tmp_path, asked)))["nodes"]
    assert [each["points"] for each in found] == [1, 1]
