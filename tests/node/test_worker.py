"""The worker behind a real socket."""

from __future__ import annotations

import pytest
import torch

from caring import caring
from hpcsweep import sources
from hpcsweep.catalog.row_records import TimeCells
from hpcsweep.errors import Refused
from hpcsweep.measure.bench_api import Measurement, Progress
from hpcsweep.node import worker
from hpcsweep.node.protocol import MeasureRequest
from hpcsweep.point import Point


def test_a_worker_measures_over_its_socket(tmp_path):
    """A real worker process: hello with the environment, then a row, layers and samples."""
    hello = []
    with caring(tmp_path, hello.append) as measure:
        first, graph = (measure("tinynets:Residual", 32, launch) for launch in ("eager", "graph"))
    assert [env["software"]["torch"] for env in hello] == [torch.__version__]
    assert [first.status, graph.status, len(first.layers)] == ["ok", "unsupported", 7]


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_worker_refuses_a_machine_without_the_promised_gpu(tmp_path):
    """It says so in its hello and leaves."""
    with (
        caring(tmp_path, run={"gpu": "v100", "gpu_name": "V100"}) as measure,
        pytest.raises(Refused, match="promises gpu 'v100'"),
    ):
        measure("tinynets:Residual")


class Misspelt:
    """A bench whose check makes cells that no record declares, of a row or of a layer."""

    history: dict[str, object] = {}  # noqa: RUF012 - as a bench has it

    def measure(self, point: Point, _tries: int, _progress: Progress) -> Measurement:
        """Measure."""
        kind = point.axes["model"]
        if kind == "row":
            return Measurement({"median_mss": 1.0})
        if kind == "layer":
            return Measurement({"median_ms": 1.0}, [{"kernel_hh": 3}])
        if kind == "record":
            TimeCells(median_mss=1.0)  # type: ignore[call-arg]
        return Measurement({"median_ms": 1.0}, [{"kernel_h": 3}])


def test_a_cell_that_no_record_declares_is_the_error_of_its_point():
    """The row names it, and the next point is measured."""
    points = [Point("noop", {"model": kind}, {}) for kind in ("row", "layer", "record", "right")]
    request = MeasureRequest(points=tuple(points))
    found = [*worker.outcomes(Misspelt(), request, lambda _message: None)]
    assert [one.status for one in found] == ["error", "error", "error", "ok"]
    assert [one.reason.partition(";")[0] for one in found] == [
        "UndeclaredCell: a row of overall.csv has no cell 'median_mss'",
        "UndeclaredCell: a row of layers.csv has no cell 'kernel_hh'",
        "UndeclaredCell: TimeCells has no cell 'median_mss'",
        "",
    ]


def test_a_file_that_is_replaced_while_its_point_is_measured_is_a_version_of_its_own(
    tmp_path, monkeypatch
):
    """Nobody can tell which one was measured; the next point has the new one."""
    (tmp_path / "w.pt").write_text("first")
    monkeypatch.setattr(sources, "_in_use", [str(tmp_path)])
    point = Point("inference", {"model": "resnet18", "weights": "w.pt"}, {})

    class Bench:
        def measure(self, _point: Point, _tries: int, _progress: Progress) -> Measurement:
            (tmp_path / "w.pt").write_text("second")
            return Measurement({})

    cells = [
        sources.parts(one.row["own_files"])["weights"]
        for one in worker.outcomes(
            Bench(), MeasureRequest(points=(point, point)), lambda _message: None
        )
    ]
    assert cells[0].endswith(f"-{cells[1]}")
    assert sources.Sources([str(tmp_path)]).digest("weights", "w.pt") == cells[1]
