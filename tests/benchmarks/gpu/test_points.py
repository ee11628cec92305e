"""The points of the proof on a GPU."""

from __future__ import annotations

from benchmarks.gpu import points


def test_an_algorithm_that_covers_nothing_of_an_eager_pass_gets_no_graph():
    """Nor does one that failed; `auto` and `implicit_gemm` are planned in any case."""
    names = ["auto", "gemm", "winograd", "fft"]
    assert list(points.plan(names))[-3:] == ["gemm eager 0", "winograd eager 0", "fft eager 0"]
    found = {"gemm eager 0": {"algorithm_coverage_pct": 40.0},
             "winograd eager 0": {"algorithm_coverage_pct": 0.0}}  # fmt: skip
    again = ["auto graph 1", "implicit_gemm eager 1", "implicit_gemm graph 1"]
    assert list(points.graphs(names, found)) == ["gemm graph 0", *again]
