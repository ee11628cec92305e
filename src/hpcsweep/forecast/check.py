"""`hpcsweep predict --check`: errors and intervals on what was left out, beside the baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from hpcsweep.forecast import baselines, intervals, leaving_out
from hpcsweep.records import dataclass
from hpcsweep.text import aligned, count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hpcsweep.forecast.leaving_out import Left
    from hpcsweep.forecast.tables import Measured

WORDS: Final = {
    "network": "a whole network",
    "size": "every fourth size",
    "algorithm": "an algorithm",
    "gpu": "a GPU",
}


@dataclass(frozen=True)
class Check:
    """What leaving out found: records as `--json` prints them."""

    measured: Measured
    parts: Sequence[Mapping[str, Any]]
    left: Sequence[Left]

    def to_json(self) -> dict[str, Any]:
        """Return the plain record."""
        points = self.measured.points
        return {
            "points": len(points),
            "networks": sorted(points["model"].unique()),
            "algorithms": sorted(points["algorithm"].unique()),
            "gpus": sorted(points["gpu"].unique()),
            "layer_rows": len(self.measured.layers),
            "doubtful_left_out": self.measured.doubtful,
            "checks": list(self.parts),
        }

    def text(self) -> str:
        """Return one table per kind of what was left out."""
        record = self.to_json()
        head = (
            f"{count(record['points'], 'point')} of {count(len(record['networks']), 'network')}, "
            f"{count(len(record['algorithms']), 'algorithm')}, {', '.join(record['gpus'])}"
        )
        doubt = self.measured.doubtful
        lines = [head + (f"; {count(doubt, 'doubtful point')} not used" if doubt else "")]
        if not self.parts:
            lines.append("nothing to leave out: one network, algorithm and GPU, and too few sizes")
        for part in self.parts:
            lines += ["", *_table(part)]
        return "\n".join(lines)


def check(measured: Measured) -> Check:
    """Leave out whatever there is more than one of, and compare with what was measured."""
    tried = (leaving_out.leave_out(measured, kind, compare=True) for kind in WORDS)
    left = [one for one in tried if one is not None]
    return Check(measured, [_part(one) for one in left], left)


def _part(left: Left) -> dict[str, Any]:
    held = pd.concat([_held(left, fold) for fold in left.folds])
    names = [intervals.OWN, *baselines.ALL]
    calls = left.calls
    return {
        "left_out": left.kind,
        "fits": len(left.folds),
        "errors": {
            name: {
                "totals": _errors(left.points["total_ms"], left.points[name]),
                "layers": _errors(calls["ms"], calls[name]),
                "convolutions": _errors(*_convolutions(calls, name)),
            }
            for name in names
        },
        "interval_holds": {
            "totals": _mean(held[held["what"] == "total"]),
            "layers": _mean(held[held["what"] == "layer"]),
        },
        "parts": [_of_fold(left, fold) for fold in left.folds],
    }


def _held(left: Left, fold: str) -> pd.DataFrame:
    """Return whether the times of a fold are in the intervals that the other folds gave."""
    widths = intervals.calibrate(left, without=fold)
    points = left.points[left.points["fold"] == fold]
    calls = left.calls[left.calls["fold"] == fold]
    total = _in_interval(points["total_ms"], points[intervals.OWN], widths.total)
    layer = _in_interval(calls["ms"], calls[intervals.OWN], widths.of_layers(calls))
    return pd.DataFrame(
        {"held": np.concatenate([total, layer]),
         "what": ["total"] * len(total) + ["layer"] * len(layer)}
    )  # fmt: skip


def _in_interval(true: Any, said: Any, factor: Any) -> Any:  # noqa: ANN401 - columns
    return intervals.held(true.to_numpy(float), said.to_numpy(float), factor)


def _of_fold(left: Left, fold: str) -> dict[str, Any]:
    points = left.points[left.points["fold"] == fold]
    calls = left.calls[left.calls["fold"] == fold]
    return {
        "name": fold,
        "totals": _errors(points["total_ms"], points[intervals.OWN]),
        "layers": _errors(calls["ms"], calls[intervals.OWN]),
    }


def _convolutions(calls: pd.DataFrame, name: str) -> tuple[Any, Any]:
    rows = calls[calls["op"].astype(str).str.startswith("conv")]
    return rows["ms"], rows[name]


def _errors(true: Any, said: Any) -> dict[str, float]:  # noqa: ANN401 - columns
    """Return the median and mean absolute error, and the bias, each a share of the true time."""
    ratio = said.to_numpy(float) / true.to_numpy(float)
    wrong = np.abs(ratio - 1.0)
    if not len(wrong):
        return {"median": float("nan"), "mean": float("nan"), "bias": float("nan")}
    bias = float(np.median(ratio) - 1.0)
    return {"median": float(np.median(wrong)), "mean": float(np.mean(wrong)), "bias": bias}


def _mean(rows: pd.DataFrame) -> float:
    return float(rows["held"].mean())


def _table(part: Mapping[str, Any]) -> list[str]:
    columns = ("totals", "layers", "convolutions")
    heads = ["", *(f"{name} {how}" for name in columns for how in ("median", "mean"))]
    body = [
        [name, *(_percent(of[name_][how]) for name_ in columns for how in ("median", "mean"))]
        for name, of in part["errors"].items()
    ]
    holds = part["interval_holds"]
    return [
        f"left out: {WORDS[part['left_out']]} ({count(part['fits'], 'fit')}); absolute errors",
        *aligned([heads, *body], left=1),
        (
            f"the 90 % interval holds {_percent(holds['totals'])} of the totals and "
            f"{_percent(holds['layers'])} of the layers"
        ),
    ]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 10 else f"{share:,.0f} x"
