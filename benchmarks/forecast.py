"""How far forecasts are off on real GPUs: ``python -m benchmarks.forecast [FOLDER]``.

FOLDER (default: `REAL_GPU_FACTS`, or the extracts of `tests/data`) has find-dbs of MIOpen in
`miopen/`, tables in `deepbench/` and `neusight/`, and the predecessor's in `predecessor/`, unpacked
or as `.gz`. Parts are left out, learnt without, and compared: mean and median of the absolute
relative errors, beside gradient boosting on the raw columns.
`--part` runs one task alone; `--ablate` switches off each part of the model on every task.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingRegressor
from threadpoolctl import threadpool_limits

from benchmarks import replay
from hpcsweep.conv.shape import NCHW
from hpcsweep.forecast import (
    check,
    devices,
    intervals,
    layer_law,
    model,
    other_gpus,
    physics,
    training_data,
)  # fmt: skip
from hpcsweep.forecast.layer_law import Law
from hpcsweep.forecast.next_round import Why
from hpcsweep.importing import finddb, importer
from hpcsweep.importing import table as tabled
from hpcsweep.store.collect import collector as collecting
from hpcsweep.text import aligned

OWN_SHAPES = 40
ASKED_SHAPES = 3_000
Floats = NDArray[np.float64]
Row = tuple[str, ...]
SETTINGS = {"sizes": 1}
ROWS = 50_000  # that boosting learns from


def baseline(
    name: str, train: training_data.Measured, test: training_data.Measured
) -> tuple[Floats, Floats]:
    """Return what a baseline says of layers and of networks, having seen the same points.

    The sum over the layers becomes a network's time by the median of the factor between both, so
    that no baseline suffers from what happens between layers.
    """
    seen, asked = (some.every_call.fillna({"flops": 0, "bytes_min": 0}) for some in (train, test))
    again, ms = BASELINES[name](seen, asked)
    sums = pd.Series(again).groupby(seen["point_id"].to_numpy()).sum()
    factor = (train.points["total_ms"] / sums[sums > 0].reindex(train.points.index)).median()
    totals = pd.Series(ms).groupby(asked["point_id"].to_numpy()).sum().reindex(test.points.index)
    return ms, factor * totals.to_numpy(float)


def boosting(seen: pd.DataFrame, asked: pd.DataFrame) -> tuple[Floats, Floats]:
    """Return times by gradient boosting on log times, with the raw columns of the table."""
    sample = seen.sample(min(len(seen), ROWS), random_state=0)
    boosted = HistGradientBoostingRegressor(random_state=0)
    with threadpool_limits(limits=1):
        boosted.fit(raw(sample, sample), np.log(sample["ms"]))
        again, ms = (np.exp(boosted.predict(raw(rows, sample))) for rows in (seen, asked))
    return again, ms


def raw(calls: pd.DataFrame, seen: pd.DataFrame) -> pd.DataFrame:
    """Return the numbers of calls that were seen with a value, and codes for names."""
    codes = {}
    for name in ("gpu", "algorithm", "op"):
        values = sorted(seen[name].astype(str).unique())
        places = {value: place for place, value in enumerate(values)}
        codes[name] = calls[name].astype(str).map(places).astype(float)
    numbers = [name for name in training_data.WORK if seen[name].notna().any()]
    return calls[numbers].assign(**codes)


# What a prediction has to beat: each returns the times of calls that it has seen, and of others.
BASELINES: dict[str, Callable[[pd.DataFrame, pd.DataFrame], tuple[Floats, Floats]]] = {
    "gradient boosting": boosting,
}
HEADS = ("task", "what", "learnt", "asked", "forecast", *BASELINES, "90 % interval holds")


def main() -> None:
    """Print one table of all tasks, or of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("REAL_GPU_FACTS", "tests/data")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(default))
    parser.add_argument("--part", choices=PARTS, action="append")
    parser.add_argument("--ablate", action="store_true", help="switch off each part of the model")
    parser.add_argument("--seed", type=int, default=0, help="of what is left out")
    parser.add_argument("--sizes", type=int, default=1, help="of the predecessor: every so manyth")
    chosen = parser.parse_args()
    SETTINGS["sizes"] = chosen.sizes
    if chosen.ablate:
        names = chosen.part or [name for name in PARTS if name != "until-error"]
        heads = ("task", "what", *(f"without {name}" for name in SWITCHES))
        print("\n".join(aligned([heads, *ablate(chosen.folder, names, chosen.seed)])))
        return
    rows: list[Row] = []
    for name in chosen.part or PARTS:
        for row in PARTS[name](chosen.folder, chosen.seed):
            print("; ".join(row), flush=True)
            rows.append((*row, *[""] * (len(HEADS) - len(row))))
    print("\n".join(aligned([HEADS, *rows])))


def find_dbs(folder: Path) -> pd.DataFrame:
    """Return the float32 forward rows of all find-dbs, the best solver of each algorithm."""
    rows = []
    for path in sorted((folder / "miopen").glob("*.fdb.txt*")):
        gpu = finddb.gpu_of(path.name)
        for row in finddb.read_rows(path, gpu, Counter()):
            if (row["dtype"], row["direction"], row["memory_format"]) == (
                "float32",
                "forward",
                NCHW,
            ):
                key = f"{path.name} {row['unique_key']}"
                rows.append({**row, "unique_key": key, "ms": row["median_ms"]})
    found = pd.DataFrame(rows)
    found = found.loc[found.groupby(["unique_key", "algorithm"])["ms"].idxmin()]
    found = found.assign(
        setting="", model="find-db", algorithm_used=found["algorithm"], point_id="all"
    )
    return physics.prepared(found.reset_index(drop=True))


def split(rows: pd.DataFrame, share: float, seed: int) -> NDArray[np.bool_]:
    """Return which rows are of a random share of all shapes."""
    shapes = np.array(sorted(set(rows["unique_key"])), object)
    drawn = np.random.default_rng(seed).permutation(shapes)
    return rows["unique_key"].isin(drawn[: round(share * len(shapes))]).to_numpy()


def judged(task: str, train: pd.DataFrame, test: pd.DataFrame, own: str) -> tuple[Row, Floats]:
    """Return the row of one split (errors, what an interval from other parts holds), and times."""
    began = time.monotonic()
    said = Law(train).times(test)
    seconds = time.monotonic() - began
    factor = of_held_out(train, own)
    points = pd.DataFrame({"total_ms": [1.0]}, index=["all"])
    seen, asked = (training_data.Measured(points, part) for part in (train, test))
    true = test["ms"].to_numpy(float)
    others = [errors(true, baseline(rival, seen, asked)[0]) for rival in BASELINES]
    holds = float(intervals.held(true, said, factor).mean())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    what = f"layers, {seconds:.0f} s, {peak:.1f} GB"
    row = (task, what, f"{len(train):,}", f"{len(test):,}", errors(true, said), *others,
           f"{100 * holds:.1f} %")  # fmt: skip
    return row, said


def of_held_out(train: pd.DataFrame, own: str) -> float:
    """Return the interval's factor: the errors at shapes of a GPU that the fit had not seen."""
    few = train["gpu"].eq(own).to_numpy() if own else np.ones(len(train), bool)
    found = []
    parts = 2 if few.sum() < 1_000 else 1
    for seed in range(parts):
        out = few & split(train, 0.25, seed)
        said = Law(train[~out]).times(train[out])
        found.append(train[out].assign(said=said))
    rows = pd.concat(found)
    wrong = np.abs(np.log(rows["ms"] / rows["said"]).to_numpy(float))
    return float(np.exp(np.quantile(wrong, min(1.0, 0.9 * (1 + 1 / len(wrong))))))


def of_left_gpus(train: pd.DataFrame, seed: int) -> float:
    """Return the interval's factor for a GPU without rows: the errors at each GPU left out."""
    true = []
    said = []
    parts = []
    for number, gpu in enumerate(sorted(set(train["gpu"]))):
        out = train["gpu"].eq(gpu).to_numpy()
        asked = train[out].sample(min(ASKED_SHAPES, out.sum()), random_state=seed)
        said.append(Law(train[~out]).times(asked))
        true.append(asked["ms"].to_numpy(float))
        parts.append(np.full(len(asked), number))
    return intervals.factor(*map(np.concatenate, (true, said, parts)))


def errors(true: Floats, said: Floats) -> str:
    """Return mean and median of the absolute relative errors."""
    wrong = 100 * np.abs(said / true - 1)
    return f"{np.nanmean(wrong):.1f} / {np.nanmedian(wrong):.1f}"


def same_gpu(folder: Path, seed: int) -> Iterator[Row]:
    """Leave out a fifth of the shapes of one GPU; learn from the rest, and from some of it."""
    rows = find_dbs(folder)
    rows = rows[rows["gpu"].str.contains("gfx1030")]
    out = split(rows, 0.2, seed)
    gpu = str(rows["gpu"].iloc[0])
    yield judged("a fifth of the shapes left out", rows[~out], rows[out], gpu)[0]
    some = split(rows, 0.01, seed + 1) & ~out
    yield judged("the same from some 600 rows", rows[some], rows[out], gpu)[0]


def new_gpu(folder: Path, seed: int) -> Iterator[Row]:
    """Learn a GPU from the others and a few shapes of its own; choose its algorithms."""
    rows = find_dbs(folder)
    for name in ("gfx908", "gfx906"):
        mine = rows["gpu"].str.contains(name).to_numpy()
        shapes = np.random.default_rng(seed).permutation(sorted(set(rows["unique_key"][mine])))
        few = rows["unique_key"].isin(shapes[:OWN_SHAPES]).to_numpy()
        asked = rows["unique_key"].isin(shapes[OWN_SHAPES:][:ASKED_SHAPES]).to_numpy()
        gpu = str(rows["gpu"][mine].iloc[0])
        train = rows[~mine | few]
        test = rows[asked]
        task = f"{name} from the others and {few.sum()} own rows"
        row, said = judged(task, train, test, gpu)
        yield row
        loss = slowdown(test.assign(said=said))
        yield (f"{name}, its algorithm chosen", "mean slowdown", "", "", f"{loss:.1f} %")
        said = Law(rows[~mine]).times(test)
        true = test["ms"].to_numpy(float)
        factor = of_left_gpus(rows[~mine], seed)
        holds = (
            f"{100 * intervals.held(true, said, factor).mean():.1f} % (a factor of {factor:.1f})"
        )
        what = (
            f"{name} without a row of its own",
            "layers",
            f"{(~mine).sum():,}",
            f"{len(test):,}",
        )
        yield (*what, errors(true, said), *[""] * len(BASELINES), holds)


def slowdown(rows: pd.DataFrame) -> float:
    """Return by how many percent the chosen algorithms are slower than the best ones."""
    groups = rows.groupby("unique_key")
    several = rows[groups["algorithm"].transform("size") > 1].groupby("unique_key")
    chosen = rows.loc[several["said"].idxmin()].set_index("unique_key")["ms"]
    return float(100 * (chosen / several["ms"].min() - 1).mean())


def four_gpus(folder: Path, seed: int) -> Iterator[Row]:
    """Learn four fifths of the shapes of all GPUs at once."""
    rows = find_dbs(folder)
    out = split(rows, 0.2, seed)
    yield judged("a fifth of all GPUs' shapes left out", rows[~out], rows[out], "")[0]


def tables(paths: Iterable[Path], columns: str) -> pd.DataFrame:
    """Return the float32 forward rows of tables, read by a shipped map of their columns."""
    known = tabled.read_columns(columns)
    rows = []
    for path in paths:
        for number, row in enumerate(tabled.read_rows(path, known, "", Counter())):
            if (row["dtype"], row["direction"]) == ("float32", "forward"):
                rows.append({**row, "unique_key": f"{path.name} {number}"})
    found = pd.DataFrame(rows).rename(columns={"median_ms": "ms"})
    return physics.prepared(
        found.assign(setting="", model=columns, point_id="all", algorithm="auto")
    )


def left_gpus(rows: pd.DataFrame, name: str) -> Iterator[Row]:
    """Leave out each GPU of some tables."""
    points = pd.DataFrame({"total_ms": [1.0]}, index=["all"])
    for gpu in sorted(set(rows["gpu"])):
        out = rows["gpu"].eq(gpu).to_numpy()
        seen, asked = (training_data.Measured(points, rows[some]) for some in (~out, out))
        true = rows["ms"][out].to_numpy(float)
        said = Law(rows[~out]).times(rows[out])
        others = [errors(true, baseline(rival, seen, asked)[0]) for rival in BASELINES]
        holds = 100 * intervals.held(true, said, intervals.UNKNOWN).mean()
        what = (f"{name}, {gpu} left out", "layers", f"{(~out).sum()}", f"{out.sum()}")
        yield (*what, errors(true, said), *others, f"{holds:.1f} % (a factor of 4)")


def deepbench(folder: Path, _seed: int) -> Iterator[Row]:
    """Leave out one of three NVIDIA GPUs with some 90 convolutions each."""
    yield from left_gpus(
        tables([folder / "deepbench" / "convolutions.csv"], "deepbench"), "DeepBench"
    )


def neusight(folder: Path, _seed: int) -> Iterator[Row]:
    """Leave out each NVIDIA GPU with thousands of convolutions, whose algorithm nobody is told."""
    rows = tables(sorted((folder / "neusight").glob("*.csv*")), "neusight")
    unknown = rows.assign(algorithm_used=np.nan, ran="-")
    yield from left_gpus(unknown, "NeuSight")


@cache
def imported(folder: Path) -> training_data.Measured:
    """Return the predecessor's tables as the program reads them; of its sizes every `--sizes`th."""
    with tempfile.TemporaryDirectory() as scratch:
        plain = Path(scratch) / "tables"
        plain.mkdir()
        for path in (folder / "predecessor").rglob("*.csv*"):
            read = gzip.open if path.suffix == ".gz" else Path.open
            with read(path, "rb") as file:
                (plain / path.name.removesuffix(".gz")).write_bytes(file.read())
        sweep_dir = importer.bring(Path(scratch), plain, "predecessor").sweep_dir
        collecting.collect(sweep_dir)
        measured = training_data.read_sweeps([sweep_dir])
    sizes = sorted(set(measured.points["input_size"]))[:: SETTINGS["sizes"]]
    return measured.of(measured.points[measured.points["input_size"].isin(sizes)])


def one_network(folder: Path, _seed: int) -> Iterator[Row]:
    """Learn a GPU from another one and one network of its own."""
    measured = imported(folder)
    points = measured.points
    for gpu, name in sorted(set(zip(points["gpu"], points["model"], strict=True))):
        there = points["gpu"].eq(gpu)
        own = points["model"].eq(name)
        seen, asked = (measured.of(points[some]) for some in (~there | own, there & ~own))
        learnt = model.fit(seen)
        times = learnt.times(asked.calls)
        task = f"predecessor, {gpu} from another GPU and {name}"
        true = asked.calls["ms"].to_numpy(float)
        yield task, "layers", "", f"{len(times):,}", errors(true, times["ms"].to_numpy(float))
        said = learnt.totals(asked.points, times)
        true = asked.points["total_ms"].to_numpy(float)
        yield task, "totals", "", f"{len(said):,}", errors(true, said)


def left_out(kind: str) -> Callable[[Path, int], Iterator[Row]]:
    """Return a task that leaves out all parts of a kind of the predecessor's tables."""

    def task(folder: Path, _seed: int) -> Iterator[Row]:
        measured = imported(folder)
        left = check.leave_out(measured, kind)
        if left is None:
            return
        rivals = by_rivals(measured, kind)
        for what, table, ms in (("layers", left.calls, "ms"), ("totals", left.points, "total_ms")):
            true = table[ms].to_numpy(float)
            said = [errors(true, table[intervals.OWN].to_numpy(float))]
            said += [errors(true, of[what]) for of in rivals.values()]
            held = np.concatenate([_held(part, others, what) for _, part, others in left.parts()])
            holds = f"{100 * held.mean():.1f} %"
            yield (f"predecessor, a {kind} left out", what, "", f"{len(table):,}", *said, holds)

    return task


def by_rivals(measured: training_data.Measured, kind: str) -> dict[str, dict[str, Floats]]:
    """Return what each baseline says of the layers and totals that are left out, in their order."""
    said: dict[str, dict[str, Floats]] = {}
    for name in BASELINES:
        parts = [baseline(name, train, test) for _, train, test in check.folds(measured, kind)]
        layers, totals = (np.concatenate(of) for of in zip(*parts, strict=True))
        said[name] = {"layers": layers, "totals": totals}
    return said


def _held(part: intervals.LeftOut, others: intervals.LeftOut, what: str) -> Floats:
    widths = intervals.calibrate(others)
    own = intervals.OWN
    rows = part.calls if what == "layers" else part.points
    width = widths.of_layers(rows) if what == "layers" else widths.of_points(rows)
    ms = rows["ms" if what == "layers" else "total_ms"]
    return intervals.held(ms.to_numpy(float), rows[own].to_numpy(float), width)


def until_error(folder: Path, seed: int) -> Iterator[Row]:
    """Let `--until-error 3%` choose among the sizes of networks, and of parts of them."""
    totals = pd.read_csv(next((folder / "predecessor").glob("combined_overall.csv*")))
    for what, table in (("networks", totals), ("a third of layers", replay.sums(folder, seed))):
        ended = replay.rounds(table, 0.03)
        reached = ended["why"].eq(Why.REACHED)
        good = ended["mean"].le(0.03)
        yield (
            f"--until-error 3%, {len(ended)} groups: {what}", "sizes measured, mean", "", "",
            f"{ended['sizes'].mean():.1f}",
        )  # fmt: skip
        for name, said in (("said to be within 3 %", reached), ("said not to be", ~reached)):
            by_median = ended["median"][said].le(0.03).sum()
            within = f"{(good & said).sum()} are by the mean, {by_median} by the median"
            yield (f"  groups {name}", f"{said.sum()}", "", "", within)
        even = (replay.evenly(table, 12) <= 0.03).mean()
        yield ("  a curve through 12 even sizes", "within 3 %", "", "", f"{even:.0%}")


PARTS: dict[str, Callable[[Path, int], Iterator[Row]]] = {
    "same-gpu": same_gpu,
    "new-gpu": new_gpu,
    "four-gpus": four_gpus,
    "network": left_out("network"),
    "size": left_out("size"),
    "gpu": left_out("gpu"),
    "one-network": one_network,
    "deepbench": deepbench,
    "neusight": neusight,
    "until-error": until_error,
}


def _zeros(_self: object, rows: pd.DataFrame) -> Floats:
    return np.zeros(len(rows))


off = mock.patch.object
# the parts of the model that can be switched off
SWITCHES: dict[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "nothing": contextlib.nullcontext,
    "all but physics": partial(off, layer_law, "_FEWEST", np.inf),
    "other GPUs, of few rows": partial(off, layer_law, "_RICH", np.inf),
    "physics, of no row": partial(off, other_gpus, "_OF_PHYSICS", 0.0),
    "what shows of rates": partial(off, devices, "_COMMON", np.inf),
    "own costs between layers": partial(off, model, "_OWN_NETWORKS", np.inf),
    "own sizes": partial(off, model.Forecast, "_errors_nearby", _zeros),
}


def ablate(folder: Path, parts: Iterable[str], seed: int) -> list[Row]:
    """Return the errors of each task with each part of the model switched off."""
    found: dict[tuple[str, str], list[str]] = {}
    no_width = mock.Mock(return_value=1.0)
    with (
        mock.patch.dict(BASELINES, clear=True),
        mock.patch.dict(globals(), of_held_out=no_width, of_left_gpus=no_width),
    ):
        for name in parts:
            for switch, of_switch in SWITCHES.items():
                with of_switch():
                    for task, what, _, _, said, *_ in PARTS[name](folder, seed):
                        errors = found.setdefault((task, what.split(",", 1)[0]), [])
                        errors.append(said)
                        print(task, what, f"without {switch}", said, sep="; ", flush=True)
    return [(*task, *errors) for task, errors in found.items()]


if __name__ == "__main__":
    main()
