"""Reads what a prediction learns from: the measured points of sweeps, and their layer calls.

Only inference is modelled. Points whose times are in doubt (`valid` is false) teach nothing. What
another program measured (the flag `foreign`) does: its convolutions, as those of another GPU.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pandas as pd

from hpcsweep.analysis import dataset, merged, reliability
from hpcsweep.catalog import AXES, INFERENCE, WORKLOADS, Role
from hpcsweep.catalog.columns import FOREIGN, cell
from hpcsweep.catalog.limits import IMPOSSIBLE
from hpcsweep.errors import ResultsError, UsageError
from hpcsweep.store.folders import SweepDir
from hpcsweep.text import count

OTHER: Final = "__other__"
OTHERS: Final = ", foreign"  # after the name of a GPU that was measured here, too
# After the setting of points of which convolutions alone have times: how these were taken.
ALONE: Final = (", isolated", ", batched", ", convolutions")
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
_OF_POINT: Final = ["model", "input_size", "algorithm", "gpu", "dtype"]
_CONVOLUTION: Final = r"conv(_?transpose|relu)?[123]d|convolution"
_TEXTS: Final = ("layer", "op", "unique_key", "algorithm_used", "direction")
CONTROLS: Final = ("gpu", "started_at", "control_ms")
_REPEATED: Final = ["model", "algorithm", "gpu", "dtype", "setting", *_TEXTS]


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
    foreign: pd.DataFrame | None = None
    sources: tuple[str, ...] = ()  # the sweeps

    def controls_of(self, gpus: Collection[str]) -> list[float]:
        """Return the times of the control on some GPUs, the oldest first."""
        rows = self.controls[self.controls["gpu"].isin(gpus)].sort_values("started_at")
        return list(map(float, rows["control_ms"]))

    @property
    def own_files(self) -> dict[str, str]:
        """Digests of the own files of each network that has some."""
        return dict(self.points[["model", "own_files"]].dropna().to_numpy())

    @property
    def calls(self) -> pd.DataFrame:
        """The calls of layers, without the rest of each pass."""
        return self.layers[self.layers["op"] != OTHER]

    def of(self, points: pd.DataFrame) -> Measured:
        """Return these points and their layer calls."""
        layers = self.layers[self.layers["point_id"].isin(points.index)]
        return Measured(points, layers, foreign=self.foreign)

    @property
    def every_call(self) -> pd.DataFrame:
        """The calls of layers, and the convolutions of others."""
        return self.calls if self.foreign is None else pd.concat([self.calls, self.foreign])

    @property
    def foreign_number(self) -> int:
        return 0 if self.foreign is None else len(self.foreign)

    @property
    def gpus(self) -> set[str]:
        """The GPUs of points, and those of foreign convolutions."""
        return {*self.points["gpu"], *(() if self.foreign is None else self.foreign["gpu"])}


def read_sweeps(runs: Iterable[SweepDir]) -> Measured:
    """Return what was measured in sweeps; a point that several sweeps have counts once.

    Raises:
        UsageError: a sweep has no tables, or nothing to learn from.
    """
    return together([_read(run) for run in runs])


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
    measured = together(parts)
    return replace(measured, notes=(f"learnt from {', '.join(measured.sources)}", *measured.notes))


def together(parts: Sequence[Measured]) -> Measured:
    """Return several measurements as one, the same in any order; equal points count once."""
    parts = _products_apart(sorted(parts, key=lambda part: part.sources))
    points = pd.concat([part.points for part in parts])
    layers = pd.concat([part.layers for part in parts], ignore_index=True)
    mixed = _mixed(points)
    again = points.index.duplicated()
    if again.any():
        points = points[~again]
        layers = layers.drop_duplicates(["point_id", "call_index"])
    layers[_REPEATED] = layers[_REPEATED].astype("category")
    foreign = [part.foreign for part in parts if part.foreign is not None]
    return _once(Measured(
        points,
        layers,
        sum(part.doubtful for part in parts),
        (*(note for part in parts for note in part.notes), *mixed),
        pd.concat([part.controls for part in parts]),
        _beside({*points["gpu"]}, pd.concat(foreign, ignore_index=True)) if foreign else None,
        tuple(name for part in parts for name in part.sources),
    ))  # fmt: skip


def _products_apart(parts: Sequence[Measured]) -> list[Measured]:
    """Return measurements in which each value of `gpu` is one product."""
    tables = dataset.products_apart(
        *(part.points for part in parts), *(part.controls for part in parts)
    )
    apart = []
    for part, points, controls in zip(parts, tables, tables[len(parts) :], strict=False):
        layers = part.layers
        if points is not part.points:
            layers = layers.assign(gpu=layers["point_id"].map(points["gpu"]))
        apart.append(replace(part, points=points, layers=layers, controls=controls))
    return apart


def _beside(gpus: Collection[str], foreign: pd.DataFrame) -> pd.DataFrame:
    """Return foreign rows; those of a GPU that was measured here, too, are of another one.

    Others time in another way, such as kernels alone: how these relate to own times is learnt.
    """
    names = foreign["gpu"].astype(str)
    return foreign.assign(gpu=names.where(~names.isin(gpus), names + OTHERS))


def _mixed(points: pd.DataFrame) -> list[str]:
    """Return a line where sweeps were measured with other versions of one network of one's own."""
    pairs = points[["model", "own_files"]].drop_duplicates()
    models = pairs["model"][pairs["model"].duplicated() & pairs["model"].str.contains(":")]
    several = ", ".join(models.unique())
    return [f"the sweeps were measured with other versions of {several}"] if several else []


def _once(measured: Measured) -> Measured:
    """Return repeated measurements (other seeds, other sweeps) as one point with median times."""
    points = measured.points
    layers = measured.layers
    same = points.assign(place=range(len(points))).groupby(list(POINT), dropna=False)
    first = pd.Series(points.index[same["place"].transform("min")], points.index)
    if (first == points.index).all():
        return measured
    figures = [name for name in ("total_ms", "energy_j") if name in points]
    points = points.assign(**same[figures].transform("median"))[first == points.index]
    calls = layers.assign(point_id=layers["point_id"].map(first))
    calls = calls.groupby(["point_id", "call_index"], sort=False)
    layers = calls.first().assign(ms=calls["ms"].median()).reset_index()
    return replace(measured, points=points, layers=layers)


def _read(sweep_dir: SweepDir) -> Measured:
    data = dataset.read_dataset(sweep_dir)
    rows = data.rows
    others = [name for name, workload in WORKLOADS.items() if not workload.infers]
    inference = rows[~rows["workload"].isin(others)].set_index("point_id")
    good = inference[inference["valid"] == "true"]
    every = _layers(sweep_dir)
    alone = _alone(every, every.pop("layer_timer"))
    foreign = _foreign(inference, every)
    usable = _usable(good, every)
    with_layers = usable.index.isin(every["point_id"].unique())
    unknown = int((~usable & with_layers).sum())
    points = good[usable]
    layers = every[every["point_id"].isin(points.index)]
    if points.empty and foreign is None:
        why = f" ({count(unknown, 'point')} with a layer whose time or shape is not known)"
        raise UsageError(
            f"{sweep_dir.overall}: no inference point with layer rows and times without doubt; a "
            f"prediction learns from layers (measure: {{layers: true}}){why if unknown else ''}"
        )
    table = points.reindex(columns=[*_OF_POINT, "device_name"]).assign(
        batch_size=points["batch_size"],
        setting=setting(points) + alone.reindex(points.index, fill_value=""),
        total_ms=points["median_ms"].astype(float),
        energy_j=points["energy_j"].astype(float) if "energy_j" in points else math.nan,
        source=sweep_dir.name,
        own_files=points.get("own_files", math.nan),
    )
    layers = layers.join(table[[*_OF_POINT, "setting"]], on="point_id")
    controls = good.reindex(columns=[*CONTROLS, "device_name"]).astype({"control_ms": float})
    controls = controls.dropna(subset=CONTROLS)
    doubtful = len(inference) - len(good)
    if foreign is not None:
        doubtful -= foreign["point_id"].nunique()
    notes = [*data.of_earlier_files()]
    if unknown:
        notes.append(
            f"{sweep_dir.name}: {count(unknown, 'point')} left out: no time or shape of a layer"
        )
    return Measured(table, layers, doubtful, tuple(notes), controls, foreign, (sweep_dir.name,))


def _alone(layers: pd.DataFrame, timers: pd.Series[str]) -> pd.Series[str]:
    """Return, of points without a row but of convolutions, the ending of `ALONE`.

    Such a time is not that of a call in a pass, and what lies between is all else of the network.
    """
    others = layers.loc[~convolve(layers), "point_id"]
    of_points = timers.groupby(layers["point_id"]).first().drop(others.unique()).astype(str)
    endings = ", " + of_points
    return endings.where(endings.isin(ALONE), ALONE[-1])


def convolve(calls: pd.DataFrame) -> pd.Series[bool]:
    """Say which calls are convolutions; a block of the user's may be called `ConvBlock`."""
    return calls["op"].astype(str).str.fullmatch(_CONVOLUTION)


def _foreign(points: pd.DataFrame, layers: pd.DataFrame) -> pd.DataFrame | None:
    """Return the convolutions of a forward pass that another program measured; None for none."""
    theirs = points[
        reliability.flagged(points, {FOREIGN}) & ~reliability.flagged(points, {IMPOSSIBLE})
    ]
    calls = layers[layers["point_id"].isin(theirs.index) & layers["direction"].eq("forward")]
    calls = calls[_whole(calls) & convolve(calls)]
    if calls.empty:
        return None
    table = theirs[_OF_POINT].assign(setting=setting(theirs))
    return calls.join(table, on="point_id")


def _usable(points: pd.DataFrame, layers: pd.DataFrame) -> pd.Series[bool]:
    """Say of which points everything is known that a model needs: their times, and all layers'."""
    good = _whole(layers)
    whole = good.groupby(layers["point_id"]).all().reindex(points.index, fill_value=False)
    return whole & _positive(points["median_ms"].astype(float))


def _whole(layers: pd.DataFrame) -> pd.Series[bool]:
    """Say of which calls the time is known, and of convolutions the shape."""
    good = _positive(layers["ms"])
    convolves = convolve(layers)
    for name in _NEEDED:
        good &= _positive(layers[name]) | ~convolves
    return good


def _positive(cells: pd.Series[float]) -> pd.Series[bool]:
    return cells.gt(0) & cells.lt(math.inf)


def setting(points: pd.DataFrame) -> pd.Series[str]:
    """Return the axes that are not modelled, as one text: they must agree with what was seen.

    A table that is older than an axis was measured with its default.
    """
    if points.empty:
        return pd.Series("", points.index, dtype=object)
    cells = [
        points[name].map(partial(_cell, AXES[name].default))
        if name in points
        else pd.Series(cell(AXES[name].default), points.index)
        for name in SETTINGS
    ]
    texts = [",".join(row) for row in zip(*cells, strict=True)]
    return pd.Series(texts, points.index)


def ways(points: pd.DataFrame) -> list[str]:
    """Return how the layers of points were timed: "" in their passes, else of `ALONE`."""
    settings = points["setting"]
    alone = [way for way in ALONE if settings.str.endswith(way).any()]
    return alone if alone and settings.str.endswith(ALONE).all() else ["", *alone]


def of_passes(settings: pd.Series[str]) -> pd.Series[str]:
    """Return settings without how layers were timed."""
    return settings.str.replace(f"(?:{'|'.join(ALONE)})$", "", regex=True)


def with_times(calls: pd.DataFrame) -> pd.DataFrame:
    """Return those calls that have a time of their own in such a setting: convolutions, or all."""
    return calls[~calls["setting"].str.endswith(ALONE) | convolve(calls)]


def _cell(default: Any, value: Any) -> str:  # noqa: ANN401 - a cell
    """Return a cell as a point's own value would be written: a column with gaps holds floats."""
    if pd.isna(value):
        return cell(default)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _layers(sweep_dir: SweepDir) -> pd.DataFrame:
    """Return the columns that are needed, and no more: there may be a million rows."""
    if not sweep_dir.layers.exists():
        raise UsageError(
            f"{sweep_dir.layers}: not there yet; run `hpcsweep collect {sweep_dir.name}` first"
        )
    kinds: dict[str, Any] = {"point_id": str, "call_index": "int32"}
    kinds |= dict.fromkeys((*_TEXTS, "layer_timer"), "category")
    numbers: dict[str, Any] = dict.fromkeys((*WORK, "median_ms"), "float64")
    names = {*kinds, *numbers}
    try:
        table = pd.read_csv(
            sweep_dir.layers, usecols=lambda name: name in names, dtype={**kinds, **numbers}
        )
    except (ValueError, TypeError, OSError) as error:  # pandas' parser errors are ValueErrors
        merged.read_table(sweep_dir.layers, sweep_dir.name)  # says where
        raise UsageError(
            f"{sweep_dir.layers}: {error}; run `hpcsweep collect {sweep_dir.name}` again"
        ) from None
    table = table.reindex(columns=list(names))
    table = table[table["layer_timer"] != "plans"]  # tried beside what the point ran
    return table.rename(columns={"median_ms": "ms"})
