"""Draws the figures of the page with Vega-Altair.

A figure names the data that it draws; the page hands the data over. Its parameters `f_AXIS` are set
by the page's controls, so that each control changes all figures at once. Text and axes have the
page's own colour (`currentColor`), in the dark as in the light.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import altair as alt

from hpcsweep.analysis import formats
from hpcsweep.analysis.output import COLOURS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hpcsweep.analysis.page.frames import Layout
    from hpcsweep.analysis.roofline.work import Roofs

_PALETTE: Final = [colour if colour != "#000000" else "#8c8c8c" for colour in COLOURS]
_HEIGHT: Final = 240
_TICKS: Final = 12  # so many values of x have a tick each
_ROW: Final = 17  # pixels
_AT: Final = "at"  # the control that chooses the value of x for figures of layers
_INK: Final = "currentColor"
_TEXT: Final = {f"{what}Color": _INK for what in ("label", "title", "domain", "tick", "grid")} | {
    "gridOpacity": 0.15,
    "labelFontSize": 12,
    "titleFontSize": 12,
    "labelLimit": 260,
}
CONFIG: Final = {
    "background": None,
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    "mark": {"aria": False},  # the description names the table, which says more
    "axis": {**_TEXT, "aria": False},
    "legend": {"aria": False, "labelColor": _INK, "titleColor": _INK, "orient": "bottom",
               "columns": 3, "labelFontSize": 12, "labelLimit": 220},
    "title": {"color": _INK},
    "text": {"color": _INK, "fill": _INK},
}  # fmt: skip


@dataclass(frozen=True)
class Figure:
    """One figure: what it is called, what it shows, on which GPU, and its specification."""

    name: str
    title: str
    spec: dict[str, Any]
    gpu: str = ""

    @property
    def ident(self) -> str:
        return "-".join(filter(None, ("figure", self.name, self.gpu))).replace(" ", "_")


@dataclass(frozen=True)
class Painter:
    """Draws on one GPU, with the same colours in each figure.

    `values` are those of colour, `places` those of x.
    """

    seen: Layout
    values: Sequence[str]
    places: Sequence[float]
    tips: Sequence[str]
    gpu: str

    def over(
        self, name: str, y: str, title: str, *, one: bool = False, interval: bool = False
    ) -> Figure:
        """Draw a column over x, with a line per colour.

        `one` adds a line at 1, `interval` the confidence intervals of a median time.
        """
        rest = [alt.Detail(axis, type="nominal") for axis in self.seen.filters]
        base = self._chart("points").transform_filter(_there(y))
        base = base.encode(x=self._x(), color=self._colour(), detail=rest)
        label = formats.label(y)
        axis = alt.Axis(format="~s") if label.endswith("(bytes)") else alt.Axis()
        height = alt.Y(y, type="quantitative", title=label, scale=alt.Scale(zero=True), axis=axis)
        lively = alt.selection_point(fields=[self.seen.colour], bind="legend", name="chosen")
        faint = alt.condition(lively, alt.value(1), alt.value(0.12))
        parts = []
        if self.seen.x != self.seen.colour:
            parts.append(base.mark_line(strokeWidth=1.5).encode(y=height, opacity=faint))
        if interval:
            low, high = alt.Y("ci95_lo_ms:Q", title=label), alt.Y2("ci95_hi_ms:Q")
            bars = base.transform_filter(_there("ci95_lo_ms")).mark_rule(strokeWidth=2.5)
            parts.append(bars.encode(y=low, y2=high, opacity=faint))
        dots = base.mark_point(size=55, strokeWidth=1.6, fillOpacity=1).encode(
            y=height,
            shape=self._shape(),
            fill=alt.condition("datum.doubtful", alt.value("transparent"), self._colour()),
            opacity=faint,
            tooltip=self._tips(y),
        )  # fmt: skip
        parts.append(dots.add_params(lively))
        if one:
            rule = alt.Chart(alt.InlineData([{"one": 1}])).mark_rule(strokeDash=[4, 4], color=_INK)
            parts.append(rule.encode(y="one:Q"))
        return self._figure(name, title, alt.layer(*parts))

    def stacked(self, data: str, part: str, title: str) -> Figure:
        """Draw bars of mean milliseconds at one value of x, stacked by kind, one per colour."""
        means = self._chart(data, at=True).transform_aggregate(
            ms="mean(ms)", groupby=[self.seen.colour, part]
        )
        found = means.mark_bar().encode(
            x=alt.X("ms:Q", stack="zero", title="mean ms"),
            y=alt.Y(self.seen.colour, type="nominal", title=None, sort=[*self.values]),
            color=alt.Color(part, type="nominal", scale=alt.Scale(range=_PALETTE), title=None),
            tooltip=[*_names(part, self.seen.colour), alt.Tooltip("ms:Q", format=".4~g")],
        )  # fmt: skip
        return self._figure(data, title, found, rows=2 * len(self.values))

    def slowest(self, title: str, rows: int) -> Figure:
        """Draw the times of the slowest layers at one value of x, a mark per colour."""
        found = self._chart("slowest", at=True).mark_point(size=60, filled=True).encode(
            x=alt.X("mean(ms):Q", title="mean ms", scale=alt.Scale(zero=True)),
            y=alt.Y("layer:N", title=None, sort=alt.EncodingSortField("ms", "max", "descending")),
            color=self._colour(),
            shape=self._shape(),
            tooltip=[*_names("layer", "op", self.seen.colour),
                     alt.Tooltip("mean(ms):Q", title="ms", format=".4~g")],
        )  # fmt: skip
        return self._figure("slowest", title, found, rows=rows)

    def best(self, title: str, rows: int) -> Figure:
        """Draw a map of the fastest algorithm, layer by x."""
        numbers = [alt.Tooltip(f"{n}:Q", format=".4~g") for n in ("ms", "default_ms", "gain_pct")]
        kind = "nominal" if self.seen.x == self.seen.colour else "ordinal"
        found = self._chart("best", by_colour=False).mark_rect().encode(
            x=alt.X(self.seen.x, type=kind, title=formats.label(self.seen.x),
                    axis=alt.Axis(labelOverlap=True)),
            y=alt.Y("layer:N", title=None, sort=None),
            color=self._colour(),
            tooltip=[*_names("layer", self.seen.x, self.seen.colour), *numbers],
        )  # fmt: skip
        return self._figure("best", title, found, rows=rows)

    def history(self, title: str) -> Figure:
        """Draw each configuration over the runs, its levels, and a mark where one begins."""
        rest = [alt.Detail("key:N"), *(alt.Detail(a, type="nominal") for a in self.seen.filters)]
        base = self._chart("history").encode(
            x=alt.X("run:O", title="run"), color=self._colour(), detail=rest
        )
        number = {"type": "quantitative", "scale": alt.Scale(zero=False)}
        height = alt.Y("ratio", title="time over that of the first run", **number)
        level = alt.Y("level", title="time over that of the first run", **number)
        numbers = [alt.Tooltip(f"{name}:Q", format=".4~g") for name in ("ratio", "step_pct")]
        tips = [*_names("run", "began", *self.seen.axes), *numbers]
        dots = base.mark_point(size=30, opacity=0.5).encode(y=height, tooltip=tips)
        lines = base.mark_line(interpolate="step", strokeWidth=2).encode(y=level)
        marks = base.transform_filter(_there("step_pct")).mark_point(
            shape="diamond", size=120, filled=True
        )
        return self._figure(
            "history", title, alt.layer(dots, lines, marks.encode(y=level, tooltip=tips))
        )

    def coverage(self, title: str) -> Figure:
        """Draw the share of the convolutions that ran the requested algorithm, a tick per point."""
        y = "algorithm_coverage_pct"
        ticks = self._chart("points").transform_filter(_there(y)).mark_tick(thickness=3, size=22)
        whole = alt.Scale(domain=[0, 100])
        found = ticks.encode(
            x=alt.X(y, type="quantitative", title=formats.label(y), scale=whole),
            y=alt.Y(self.seen.colour, type="nominal", title=None, sort=[*self.values]),
            color=self._colour(legend=None),
            tooltip=self._tips(y),
        )  # fmt: skip
        return self._figure("coverage", title, found, rows=2 * len(self.values))

    def roofline(self, title: str, roofs: Roofs | None, units: Sequence[str]) -> Figure:
        """Draw performance over arithmetic intensity, below the roofs where they are known."""
        log = alt.Scale(type="log")
        x = alt.X("flop_per_byte:Q", scale=log, title="FLOP/byte")
        y = alt.Y("tflops:Q", scale=log, title="TFLOP/s")
        shares = ("tflops", "flop_per_byte", "pct_of_roof")
        tips = [alt.Tooltip(f"{name}:Q", format=".4~g") for name in shares]
        marks = self._chart("roofline").mark_point(filled=True, size=50)
        style = {"color": self._colour(), "shape": self._shape()}
        dots = marks.encode(x=x, y=y, tooltip=[*_names(*self.seen.axes), *tips], **style)
        if roofs is None:
            return self._figure("roofline", title, dots)
        lines = [line for unit in units for line in _roof(roofs, unit)]
        drawn = alt.Chart(alt.InlineData(lines)).mark_line(color=_INK, strokeWidth=1.5)
        named = drawn.encode(x=x, y=y, detail="roof:N", tooltip="roof:N")
        return self._figure("roofline", title, alt.layer(named, dots))

    def _x(self) -> alt.X:
        if self.seen.x == self.seen.colour:
            return alt.X(
                self.seen.x, type="nominal", title=formats.label(self.seen.x), sort=[*self.values]
            )
        return alt.X(
            self.seen.x, type="quantitative", title=formats.label(self.seen.x),
            scale=alt.Scale(zero=False, nice=False, padding=12),
            axis=alt.Axis(values=[*self.places]) if len(self.places) <= _TICKS else alt.Axis(),
        )  # fmt: skip

    def _colour(self, **more: Any) -> alt.Color:  # noqa: ANN401 - a legend
        scale = alt.Scale(domain=[*self.values], range=_PALETTE[: len(self.values)] or _PALETTE)
        return alt.Color(self.seen.colour, type="nominal", title=None, scale=scale, **more)

    def _tips(self, y: str) -> list[alt.Tooltip]:
        texts = [axis for axis in self.seen.axes if axis != self.seen.x]
        names = dict.fromkeys((*texts, self.seen.x, y, *self.tips))
        kinds = dict.fromkeys((*texts, "flags", "point_id"), "nominal")
        return [
            alt.Tooltip(name, type=kinds.get(name, "quantitative"), title=formats.label(name),
                        **({} if name in kinds else {"format": ".6~g"}))
            for name in names
        ]  # fmt: skip

    def _shape(self) -> alt.Shape:
        return alt.Shape(self.seen.colour, type="nominal", scale=alt.Scale(domain=[*self.values]))

    def _chart(self, data: str, *, at: bool = False, by_colour: bool = True) -> alt.Chart:
        """Begin a chart of this GPU's rows that the page's controls choose."""
        chart = alt.Chart(alt.NamedData(data))
        if self.gpu:
            chart = chart.transform_filter(f"datum.gpu == {self.gpu!r}")
        for axis in [*self.seen.filters, *([self.seen.colour] if by_colour else [])]:
            chart = chart.transform_filter(f"!f_{axis} || toString(datum['{axis}']) == f_{axis}")
        if at and self.seen.x != self.seen.colour:
            chart = chart.transform_filter(f"toString(datum['{self.seen.x}']) == f_{_AT}")
        return chart

    def _figure(self, name: str, title: str, chart: Any, rows: int = 0) -> Figure:  # noqa: ANN401
        """Give a chart its size, and the parameters that the page's controls set."""
        bound = dict.fromkeys([self.seen.colour, *self.seen.filters, _AT])
        params = [alt.param(name=f"f_{axis}", value="") for axis in bound]
        where = f" on {self.gpu}" if self.gpu else ""
        spec = chart.add_params(*params).properties(
            width="container",
            height=_ROW * rows if rows else _HEIGHT,
            description=f"{title}{where}; the table of all points has the values",
            autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
        )
        return Figure(name, title, {**spec.to_dict(), "config": CONFIG}, self.gpu)


def _names(*fields: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(field, type="nominal", title=formats.label(field)) for field in fields]


def _roof(roofs: Roofs, unit: str) -> list[dict[str, Any]]:
    """Return three places of a roof: below its ridge, the ridge, above it."""
    peak, slope = roofs.peak(unit) / 1e12, roofs.bandwidth / 1e12
    name = f"{unit} {peak:.4g} TFLOP/s, {1000 * slope:.4g} GB/s"
    places = (peak / slope * factor for factor in (0.003, 1, 30))
    return [{"roof": name, "flop_per_byte": p, "tflops": min(peak, p * slope)} for p in places]


def _there(column: str) -> str:
    return f"isValid(datum['{column}'])"
