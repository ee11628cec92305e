"""Reads what a prediction learns from: the measured points of sweeps, and their layer calls.

Only inference is modelled. Points whose times are in doubt (`valid` is false) teach nothing. What
another program measured (the flag `foreign`) does: its convolutions, as those of another GPU.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Final

import pandas as pd

from hpcsweep.analysis import dataset, merged, reliability
from hpcsweep.catalog import AXES, INFERENCE, WORKLOADS, Role
from hpcsweep.catalog.columns import FOREIGN, IMPOSSIBLE, cell
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

OTHER: Final = "__other__"
OTHERS: Final = ", foreign"  # after the name of a GPU that was measured here, too
# After the setting of points of which convolutions alone have times; the timer of these follows.
ALONE: Final = ", alone: "
POINT: Final = ("model", "input_size", "batch_size", "algorithm", "gpu", "dtype", "setting")
# The axes that have no column of their own in `POINT` and may change a time.
SETTINGS: Final = tuple(
    name
    for name, axis in AXES.items()
    if name not in POINT
    and not axis.role & (Role.NUMBERS | Role.REPETITION)
    and INFERENCE.name in axis.workloads
)
# The columns that say what a call works on.
WORK: Final = (
    "batch_size", "in_channels", "out_channels", "in_h", "in_w", "out_h", "out_w", "kernel_h",
    "kernel_w", "stride_h", "dilation_h", "groups", "params", "flops", "bytes_min",
)  # fmt: skip
_NEEDED: Final = (*WORK[: WORK.index("stride_h")], "flops")  # what no convolution is without
_TEXTS: Final = ("layer", "op", "unique_key", "algorithm_used", "direction", "layer_timer")
_CELLS: Final[Mapping[str, Any]] = {
    "point_id": str, "call_index": "int32",
    **dict.fromkeys(_TEXTS, "category"), **dict.fromkeys((*WORK, "median_ms"), "float64"),
}  # fmt: skip
_OF_POINT: Final = [name for name in POINT if name != "batch_size"]  # a call has its own
_CONVOLUTION: Final = r"conv(_?transpose|relu)?[123]d|convolution"
CONTROLS: Final = ("gpu", "started_at", "control_ms")


@dataclass(frozen=True)
class Measured:
    """Points (`total_ms`, perhaps `energy_j`) and layer calls (`ms`).

    Calls repeat the cells of their point. `foreign` are convolutions that other programs measured.
    """

    points: pd.DataFrame
    layers: pd.DataFrame
    doubtful: int = 0
    notes: tuple[str, ...] = ()
    controls: pd.DataFrame = field(default_factory=partial(pd.DataFrame, columns=CONTROLS))
    foreign: pd.DataFrame = field(default_factory=partial(pd.DataFrame, columns=POINT))
    sources: tuple[str, ...] = ()  # the sweeps

    def controls_of(self, gpus: Collection[str]) -> list[float]:
        """Return the times of the control on some GPUs, the oldest first."""
        rows = self.controls[self.controls["gpu"].isin(gpus)].sort_values("started_at")
        return rows["control_ms"].tolist()

    @property
    def own_files(self) -> dict[str, str]:
        """Digests of the own files of each network that has some."""
        return dict(self.points[["model", "own_files"]].dropna().to_numpy())

    @cached_property
    def calls(self) -> pd.DataFrame:
        """The calls of layers, without the rest of each pass."""
        return self.layers[self.layers["op"] != OTHER]

    @cached_property
    def every_call(self) -> pd.DataFrame:
        """The calls of layers, and the convolutions of others."""
        return pd.concat([self.calls, self.foreign]) if len(self.foreign) else self.calls

    @property
    def gpus(self) -> set[str]:
        """The GPUs of points, and those of foreign convolutions."""
        return {*self.points["gpu"], *self.foreign["gpu"]}

    def of(self, points: pd.DataFrame) -> Measured:
        """Return these points and their layer calls, beside the convolutions of others."""
        layers = self.layers[self.layers["point_id"].isin(points.index)]
        return replace(self, points=points, layers=layers)


def read_sweeps(runs: Iterable[SweepDir]) -> Measured:
    """Return what was measured in sweeps; a point that several sweeps have counts once.

    Raises:
        UsageError: a sweep has no tables, or nothing to learn from.
    """
    return _together([_read(run) for run in runs])


def read_all(results: Path, runs: Iterable[SweepDir]) -> Measured:
    """Return what those sweeps of a folder teach that teach something.

    Raises:
        UsageError: none does.
    """
    parts = []
    for run in runs:
        with suppress(UsageError, ResultsError):  # another sweep need not be in order
            parts.append(_read(run))
    if not parts:
        raise UsageError(
            f"{results.absolute()}: no sweep to learn from: none has inference points with layer "
            "rows (measure: {layers: true}) and times without doubt"
        )
    measured = _together(parts)
    return replace(measured, notes=(f"learnt from {', '.join(measured.sources)}", *measured.notes))


def _read(sweep_dir: SweepDir) -> Measured:
    """Return what a sweep teaches.

    Points are also those of others, which are `foreign`; calls lack the cells of their points.
    """
    data = dataset.read_dataset(sweep_dir)
    calls = _calls(sweep_dir)
    learning = [name for name, workload in WORKLOADS.items() if not workload.infers]
    rows = data.rows[~data.rows["workload"].isin(learning)].set_index("point_id")
    rows = rows.astype({"median_ms": float})
    is_good = rows["valid"] == "true"
    is_known = _is_known(calls)
    all_known = is_known.groupby(calls["point_id"]).all()
    own = is_good & rows.index.isin(all_known.index[all_known]) & _positive(rows["median_ms"])
    unknown = int((is_good & ~own & rows.index.isin(all_known.index)).sum())

    foreign = reliability.flagged(rows, {FOREIGN}) & ~reliability.flagged(rows, {IMPOSSIBLE})
    of_others = calls["point_id"].isin(rows.index[foreign]) & is_known & convolve(calls)
    of_others &= calls["direction"] == "forward"
    foreign &= rows.index.isin(calls.loc[of_others, "point_id"].unique())

    notes = data.of_earlier_files()
    if unknown:
        without = f"{count(unknown, 'point')} with a layer whose time or shape is not known"
        notes.append(f"{sweep_dir.name}: left out: {without}")
    if not (own.any() or foreign.any()):
        why = (
            f"{sweep_dir.overall}: no inference point with layer rows and times without doubt; a "
            "prediction learns from layers (measure: {layers: true})"
        )
        raise UsageError("; ".join([why, *notes]))
    controls = rows.loc[is_good].reindex(columns=[*CONTROLS, "device_name"])
    alone = _alone(calls).reindex(rows.index, fill_value="").mask(foreign, "")
    points = rows.reindex(columns=[*POINT, "device_name", "energy_j", "own_files"])
    points = points.astype({"energy_j": float}).assign(
        setting=setting(rows) + alone,
        total_ms=rows["median_ms"],
        source=sweep_dir.name,
        foreign=foreign,
    )
    return Measured(
        points[own | foreign],
        calls[calls["point_id"].isin(rows.index[own]) | of_others],
        int((~is_good & ~foreign).sum()),
        tuple(notes),
        controls.astype({"control_ms": float}).dropna(subset=CONTROLS),
        sources=(sweep_dir.name,),
    )


def _together(parts: Sequence[Measured]) -> Measured:
    """Return what several sweeps teach, the same in any order; equal points count once."""
    parts = sorted(parts, key=lambda part: part.sources)
    points = pd.concat([part.points for part in parts])
    controls = pd.concat([part.controls for part in parts])
    points, controls = dataset.products_apart(points, controls)
    calls = pd.concat([part.layers for part in parts], ignore_index=True)
    points = points[~points.index.duplicated()]
    calls = calls.drop_duplicates(["point_id", "call_index"])
    calls = calls.join(points[_OF_POINT].astype("category"), on="point_id")
    calls = calls.astype(dict.fromkeys(_TEXTS, "category"))
    is_foreign = points.pop("foreign")
    of_others = calls["point_id"].isin(points.index[is_foreign])
    own, layers = _once(points[~is_foreign], calls[~of_others])
    return Measured(
        own,
        layers,
        sum(part.doubtful for part in parts),
        tuple(note for part in parts for note in part.notes),
        controls,
        _beside({*own["gpu"]}, calls[of_others]),
        tuple(name for part in parts for name in part.sources),
    )


def _once(points: pd.DataFrame, calls: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return repeated measurements (other seeds, other visits) as one point with median times."""
    number = points.groupby([*POINT], dropna=False).ngroup()
    medians = points.groupby(number)[["total_ms", "energy_j"]].transform("median")
    points = points.assign(**medians)[~number.duplicated()]
    same = [calls["point_id"].map(number), "call_index"]
    calls = calls.assign(ms=calls.groupby(same)["ms"].transform("median"))
    return points, calls[calls["point_id"].isin(points.index)]


def _beside(gpus: Collection[str], foreign: pd.DataFrame) -> pd.DataFrame:
    """Return foreign rows; those of a GPU that was measured here, too, are of another one.

    Others time in another way, such as kernels alone: how these relate to own times is learnt.
    """
    names = foreign["gpu"].astype(str)
    return foreign.assign(gpu=names.where(~names.isin(gpus), names + OTHERS))


def convolve(calls: pd.DataFrame) -> pd.Series[bool]:
    """Say which calls are convolutions; a block of the user's may be called `ConvBlock`."""
    ops = calls["op"].astype("category")
    names = ops.cat.categories.astype(str)  # a dozen, of a million calls
    return ops.isin(names[names.str.fullmatch(_CONVOLUTION)])


def _is_known(calls: pd.DataFrame) -> pd.Series[bool]:
    """Say of which calls a model knows what it needs: the time, and of convolutions the shape."""
    is_known = _positive(calls["ms"])
    is_other = ~convolve(calls)
    for name in _NEEDED:
        is_known &= _positive(calls[name]) | is_other
    return is_known


def _positive(cells: pd.Series[float]) -> pd.Series[bool]:
    return cells.gt(0) & cells.lt(math.inf)


def setting(points: pd.DataFrame) -> pd.Series[str]:
    """Return the axes that are not modelled, as one text: they must agree with what was seen.

    A table that is older than an axis was measured with its default.
    """
    rows = points.reindex(columns=[*SETTINGS]).itertuples(index=False, name=None)
    texts = [",".join(map(_setting_cell, SETTINGS, cells)) for cells in rows]
    return pd.Series(texts, points.index, dtype=object)


def _setting_cell(name: str, value: Any) -> str:  # noqa: ANN401 - a cell
    """Return a cell as a point's own value would be written: a column with gaps holds floats."""
    if pd.isna(value):
        return cell(AXES[name].default)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _alone(calls: pd.DataFrame) -> pd.Series[str]:
    """Return how the layers of points without a row but of convolutions were timed.

    Such a time is not that of a call in a pass, and what lies between is all else of the network.
    """
    others = calls.loc[~convolve(calls), "point_id"].unique()
    timers = calls.groupby("point_id")["layer_timer"].first().drop(others)
    return ALONE + timers.astype(object).fillna("convolutions")  # imported tables name no timer


def ways(points: pd.DataFrame) -> list[str]:
    """Return what follows settings: "" where layers were timed in passes, else how they were."""
    endings = [setting.partition(ALONE) for setting in points["setting"].unique()]
    return sorted({mark + timer for _, mark, timer in endings}) or [""]


def of_passes(settings: pd.Series[str]) -> pd.Series[str]:
    """Return settings without how layers were timed."""
    return settings.str.replace(f"{ALONE}.*", "", regex=True)


def with_times(calls: pd.DataFrame) -> pd.DataFrame:
    """Return those calls that have a time of their own in such a setting: convolutions, or all."""
    return calls[~calls["setting"].str.contains(ALONE, regex=False) | convolve(calls)]


def _calls(sweep_dir: SweepDir) -> pd.DataFrame:
    """Return the columns of layer rows that are needed, and no more: there may be a million."""
    path = sweep_dir.layers
    try:
        table = pd.read_csv(path, usecols=_CELLS.__contains__, dtype=_CELLS)
    except (ValueError, TypeError, OSError) as error:  # pandas' parser errors are ValueErrors
        merged.read_table(path, sweep_dir.name)  # says where, and what to do
        again = f"run `hpcsweep collect {sweep_dir.name}` again"
        raise UsageError(f"{path}: {error}; {again}") from None
    table = table.reindex(columns=[*_CELLS]).rename(columns={"median_ms": "ms"})
    return table[table["layer_timer"] != "plans"]  # tried beside what the point ran
