"""Says what the figures of the page are: kind, data and columns; `figures.js` draws them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from hpcsweep.analysis import formats
from hpcsweep.records import dataclass, field

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pandas as pd

    from hpcsweep.analysis.page.frames import Layout
    from hpcsweep.analysis.roofline.work import Roofs

_FEW: Final = 2  # marks that say nothing if they have one value


@dataclass(frozen=True)
class Figure:
    """One figure: what it is called, what it shows, on which GPU, and how it is drawn."""

    name: str
    title: str
    spec: dict[str, Any]
    gpu: str = ""

    @property
    def ident(self) -> str:
        return "-".join(filter(None, ("figure", self.name, self.gpu))).replace(" ", "_")


@dataclass(frozen=True)
class Painter:
    """Describes figures of one GPU; `values` are those of colour."""

    seen: Layout
    values: Sequence[str]
    gpu: str
    data: dict[str, pd.DataFrame] = field(default_factory=dict)

    def over(self, name: str, title: str, ys: Mapping[str, str]) -> Figure:
        """Draw one of several columns over x, each with its label, a line per colour."""
        times = {"low": "ci95_lo_ms", "high": "ci95_hi_ms"}
        told = {
            y: {"label": label, **(times if y == "median_ms" else {})} for y, label in ys.items()
        }
        return self._figure("lines", name, title, "points", ys=told, x=self.seen.x)

    def stacked(self, data: str, part: str, title: str) -> Figure:
        """Draw bars of mean milliseconds at one value of x, stacked by kind, one per colour."""
        return self._figure("bars", data, title, data, part=part, x=self.seen.x, at=True)

    def slowest(self, title: str) -> Figure:
        """Draw the times of the slowest layers at one value of x, a mark per colour."""
        return self._figure(
            "dots", "slowest", title, "slowest", row="layer", x=self.seen.x, at=True
        )

    def best(self, title: str) -> Figure:
        """Draw a map of the fastest algorithm, layer by x."""
        return self._figure("map", "best", title, "best", x=self.seen.x)

    def history(self, title: str) -> Figure:
        """Draw each configuration over the runs, its levels, and a mark where one begins."""
        return self._figure("runs", "history", title, "history", x="run")

    def coverage(self, title: str) -> Figure:
        """Draw the share of the convolutions that ran the requested algorithm, a tick per point."""
        return self._figure("ticks", "coverage", title, "points", x="algorithm_coverage_pct")

    def roofline(self, title: str, roofs: Roofs | None, units: Sequence[str]) -> Figure:
        """Draw performance over arithmetic intensity, below the roofs where they are known."""
        lines = [_roof(roofs, unit) for unit in units] if roofs else []
        return self._figure(
            "roofline", "roofline", title, "roofline", x="flop_per_byte", roofs=lines
        )

    def says_nothing(self, figure: Figure) -> bool:
        """Tell whether a figure has one value alone, or one of everything."""
        spec, rows = figure.spec, self.data[figure.spec["data"]]
        if self.gpu and "gpu" in rows:
            rows = rows[rows["gpu"] == self.gpu]
        if spec["kind"] == "lines":
            return all(_is_one(rows, y) for y in spec["ys"])
        if spec["kind"] == "bars":
            return bool(rows[spec["part"]].nunique() < _FEW)
        if spec["kind"] == "ticks":
            return bool(rows[spec["x"]].nunique() < _FEW)
        if spec["kind"] == "map":
            return bool(rows["algorithm"].nunique() < _FEW)
        return spec["kind"] == "dots" and len(rows) <= _FEW

    def _figure(self, kind: str, name: str, title: str, data: str, **more: Any) -> Figure:  # noqa: ANN401
        where = f" on {self.gpu}" if self.gpu else ""
        spec = {
            "kind": kind,
            "data": data,
            "gpu": self.gpu,
            "colour": self.seen.colour,
            "values": [*self.values],
            "filters": [*self.seen.filters],
            "xTitle": formats.label(str(more["x"])),
            "about": f"{title}{where}; the table of all points has the values",
            **more,
        }
        return Figure(name, title, spec, self.gpu)


def _is_one(rows: pd.DataFrame, y: str) -> bool:
    known = rows[y].dropna() if y in rows else rows.iloc[:0, 0]
    return len(known) <= 1 or (len(known) <= _FEW and len({*known}) == 1)


def _roof(roofs: Roofs, unit: str) -> dict[str, Any]:
    """Return three places of a roof: below its ridge, the ridge, above it."""
    peak, slope = roofs.peak(unit) / 1e12, roofs.bandwidth / 1e12
    name = f"{unit} {peak:.4g} TFLOP/s, {1000 * slope:.4g} GB/s"
    places = (peak / slope * factor for factor in (0.003, 1, 30))
    return {"name": name, "points": [(place, min(peak, place * slope)) for place in places]}
